// The keys of a device, each declared once (sim/base/key.h).
#pragma once

#include <vector>

#include "hardware/device.h"
#include "sim/base/key.h"

namespace foretrain {

using DeviceKey = Key<DeviceSpec, DeviceSpec>;

/// Keys of section `cluster.device`, as a device's file and `cluster.device` have them.
const std::vector<DeviceKey>& device_keys();

}  // namespace foretrain

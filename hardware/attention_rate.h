// How fast fused attention runs where there is enough of it: curves of measured rates.
#pragma once

#include <optional>

#include "hardware/device.h"
#include "hardware/kernel_constants.h"

namespace foretrain {

/// The kernel that curves are of, and the rate over that of this kernel.
struct KnownKernel {
  AttentionKernel kernel = AttentionKernel::kFlash;
  double relative = 1;
};
KnownKernel known_kernel(const AttentionConstants& constants, AttentionKernel kernel,
                         bool backward);

/// Widths of heads that the kernel computes: of its own ones the next that holds them.
struct PaddedWidths {
  std::int64_t keys = 0, values = 0;
};
PaddedWidths padded_widths(const AttentionConstants& constants, const Attention& work);

/// Seconds for one query-key pair of one head on the curves' device with all SMs busy, at `length`
/// keys. A curve says how long a pair of its width takes; between widths time is linear in the
/// FLOPs of the padded heads, up to heads of 64 it is that of 64, and beyond the widest in
/// proportion. Where values are narrower than keys the curves of such heads count besides, but no
/// longer than values as wide as keys. Nothing where the kernel has no curves.
std::optional<double> seconds_per_pair(const AttentionConstants& constants, const Attention& work,
                                       AttentionKernel kernel, bool causal, double length);

/// This device's rate over that of the curves' device: peaks, power where it bounds them (1 where
/// it is not known), and forward, where exponentials bound it, their rate.
double device_rate(const DeviceSpec& device, const AttentionConstants& constants, bool backward);

/// The part of device_rate that power makes.
double rate_by_power(const DeviceSpec& device, const AttentionConstants& constants);

}  // namespace foretrain

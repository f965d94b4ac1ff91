// Whether this process may have ranks beside its own, as far as that shows before CUDA starts.
#pragma once

#include <cstdint>
#include <string>

namespace foretrain {

/// `launched`: ranks that a launcher started, 0 where none did; then ranks may be threads, one a
/// device: `visible` is CUDA_VISIBLE_DEVICES, "" where it is not set, else `devices` count.
bool may_have_peers(std::int64_t launched, const std::string& visible, int devices);

/// GPUs that have a file in the folder: nvidia0, nvidia1 and so on.
int count_device_files(const std::string& folder);

}  // namespace foretrain

// Exports of Nsight Systems: SQLite databases that `nsys export --type sqlite` writes.
#pragma once

#include <string>
#include <vector>

#include "traces/activity.h"

namespace foretrain {

/// One trace for each GPU whose kernels the file holds: tables CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY,
/// _MEMSET and _RUNTIME, StringIds, NVTX_EVENTS, TARGET_INFO_GPU. Only the first is needed. Steps
/// are NVTX ranges whose texts begin with the name of steps; phases are told by NVTX ranges around
/// the launches. The file does not say how many ranks there are.
///
/// Errors name the file and the table or column that is missing, or what SQLite says.
Result<std::vector<ActivityTrace>> read_nsight(const std::string& path,
                                               const ActivityOptions& options);

}  // namespace foretrain

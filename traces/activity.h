// What a profiler saw of one rank: kernels, copies and memsets on a GPU, the steps they belong to,
// and what the host was doing when it launched them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/result.h"
#include "traces/kernel_families.h"

namespace foretrain {

enum class HostPhase : std::uint8_t { kUnknown, kForward, kBackward, kOptimizer, kCount };
/// "other", "forward", "backward", "optimizer".
std::string_view name_of(HostPhase phase);

/// A kernel, copy or memset. Times are nanoseconds of the profiler's clock.
struct GpuEvent {
  std::int64_t begin = 0, end = 0;
  std::int64_t launched = -1;  ///< when the host launched it; -1: not known
  std::uint32_t name = 0;      ///< index into ActivityTrace::names
  std::int32_t detail = -1;    ///< index into ActivityTrace::details
  std::int32_t call = -1;      ///< the same of all that one call of an operator launched
  std::uint16_t stream = 0;
  HostPhase phase = HostPhase::kUnknown;
};

/// The operands of what launched a kernel, as PyTorch writes them with `record_shapes`.
struct LaunchDetail {
  std::string op;        ///< "aten::mm"
  std::string dims;      ///< "[[4096,1024],[1024,512]]"
  std::string types;     ///< "[\"c10::BFloat16\",...]"
  std::string strides;   ///< like `dims`; "" in older traces
  std::string concrete;  ///< values of scalars, in their places; "" in older traces
  bool operator==(const LaunchDetail&) const = default;
};

struct StepWindow {
  std::int64_t begin = 0, end = 0;
};

struct KernelName {
  std::string name;
  KernelClass of;
};

/// One rank, or one GPU of a process with several.
struct ActivityTrace {
  std::string source;  ///< the file
  std::string device;  ///< "NVIDIA H100 80GB HBM3"; "" where the file does not say
  std::int64_t rank = -1, world_size = 0;  ///< -1, 0: not known
  std::vector<KernelName> names;
  std::vector<LaunchDetail> details;
  std::vector<GpuEvent> events;   ///< sorted by begin
  std::vector<StepWindow> steps;  ///< as annotated, sorted; none: no annotations
  std::vector<std::string> notes;
};

struct ActivityOptions {
  bool details = false;                     ///< keep shapes of what launched kernels
  std::string step_name = "ProfilerStep#";  ///< annotations that begin so are steps
  /// Told now and then (bytes read, bytes of the file); may be empty.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

}  // namespace foretrain

// Any bytes are a trace of PyTorch's profiler or refused with a message; a step of what was read
// has an owner at every instant.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/compare/comparison.h"
#include "traces/kineto.h"

namespace foretrain {
namespace {

void check(std::string_view text, bool gpu_steps) {
  ByteStream bytes = ByteStream::of(text, "fuzz");
  ActivityOptions how;
  how.details = true;
  Result<std::vector<ActivityTrace>> traces = read_kineto(bytes, how);
  if (!traces.ok()) {
    FT_CHECK(!traces.error().message.empty(), "an error without a message");
    return;
  }
  SideOptions options;
  options.shapes = options.timeline = true;
  options.gpu_steps = gpu_steps;
  Result<Side> side = side_of(std::move(traces).value(), SideKind::kKineto, options);
  if (!side.ok()) return;
  const StepTimes& time = side.value().time;
  double sum = time.idle_s;
  for (const auto& entry : time.families) sum += entry.second.exposed_s;
  const double off = sum - time.step_s;
  FT_CHECK(off <= 1e-9 * time.step_s && off >= -1e-9 * time.step_s, "families do not add up");
  (void)profile_of(side.value(), "h100-sxm-80gb", "fuzz");
  const Comparison found = compare_sides(std::move(side).value(), std::nullopt);
  FT_CHECK(!comparison_text(found).empty(), "no text");
  FT_CHECK(!dump_json(comparison_json(found)).empty(), "no JSON");
}

}  // namespace
}  // namespace foretrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  foretrain::check(text, false);
  foretrain::check(text, true);
  return 0;
}

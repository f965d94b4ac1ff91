// Any RUN either resolves or is refused with a message. Small ones are lowered, and must then be
// well-formed.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "models/lower.h"
#include "sim/program/verify.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

/// Small enough that lowering and checking take milliseconds.
bool small(const Run& run) {
  return run.cluster.accelerators <= 64 && run.model.layers <= 16 &&
         run.plan.microbatches() * run.plan.virtual_pipeline <= 32 && run.plan.pipeline <= 16 &&
         run.plan.bucket_elements >= parameter_count(run.model) / 64;
}

void check(std::string_view text) {
  const Result<Json> json = parse_json(text, "fuzz");
  if (!json.ok()) return;
  const Result<Run> run = resolve_run(json.value(), "fuzz", {});
  if (!run.ok()) {
    FT_CHECK(!run.error().message.empty(), "an error without a message");
    return;
  }
  if (!small(run.value())) return;
  const Status status = verify(lower(run.value().model, run.value().plan));
  FT_CHECK(status.ok(), status.ok() ? "" : status.error().message.c_str());
}

}  // namespace
}  // namespace foretrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  foretrain::check({reinterpret_cast<const char*>(data), size});
  return 0;
}

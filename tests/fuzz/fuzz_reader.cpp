// Any document is read by one reader of files, FORETRAIN_FUZZED, or refused with a message.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "hardware/cluster.h"
#include "hardware/profile.h"
#include "models/architecture/model.h"
#include "models/architecture/model_type.h"
#include "models/schedule/schedule.h"
#include "sim/base/json.h"
#include "sim/campaign/reliability.h"
#include "sim/campaign/request.h"

namespace foretrain {
namespace {

template <typename T>
void check(const Result<T>& read) {
  FT_CHECK(read.ok() || !read.error().message.empty(), "an error without a message");
}

[[maybe_unused]] void cluster(const Json& json) { check(read_cluster(json, "fuzz", "/cluster")); }
[[maybe_unused]] void device(const Json& json) { check(read_device(json, "fuzz", "")); }
[[maybe_unused]] void model(const Json& json) { check(read_model(json, "fuzz", "")); }
[[maybe_unused]] void model_type(const Json& json) { check(read_model_type(json, "fuzz")); }
[[maybe_unused]] void campaign(const Json& json) {
  check(read_campaign(json, "fuzz", "/campaign"));
}
[[maybe_unused]] void reliability(const Json& json) {
  JobUnits job;
  job.nodes = 64;
  check(read_reliability(json, "fuzz", "", job));
}

/// What is read is written, and read again the same.
[[maybe_unused]] void profile(const Json& json) {
  const Result<Profile> read = read_profile(json, "fuzz");
  check(read);
  if (!read.ok()) return;
  const Json written = to_json(read.value());
  const Result<Profile> again = read_profile(written, "fuzz");
  FT_CHECK(again.ok() && to_json(again.value()) == written, "a profile that changes when written");
}

[[maybe_unused]] void schedule(const Json& json) {
  Plan plan;
  plan.pipeline = 2;
  check(read_schedule_file(json, "fuzz", plan));
}

void run(std::string_view text) {
  const Result<Json> json = parse_json(text, "fuzz");
  check(json);
  if (json.ok()) FORETRAIN_FUZZED(json.value());
}

}  // namespace
}  // namespace foretrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  foretrain::run(text);
  return 0;
}

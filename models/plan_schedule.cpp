#include "models/plan_schedule.h"

#include <algorithm>

#include "models/schedule.h"

namespace foretrain {
namespace {

std::string text(std::int64_t v) { return std::to_string(v); }

void check_chunks(JsonReader& run, const Plan& p) {
  if (p.virtual_pipeline > 1 && p.pipeline == 1) {
    return run.fail("parallel/virtual_pipeline", "needs pipeline > 1");
  }
  if (p.schedule == Schedule::kZbV) {
    if (p.pipeline == 1) return run.fail("schedule", "zb-v needs pipeline > 1");
    if (p.virtual_pipeline != 2) {
      run.fail("schedule",
               "zb-v has two chunks a stage, found virtual_pipeline " + text(p.virtual_pipeline));
    }
    return;
  }
  if (p.schedule == Schedule::kInterleaved && p.virtual_pipeline > 1 &&
      p.microbatches() % p.pipeline != 0) {
    return run.fail("batch/global", text(p.microbatches()) +
                                        " microbatches per rank are not a multiple of pipeline " +
                                        text(p.pipeline) + ", as interleaved-1f1b needs");
  }
  const bool chunks = p.schedule == Schedule::kInterleaved || p.schedule == Schedule::kFile;
  if (p.virtual_pipeline > 1 && !chunks) {
    run.fail("schedule", "virtual_pipeline " + text(p.virtual_pipeline) +
                             " needs the interleaved-1f1b schedule");
  }
}

}  // namespace

void read_schedule(JsonReader& run, Plan& plan) {
  static const std::vector<std::string> names = {
      "gpipe",   "1f1b", "interleaved-1f1b",       "zb-h1",
      "zb-h2",   "zb-v", "a path to a .json file", "dualpipe",
      "chimera", "bfs",  "1f1b-interlaced",        "3f1b"};
  const Json* json = run.take("schedule");
  plan.schedule = plan.virtual_pipeline > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  if (json == nullptr) return;
  if (const std::string* name = json->string(); name != nullptr && name->ends_with(".json")) {
    plan.schedule = Schedule::kFile;
    plan.schedule_file = *name;
    return;
  }
  int choice = static_cast<int>(plan.schedule);
  run.read_choice("schedule", choice, names);
  if (choice > static_cast<int>(Schedule::kFile)) {
    return run.fail("schedule", "found " + describe(*json) + ", which is not modelled yet",
                    ErrorKind::kUnsupported);
  }
  plan.schedule = static_cast<Schedule>(choice);
  if (plan.schedule == Schedule::kFile) {
    return run.fail("schedule", "found " + describe(*json) + ", expected the file's own path");
  }
  if (plan.schedule == Schedule::kZbV && plan.virtual_pipeline == 1) plan.virtual_pipeline = 2;
}

void check_schedule(JsonReader& run, Plan& plan) {
  check_chunks(run, plan);
  if (run.failed()) return;
  if (plan.schedule == Schedule::kFile) {
    auto passes = read_schedule_file(plan.schedule_file, plan);
    if (!passes.ok()) return run.adopt(passes.error());
    plan.passes = std::move(passes.value());
  }
  if (plan.splits_backward() && plan.by_units()) {
    run.fail("schedule",
             "separate passes for gradients of weights with sharded gradients or parameters are "
             "not modelled yet",
             ErrorKind::kUnsupported);
  }
}

}  // namespace foretrain

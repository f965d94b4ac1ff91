#include "models/plan/plan_schedule.h"

#include <algorithm>

#include "models/plan/plan_reading.h"
#include "models/plan/request.h"
#include "models/schedule/schedule.h"

namespace foretrain {

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"gpipe",
                                                 "1f1b",
                                                 "interleaved-1f1b",
                                                 "zb-h1",
                                                 "zb-h2",
                                                 "zb-v",
                                                 "zb-auto",
                                                 "dualpipe",
                                                 "dualpipev",
                                                 "chimera",
                                                 "bfs",
                                                 "1f1b-interlaced",
                                                 "1f1b-vocab-1",
                                                 "1f1b-vocab-2",
                                                 "3f1b",
                                                 "a path to a .json file"};
  return names;
}

namespace {

constexpr std::int64_t kRecyclingForwards = 3;  ///< what the name says

/// zb-v and dualpipev have two chunks a stage, a file's V may turn again; a second pipeline up the
/// stages has its own.
void check_placed(JsonReader& run, const Plan& p) {
  const bool v = p.placement() == ChunkPlacement::kV;
  const std::string name = name_of(p);
  if (p.pipeline == 1) return run.fail("schedule", name + " needs pipeline > 1");
  const bool any = v && p.schedule == Schedule::kFile;
  if (!any && p.virtual_pipeline != (v ? 2 : 1)) {
    const std::string rest = v ? "" : ": its two chunks a stage are no virtual ones";
    return run.fail("schedule", name + " needs virtual_pipeline " + (v ? "2" : "1") + ", found " +
                                    text(p.virtual_pipeline) + rest);
  }
  const std::int64_t m = p.microbatches();
  if (!v && (p.pipeline % 2 != 0 || m % 2 != 0)) {
    return run.fail("schedule", name + " has a pipeline in each direction: pipeline " +
                                    text(p.pipeline) + " and " + text(m) +
                                    " microbatches per rank must both be even");
  }
  const bool dual = p.schedule == Schedule::kDualPipe || p.schedule == Schedule::kDualPipeV;
  if (dual && m < 2 * p.pipeline) {
    run.fail("schedule", name + " needs at least twice as many microbatches per rank as stages, " +
                             text(2 * p.pipeline) + ", found " + text(m));
  }
}

void check_chunks(JsonReader& run, const Plan& p) {
  if (p.placement() != ChunkPlacement::kRound) return check_placed(run, p);
  if (p.virtual_pipeline > 1 && p.pipeline == 1) {
    return run.fail("parallel/virtual_pipeline", "needs pipeline > 1");
  }
  if (p.splits_backward() && p.pipeline == 1 && p.schedule != Schedule::kFile) {
    return run.fail("schedule", name_of(p) + " needs pipeline > 1: without one it has no bubble");
  }
  if (p.schedule == Schedule::kInterleaved && p.virtual_pipeline > 1 &&
      p.microbatches() % p.pipeline != 0) {
    return run.fail("batch/global", text(p.microbatches()) +
                                        " microbatches per rank are not a multiple of pipeline " +
                                        text(p.pipeline) + ", as interleaved-1f1b needs");
  }
  const bool chunks = p.schedule == Schedule::kInterleaved ||
                      p.schedule == Schedule::kBreadthFirst || p.schedule == Schedule::kFile;
  if (p.virtual_pipeline > 1 && !chunks) {
    run.fail("schedule", "virtual_pipeline " + text(p.virtual_pipeline) +
                             " needs interleaved-1f1b, bfs, a V (zb-v, dualpipev: virtual_pipeline "
                             "2) or a file");
  }
}

/// What a copy of the parameters on a second stage does not go with.
void check_copies(JsonReader& run, const Model& model, const Plan& p) {
  if (p.ways() == 1) return;
  const auto refuse = [&run, &p](const char* place, const std::string& what) {
    run.fail(
        place,
        what + " not modelled with the two copies of the parameters that " + name_of(p) + " keeps",
        ErrorKind::kUnsupported);
  };
  if (model.tied_embeddings) return refuse("schedule", "a tied embedding is");
  if (p.by_units()) return refuse("sharding/level", "sharded gradients are");
  if (p.shard_group > 0) return refuse("sharding/group_size", "groups of shards are");
  if (p.buckets.inner_group > 1) return refuse("gradients/inner_group", "groups within groups are");
}

/// What a vocabulary on all stages does not go with.
void check_shared_vocabulary(JsonReader& run, const Model& model, const Plan& p) {
  if (!p.shares_vocabulary()) return;
  const auto refuse = [&run, &p](const char* place, const std::string& what) {
    run.fail(place, what + " with the vocabulary on all stages (" + name_of(p.schedule) + ")",
             ErrorKind::kUnsupported);
  };
  if (p.pipeline == 1) return run.fail("schedule", name_of(p.schedule) + " needs pipeline > 1");
  if (p.in_grid()) return refuse("parallel/tensor_mode", "grids are not modelled");
  if (model.masked > 0 || model.predict_layers > 0 || model.is_encoder_decoder()) {
    return refuse("schedule",
                  "masked tokens, encoder-decoders and multi-token prediction are not "
                  "modelled");
  }
  if (p.by_units()) return refuse("sharding/level", "sharded gradients are not modelled");
  if (p.reduces_each_pass()) {
    refuse("gradients", "reducing gradients with every microbatch is not modelled");
  }
}

/// What forward passes that keep nothing do not go with.
void check_recycling(JsonReader& run, const Model& model, const Plan& p) {
  if (p.forwards == 1) return;
  const auto refuse = [&run](const char* place, const std::string& what) {
    run.fail(place, what + " not modelled with 3f1b", ErrorKind::kUnsupported);
  };
  if (model.is_network()) return refuse("schedule", "a model of layers is");
  if (model.is_encoder_decoder()) return refuse("schedule", "an encoder-decoder is");
  if (model.predict_layers > 0) return refuse("schedule", "multi-token prediction is");
  if (p.overlap.passes) return refuse("overlap/passes", "passes that run as one are");
}

/// Of some that are given the others take 1 us, a message no time.
void derive_durations(const ScheduleRequest& asked, AutoSchedule& out) {
  out.given = asked.forward_us || asked.input_gradients_us || asked.weight_gradients_us ||
              asked.transfer_us;
  out.forward = Time::from_us(asked.forward_us.value_or(1));
  out.input_gradients = Time::from_us(asked.input_gradients_us.value_or(1));
  out.weight_gradients = Time::from_us(asked.weight_gradients_us.value_or(1));
  out.transfer = Time::from_us(asked.transfer_us.value_or(0));
}

/// Keys of other schedules.
void check_schedule_keys(JsonReader& run, const ScheduleRequest& asked, Schedule schedule) {
  const std::string name = name_of(schedule);
  const auto refuse = [&](const char* key, bool given, bool known) {
    if (given && !known) run.fail(std::string("schedule/") + key, "is no key of " + name);
  };
  const bool recycles = schedule == Schedule::kRecycling;
  const bool fits = fits_durations(schedule);
  refuse("forwards", asked.forwards.has_value(), recycles);
  refuse("activations", asked.activations.has_value(), schedule == Schedule::kZbAuto);
  refuse("weight_share", asked.weight_share.has_value(), schedule == Schedule::kZbAuto);
  refuse("forward_us", asked.forward_us.has_value(), fits);
  refuse("input_gradients_us", asked.input_gradients_us.has_value(), fits);
  refuse("weight_gradients_us", asked.weight_gradients_us.has_value(), fits);
  refuse("transfer_us", asked.transfer_us.has_value(), fits);
}

}  // namespace

std::string name_of(Schedule schedule) {
  return schedule_names()[static_cast<std::size_t>(schedule)];
}

std::string name_of(const Plan& plan) {
  return plan.schedule == Schedule::kFile ? plan.schedule_file : name_of(plan.schedule);
}

/// zb-v and dualpipev have no others.
void two_chunks(Plan& plan) {
  if (plan.placement() == ChunkPlacement::kV && plan.virtual_pipeline == 1) {
    plan.virtual_pipeline = 2;
  }
}

void derive_schedule(JsonReader& run, const ScheduleRequest& asked, Plan& plan) {
  const bool chunks = plan.virtual_pipeline > 1;
  plan.schedule = asked.name.value_or(chunks ? Schedule::kInterleaved : Schedule::k1F1B);
  if (!asked.text.empty()) {
    plan.schedule = Schedule::kFile;
    plan.schedule_file = asked.text;
    const Result<Json> file = read_json_file(asked.text);
    return run.adopt(file.ok() ? read_schedule_file(file.value(), asked.text, plan)
                               : Status(file.error()));
  }
  check_schedule_keys(run, asked, plan.schedule);
  if (plan.schedule == Schedule::kRecycling) {
    plan.forwards = asked.forwards.value_or(kRecyclingForwards);
  }
  plan.automatic.activations = asked.activations.value_or(plan.automatic.activations);
  plan.automatic.weight_share = asked.weight_share.value_or(plan.automatic.weight_share);
  if (asked.as_object && fits_durations(plan.schedule)) derive_durations(asked, plan.automatic);
  two_chunks(plan);
}

/// Gradients of the output matrix that wait for the last stage's cool-down.
void check_deferral(JsonReader& run, const Plan& plan) {
  if (!plan.defers_head()) return;
  const char* why = nullptr;
  if (plan.splits_backward()) why = "schedules with passes of their own for gradients of weights";
  if (plan.shares_vocabulary()) why = "a vocabulary that all stages share";
  if (plan.ways() == 2) why = "schedules with two copies";
  if (plan.by_units()) why = "sharded gradients or parameters";
  if (plan.reduces_each_pass()) why = "gradients that are reduced in every pass (no_sync false)";
  if (why == nullptr) return;
  run.fail("overlap/head_deferral", std::string("does not go with ") + why,
           ErrorKind::kUnsupported);
}

/// Norms that stages hand on.
void check_validation(JsonReader& run, const Model& model, const Plan& plan) {
  if (!plan.overlap.post_validation || plan.pipeline == 1) return;
  const char* why = nullptr;
  if (plan.ways() == 2) why = "schedules with two copies";
  if (plan.shares_vocabulary()) why = "a vocabulary that all stages share";
  if (plan.by_units()) why = "sharded gradients or parameters";
  if (plan.offload.states()) why = "offloaded states";
  if (plan.in_grid()) why = "grids";
  if (model.has_experts()) why = "experts";
  if (plan.loader_time.ps > 0) why = "host.loader_us, which ends a step for all";
  if (why == nullptr) return;
  run.fail("overlap/post_validation", std::string("does not go with ") + why,
           ErrorKind::kUnsupported);
}

void check_schedule(JsonReader& run, const Model& model, const Plan& plan) {
  check_chunks(run, plan);
  check_copies(run, model, plan);
  check_shared_vocabulary(run, model, plan);
  check_recycling(run, model, plan);
  check_deferral(run, plan);
  check_validation(run, model, plan);
  const bool whole = plan.schedule == Schedule::kFile && plan.weaves() && !plan.splits_backward();
  if (whole && (plan.by_units() || plan.offload.activation_layers > 0)) {
    run.fail("schedule",
             "passes that run as one are not modelled with sharded gradients or parameters, or "
             "with activations on the host, unless gradients of weights have passes of their own",
             ErrorKind::kUnsupported);
  }
  const char* parts = plan.overlap.tensor_slices > 1 ? "overlap.tensor_slices"
                      : plan.recompute.parts > 1     ? "recompute.co_shard"
                                                     : nullptr;
  if (plan.splits_backward() && parts != nullptr) {
    run.fail("schedule",
             std::string("separate passes for gradients of weights are not modelled with ") + parts,
             ErrorKind::kUnsupported);
  }
}

void derive_passes(JsonReader& run, const Model& model, Plan& plan) {
  if (fits_durations(plan.schedule)) plan.passes = passes_of(plan);
  if (plan.schedule == Schedule::kFile) run.adopt(check_schedule_file(model, plan));
}

}  // namespace foretrain

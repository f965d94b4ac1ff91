#include "models/plan/plan_schedule.h"

#include <algorithm>

#include "models/plan/plan_reading.h"
#include "models/schedule/schedule.h"

namespace foretrain {
namespace {

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

void read_durations(JsonReader& r, AutoSchedule& out) {
  constexpr JsonReader::Range kMicroseconds{1e-3, 1e6};
  const auto read_time = [&r, &out](const char* key, Time& time, JsonReader::Range range) {
    double us = -1;
    r.read(key, us, range);
    if (us < 0) return;
    time = Time::from_us(us);
    out.given = true;
  };
  // Of some that are given the others take 1 us, a message no time.
  out.forward = out.input_gradients = out.weight_gradients = Time::from_us(1);
  read_time("forward_us", out.forward, kMicroseconds);
  read_time("input_gradients_us", out.input_gradients, kMicroseconds);
  read_time("weight_gradients_us", out.weight_gradients, kMicroseconds);
  read_time("transfer_us", out.transfer, {0, 1e6});
}

/// {"name": "zb-auto", ...}: what the order is made for; {"name": "3f1b", "forwards": n}.
void read_object(JsonReader& run, const Json& json, Plan& plan) {
  JsonReader r(json, run.source(), run.pointer("schedule"));
  std::string name;
  r.read("name", name);
  if (name == "3f1b") {
    plan.schedule = Schedule::kRecycling;
    plan.forwards = kRecyclingForwards;
    r.read("forwards", plan.forwards, JsonReader::IntRange{1, 64});
  } else {
    int choice = static_cast<int>(Schedule::kZbAuto);
    const auto& names = schedule_names();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) choice = static_cast<int>(found - names.begin());
    plan.schedule = static_cast<Schedule>(choice);
    if (found == names.end() || !fits_durations(plan.schedule)) {
      r.fail("name",
             "found \"" + name +
                 "\", expected \"zb-auto\", \"zb-v\", \"chimera\" or \"3f1b\", the schedules "
                 "that have keys");
    }
    if (plan.schedule == Schedule::kZbAuto) {
      r.read("activations", plan.automatic.activations, JsonReader::Range{1, 1e6});
      r.read("weight_share", plan.automatic.weight_share, JsonReader::Range{0.01, 1});
    }
    read_durations(r, plan.automatic);
  }
  run.adopt(r.finish());
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

void read_schedule(JsonReader& run, Plan& plan) {
  const Json* json = run.take("schedule");
  plan.schedule = plan.virtual_pipeline > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  if (json == nullptr) return;
  if (const std::string* name = json->string(); name != nullptr && name->ends_with(".json")) {
    plan.schedule = Schedule::kFile;
    plan.schedule_file = *name;
    const Result<Json> file = read_json_file(*name);
    return run.adopt(file.ok() ? read_schedule_file(file.value(), *name, plan)
                               : Status(file.error()));
  }
  if (json->object() != nullptr) {
    read_object(run, *json, plan);
    return two_chunks(plan);
  }
  int choice = static_cast<int>(plan.schedule);
  run.read_choice("schedule", choice, schedule_names());
  plan.schedule = static_cast<Schedule>(choice);
  if (plan.schedule == Schedule::kRecycling) plan.forwards = kRecyclingForwards;
  if (plan.schedule == Schedule::kFile) {
    return run.fail("schedule", "found " + describe(*json) + ", expected the file's own path");
  }
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

void check_schedule(JsonReader& run, const Model& model, Plan& plan) {
  check_chunks(run, plan);
  if (!run.failed()) check_copies(run, model, plan);
  if (!run.failed()) check_shared_vocabulary(run, model, plan);
  if (!run.failed()) check_recycling(run, model, plan);
  if (!run.failed()) check_deferral(run, plan);
  if (!run.failed()) check_validation(run, model, plan);
  if (run.failed()) return;
  // A host that waited for its stage's passes would not reach what other stages wait for.
  if (plan.spreads_vocabulary()) plan.host_waits = HostWaits::kNone;
  if (fits_durations(plan.schedule)) plan.passes = passes_of(plan);
  if (plan.schedule == Schedule::kFile) {
    run.adopt(check_schedule_file(model, plan));
    const bool whole = plan.weaves() && !plan.splits_backward();
    if (whole && (plan.by_units() || plan.offload.activation_layers > 0)) {
      run.fail("schedule",
               "passes that run as one are not modelled with sharded gradients or parameters, or "
               "with activations on the host, unless gradients of weights have passes of their own",
               ErrorKind::kUnsupported);
    }
    if (run.failed()) return;
  }
  if (plan.splits_backward() && plan.overlap.tensor_slices > 1) {
    return run.fail("schedule",
                    "separate passes for gradients of weights are not modelled with "
                    "overlap.tensor_slices",
                    ErrorKind::kUnsupported);
  }
  if (plan.splits_backward() && plan.recompute.parts > 1) {
    return run.fail("schedule",
                    "separate passes for gradients of weights are not modelled with "
                    "recompute.co_shard",
                    ErrorKind::kUnsupported);
  }
}

}  // namespace foretrain

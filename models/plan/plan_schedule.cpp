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

constexpr std::int64_t k3F1BForwards = 3;  ///< what the name says

/// Without whole microbatches the batch is refused, and its schedule not looked at.
bool whole_microbatches(const Plan& p) {
  return p.global_batch % (p.micro_batch * p.batch_ranks()) == 0;
}

/// zb-v and dualpipev have two chunks a stage, a file's V may turn again; a second pipeline up the
/// stages has its own.
void check_placed(const Plan& p, Violations& out) {
  const bool v = p.placement() == ChunkPlacement::kV;
  const std::string name = name_of(p);
  if (p.pipeline == 1) return out.add("schedule", name + " needs pipeline > 1");
  const bool any = v && p.schedule == Schedule::kFile;
  if (!any && p.virtual_pipeline != (v ? 2 : 1)) {
    const std::string rest = v ? "" : ": its two chunks a stage are no virtual ones";
    out.add("schedule", name + " needs virtual_pipeline " + (v ? "2" : "1") + ", found " +
                            text(p.virtual_pipeline) + rest);
  }
  if (!whole_microbatches(p)) return;
  const std::int64_t m = p.microbatches();
  if (!v && (p.pipeline % 2 != 0 || m % 2 != 0)) {
    out.add("schedule", name + " has a pipeline in each direction: pipeline " + text(p.pipeline) +
                            " and " + text(m) + " microbatches per rank must both be even");
  }
  const bool dual = p.schedule == Schedule::kDualPipe || p.schedule == Schedule::kDualPipeV;
  if (dual && m < 2 * p.pipeline) {
    out.add("schedule", name + " needs at least twice as many microbatches per rank as stages, " +
                            text(2 * p.pipeline) + ", found " + text(m));
  }
}

void check_virtual(const Plan& p, Violations& out) {
  if (p.placement() != ChunkPlacement::kRound) return check_placed(p, out);
  if (p.virtual_pipeline > 1 && p.pipeline == 1) {
    out.add("parallel/virtual_pipeline", "needs pipeline > 1");
  }
  if (p.splits_backward() && p.pipeline == 1 && p.schedule != Schedule::kFile) {
    out.add("schedule", name_of(p) + " needs pipeline > 1: without one it has no bubble");
  }
  if (p.schedule == Schedule::kInterleaved && p.virtual_pipeline > 1 && whole_microbatches(p) &&
      p.microbatches() % p.pipeline != 0) {
    out.add("batch/global", text(p.microbatches()) +
                                " microbatches per rank are not a multiple of pipeline " +
                                text(p.pipeline) + ", as interleaved-1f1b needs");
  }
  const bool chunks = p.schedule == Schedule::kInterleaved ||
                      p.schedule == Schedule::kBreadthFirst || p.schedule == Schedule::kFile;
  if (p.virtual_pipeline > 1 && !chunks) {
    out.add("schedule", "virtual_pipeline " + text(p.virtual_pipeline) +
                            " needs interleaved-1f1b, bfs, a V (zb-v, dualpipev: virtual_pipeline "
                            "2) or a file");
  }
}

/// A copy of the parameters on a second stage.
void check_copies(const Model& model, const Plan& p, Violations& out) {
  if (p.directions() == 1) return;
  out.beside("a schedule that keeps two copies of the parameters (" + name_of(p) + ")",
             {{model.tied_embeddings, "schedule", "a tied embedding"},
              {p.by_units(), "sharding/level", "sharded gradients"},
              {p.shard_group > 0, "sharding/group_size", "groups of shards"},
              {p.buckets.inner_group > 1, "gradients/inner_group", "groups within groups"}});
}

/// A vocabulary on all stages.
void check_shared_vocabulary(const Model& model, const Plan& p, Violations& out) {
  if (!p.shares_vocabulary()) return;
  if (p.pipeline == 1) return out.add("schedule", name_of(p.schedule) + " needs pipeline > 1");
  out.beside("the vocabulary on all stages (" + name_of(p.schedule) + ")",
             {{p.in_grid(), "parallel/tensor_mode", "grids"},
              {model.ends.masked > 0, "schedule", "the head of masked tokens"},
              {model.predict_layers > 0, "schedule", "multi-token prediction"},
              {model.is_encoder_decoder(), "schedule", "encoder-decoders"},
              {p.by_units(), "sharding/level", "sharded gradients"},
              {p.reduces_each_pass(), "gradients", "a reduction in every microbatch"}});
}

/// Forward passes that keep nothing.
void check_recycling(const Model& model, const Plan& p, Violations& out) {
  if (p.forwards == 1) return;
  out.beside("3f1b", {{model.is_network(), "schedule", "a model of layers"},
                      {model.is_encoder_decoder(), "schedule", "an encoder-decoder"},
                      {model.predict_layers > 0, "schedule", "multi-token prediction"},
                      {p.overlap.passes, "overlap/passes", "passes that run as one"}});
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
  const bool recycles = schedule == Schedule::k3F1B;
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
  return plan.schedule == Schedule::kFile ? plan.file.path : name_of(plan.schedule);
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
    plan.file.path = asked.text;
    const Result<Json> file = read_json_file(asked.text);
    return run.adopt(file.ok() ? read_schedule_file(file.value(), asked.text, plan)
                               : Status(file.error()));
  }
  check_schedule_keys(run, asked, plan.schedule);
  if (plan.schedule == Schedule::k3F1B) {
    plan.forwards = asked.forwards.value_or(k3F1BForwards);
  }
  plan.automatic.activations = asked.activations.value_or(plan.automatic.activations);
  plan.automatic.weight_share = asked.weight_share.value_or(plan.automatic.weight_share);
  if (asked.as_object && fits_durations(plan.schedule)) derive_durations(asked, plan.automatic);
  two_chunks(plan);
}

/// Gradients of the output matrix that wait for the last stage's cool-down.
void check_deferral(const Plan& plan, Violations& out) {
  if (!plan.defers_head()) return;
  constexpr const char* kKey = "overlap/head_deferral";
  out.beside("a deferred head",
             {{plan.splits_backward(), kKey,
               "schedules with passes of their own for gradients of weights"},
              {plan.shares_vocabulary(), kKey, "a vocabulary that all stages share"},
              {plan.directions() == 2, kKey, "schedules with two copies"},
              {plan.by_units(), kKey, "sharded gradients or parameters"},
              {plan.reduces_each_pass(), kKey,
               "gradients that are reduced in every pass (no_sync false)"}});
}

/// Head and loss by parts of the tokens: what follows stands for itself there.
void check_loss_chunks(const Model& model, const Plan& plan, Violations& out) {
  if (plan.loss.chunks == 0) return;
  constexpr const char* kKey = "kernels/loss_chunks";
  if (model.is_network()) return out.add(kKey, "the model has no vocabulary: set it to 0");
  if (plan.loss.chunks > plan.tokens()) {
    out.add(kKey, "found " + text(plan.loss.chunks) + ", but a microbatch has " +
                      text(plan.tokens()) + " tokens; set it to that or less");
  }
  out.beside("a loss in chunks",
             {{plan.splits_backward(), kKey,
               "schedules with passes of their own for gradients of weights"},
              {plan.defers_head(), kKey, "overlap.head_deferral"},
              {plan.shares_vocabulary(), kKey, "a vocabulary that all stages share"},
              {plan.in_grid(), kKey, "grids"},
              {plan.precision.autocast, kKey, "kernels.autocast"},
              {plan.forwards > 1, kKey, "recycled outputs"},
              {model.biases.head, kKey, "heads with a bias"},
              {model.ends.masked > 0, kKey, "heads of masked tokens"}},
             "; set kernels.loss_chunks to 0");
}

/// Norms that stages hand on.
void check_validation(const Model& model, const Plan& plan, Violations& out) {
  if (!plan.overlap.post_validation || plan.pipeline == 1) return;
  constexpr const char* kKey = "overlap/post_validation";
  out.beside("validation after the update",
             {{plan.directions() == 2, kKey, "schedules with two copies"},
              {plan.shares_vocabulary(), kKey, "a vocabulary that all stages share"},
              {plan.by_units(), kKey, "sharded gradients or parameters"},
              {plan.offload.states(), kKey, "offloaded states"},
              {plan.in_grid(), kKey, "grids"},
              {model.has_experts(), kKey, "experts"},
              {plan.loader_time.ps > 0, kKey, "host.loader_us, which ends a step for all"}});
}

void check_schedule(const Model& model, const Plan& plan, Violations& out) {
  check_virtual(plan, out);
  check_copies(model, plan, out);
  check_shared_vocabulary(model, plan, out);
  check_recycling(model, plan, out);
  check_deferral(plan, out);
  check_loss_chunks(model, plan, out);
  check_validation(model, plan, out);
  const bool whole =
      plan.schedule == Schedule::kFile && plan.interleaves_pairs() && !plan.splits_backward();
  if (whole && (plan.by_units() || plan.offload.activation_layers > 0)) {
    out.unsupported(
        "schedule",
        "passes that run as one are not modelled with sharded gradients or parameters, or with "
        "activations on the host, unless gradients of weights have passes of their own");
  }
  out.beside(
      "a schedule with separate passes for gradients of weights",
      {{plan.splits_backward() && plan.overlap.tensor_slices > 1, "schedule",
        "overlap.tensor_slices"},
       {plan.splits_backward() && plan.recompute.parts > 1, "schedule", "recompute.co_shard"}});
}

void derive_passes(JsonReader& run, const Model& model, Plan& plan) {
  if (fits_durations(plan.schedule)) plan.passes = passes_of(plan);
  if (plan.schedule == Schedule::kFile) run.adopt(check_schedule_file(model, plan));
}

}  // namespace foretrain

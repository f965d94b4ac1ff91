#include "tools/search/step_bound.h"

#include <algorithm>
#include <memory>

#include "models/lower.h"
#include "models/plan/plan_layout.h"
#include "sim/base/key.h"
#include "sim/engine/prepared.h"
#include "sim/program/memory.h"

namespace foretrain {
namespace {

/// What a segment takes of stream 0, and whether it belongs to the forward pass.
struct SegmentTime {
  Time span;
  bool forward = true;
};

/// Collectives that do not depend on how many data-parallel ranks there are.
bool is_of_layer(Category category) {
  return category == Category::kCompute || category == Category::kTensor;
}

/// The operations of one segment alone, in the order in which they are issued: each begins when its
/// stream is free and the events of the segment that it waits for are there.
SegmentTime time_of(const Program& program, const Segment& segment, const PreparedPrices& prices) {
  SegmentTime out;
  std::vector<Time> free(program.streams.size());
  std::map<std::pair<std::int16_t, std::int16_t>, Time> events;
  bool begun = false;
  Time begin;
  for (const Op& op : segment.ops) {
    Time start = free[op.stream.index()];
    for (const EventRef& wait : op.waits) {
      const auto known = events.find({wait.frame, wait.event});
      if (known != events.end()) start = max(start, known->second);
    }
    const Cost& cost = prices.costs[op.work.index()];
    const Time end = start + (is_of_layer(op.category) ? cost.duration : Time{});
    free[op.stream.index()] = end;
    if (op.records.valid()) events[{op.records.frame, op.records.event}] = end;
    if (op.stream.index() != 0) continue;
    if (!begun) begin = start;
    begun = true;
    out.span = end - begin;
    out.forward = out.forward && (op.phase == Phase::kForward || op.phase == Phase::kInput);
  }
  return out;
}

/// Forward and backward of one microbatch on one stage, by layer and beside the layers.
struct StageTimes {
  std::vector<Time> forward, backward;
  Time ends_forward, ends_backward;
  std::vector<Bytes> saved;
};

/// Activations that the forward passes of a microbatch leave, by layer.
std::vector<Bytes> saved_of(const Program& program, const std::vector<SegmentTime>& segments,
                            std::int64_t layers, std::int32_t microbatch) {
  std::vector<Bytes> out(static_cast<std::size_t>(layers));
  for (const MemoryChange& change : memory_changes(program)) {
    const Call& call = program.calls[static_cast<std::size_t>(change.call)];
    const bool counts = call.microbatch == microbatch && call.layer >= 0 && call.layer < layers &&
                        change.kind == BufferKind::kActivations;
    if (counts && segments[call.segment.index()].forward) {
      out[static_cast<std::size_t>(call.layer)] += change.bytes;
    }
  }
  for (Bytes& bytes : out) bytes = std::max<Bytes>(bytes, 0);
  return out;
}

StageTimes times_of(const Program& program, const PreparedPrices& prices, std::int64_t layers,
                    std::int32_t microbatch) {
  std::vector<SegmentTime> segments;
  for (const Segment& segment : program.segments) {
    segments.push_back(time_of(program, segment, prices));
  }
  StageTimes out;
  out.forward.resize(static_cast<std::size_t>(layers));
  out.backward.resize(static_cast<std::size_t>(layers));
  for (const Call& call : program.calls) {
    if (call.microbatch != microbatch) continue;
    const SegmentTime& one = segments[call.segment.index()];
    const bool of_layer = call.layer >= 0 && call.layer < layers;
    const auto layer = static_cast<std::size_t>(of_layer ? call.layer : 0);
    Time& sum = one.forward ? (of_layer ? out.forward[layer] : out.ends_forward)
                            : (of_layer ? out.backward[layer] : out.ends_backward);
    sum = sum + one.span;
  }
  out.saved = saved_of(program, segments, layers, microbatch);
  return out;
}

/// The lower of two microbatches: the first may write what others add to.
StageTimes lower_of(const StageTimes& a, const StageTimes& b) {
  const auto least = [](Time x, Time y) { return x < y ? x : y; };
  StageTimes out = a;
  for (std::size_t l = 0; l < a.forward.size(); ++l) {
    out.forward[l] = least(a.forward[l], b.forward[l]);
    out.backward[l] = least(a.backward[l], b.backward[l]);
    out.saved[l] = std::min(a.saved[l], b.saved[l]);
  }
  out.ends_forward = least(a.ends_forward, b.ends_forward);
  out.ends_backward = least(a.ends_backward, b.ends_backward);
  return out;
}

template <typename Value>
void add_to(std::vector<Value>& sum, const std::vector<Value>& more) {
  sum.resize(more.size());
  for (std::size_t l = 0; l < more.size(); ++l) sum[l] = sum[l] + more[l];
}

std::int64_t least_divisor(std::int64_t of) {
  for (std::int64_t d = 2; d * d <= of; ++d) {
    if (of % d == 0) return d;
  }
  return of;
}

/// Layers before kinds repeat, and after how many they do.
struct Pattern {
  std::int64_t first = 0, period = 1;
  std::size_t place_of(std::int64_t layer) const {
    return static_cast<std::size_t>(layer < first ? layer : first + (layer - first) % period);
  }
};

/// Nothing repeats in models whose layers a list gives.
Pattern pattern_of(const Model& model) {
  if (model.is_hybrid() || !model.full_attention.empty()) return {model.layers, 1};
  if (!model.has_experts()) return {};
  return {model.experts.first_dense, model.experts.step};
}

/// Where nothing is offloaded. Optimizers but Adam keep less.
void set_parameter_bytes(const Plan& plan, LayerTimes& out) {
  if (plan.offload.states()) return;
  constexpr double kBits = 8;
  const bool adam = plan.optimizer == Optimizer::kAdam || plan.optimizer == Optimizer::kFusedAdam;
  out.weight_bytes = plan.precision.compute == DType::kBf16 ? 2 : 1;
  out.gradient_bytes = static_cast<double>(bits_of(plan.precision.gradients)) / kBits;
  out.state_bytes = adam ? 2 * sizeof(float) : 0;
}

}  // namespace

bool is_bounded(const Run& run) {
  const Plan& p = run.plan;
  const bool stack = !run.model.is_network() && !run.model.is_encoder_decoder() &&
                     run.model.predict_layers == 0 && p.forwards == 1;
  const bool round = p.schedule == Schedule::k1F1B || p.schedule == Schedule::kInterleaved ||
                     p.schedule == Schedule::kGpipe || p.schedule == Schedule::kBreadthFirst;
  const bool plain = !p.overlap.passes && p.overlap.tensor_slices == 1 && !p.in_grid();
  return stack && round && plain && p.partition == Partition::kLayers &&
         value_of_key(run.resolved, "parallel.pipeline_layout") == nullptr;
}

Json sample_of(Json run, const Degrees& degrees, const Run& seed) {
  const std::int64_t stages = degrees.pipeline == 1 ? 1 : least_divisor(degrees.pipeline);
  const std::int64_t each = degrees.tensor * degrees.context;
  const std::int64_t all = seed.cluster.accelerators / degrees.pipeline;
  std::int64_t ranks = each;
  // As few as hold the experts, and several where the plan has several.
  const auto enough = [&](std::int64_t r) {
    return r % (degrees.expert * degrees.expert_tensor) == 0 && (r > each || all == each);
  };
  while (ranks < all && (all % ranks != 0 || !enough(ranks))) ranks += each;
  set_key(run, "parallel.pipeline", Json(stages));
  set_key(run, "parallel.virtual_pipeline", Json(1));
  set_key(run, "batch.micro", Json(degrees.micro));
  set_key(run, "batch.global", Json(2 * degrees.micro * ranks / each));
  cluster_object(run).set("accelerators", Json(ranks * stages));
  run.erase("schedule");
  return run;
}

Result<LayerTimes> layer_times(Run sample) {
  const Pattern pattern = pattern_of(sample.model);
  const std::int64_t layers = sample.model.layers;
  const std::int64_t kept = pattern.first + std::max(pattern.period, 2 * sample.plan.pipeline);
  if (kept < layers) {
    sample.model.layers = kept;
    sample.plan.pipeline_layout = even_layout(sample.model, sample.plan);
  }
  const Workload workload = lower(sample.model, sample.plan);
  const std::unique_ptr<CostModel> model = cost_model_of(sample, price_options(sample));
  FT_ASSIGN(const Prepared prepared, prepare(workload, *model, false));
  LayerTimes few;
  for (std::size_t p = 0; p < workload.programs.size(); ++p) {
    const auto& actors = prepared.quotient.actors;
    std::size_t actor = 0;
    while (actors[actor].program.index() != p) ++actor;
    const PreparedPrices& prices =
        prepared.prices[static_cast<std::size_t>(prepared.prices_of[actor])];
    const auto of = [&](std::int32_t microbatch) {
      return times_of(workload.programs[p], prices, sample.model.layers, microbatch);
    };
    const StageTimes one = lower_of(of(0), of(1));
    add_to(few.forward, one.forward);
    add_to(few.backward, one.backward);
    add_to(few.saved, one.saved);
    (p == 0 ? few.first_forward : few.last_forward) = one.ends_forward;
    (p == 0 ? few.first_backward : few.last_backward) = one.ends_backward;
  }
  LayerTimes out = few;
  out.forward.clear();
  out.backward.clear();
  out.saved.clear();
  for (std::int64_t l = 0; l < layers; ++l) {
    const std::size_t place = kept < layers ? pattern.place_of(l) : static_cast<std::size_t>(l);
    out.forward.push_back(few.forward[place]);
    out.backward.push_back(few.backward[place]);
    out.saved.push_back(few.saved[place]);
  }
  set_parameter_bytes(sample.plan, out);
  return out;
}

LayerTimes with_recomputed(const LayerTimes& none, const LayerTimes& again, std::int64_t layers,
                           std::int64_t stages, const std::vector<std::int64_t>& layout) {
  LayerTimes out = none;
  std::vector<std::int64_t> left(static_cast<std::size_t>(stages), layers);
  std::size_t layer = 0;
  for (std::size_t c = 0; c < layout.size(); ++c) {
    std::int64_t& more = left[c % left.size()];
    for (std::int64_t l = 0; l < layout[c]; ++l, ++layer) {
      if (more-- <= 0) continue;
      out.backward[layer] = max(none.backward[layer], again.backward[layer]);
      out.saved[layer] = std::min(none.saved[layer], again.saved[layer]);
    }
  }
  return out;
}

double least_saved_bytes(const LayerTimes& times, const Degrees& d,
                         const std::vector<std::int64_t>& layout) {
  const auto stages = static_cast<std::size_t>(d.pipeline);
  std::vector<double> of_chunk;  // of the first stage
  std::size_t layer = 0;
  for (std::size_t c = 0; c < layout.size(); ++c) {
    double saved = 0;
    for (std::int64_t l = 0; l < layout[c]; ++l, ++layer) {
      saved += static_cast<double>(times.saved[layer]);
    }
    if (c % stages == 0) of_chunk.push_back(saved);
  }
  const std::int64_t all = d.microbatches * d.virtual_pipeline;
  const std::int64_t warm = d.virtual_pipeline == 1
                                ? d.pipeline
                                : 2 * (d.pipeline - 1) + (d.virtual_pipeline - 1) * d.pipeline + 1;
  double out = 0;
  for (std::int64_t pass = 0; pass < std::min(all, warm); ++pass) {
    out += of_chunk[static_cast<std::size_t>(pass / d.pipeline) % of_chunk.size()];
  }
  return out;
}

double least_step_s(const LayerTimes& times, const Degrees& degrees,
                    const std::vector<std::int64_t>& layout) {
  const auto stages = static_cast<std::size_t>(degrees.pipeline);
  std::vector<Time> of_stage(stages);
  std::vector<Time> of_first;  // F + B of the first chunk of every stage
  std::size_t layer = 0;
  for (std::size_t c = 0; c < layout.size(); ++c) {
    Time sum;
    for (std::int64_t l = 0; l < layout[c]; ++l, ++layer) {
      sum = sum + times.forward[layer] + times.backward[layer];
    }
    if (c == 0) sum = sum + times.first_forward + times.first_backward;
    if (c + 1 == layout.size()) sum = sum + times.last_forward + times.last_backward;
    of_stage[c % stages] = of_stage[c % stages] + sum;
    if (c < stages) of_first.push_back(sum);
  }
  double most = 0;
  Time before;
  for (std::size_t s = 0; s < stages; ++s) {
    const double busy = static_cast<double>(degrees.microbatches) * of_stage[s].seconds();
    most = std::max(most, busy + before.seconds());
    before = before + of_first[s];
  }
  return most;
}

}  // namespace foretrain

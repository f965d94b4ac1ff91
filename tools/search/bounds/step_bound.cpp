#include "tools/search/bounds/step_bound.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "models/lower.h"
#include "models/plan/layout/plan_layout.h"
#include "sim/base/key.h"
#include "sim/program/memory.h"
#include "tools/search/bounds/sharing_bound.h"

namespace foretrain {
namespace {

/// What a segment takes of stream 0, and whether it belongs to the forward pass.
struct SegmentTime {
  Time span;
  Time computed;  ///< of its operations
  Time hides;     ///< of the span, in which more communication may cost nothing
  Time host;      ///< to issue it
  bool forward = true, waits = false;
};

/// Collectives of ranks that a sample places as the plan does.
bool counts(const Op& op, Counted counted) {
  switch (op.category) {
    case Category::kCompute:
      return true;
    case Category::kTensor:
    case Category::kContext:
      return counted.exchanges;
    case Category::kExpert:
      return counted.expert_exchanges;
    default:
      return false;
  }
}

/// The operations of one segment alone, in the order in which they are issued: each begins when its
/// stream is free and the events of the segment that it waits for are there. The compute stream
/// takes no less than its operations and what communication costs them.
SegmentTime time_of(const Program& program, const Segment& segment, const std::vector<Cost>& alone,
                    Counted counted, int sm_count) {
  SegmentTime out;
  std::vector<bool> counting;
  Time exchanged;
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
    const bool takes = counts(op, counted);
    const Cost& cost = alone[op.work.index()];
    const Time end = start + (takes ? cost.duration : Time{});
    counting.push_back(takes);
    out.host += launch_of(op, cost);
    out.waits = out.waits || std::holds_alternative<HostSync>(program.works[op.work.index()]);
    free[op.stream.index()] = end;
    if (op.records.valid()) events[{op.records.frame, op.records.event}] = end;
    if (op.stream.index() != 0) {
      exchanged += end - start;
      continue;
    }
    if (!begun) begin = start;
    begun = true;
    out.span = end - begin;
    out.computed += end - start;
    out.forward = out.forward && (op.phase == Phase::kForward || op.phase == Phase::kInput);
  }
  // All of an exchange that somebody waits for may hide another one.
  const bool waited = out.computed < out.span;
  out.hides = waited ? max(out.span - out.computed, exchanged) : Time{};
  if (!counted.exchanges) return out;
  const Lost lost = least_loss(segment, alone, counting, sm_count);
  if (out.span - out.computed < lost.lost) {
    out.span = out.computed + lost.lost;
    out.hides = lost.held;
  }
  return out;
}

/// Of one microbatch on one stage, by layer and beside the layers.
struct StageTimes {
  std::vector<LayerTime> layers;
  Time ends_forward, ends_backward;
  bool waits = false;
};

/// Activations that the forward passes of a microbatch leave.
void add_saved(const Program& program, const std::vector<SegmentTime>& segments,
               std::int32_t microbatch, std::vector<LayerTime>& layers) {
  const auto count = static_cast<std::int64_t>(layers.size());
  for (const MemoryChange& change : memory_changes(program)) {
    const Call& call = program.calls[static_cast<std::size_t>(change.call)];
    const bool counts = call.microbatch == microbatch && call.layer >= 0 && call.layer < count &&
                        change.kind == BufferKind::kActivations;
    if (counts && segments[call.segment.index()].forward) {
      layers[static_cast<std::size_t>(call.layer)].saved += change.bytes;
    }
  }
  for (LayerTime& layer : layers) layer.saved = std::max<Bytes>(layer.saved, 0);
}

StageTimes times_of(const Program& program, const std::vector<SegmentTime>& segments,
                    std::int64_t layers, std::int32_t microbatch) {
  StageTimes out;
  out.layers.resize(static_cast<std::size_t>(layers));
  for (const Call& call : program.calls) {
    if (call.microbatch != microbatch) continue;
    const SegmentTime& one = segments[call.segment.index()];
    if (call.layer < 0 || call.layer >= layers) {
      (one.forward ? out.ends_forward : out.ends_backward) += one.span;
      continue;
    }
    LayerTime& layer = out.layers[static_cast<std::size_t>(call.layer)];
    (one.forward ? layer.forward : layer.backward) += one.span;
    (one.forward ? layer.host_forward : layer.host_backward) += one.host;
    out.waits = out.waits || one.waits;
  }
  add_saved(program, segments, microbatch, out.layers);
  return out;
}

/// What lives of activations and workspaces at their peak beside what so many microbatches saved.
Bytes passing_of(const Program& program, const std::vector<LayerTime>& layers, Bytes microbatches) {
  Bytes live = 0;
  Bytes most = 0;
  for (const MemoryChange& change : memory_changes(program)) {
    if (change.kind != BufferKind::kActivations && change.kind != BufferKind::kWorkspace) continue;
    live += change.bytes;
    most = std::max(most, live);
  }
  for (const LayerTime& layer : layers) most -= microbatches * layer.saved;
  return std::max<Bytes>(most, 0);
}

/// The place of the kernel of a price, added at the end if there is none.
std::size_t place_of(std::vector<PassKernel>& kernels, const Cost& cost) {
  const auto same = std::find_if(kernels.begin(), kernels.end(),
                                 [&](const PassKernel& one) { return one.cost == cost; });
  const auto place = static_cast<std::size_t>(same - kernels.begin());
  if (same == kernels.end()) kernels.push_back({cost, 0, 0});
  return place;
}

/// Adds what the kernels of a microbatch take to those that are known, the most of any layer. What
/// hides communication at no cost counts as a kernel that is free.
void add_kernels(const Program& program, const std::vector<Cost>& alone,
                 const std::vector<SegmentTime>& segments, Counted counted, std::int32_t microbatch,
                 std::vector<PassKernel>& known) {
  std::map<std::pair<std::int32_t, std::size_t>, double> seconds;  // by layer, by kernel
  std::vector<std::optional<std::size_t>> kernels(program.works.size());
  const auto kernel_of = [&](std::size_t work) {
    std::optional<std::size_t>& kernel = kernels[work];
    if (!kernel) kernel = place_of(known, alone[work]);
    return *kernel;
  };
  const std::size_t free = place_of(known, Cost());
  for (const Call& call : program.calls) {
    if (call.microbatch != microbatch) continue;
    const SegmentTime& of = segments[call.segment.index()];
    const Time waits = of.forward ? max(Time{}, of.host - of.span) : Time{};
    seconds[{std::max(call.layer, -1), free}] += (of.hides + waits).seconds();
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const std::size_t work = op.work.index();
      if (op.stream.index() != 0 || !counts(op, counted)) continue;
      seconds[{std::max(call.layer, -1), kernel_of(work)}] += alone[work].duration.seconds();
    }
  }
  for (const auto& [place, sum] : seconds) {
    PassKernel& kernel = known[place.second];
    double& most = place.first < 0 ? kernel.ends_s : kernel.layer_s;
    most = std::max(most, sum);
  }
}

/// The lower of two microbatches: the first may write what others add to.
StageTimes lower_of(const StageTimes& a, const StageTimes& b) {
  StageTimes out = a;
  for (std::size_t l = 0; l < a.layers.size(); ++l) {
    const LayerTime& other = b.layers[l];
    LayerTime& least = out.layers[l];
    least = {min(least.forward, other.forward), min(least.backward, other.backward),
             min(least.host_forward, other.host_forward),
             min(least.host_backward, other.host_backward), std::min(least.saved, other.saved)};
  }
  out.ends_forward = min(a.ends_forward, b.ends_forward);
  out.ends_backward = min(a.ends_backward, b.ends_backward);
  out.waits = a.waits && b.waits;
  return out;
}

/// Stages have different layers of one model.
void add_to(std::vector<LayerTime>& sum, const std::vector<LayerTime>& more) {
  sum.resize(more.size());
  for (std::size_t l = 0; l < more.size(); ++l) {
    sum[l].forward += more[l].forward;
    sum[l].backward += more[l].backward;
    sum[l].host_forward += more[l].host_forward;
    sum[l].host_backward += more[l].host_backward;
    sum[l].saved += more[l].saved;
  }
}

std::int64_t least_divisor(std::int64_t of) {
  for (std::int64_t d = 2; d * d <= of; ++d) {
    if (of % d == 0) return d;
  }
  return of;
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

void merge_kernels(std::vector<PassKernel>& kernels, const std::vector<PassKernel>& more) {
  for (const PassKernel& one : more) {
    PassKernel& same = kernels[place_of(kernels, one.cost)];
    same.layer_s = std::max(same.layer_s, one.layer_s);
    same.ends_s = std::max(same.ends_s, one.ends_s);
  }
}

Pattern Pattern::of(const Model& model) {
  const bool listed = !model.full_attention.empty() || !model.experts.layers.empty();
  if (model.is_hybrid() || listed) return {model.layers, 1};
  if (!model.has_experts()) return {};
  return {model.experts.first_dense, model.experts.step};
}

Result<std::vector<Cost>> costs_alone(const Workload& workload, std::size_t program,
                                      CostModel& model, const CountsOp& counts) {
  const Program& of = workload.programs[program];
  std::size_t first = 0;
  while (workload.ranks[first].program.index() != program) ++first;
  const RankBinding& rank = workload.ranks[first];
  std::vector<Cost> out(of.works.size());
  std::vector<bool> known(of.works.size());
  const auto take = [&](std::size_t w, std::span<const PlacementId> places) -> Status {
    FT_ASSIGN(out[w], model.price(of.works[w], places));
    return ok_status();
  };
  const auto price = [&](std::size_t w) -> Status {
    if (const auto* collective = std::get_if<Collective>(&of.works[w])) {
      const GroupId group = rank.groups[collective->group.index()];
      FT_ASSIGN(const PlacementId place, model.place(workload.groups[group.index()]));
      return take(w, std::span(&place, 1));
    }
    const auto* batch = std::get_if<P2PBatch>(&of.works[w]);
    if (batch == nullptr) return take(w, {});
    for (const Message& message : batch->messages) {
      const Channel& channel = workload.channels[rank.channels[message.channel.index()].index()];
      const std::array<RankId, 2> ends = {channel.source, channel.destination};
      FT_ASSIGN(const PlacementId place, model.place(ends));
      FT_ASSIGN(const Cost cost, model.price(P2PBatch{{message}}, std::span(&place, 1)));
      out[w].launch += cost.launch;
      out[w].captured += cost.captured;
      out[w].duration = max(out[w].duration, cost.duration);
    }
    return ok_status();
  };
  for (const Segment& segment : of.segments) {
    for (const Op& op : segment.ops) {
      const std::size_t w = op.work.index();
      if (known[w] || !counts(op, of.works[w])) continue;
      known[w] = true;
      FT_TRY(price(w));
    }
  }
  return out;
}

std::int64_t sample_stages(const Degrees& degrees) {
  return degrees.pipeline == 1 ? 1 : least_divisor(degrees.pipeline);
}

bool is_bounded(const Run& run) {
  const Plan& p = run.plan;
  const bool stack = !run.model.is_network() && !run.model.is_encoder_decoder() &&
                     run.model.predict_layers == 0 && p.forwards == 1;
  const bool round = p.schedule == Schedule::k1F1B || p.schedule == Schedule::kInterleaved ||
                     p.schedule == Schedule::kGpipe || p.schedule == Schedule::kBreadthFirst;
  const bool plain = !p.overlap.passes && p.overlap.tensor_slices == 1 && !p.in_grid();
  // On pools bounds hold of any division.
  const bool even = p.partition == Partition::kLayers || !run.cluster.pools.empty();
  return stack && round && plain && p.stages.empty() && even &&
         value_of_key(run.resolved, "parallel.pipeline_layout") == nullptr;
}

Json sample_of(Json run, const Degrees& degrees, const Run& seed) {
  const std::int64_t stages = sample_stages(degrees);
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
  // The first of several may write what others add to.
  const std::int64_t microbatches = std::min<std::int64_t>(2, degrees.microbatches);
  set_key(run, "batch.global", Json(microbatches * degrees.micro * ranks / each));
  cluster_object(run).set("accelerators", Json(ranks * stages));
  run.erase("schedule");
  return run;
}

Result<LayerTimes> layer_times(Run sample, Counted counted) {
  const Pattern pattern = Pattern::of(sample.model);
  const std::int64_t layers = sample.model.layers;
  const std::int64_t kept = pattern.first + std::max(pattern.period, 2 * sample.plan.pipeline);
  if (kept < layers) {
    sample.model.layers = kept;
    sample.plan.pipeline_layout = even_layout(sample.model, sample.plan);
  }
  const Workload workload = lower(sample.model, sample.plan);
  const auto microbatches = static_cast<std::int32_t>(sample.plan.microbatches());
  const std::unique_ptr<CostModel> model = cost_model_of(sample, price_options(sample));
  LayerTimes few;
  for (std::size_t p = 0; p < workload.programs.size(); ++p) {
    const Program& program = workload.programs[p];
    FT_ASSIGN(const std::vector<Cost> alone,
              costs_alone(workload, p, *model,
                          [counted](const Op& op, const Work&) { return counts(op, counted); }));
    std::vector<SegmentTime> segments;
    for (const Segment& segment : program.segments) {
      segments.push_back(time_of(program, segment, alone, counted, model->sm_count()));
    }
    const auto of = [&](std::int32_t microbatch) {
      return times_of(program, segments, sample.model.layers, microbatch);
    };
    StageTimes one = of(0);
    for (std::int32_t m = 0; m < microbatches; ++m) {
      add_kernels(program, alone, segments, counted, m, few.kernels);
      one = lower_of(one, of(m));
    }
    add_to(few.layers, one.layers);
    few.host_waits = few.host_waits || one.waits;
    const bool several = workload.programs.size() > 1;
    if (p == 0) few.passing = passing_of(program, one.layers, several ? microbatches : 1);
    (p == 0 ? few.first_forward : few.last_forward) = one.ends_forward;
    (p == 0 ? few.first_backward : few.last_backward) = one.ends_backward;
  }
  LayerTimes out = few;
  out.layers.clear();
  for (std::int64_t l = 0; l < layers; ++l) {
    const std::size_t place = kept < layers ? pattern.place_of(l) : static_cast<std::size_t>(l);
    out.layers.push_back(few.layers[place]);
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
      const LayerTime& other = again.layers[layer];
      LayerTime& of = out.layers[layer];
      of.backward = max(of.backward, other.backward);
      of.host_backward = max(of.host_backward, other.host_backward);
      of.saved = std::min(of.saved, other.saved);
    }
  }
  out.passing = std::min(none.passing, again.passing);
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
      saved += static_cast<double>(times.layers[layer].saved);
    }
    if (c % stages == 0) of_chunk.push_back(saved);
  }
  const std::int64_t all = d.microbatches * d.virtual_pipeline;
  const std::int64_t warm = d.virtual_pipeline == 1
                                ? d.pipeline
                                : 2 * (d.pipeline - 1) + (d.virtual_pipeline - 1) * d.pipeline + 1;
  double out = 0;
  out += static_cast<double>(times.passing);
  for (std::int64_t pass = 0; pass < std::min(all, warm); ++pass) {
    out += of_chunk[static_cast<std::size_t>(pass / d.pipeline) % of_chunk.size()];
  }
  return out;
}

std::vector<StageLoad> stage_loads(const LayerTimes& times, std::int64_t stages,
                                   const std::vector<std::int64_t>& layout) {
  const auto p = static_cast<std::size_t>(stages);
  std::vector<StageLoad> out(p);
  std::size_t layer = 0;
  for (std::size_t c = 0; c < layout.size(); ++c) {
    Time forward;
    Time backward;
    for (std::int64_t l = 0; l < layout[c]; ++l, ++layer) {
      const LayerTime& of = times.layers[layer];
      // The first layer's launches may begin before what is before it ends.
      const bool paced = times.host_waits && l > 0;
      forward += paced ? max(of.host_forward, of.forward) : of.forward;
      backward += of.backward;
      out[c % p].host += of.host_forward + of.host_backward;
    }
    if (c == 0) {
      forward = forward + times.first_forward;
      backward = backward + times.first_backward;
    }
    if (c + 1 == layout.size()) {
      forward = forward + times.last_forward;
      backward = backward + times.last_backward;
    }
    StageLoad& of = out[c % p];
    of.layers += layout[c];
    of.forward = of.forward + forward;
    of.backward = of.backward + backward;
    of.last_chunk_backward = backward;
    if (c >= p) continue;
    of.first_chunk = forward + backward;
    of.first_chunk_forward = forward;
  }
  return out;
}

double least_step_s(const std::vector<StageLoad>& loads, std::int64_t microbatches) {
  double most = 0;
  double fill = 0;
  for (const StageLoad& load : loads) {
    const double each = max(load.forward + load.backward, load.host).seconds();
    most = std::max(most, static_cast<double>(microbatches) * each + fill);
    fill += load.first_chunk.seconds();
  }
  return most;
}

}  // namespace foretrain

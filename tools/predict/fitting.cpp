#include "tools/predict/fitting.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "sim/base/key.h"
#include "sim/base/threads.h"
#include "tools/predict/run_notes.h"

namespace foretrain {
namespace {

/// Operations of all Programs and replays together, and changes that are tried in any case: sixteen
/// as long as they are estimated to take no more than ten seconds of a core, at least four.
constexpr std::int64_t kMostOperations = 4'000'000;
constexpr std::int64_t kLeastTries = 16;
constexpr std::int64_t kFewestTries = 4;
constexpr double kMostSeconds = 10;
constexpr std::int64_t kEnough = 3;  ///< changes alone, before pairs are tried
constexpr double kWorst = 3;         ///< times the step: what takes longer helps few

/// Changes of one kind, the mildest first; what makes a plan faster, the fastest.
using Kind = std::vector<Sets>;

/// Of `sharding.level`.
constexpr const char* kLevels[] = {"none", "optimizer", "gradients", "parameters"};

std::string place_name(Memory memory) {
  return memory == Memory::kDevice ? "none" : memory == Memory::kHost ? "cpu" : "nvme";
}

std::string set_of(const char* key, std::int64_t value) {
  return std::string(key) + "=" + std::to_string(value);
}

/// A higher level, without what of plain data parallelism's buckets does not go with it.
Sets sharded(const Run& run, const std::string& level) {
  const Plan& plan = run.plan;
  Sets out = {"sharding.level=" + level};
  const bool alone = asks(run, "/kernels/fp8_weights", Json(true));
  if (alone && level != "optimizer") out.emplace_back("kernels.fp8_weights=auto");
  if (plan.sharding != Sharding::kNone) return out;
  const GradientBuckets& b = plan.buckets;
  if (b.cut != Bucketing::kRanges) out.emplace_back("gradients.bucketing=ranges");
  if (b.copy) out.emplace_back("gradients.bucket_copy=false");
  if (b.inner_group > 1) out.emplace_back("gradients.inner_group=1");
  if (b.cycle.ps > 0) out.emplace_back("gradients.cycle_us=0");
  if (!b.last_pass_only) out.emplace_back("gradients.no_sync=true");
  if (b.compression != Compression::kNone) out.emplace_back("gradients.compression=none");
  if (b.rank != GradientBuckets{}.rank) out.emplace_back("gradients.compression_rank=0");
  return out;
}

Kind more_sharding(const Run& run) {
  const Plan& plan = run.plan;
  Kind out;
  if (plan.data == 1) return out;
  if (plan.replicas() > 1 && plan.sharding != Sharding::kNone) {
    out.push_back({"sharding.group_size=null"});
  }
  for (std::size_t level = static_cast<std::size_t>(plan.sharding) + 1; level < 4; ++level) {
    out.push_back(sharded(run, kLevels[level]));
  }
  return out;
}

Kind smaller_microbatches(const Plan& plan) {
  Kind out;
  for (const std::int64_t part : {2, 4, 8}) {
    if (plan.micro_batch % part == 0 && plan.micro_batch > part) {
      out.push_back({set_of("batch.micro", plan.micro_batch / part)});
    }
  }
  if (plan.micro_batch > 1) out.push_back({set_of("batch.micro", 1)});
  return out;
}

Kind more_ranks(const char* key, std::int64_t now, std::int64_t most) {
  Kind out;
  for (const std::int64_t times : {2, 4, 8}) {
    if (now * times <= most) out.push_back({set_of(key, now * times)});
  }
  return out;
}

/// Layers of the stage with most of them.
std::int64_t layers_of_stage(const Plan& plan) {
  return plan.chunks_of_stage() *
         *std::max_element(plan.pipeline_layout.begin(), plan.pipeline_layout.end());
}

/// A quarter, half, three quarters and all of a stage's layers, those that are different.
std::vector<std::int64_t> parts_of_stage(const Plan& plan) {
  std::vector<std::int64_t> out;
  for (const std::int64_t quarters : {1, 2, 3, 4}) {
    const std::int64_t layers = layers_of_stage(plan) * quarters / 4;
    if (layers > (out.empty() ? 0 : out.back())) out.push_back(layers);
  }
  return out;
}

/// A change of so many layers of a stage, more than so many of them.
struct OfLayers {
  std::function<Sets(std::int64_t)> sets;
  std::int64_t above = 0;
};

OfLayers recomputed_layers(const Plan& plan) {
  return {[all = layers_of_stage(plan)](std::int64_t layers) -> Sets {
    if (layers == all) return {"recompute=full"};
    return {"recompute={\"modules\":[\"layer\"],\"layers\":" + std::to_string(layers) + "}"};
  }};
}

OfLayers offloaded_layers(const Plan& plan) {
  return {[](std::int64_t layers) -> Sets { return {set_of("offload.activation_layers", layers)}; },
          plan.offload.activation_layers};
}

Kind kind_of(const OfLayers& change, const Plan& plan) {
  Kind out;
  for (const std::int64_t layers : parts_of_stage(plan)) {
    if (layers > change.above) out.push_back(change.sets(layers));
  }
  return out;
}

Kind more_recomputation(const Plan& plan) {
  return plan.recompute.layer ? Kind() : kind_of(recomputed_layers(plan), plan);
}

/// What of experts and latent attention is cheap to compute again.
Kind cheap_modules(const Run& run) {
  if (!run.model.has_experts() || run.plan.recompute.any()) return {};
  const std::string latent = run.model.is_latent() ? ",\"mla_up_proj\"" : "";
  Kind out;
  for (const char* norms : {"", ",\"layernorm\""}) {
    out.push_back({"recompute={\"modules\":[\"moe_act\"" + latent + norms + "]}"});
  }
  return out;
}

/// Segments that grow lose less to fragments, at no cost, where CUDA's allocator has them.
Kind growing_segments(const Run& run) {
  const Plan& plan = run.plan;
  const bool none = run.cluster.scale_up == ScaleUp::kTorus;
  if (none || plan.memory.planned || plan.memory.expandable_segments) return {};
  return {{"allocator.expandable_segments=true"}};
}

/// With at least so much of the states sharded. Nothing if the run has it so.
Sets offloaded(const Run& run, Sharding least, Memory optimizer, Memory parameters) {
  const Plan& plan = run.plan;
  const bool host_updates = optimizer == plan.offload.optimizer && plan.updates_on_host();
  const bool moves = parameters != plan.offload.parameters;
  Sets out;
  if (host_updates && !moves) return out;
  if (plan.sharding < least) out = sharded(run, kLevels[static_cast<std::size_t>(least)]);
  if (!host_updates) out.push_back("offload.optimizer=" + place_name(optimizer));
  if (moves) out.push_back("offload.parameters=" + place_name(parameters));
  return out;
}

/// States to the host, then to storage, with so much sharded: their gradients added up on the
/// device (one data rank needs no sharding for it) or not; of parameters with the shards of these
/// where they are or, then, on the host too.
Kind offloading(const Run& run, Sharding least) {
  const Offload& now = run.plan.offload;
  Kind out;
  for (const Memory optimizer : {Memory::kHost, Memory::kStorage}) {
    for (const Memory parameters : {Memory::kDevice, Memory::kHost, Memory::kStorage}) {
      const bool back = optimizer < now.optimizer || parameters < now.parameters;
      if (back || parameters > optimizer) continue;
      if (parameters != Memory::kDevice && least < Sharding::kParameters) continue;
      if (optimizer == Memory::kStorage && least < Sharding::kGradients) continue;
      Sets sets = offloaded(run, least, optimizer, parameters);
      if (!sets.empty() && (out.empty() || sets != out.back())) out.push_back(std::move(sets));
    }
  }
  return out;
}

bool to_storage(const Sets& sets) {
  return std::any_of(sets.begin(), sets.end(), [](const std::string& set) {
    return set.ends_with("=" + place_name(Memory::kStorage));
  });
}

/// Fewer parameters gathered ahead of their passes.
Kind fewer_ahead(const Plan& plan) {
  if (plan.sharding != Sharding::kParameters || plan.units.live_elements == 0) return {};
  return {{"sharding.live_elements=1"}};
}

/// What was offloaded back on the device: the host may be what is too small.
Kind less_offloading(const Plan& plan) {
  if (!plan.offload.states()) return {};
  if (plan.offload.parameters == Memory::kDevice) return {{"offload.optimizer=none"}};
  return {{"offload.parameters=none"}, {"offload.parameters=none", "offload.optimizer=none"}};
}

Kind offloaded_activations(const Plan& plan) { return kind_of(offloaded_layers(plan), plan); }

/// Of the layers whose activations are offloaded already, else of all.
Kind stored_activations(const Plan& plan) {
  const Offload& now = plan.offload;
  if (now.activations == Memory::kStorage) return {};
  Sets out = {"offload.activations=" + place_name(Memory::kStorage)};
  if (now.activation_layers == 0) {
    out.push_back(set_of("offload.activation_layers", layers_of_stage(plan)));
  }
  return {out};
}

std::vector<Kind> kinds_of(const Run& run) {
  const Plan& plan = run.plan;
  std::vector<Kind> out;
  out.push_back(growing_segments(run));
  out.push_back(fewer_ahead(plan));
  out.push_back(less_offloading(plan));
  out.push_back(cheap_modules(run));
  out.push_back(more_recomputation(plan));
  out.push_back(more_sharding(run));
  out.push_back(smaller_microbatches(plan));
  out.push_back(more_ranks("parallel.tensor", plan.tensor, run.cluster.accelerators_per_node));
  out.push_back(more_ranks("parallel.pipeline", plan.pipeline, run.model.layers));
  out.push_back(more_ranks("parallel.context", plan.context, plan.data));
  const bool alone = plan.replica_ranks() == 1;
  for (const Sharding least : {alone ? Sharding::kNone : Sharding::kOptimizer, Sharding::kGradients,
                               Sharding::kParameters}) {
    out.push_back(offloading(run, least));
  }
  out.push_back(offloaded_activations(plan));
  out.push_back(stored_activations(plan));
  return out;
}

Kind less_recomputation(const Plan& plan) {
  if (!plan.recompute.any()) return {};
  Kind out = {{"recompute=none"}};
  if (!plan.recompute.layer) return out;
  for (const std::int64_t layers : parts_of_stage(plan)) {
    const bool fewer = plan.recompute.layers == 0 || layers < plan.recompute.layers;
    if (fewer && layers < layers_of_stage(plan))
      out.push_back(recomputed_layers(plan).sets(layers));
  }
  return out;
}

Kind fewer_ranks(const char* key, std::int64_t now) {
  Kind out;
  if (now % 2 == 0) out.push_back({set_of(key, now / 2)});
  return out;
}

Kind more_overlap(const Plan& plan) {
  const bool may = plan.tensor > 1 && plan.sequence && !plan.overlap.tensor;
  return may ? Kind{{"overlap.tensor=true"}} : Kind();
}

/// Exchanges of data-parallel ranks beside passes.
Kind hidden_exchanges(const Plan& plan) {
  Sets sets;
  if (plan.data == 1 || plan.by_units()) return {};
  if (!plan.overlap.gradient_reduce) sets.emplace_back("overlap.gradient_reduce=true");
  const bool gathers = plan.sharding != Sharding::kNone && !plan.overlap.parameter_gather;
  if (gathers) sets.emplace_back("overlap.parameter_gather=true");
  return sets.empty() ? Kind() : Kind{sets};
}

Kind larger_microbatches(const Plan& plan) {
  const bool even = plan.microbatches() % 2 == 0;
  return even ? Kind{{set_of("batch.micro", 2 * plan.micro_batch)}} : Kind();
}

Kind less_sharding(const Run& run) {
  const bool whole = run.plan.sharding == Sharding::kParameters && !run.plan.offload.states();
  return whole ? Kind{{"sharding.level=optimizer"}} : Kind();
}

std::vector<Kind> faster_kinds(const Run& run) {
  const Plan& plan = run.plan;
  return {less_recomputation(plan),
          more_overlap(plan),
          fewer_ranks("parallel.tensor", plan.tensor),
          hidden_exchanges(plan),
          larger_microbatches(plan),
          fewer_ranks("parallel.pipeline", plan.pipeline),
          fewer_ranks("parallel.context", plan.context),
          less_sharding(run)};
}

bool is_slow(const Change& change, double base_s) {
  return change.iteration_time_s > kWorst * base_s;
}

bool is_within(const Sets& some, const Sets& all) {
  return std::all_of(some.begin(), some.end(), [&all](const std::string& set) {
    return std::find(all.begin(), all.end(), set) != all.end();
  });
}

std::string key_of(const std::string& set) { return set.substr(0, set.find('=')); }

/// Whether `change` is `less` and something more, which makes it no faster.
bool is_needless(const Change& change, const Change& less) {
  constexpr double kSame = 1.001;
  return less.sets.size() < change.sets.size() && is_within(less.sets, change.sets) &&
         less.iteration_time_s <= change.iteration_time_s * kSame;
}

/// Whether `other` sets no other keys, is no slower and needs no more memory, and less of one.
bool is_beaten(const Change& change, const Change& other) {
  const bool alike = std::all_of(other.sets.begin(), other.sets.end(), [&](const auto& set) {
    return std::any_of(change.sets.begin(), change.sets.end(),
                       [&](const auto& own) { return key_of(own) == key_of(set); });
  });
  const std::pair mine(change.iteration_time_s, change.peak_gib);
  const std::pair theirs(other.iteration_time_s, other.peak_gib);
  return alike && mine != theirs && theirs.first <= mine.first && theirs.second <= mine.second;
}

class Search {
 public:
  /// `most_memory`: that a change may need, of the capacity.
  Search(const Run& run, const Prediction& prediction, double most_memory,
         const SimulationBounds& bounds = {})
      : x_run(run),
        x_base_s(prediction.iteration_time_s),
        x_host_was_short(!prediction.memory.host_fits()),
        x_most_tries(most_tries(prediction, bounds)),
        x_least_tries(least_tries(prediction)) {
    x_options.verify = x_options.sensitivity = false;
    x_options.most_memory = most_memory;
    x_options.bounds = bounds;
    x_options.bounds.seconds = 0;
  }

  /// Of each kind the mildest change that fits, then fewer layers of those that are counted, then,
  /// if fewer than `enough` fit, pairs of kinds.
  Fitting run(const std::vector<Kind>& kinds, std::int64_t enough,
              const std::vector<OfLayers>& counted = {}) && {
    look_ahead(kinds);
    for (const Kind& kind : kinds) {
      for (const Sets& sets : kind) {
        if (!attempt(sets)) continue;
        x_alone.push_back(sets);
        break;
      }
    }
    for (const OfLayers& change : counted) take_fewer(change);
    std::vector<Change>& changes = x_out.changes;
    const auto slow = [this](const Change& change) { return is_slow(change, x_base_s); };
    const auto slow_ones = std::count_if(changes.begin(), changes.end(), slow);
    if (std::ssize(changes) - slow_ones < enough) try_pairs(kinds);
    // What takes several times as long is of use where nothing else fits.
    if (!std::all_of(changes.begin(), changes.end(), slow)) std::erase_if(changes, slow);
    std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return std::pair(a.iteration_time_s, a.sets.size()) <
             std::pair(b.iteration_time_s, b.sets.size());
    });
    // What adds to a change that fits and is as fast is not needed.
    std::erase_if(changes, [all = changes](const Change& c) {
      return std::any_of(all.begin(), all.end(),
                         [&c](const Change& o) { return is_needless(c, o) || is_beaten(c, o); });
    });
    // Of changes that come to the same the one that says least.
    const auto same = [](const Change& a, const Change& b) {
      return a.iteration_time_s == b.iteration_time_s;
    };
    changes.erase(std::unique(changes.begin(), changes.end(), same), changes.end());
    return std::move(x_out);
  }

 private:
  /// Changes that there is time for, if each takes what the step took.
  static std::int64_t most_tries(const Prediction& prediction, const SimulationBounds& bounds) {
    if (bounds.seconds <= 0) return std::numeric_limits<std::int64_t>::max();
    constexpr double kLeast = 1e-3;  // of a change that takes nothing: its RUN is read
    const double each = std::max(kLeast, prediction.simulated.estimated.seconds);
    const double replays = 1 + static_cast<double>(prediction.sensitivity.size());
    return static_cast<std::int64_t>(std::max(0.0, bounds.seconds / each - replays));
  }

  static std::int64_t least_tries(const Prediction& prediction) {
    const double all = kMostSeconds / std::max(1e-9, prediction.simulated.estimated.seconds);
    return static_cast<std::int64_t>(std::clamp<double>(all, kFewestTries, kLeastTries));
  }

  void try_pairs(const std::vector<Kind>& kinds) {
    for (std::size_t a = 0; a < kinds.size(); ++a) {
      for (std::size_t b = a + 1; b < kinds.size(); ++b) {
        for (const Sets& one : kinds[a]) {
          for (const Sets& other : kinds[b]) {
            if (fits(one) || fits(other) || contradict(one, other)) continue;
            if (is_within(one, other) || is_within(other, one)) continue;
            Sets both = one;
            both.insert(both.end(), other.begin(), other.end());
            attempt(both);
          }
        }
      }
    }
  }

  /// Fewer layers than a part of the stage that fits, to a 64th of it.
  void take_fewer(const OfLayers& change) {
    std::int64_t low = change.above;
    for (const std::int64_t layers : parts_of_stage(x_run.plan)) {
      if (layers <= change.above) continue;
      if (fits(change.sets(layers))) return take_fewer(change, low, layers);
      low = layers;
    }
  }
  void take_fewer(const OfLayers& change, std::int64_t low, std::int64_t high) {
    constexpr int kHalvings = 4;
    for (int i = 0; i < kHalvings && high - low > 1; ++i) {
      const std::int64_t middle = low + (high - low) / 2;
      if (attempt(change.sets(middle)) && has_room(change.sets(high))) {
        const Sets more = change.sets(high);
        std::erase_if(x_out.changes,
                      [&more](const Change& other) { return other.sets.front() == more.front(); });
        high = middle;
      } else {
        low = middle;
      }
    }
  }

  /// Whether the change found last leaves room, or `more` of it none either; else it is taken back:
  /// a plan that is planned fits with a few per cent to spare.
  bool has_room(const Sets& more) {
    std::vector<Change>& all = x_out.changes;
    double memory = x_run.cluster.device.memory_gib;
    for (const Cluster& pool : x_run.cluster.pools) {
      memory = std::min(memory, pool.device.memory_gib);
    }
    const double most = kRoomyShare * memory;
    const auto roomy = [&](const Change& c) { return c.sets == more && c.peak_gib <= most; };
    if (all.back().peak_gib <= most || std::none_of(all.begin(), all.end(), roomy)) return true;
    all.pop_back();
    return false;
  }

  /// What fits alone needs nothing beside it.
  bool fits(const Sets& sets) const {
    return std::find(x_alone.begin(), x_alone.end(), sets) != x_alone.end();
  }

  static bool contradict(const Sets& one, const Sets& other) {
    return std::any_of(one.begin(), one.end(), [&](const std::string& a) {
      return std::any_of(other.begin(), other.end(),
                         [&](const std::string& b) { return a != b && key_of(a) == key_of(b); });
    });
  }

  /// Whether the system has nothing for one of them, which is remembered.
  bool lacks(const Sets& sets) {
    for (const std::string& set : sets) {
      const std::string lacked = lacked_by(x_run, set, sets);
      if (lacked.empty()) continue;
      std::vector<std::string>& all = x_out.lacking;
      if (std::find(all.begin(), all.end(), lacked) == all.end()) all.push_back(lacked);
      return true;
    }
    return false;
  }

  /// What a change comes to; of one that a plan refuses nothing.
  struct Outcome {
    Change change;
    bool predicted = false, host_fits = true, fits = false;
    std::int64_t operations = 0;  ///< lowered and replayed
  };
  std::optional<Outcome> outcome_of(const Sets& sets) const {
    Outcome out;
    out.change.sets = sets;
    const auto prices = [this](Run& run) {
      run.profile = x_run.profile;
      run.profile_source = x_run.profile_source;
      return ok_status();
    };
    Sets& all = out.change.sets;
    Result<Run> changed = resolve_run(x_run.resolved, x_run.source, all, prices);
    if (changed.ok() && changed.value().plan.global_batch != x_run.plan.global_batch) {
      // A batch that follows from the microbatch stays what it was: the same work.
      all.push_back(set_of("batch.global", x_run.plan.global_batch));
      changed = resolve_run(x_run.resolved, x_run.source, all, prices);
    }
    if (!changed.ok()) return {};
    const Result<Prediction> prediction = predict(changed.value(), x_options);
    if (!prediction.ok()) return out;
    const Prediction& p = prediction.value();
    out.predicted = true;
    out.operations = p.simulated.lowered + p.operations;
    out.host_fits = p.memory.host_fits();
    out.fits = p.memory.within(x_options.most_memory);
    out.change.iteration_time_s = p.iteration_time_s;
    out.change.peak_gib = p.memory.peak_gib;
    return out;
  }

  /// The mildest changes of all kinds, which are tried in any case, at once on all cores.
  void look_ahead(const std::vector<Kind>& kinds) {
    std::vector<Sets> mildest;
    for (const Kind& kind : kinds) {
      if (!kind.empty() && !may_not(kind.front())) mildest.push_back(kind.front());
    }
    const std::int64_t most = std::min(x_most_tries, x_least_tries);
    if (std::ssize(mildest) > most) {
      x_out.stopped = x_out.stopped || x_most_tries <= x_least_tries;
      mildest.resize(static_cast<std::size_t>(most));
    }
    std::vector<std::optional<Outcome>> outcomes(mildest.size());
    in_parallel(mildest.size(), [&](std::size_t i) { outcomes[i] = outcome_of(mildest[i]); });
    for (std::size_t i = 0; i < mildest.size(); ++i) x_ahead[mildest[i]] = std::move(outcomes[i]);
  }

  /// Storage stands in for a host that was too small; nothing for what a system has not.
  bool may_not(const Sets& sets) { return (to_storage(sets) && !x_host_was_short) || lacks(sets); }

  bool attempt(const Sets& sets) {
    if (may_not(sets)) return false;
    const bool too_many = x_out.tried >= x_least_tries && x_operations > kMostOperations;
    if (too_many || x_out.tried >= x_most_tries) {
      x_out.stopped = true;
      return false;
    }
    const auto ahead = x_ahead.find(sets);
    const std::optional<Outcome> outcome =
        ahead == x_ahead.end() ? outcome_of(sets) : ahead->second;
    if (!outcome) return false;
    ++x_out.tried;
    if (!outcome->predicted) return false;
    x_operations += outcome->operations;
    x_host_was_short |= !outcome->host_fits;
    if (!outcome->fits) return false;
    x_out.changes.push_back(outcome->change);
    return true;
  }

  const Run& x_run;
  double x_base_s;
  bool x_host_was_short;  ///< in a change tried so far: what makes storage worth a try
  std::int64_t x_most_tries, x_least_tries;
  PredictOptions x_options;
  std::int64_t x_operations = 0;
  std::map<Sets, std::optional<Outcome>> x_ahead;
  std::vector<Sets> x_alone;  ///< that fit, of each kind the mildest
  Fitting x_out;
};

}  // namespace

Fitting find_fitting(const Run& run, const Prediction& prediction, const SimulationBounds& bounds) {
  return Search(run, prediction, 1, bounds)
      .run(kinds_of(run), kEnough, {recomputed_layers(run.plan), offloaded_layers(run.plan)});
}

Fitting find_faster(const Run& run, const Prediction& prediction, const SimulationBounds& bounds) {
  constexpr std::int64_t kOperations = 600'000;
  constexpr std::int64_t kFewest = 3;
  constexpr double kWorthwhile = 0.98;
  constexpr std::size_t kMostTold = 3;
  std::vector<Kind> kinds = faster_kinds(run);
  std::erase_if(kinds, [](const Kind& kind) { return kind.empty(); });
  const std::int64_t each =
      std::max<std::int64_t>(1, prediction.simulated.lowered + prediction.operations);
  const auto most = static_cast<std::size_t>(std::max(kFewest, kOperations / each));
  const bool left_out = kinds.size() > most;
  if (left_out) kinds.resize(most);
  Fitting out = Search(run, prediction, 1, bounds).run(kinds, 0);
  out.stopped = out.stopped || left_out;
  std::erase_if(out.changes, [&prediction](const Change& change) {
    return change.iteration_time_s > kWorthwhile * prediction.iteration_time_s;
  });
  if (out.changes.size() > kMostTold) out.changes.resize(kMostTold);
  return out;
}

Fitting find_unsaid(const Run& run, const Prediction& prediction, double most_memory) {
  const std::vector<Kind> kinds = {more_recomputation(run.plan), offloaded_activations(run.plan)};
  Fitting out = Search(run, prediction, most_memory).run(kinds, 0);
  std::erase_if(out.changes, [&prediction](const Change& change) {
    return is_slow(change, prediction.iteration_time_s);
  });
  return out;
}

}  // namespace foretrain

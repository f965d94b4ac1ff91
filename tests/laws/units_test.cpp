// Do sharded units move, and keep, what the systems that have them say?
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "models/lower.h"
#include "models/slots.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

Workload verified(const Model& model, const Plan& plan) {
  Workload out = lower(model, plan);
  const Status status = verify(out);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return out;
}

/// Bytes of the full arrays of collectives, by op name.
std::map<std::string, Bytes> bytes_by_name(const Workload& workload) {
  std::map<std::string, Bytes> out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const auto* c = std::get_if<Collective>(&program.works[op.work.index()]);
      if (c != nullptr) out[op.name] += bytes_of(c->dtype, c->count);
    }
  }
  return out;
}

std::int64_t padded(std::int64_t elements, std::int64_t ranks) {
  return (elements + ranks - 1) / ranks * ranks;
}

/// Elements of a list that are at most, and above, a size; tables count as above.
struct SmallAndLarge {
  std::int64_t small = 0, large = 0;
};
SmallAndLarge elements_by_size(const std::vector<Parameter>& parameters, std::int64_t most) {
  SmallAndLarge out;
  for (const Parameter& p : parameters) {
    (p.count() <= most && !p.is_table() ? out.small : out.large) += p.count();
  }
  return out;
}

SmallAndLarge plus(SmallAndLarge a, const SmallAndLarge& b) {
  return {a.small + b.small, a.large + b.large};
}

Plan plan_of_parameters(const Model& model, std::int64_t ranks, std::int64_t microbatches) {
  Plan plan = small_plan(model, {1, 1, 1, ranks}, microbatches);
  plan.sharding = Sharding::kParameters;
  plan.units.narrow_shards = true;
  plan.units.reduce = plan.precision.gradients = DType::kBf16;
  return plan;
}

std::map<std::string, std::int64_t> collectives_by_name(const Workload& workload) {
  std::map<std::string, std::int64_t> out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (std::holds_alternative<Collective>(program.works[op.work.index()])) ++out[op.name];
    }
  }
  return out;
}

// Gemini: units of f parameters travel in f / least equal chunks, one where there are fewer, padded
// to equal parts of every rank; layers twice, ends once a microbatch, gradients once.
TEST(Chunks, AreEqualAndAtLeastSoLarge) {
  Model model = small_gpt();
  model.vocabulary = 1024;
  constexpr std::int64_t kRanks = 3, kMicrobatches = 2;
  const auto elements = [](const std::vector<Parameter>& parameters) {
    std::int64_t sum = 0;
    for (const Parameter& p : parameters) sum += p.count();
    return sum;
  };
  const std::int64_t layer = elements(layer_parameters(model));
  const std::int64_t ends =
      elements(embedding_parameters(model)) + elements(head_parameters(model));
  for (const std::int64_t least : {1000, 7777, 40'000, 10'000'000}) {
    Plan plan = plan_of_parameters(model, kRanks, kMicrobatches);
    plan.units.chunk_elements = least;
    const auto chunks = [least](std::int64_t f) { return std::max<std::int64_t>(1, f / least); };
    const Workload workload = verified(model, plan);
    const auto count = collectives_by_name(workload);
    const auto bytes = bytes_by_name(workload);
    const std::int64_t of_layers = model.layers * chunks(layer);
    EXPECT_EQ(count.at("parameters.gather"), kMicrobatches * (2 * of_layers + chunks(ends)));
    EXPECT_EQ(count.at("gradients.reduce"), kMicrobatches * (of_layers + chunks(ends)));
    const std::int64_t layers = model.layers * padded(layer, chunks(layer) * kRanks);
    const std::int64_t rest = padded(ends, chunks(ends) * kRanks);
    EXPECT_EQ(bytes.at("parameters.gather"), 2 * kMicrobatches * (2 * layers + rest)) << least;
    EXPECT_EQ(bytes.at("gradients.reduce"), 2 * kMicrobatches * (layers + rest)) << least;
  }
}

// DeepSpeed's ZeRO-3: every parameter is cut into equal parts of its own; as many are gathered at
// once as make so many elements, the last one whole, and reduced at once as fit into a bucket, from
// the last one on. What stays gathered is gathered parameter by parameter, and reduced alike.
TEST(UnitsByParameter, TravelTogether) {
  Model model = small_gpt();
  model.vocabulary = 1024;
  constexpr std::int64_t kRanks = 2, kMicrobatches = 3;
  std::vector<Parameter> ends = embedding_parameters(model);
  for (const Parameter& p : head_parameters(model)) ends.push_back(p);
  const std::vector<Parameter> layer = layer_parameters(model);
  const auto above = [](const std::vector<Parameter>& parameters, std::int64_t most) {
    return std::count_if(parameters.begin(), parameters.end(),
                         [most](const Parameter& p) { return p.is_table() || p.count() > most; });
  };
  for (const std::int64_t most : {0, 1024}) {
    const std::int64_t of_layer = above(layer, most);
    const std::int64_t of_ends = above(ends, most);
    const auto all =
        static_cast<std::int64_t>(model.layers * static_cast<std::int64_t>(layer.size()) +
                                  static_cast<std::int64_t>(ends.size()));
    const std::int64_t kept = all - model.layers * of_layer - of_ends;
    const auto counts = [&](std::int64_t least, std::int64_t bucket) {
      Plan plan = plan_of_parameters(model, kRanks, kMicrobatches);
      plan.units.persist_elements = most;
      const auto at_once = bytes_by_name(verified(model, plan));
      plan.units.gather_elements = least;
      plan.bucket_elements = bucket;
      const Workload workload = verified(model, plan);
      EXPECT_EQ(bytes_by_name(workload), at_once);  // even counts: no part is padded
      return collectives_by_name(workload);
    };
    const auto apart = counts(1, 1);
    EXPECT_EQ(apart.at("parameters.gather"),
              kMicrobatches * (2 * model.layers * of_layer + of_ends) + kept);
    EXPECT_EQ(apart.at("gradients.reduce"),
              kMicrobatches * (model.layers * of_layer + of_ends + kept));
    const auto together = counts(1'000'000'000, 0);
    EXPECT_EQ(together.at("parameters.gather"), kMicrobatches * (2 * model.layers + 1) + kept);
    EXPECT_EQ(together.at("gradients.reduce"),
              kMicrobatches * (model.layers + 1 + (kept > 0 ? 1 : 0)));
  }
}

// Of a unit the host looks at every parameter of every rank before its reduction.
TEST(UnitsByParameter, TakeTheHostsTime) {
  const Model model = small_gpt();
  constexpr std::int64_t kRanks = 4, kMicrobatches = 2;
  Plan plan = plan_of_parameters(model, kRanks, kMicrobatches);
  plan.units.persist_elements = 1024;
  plan.scatter_time = Time::from_us(1);
  const Workload workload = lower(model, plan);
  const Program& program = workload.programs[0];
  Time sum;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const auto* delay = std::get_if<HostDelay>(&program.works[op.work.index()]);
      if (delay != nullptr && op.name == "host.scatter") sum.ps += delay->time.ps;
    }
  }
  const auto tensors = static_cast<std::int64_t>(
      static_cast<std::size_t>(model.layers) * layer_parameters(model).size() +
      embedding_parameters(model).size() + head_parameters(model).size());
  EXPECT_EQ(sum, Time::from_us(static_cast<double>(kMicrobatches * kRanks * tensors)));
}

// Not where gradients alone are sharded, which DeepSpeed's stage 2 reduces in buckets, nor where
// reductions in 4 bits take them whole; and never so long that it wraps around.
TEST(UnitsByParameter, TakeTheHostsTimeNowhereElse) {
  const Model model = small_gpt();
  const auto longest = [&model](const Plan& plan) {
    const Workload workload = lower(model, plan);
    Time out;
    for (const Work& work : workload.programs[0].works) {
      if (const auto* delay = std::get_if<HostDelay>(&work)) out = max(out, delay->time);
    }
    return out;
  };
  Plan plan = plan_of_parameters(model, 4, 2);
  plan.scatter_time = Time::from_us(1);
  EXPECT_GT(longest(plan).ps, 0);
  Plan gradients = plan;
  gradients.sharding = Sharding::kGradients;
  EXPECT_EQ(longest(gradients).ps, 0);
  Plan narrow = plan;
  narrow.units.quantized_reduction = true;
  EXPECT_EQ(longest(narrow).ps, 0);
  plan.scatter_time = Time{std::numeric_limits<std::int64_t>::max() / 2};
  EXPECT_GT(longest(plan).seconds(), 1e5);
}

// An expert's matrices are parameters of their own, however many a rank holds in one buffer.
TEST(UnitsByParameter, CountEveryExpert) {
  const Model model = small_moe();
  Plan plan = plan_of_parameters(model, 2, 1);
  plan.units.gather_elements = 1;
  const auto count = [&](std::int64_t expert) {
    plan.experts.expert = expert;
    return collectives_by_name(verified(model, plan)).at("parameters.gather");
  };
  const std::int64_t sparse = model.layers - 1;  // twice a step, up and down
  EXPECT_GE(count(1), sparse * 2 * 2 * model.experts.count);
}

// stage3_param_persistence_threshold: parameters of at most so many elements are gathered once a
// step, after their update, those above in every pass; the gradients of all are reduced.
TEST(PersistentParameters, AreGatheredOnce) {
  Model model = small_gpt();
  model.vocabulary = 1024;
  constexpr std::int64_t kRanks = 3;
  for (const std::int64_t most : {0, 256, 1024, 70'000}) {
    for (const std::int64_t microbatches : {1, 2}) {
      Plan plan = plan_of_parameters(model, kRanks, microbatches);
      plan.units.persist_elements = most;
      const SmallAndLarge layer = elements_by_size(layer_parameters(model), most);
      const SmallAndLarge root = plus(elements_by_size(embedding_parameters(model), most),
                                      elements_by_size(head_parameters(model), most));
      const std::int64_t layers = model.layers;
      const std::int64_t small = padded(layers * layer.small + root.small, kRanks);
      const std::int64_t large = layers * padded(layer.large, kRanks);
      const std::int64_t ends = padded(root.large, kRanks);
      const auto bytes = bytes_by_name(verified(model, plan));
      EXPECT_EQ(bytes.at("parameters.gather"), 2 * (small + microbatches * (2 * large + ends)))
          << most;
      EXPECT_EQ(bytes.at("gradients.reduce"), 2 * microbatches * (small + large + ends)) << most;
    }
  }
}

// With tensor parallelism what every tensor rank holds is summed over them as before, wherever it
// lies, and only once in the norm.
TEST(PersistentParameters, KeepTheSumsOfTensorRanks) {
  Model model = small_llama();
  model.qk_norm = true;
  for (const bool sequence : {false, true}) {
    Plan plan = small_plan(model, {2, 1, 1, 2}, 1);
    plan.sharding = Sharding::kParameters;
    plan.sequence = sequence;
    const auto before = bytes_by_name(verified(model, plan));
    for (const std::int64_t most : {64, 256, 10'000}) {
      plan.units.persist_elements = most;
      const auto after = bytes_by_name(verified(model, plan));
      EXPECT_EQ(after.at("gradients.shared.reduce"), before.at("gradients.shared.reduce"));
    }
  }
}

// They stay on every rank in the compute type, beside the shards: 2 bytes each. Where all of a
// layer is small nothing of it comes and goes.
TEST(PersistentParameters, StayOnEveryRank) {
  Model model = small_gpt();
  model.vocabulary = 1024;
  const auto kept = [&](std::int64_t most) {
    Plan plan = plan_of_parameters(model, 2, 1);
    plan.units.persist_elements = most;
    const BytesByKind bytes = persistent_bytes(verified(model, plan).programs[0]);
    return bytes[static_cast<std::size_t>(BufferKind::kParameters)];
  };
  const SmallAndLarge layer = elements_by_size(layer_parameters(model), 1024);
  const SmallAndLarge root = plus(elements_by_size(embedding_parameters(model), 1024),
                                  elements_by_size(head_parameters(model), 1024));
  EXPECT_EQ(kept(0), parameter_count(model));  // 2 bytes, on 2 ranks
  EXPECT_EQ(kept(1024) - kept(0), 2 * (model.layers * layer.small + root.small));

  Plan plan = plan_of_parameters(model, 2, 3);
  plan.units.persist_elements = std::int64_t{1} << 40;
  const auto bytes = bytes_by_name(verified(model, plan));
  const std::int64_t tables = 2 * model.vocabulary * model.hidden;  // of both ends
  EXPECT_EQ(bytes.at("parameters.gather"), 2 * (parameter_count(model) - tables + 3 * tables));
}

// stage3_max_reuse_distance: of L equal layers and a head the k last are gathered once a microbatch
// where those behind them, forward and backward, have fewer elements; three passes each where they
// are computed again.
TEST(ReusedParameters, AreGatheredOnceAMicrobatch) {
  Model model = small_gpt();
  model.vocabulary = 1024;
  constexpr std::int64_t kRanks = 4;
  std::int64_t layer = 0;
  for (const Parameter& p : layer_parameters(model)) layer += p.count();
  std::int64_t head = 0;
  for (const Parameter& p : head_parameters(model)) head += p.count();
  const Bytes ends = 2 * padded(parameter_count(model) - model.layers * layer, kRanks);
  for (const bool again : {false, true}) {
    for (std::int64_t kept = 1; kept <= model.layers; ++kept) {
      Plan plan = plan_of_parameters(model, kRanks, 2);
      plan.recompute.layer = again;
      // What runs between the passes of the k-th layer from the end.
      plan.units.reuse_elements = 2 * head + (again ? 3 : 2) * (kept - 1) * layer + 1;
      const auto bytes = bytes_by_name(verified(model, plan));
      const Bytes once = 2 * padded(layer, kRanks);
      EXPECT_EQ(bytes.at("parameters.gather"), 2 * (ends + once * (2 * model.layers - kept)))
          << kept;
    }
  }
}

/// How many layers' parameters are gathered before each pass of a layer, its own included.
std::vector<std::int64_t> gathered_ahead(const Workload& workload, const std::string& pass) {
  std::vector<std::int64_t> out;
  std::int64_t gathers = 0;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    const Segment& segment = program.segments[call.segment.index()];
    if (segment.name == "gather unit") ++gathers;
    if (segment.name == pass) out.push_back(gathers);
  }
  return out;
}

// stage3_max_live_parameters: gathers run ahead, in the order of the passes, until what is ahead
// has so many elements; then one more with every layer that is over.
TEST(LiveParameters, AreGatheredAhead) {
  Model model = small_gpt();
  model.layers = 6;
  Plan plan = plan_of_parameters(model, 2, 1);
  plan.units.reshard_last = true;
  plan.units.gathers_in_flight = 0;
  std::int64_t layer = 0;
  for (const Parameter& p : layer_parameters(model)) layer += p.count();
  for (const std::int64_t ahead : {1, 2, 3, 10}) {
    plan.units.live_elements = (ahead - 1) * layer + 1;
    const auto forward = gathered_ahead(verified(model, plan), "layer forward");
    const auto backward = gathered_ahead(verified(model, plan), "layer backward");
    ASSERT_EQ(forward.size(), 6U);
    ASSERT_EQ(backward.size(), 6U);
    for (std::size_t l = 0; l < 6; ++l) {  // the ends are gathered first
      const auto gathered = std::min<std::int64_t>(6, static_cast<std::int64_t>(l) + 1 + ahead);
      EXPECT_EQ(forward[l], 1 + gathered) << ahead << " " << l;
      EXPECT_EQ(backward[l], 7 + gathered) << ahead << " " << l;
    }
  }
  // One unit ahead is what both prefetches do.
  const auto both_ways = [&] {
    const Workload workload = verified(model, plan);
    return std::pair(gathered_ahead(workload, "layer forward"),
                     gathered_ahead(workload, "layer backward"));
  };
  plan.units.live_elements = 1;
  const auto by_size = both_ways();
  plan.units.backward_prefetch = Prefetch::kNone;
  EXPECT_EQ(both_ways(), by_size);
  plan.units.live_elements = 0;
  plan.units.forward_prefetch = true;
  plan.units.backward_prefetch = Prefetch::kBefore;
  EXPECT_EQ(both_ways(), by_size);
}

/// Elements that the gathers before each backward pass of a layer have brought since the forward
/// passes, by order of the passes.
std::vector<std::int64_t> brought_backward(const Workload& workload, const std::string& pass) {
  std::vector<std::int64_t> out;
  std::int64_t elements = 0;
  bool backward = false;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    const Segment& segment = program.segments[call.segment.index()];
    backward = backward || segment.name.starts_with("head");
    for (const Op& op : segment.ops) {
      const auto* c = std::get_if<Collective>(&program.works[op.work.index()]);
      if (backward && op.name == "parameters.gather") elements += c->count;
    }
    if (segment.name == pass) out.push_back(elements);
  }
  return out;
}

// A layer that is computed again is in use until its backward pass is over: beside it so many of
// the next parameters are gathered as the limit leaves room for, the last one whole, and the rest
// behind its reduction.
TEST(LiveParameters, CountWhatIsInUseBackward) {
  Model model = small_gpt();
  model.layers = 4;
  model.tied_embeddings = false;
  Plan plan = plan_of_parameters(model, 2, 1);
  plan.recompute.layer = true;
  plan.units.gathers_in_flight = 0;
  plan.units.gather_elements = 1;
  plan.bucket_elements = 1;
  std::vector<std::int64_t> parameters;  // in the order in which they lie
  for (const Parameter& p : layer_parameters(model)) parameters.push_back(p.count());
  const std::int64_t layer = std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0});
  for (const std::int64_t live : {layer / 2, layer, layer + 1, layer + layer / 2, 2 * layer + 1}) {
    plan.units.live_elements = live;
    const Workload workload = verified(model, plan);
    const auto brought = brought_backward(workload, "layer backward recomputed");
    ASSERT_EQ(brought.size(), 4U);
    std::vector<std::int64_t> order;  // elements behind each parameter of the layers to come
    std::int64_t all = 0;
    const Program& program = workload.programs[0];
    for (const Segment& segment : program.segments) {
      if (segment.name != "gather unit" || segment.ops.size() != parameters.size()) continue;
      for (std::size_t l = 0; l < 4; ++l) {
        for (const Op& op : segment.ops) {
          order.push_back(all += std::get<Collective>(program.works[op.work.index()]).count);
        }
      }
      break;
    }
    ASSERT_EQ(all, 4 * layer);
    for (std::int64_t l = 0; l < 4; ++l) {
      const std::int64_t ahead = std::max<std::int64_t>(live, layer) + l * layer;
      const auto last = std::lower_bound(order.begin(), order.end(), ahead);
      EXPECT_EQ(brought[static_cast<std::size_t>(l)], last == order.end() ? all : *last)
          << live << " " << l;
    }
  }
  // A layer that fits into a bucket: the next is gathered whole before this one is reduced.
  plan.bucket_elements = layer;
  plan.units.live_elements = layer;
  const auto brought = brought_backward(verified(model, plan), "layer backward recomputed");
  for (std::int64_t l = 0; l < 4; ++l) {
    EXPECT_EQ(brought[static_cast<std::size_t>(l)], std::min<std::int64_t>(4, l + 2) * layer);
  }
}

Time step_time(const Model& model, const Plan& plan, Rates rates) {
  TestPrices prices(rates);
  const Result<Replayed> result = replay_all(verified(model, plan), prices, true);
  EXPECT_TRUE(result.ok());
  return result.ok() ? result.value().replay.end : Time{};
}

// In line, layers take their compute and their traffic, to the picosecond: what they take with free
// links and what they take with free kernels add up. (An end's compute runs beside the gather of
// the next layer.) Traffic that runs ahead is never slower, and nothing slows the other here.
TEST(UnitsInLine, TakeComputeAndTraffic) {
  Rates compute;
  compute.kiloflop = 100;
  compute.kilobyte = 1000;
  Rates traffic;
  traffic.link_kilobyte = traffic.nic_kilobyte = 50000;
  Rates both = compute;
  both.link_kilobyte = both.nic_kilobyte = traffic.link_kilobyte;
  for (const bool again : {false, true}) {
    /// What two layers take; `live` 0: in line.
    const auto two_layers = [&](const Rates& rates, std::int64_t live) {
      std::array<std::int64_t, 2> times{};
      for (const std::size_t more : {0U, 1U}) {
        Model model = small_gpt();
        model.layers = 6 + 2 * static_cast<std::int64_t>(more);
        Plan plan = plan_of_parameters(model, 8, 2);
        plan.recompute.layer = again;
        plan.units.gather_elements = 100000;
        plan.bucket_elements = 300000;
        plan.units.reduce_waits = live == 0;
        plan.units.gathers_in_flight = live == 0 ? 1 : 0;
        plan.units.live_elements = live;
        plan.units.backward_prefetch = Prefetch::kNone;
        times[more] = step_time(model, plan, rates).ps;
      }
      return times[1] - times[0];
    };
    const std::int64_t in_line = two_layers(both, 0);
    EXPECT_EQ(in_line, two_layers(compute, 0) + two_layers(traffic, 0)) << again;
    std::int64_t before = in_line;
    for (const std::int64_t live : {1, 400000, 1000000, 100000000}) {
      const std::int64_t ahead = two_layers(both, live);
      EXPECT_LE(ahead, before) << again << " " << live;
      before = ahead;
    }
    EXPECT_LT(before, in_line);
  }
}

// Breadth-first pipelines (Lamy-Poirier, arXiv 2211.05953): whatever the number of microbatches, a
// layer is gathered once forward and once backward, an end once, and reduced once where gradients
// add up; chunks that take turns gather for every microbatch.
TEST(BreadthFirst, GathersAndReducesOnceForAllMicrobatches) {
  const Model model = small_gpt();
  for (const std::int64_t microbatches : {2, 4, 8}) {
    Plan plan = small_plan(model, {1, 2, 2, 2}, microbatches);
    plan.schedule = Schedule::kBreadthFirst;
    plan.sharding = Sharding::kParameters;
    plan.units.reduce_each = false;
    for (const bool ahead : {false, true}) {
      plan.units.forward_prefetch = ahead;
      const auto once = collectives_by_name(verified(model, plan));
      const std::int64_t layers = model.layers / 2;
      EXPECT_EQ(once.at("parameters.gather"), 2 * layers + 1) << microbatches;
      EXPECT_EQ(once.at("gradients.reduce"), layers + 1) << microbatches;
    }
    plan.schedule = Schedule::kInterleaved;
    const auto each = collectives_by_name(verified(model, plan));
    EXPECT_GT(each.at("parameters.gather"), microbatches * model.layers / 2) << microbatches;
  }
}

// gathers_in_flight counts the unit in use.
TEST(LiveParameters, KeepToTheLimitOfGathers) {
  const Model model = small_gpt();
  Plan plan = plan_of_parameters(model, 2, 1);
  plan.units.live_elements = std::int64_t{1} << 40;
  for (const std::int64_t limit : {1, 2, 3}) {
    plan.units.gathers_in_flight = limit;
    const auto forward = gathered_ahead(verified(model, plan), "layer forward");
    ASSERT_EQ(forward.size(), static_cast<std::size_t>(model.layers));
    for (std::int64_t l = 0; l < model.layers; ++l) {
      const std::int64_t layers = std::min(model.layers, l + limit);
      EXPECT_EQ(forward[static_cast<std::size_t>(l)], 1 + layers) << limit << " " << l;
    }
  }
}

/// Bytes that the ranks of a node receive from others in the all-gathers of one name, each rank the
/// parts of members on other nodes: what crosses the network at least.
Bytes received_by_node(const Workload& workload, const std::string& name, std::int64_t node_ranks) {
  Bytes out = 0;
  for (std::int64_t r = 0; r < node_ranks; ++r) {
    const RankBinding& rank = workload.ranks[static_cast<std::size_t>(r)];
    const Program& program = workload.programs[rank.program.index()];
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        if (op.name != name) continue;
        const auto& c = std::get<Collective>(program.works[op.work.index()]);
        const auto& group = workload.groups[rank.groups[c.group.index()].index()];
        const Bytes part = bytes_of(c.dtype, c.count) / static_cast<Bytes>(group.size());
        for (const RankId member : group)
          out += static_cast<std::int64_t>(member.index()) >= node_ranks ? part : 0;
      }
    }
  }
  return out;
}

// MiCS, section 3.3: s ranks on nodes of k. Every node takes in (s - k) / s of the parameters once,
// each of its ranks a k-th; inside the node the whole is gathered. Replicas of the group do the
// same beside.
TEST(GathersInLevels, CrossTheNetworkOnce) {
  Model model = small_gpt();
  model.vocabulary = 1024;
  constexpr std::int64_t kNode = 4;
  for (const std::int64_t group : {8, 16}) {
    Plan plan = plan_of_parameters(model, 16, 1);
    plan.shard_group = group;
    const auto flat = bytes_by_name(verified(model, plan));
    plan.units.inner_group = kNode;
    const Workload workload = verified(model, plan);
    const auto bytes = bytes_by_name(workload);
    EXPECT_EQ(bytes.count("parameters.gather"), 0U);
    EXPECT_EQ(bytes.at("parameters.outer.gather"), flat.at("parameters.gather") / kNode);
    EXPECT_EQ(bytes.at("parameters.inner.gather"), flat.at("parameters.gather"));
    EXPECT_EQ(bytes.at("gradients.reduce"), flat.at("gradients.reduce"));
    const Bytes crossed = received_by_node(workload, "parameters.outer.gather", kNode);
    EXPECT_EQ(crossed, flat.at("parameters.gather") / group * (group - kNode));
    EXPECT_EQ(received_by_node(workload, "parameters.inner.gather", kNode), 0);
  }
}

// FSDP2: compute copies parameters out of the array they came in, which lies in a pool beside that
// of compute; each gather has its copy.
TEST(CopiesOut, OfWhatWasGathered) {
  const Model model = small_llama();
  Plan plan = plan_of_parameters(model, 2, 2);
  const auto count = [&](const char* name) {
    std::int64_t out = 0;
    const Workload workload = verified(model, plan);
    const Program& program = workload.programs[0];
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        if (op.name == name) ++out;
      }
    }
    return out;
  };
  EXPECT_EQ(count("parameters.copy_out"), 0);
  const std::int64_t gathers = count("parameters.gather");
  plan.units.copies_out = true;
  EXPECT_EQ(count("parameters.gather"), gathers);
  EXPECT_EQ(count("parameters.copy_out"), gathers);
  const Workload workload = verified(model, plan);
  for (const FrameLayout& layout : workload.programs[0].layouts) {
    for (const Buffer& buffer : layout.buffers) {
      if (layout.name != "unit weights") continue;
      EXPECT_EQ(buffer.pool, buffer.name == "whole" ? 0 : 1) << buffer.name;
    }
  }
}

}  // namespace
}  // namespace foretrain

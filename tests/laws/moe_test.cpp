// Do experts get the tokens, the bytes and the arithmetic that their degrees say?
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/moe_block.h"
#include "models/lower.h"
#include "models/plan/expert_plan.h"
#include "models/slots.h"
#include "sim/base/file.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

/// One sparse layer: its MLP's place is taken by experts in every layer.
Model all_sparse() {
  Model model = small_moe();
  model.experts.first_dense = 0;
  model.experts.shared_width = 0;
  return model;
}

Plan expert_plan(const Model& model, PlanDegrees degrees, std::int64_t expert,
                 std::int64_t cut = 1) {
  Plan plan = small_plan(model, degrees, 1);
  plan.sequence = plan.tensor > 1;
  plan.experts.expert = expert;
  plan.experts.tensor = cut;
  return plan;
}

template <typename Visit>
void each_op(const Program& program, Visit visit) {
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      visit(op, program.works[op.work.index()], call);
    }
  }
}

/// Bytes of the full arrays of all collectives over `group`.
Bytes collective_bytes(const Program& program, const char* group, CollectiveKind kind) {
  Bytes out = 0;
  each_op(program, [&](const Op&, const Work& work, const Call&) {
    const auto* c = std::get_if<Collective>(&work);
    if (c == nullptr || c->kind != kind) return;
    if (program.group_slots[c->group.index()] == group) out += bytes_of(c->dtype, c->count);
  });
  return out;
}

/// FLOPs of the GEMMs of one rank whose op's name begins with `prefix`.
double gemm_flops(const Program& program, const std::string& prefix) {
  double out = 0;
  each_op(program, [&](const Op& op, const Work& work, const Call&) {
    if (std::holds_alternative<Gemm>(work) && std::string(op.name).starts_with(prefix)) {
      out += flops_of(work);
    }
  });
  return out;
}

Bytes persistent(const Program& program, BufferKind kind) {
  return persistent_bytes(program)[static_cast<std::size_t>(kind)];
}

// A token goes to k experts and comes back, forward and backward: 4 x 2 k h bytes, and its
// probabilities there and back: 2 x 4 k.
TEST(ExpertVolume, AllToAll) {
  const Model model = all_sparse();
  for (const std::int64_t t : {1, 2}) {
    for (const std::int64_t e : {2, 4, 8}) {
      const Plan plan = expert_plan(model, {t, 1, 1, 8 / t}, e);
      const Workload workload = lower(model, plan);
      ASSERT_TRUE(verify(workload).ok());
      const std::int64_t rows = plan.tokens() / t * model.experts.top_k;
      EXPECT_EQ(collective_bytes(workload.programs[0], kExpertGroup, CollectiveKind::kAllToAll),
                model.layers * rows * (4 * 2 * model.hidden + 2 * 4));
    }
  }
}

// Cast before they travel, tokens and the gradients of results take half of the bytes; results and
// the gradients of tokens stay in 16 bits.
TEST(ExpertVolume, CastBeforeTheyTravel) {
  const Model model = all_sparse();
  Plan plan = expert_plan(model, {1, 1, 1, 4}, 4);
  plan.experts.dispatcher = Dispatcher::kDeepEp;
  plan.precision.linear = DType::kFp8;
  std::array<std::map<std::string, Bytes>, 2> bytes;
  for (const bool cast : {false, true}) {
    plan.experts.cast_first = cast;
    const Workload workload = lower(model, plan);
    ASSERT_TRUE(verify(workload).ok()) << verify(workload).error().message;
    each_op(workload.programs[0], [&](const Op& op, const Work& work, const Call&) {
      const auto* collective = std::get_if<Collective>(&work);
      if (collective == nullptr || op.category != Category::kExpert) return;
      bytes[cast ? 1 : 0][op.name] += bytes_of(collective->dtype, collective->count);
    });
  }
  for (const char* name : {"moe.dispatch.exchange", "moe.combine_gradient.exchange"}) {
    EXPECT_GT(bytes[0][name], 0);
    EXPECT_EQ(bytes[0][name], 2 * bytes[1][name]) << name;
  }
  for (const char* name : {"moe.combine.exchange", "moe.dispatch_gradient.exchange"}) {
    EXPECT_GT(bytes[0][name], 0);
    EXPECT_EQ(bytes[0][name], bytes[1][name]) << name;
  }
}

// Every expert is held once in an expert-data group: its matrices are cut over expert_tensor, its
// optimizer states over the ranks that hold the same.
/// Compute from the op at `exchange` on to the first that waits for it.
void note_beside(const Segment& segment, std::size_t exchange, std::vector<std::string>& out) {
  const EventRef done = segment.ops[exchange].records;
  for (std::size_t i = exchange + 1; i < segment.ops.size(); ++i) {
    const Op& op = segment.ops[i];
    if (std::find(op.waits.begin(), op.waits.end(), done) != op.waits.end()) return;
    if (op.category == Category::kCompute) out.push_back(op.name);
  }
}

// With overlap.expert nothing of the shared experts waits for the exchange beside it, and the
// routed experts still do; without it, or with other dispatchers, no op stands between an exchange
// and what waits for it.
TEST(ExpertOverlap, SharedExpertsRunBesideTheExchanges) {
  Model model = all_sparse();
  model.experts.shared_width = 64;
  Plan plan = expert_plan(model, {1, 1, 1, 4}, 4);
  for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kDeepEp}) {
    for (const bool asked : {false, true}) {
      plan.experts.dispatcher = dispatcher;
      plan.overlap.expert = asked;
      const bool overlap = asked && dispatcher == Dispatcher::kAllToAll;
      const Program program = lower(model, plan).programs[0];
      ASSERT_TRUE(verify(program).ok()) << verify(program).error().message;
      std::map<std::string, std::vector<std::string>> beside;
      for (const Segment& segment : program.segments) {
        for (std::size_t i = 0; i < segment.ops.size(); ++i) {
          const std::string& name = segment.ops[i].name;
          if (name.ends_with(".exchange")) note_beside(segment, i, beside[name]);
        }
      }
      std::erase_if(beside, [](const auto& item) { return item.second.empty(); });
      if (!overlap) {
        EXPECT_TRUE(beside.empty());
        continue;
      }
      using Names = std::vector<std::string>;
      EXPECT_EQ(beside["moe.dispatch.exchange"], (Names{"moe.shared.up", "moe.shared.activation"}));
      EXPECT_EQ(beside["moe.combine.exchange"], Names{"moe.shared.down"});
      EXPECT_EQ(beside["moe.combine_gradient.exchange"],
                (Names{"moe.shared.down.input_gradient", "moe.shared.down.weight_gradient",
                       "moe.shared.activation_gradient"}));
      EXPECT_EQ(beside["moe.dispatch_gradient.exchange"],
                (Names{"moe.shared.up.input_gradient", "moe.shared.up.weight_gradient"}));
    }
  }
}

/// How much longer a step takes with a microbatch more.
std::int64_t marginal(const Model& model, Plan plan, const Rates& rates) {
  std::array<std::int64_t, 2> steps{};
  for (std::size_t i = 0; i < 2; ++i) {
    plan.global_batch = plan.data * static_cast<std::int64_t>(8 + i);
    TestPrices prices(rates);
    const Workload workload = lower(model, plan);
    EXPECT_TRUE(verify(workload).ok()) << verify(workload).error().message;
    const Result<Replayed> result = replay_all(workload, prices, false);
    EXPECT_TRUE(result.ok());
    if (result.ok()) steps.at(i) = result.value().replay.end.ps;
  }
  return steps[1] - steps[0];
}

// A forward and a backward pass that run as one hide each other's exchanges, as long as these are
// shorter than what stands beside them; alone each exchange is paid for.
TEST(PairedPasses, HideTheExchanges) {
  const Model model = all_sparse();
  Plan plan = expert_plan(model, {1, 1, 1, 2}, 2);
  plan.experts.routing = Routing::kCapacity;  // no counts to wait for
  Rates rates;
  rates.kiloflop = 11;
  rates.kilobyte = 50;
  const std::int64_t compute = marginal(model, plan, rates);
  rates.link_kilobyte = 20;
  EXPECT_GT(marginal(model, plan, rates), compute);
  plan.overlap.passes = true;
  EXPECT_EQ(marginal(model, plan, rates), compute);
}

TEST(ExpertStates, BytesOfARank) {
  Model model = all_sparse();
  model.vocabulary = 1024;
  const Experts& e = model.experts;
  const std::int64_t experts = model.layers * 3 * e.count * e.width * model.hidden;
  // Padded to 128 elements of each rank that shares their states.
  const std::int64_t others = (parameter_count(model) - experts + 1023) / 1024 * 1024;
  for (const auto& [expert, cut] : {std::pair{1, 1}, {2, 1}, {4, 2}, {8, 1}, {1, 8}}) {
    Plan plan = expert_plan(model, {1, 1, 1, 8}, expert, cut);
    plan.sharding = Sharding::kOptimizer;
    const Program program = lower(model, plan).programs[0];
    const std::int64_t held = experts / (expert * cut);
    EXPECT_EQ(persistent(program, BufferKind::kParameters), 2 * (others + held));
    EXPECT_EQ(persistent(program, BufferKind::kGradients), 4 * (others + held));
    EXPECT_EQ(persistent(program, BufferKind::kOptimizer),
              12 * (others / 8 + held / plan.expert_data()));
  }
}

// Whatever the degrees, all ranks together multiply 2 x 3 h f for each of a token's k experts,
// three times (forward, both gradients); a capacity factor c of that which every expert has room
// for.
TEST(ExpertFlops, SumToThoseOfTheTokens) {
  const Model model = all_sparse();
  const Experts& e = model.experts;
  for (const auto dispatcher :
       {Dispatcher::kAllGather, Dispatcher::kAllToAll, Dispatcher::kDeepEp}) {
    for (const auto& [expert, cut] : {std::pair{1, 1}, {4, 1}, {2, 2}, {8, 1}}) {
      for (const double factor : {0.5, 1.0, 2.0}) {
        Plan plan = expert_plan(model, {2, 1, 1, 4}, expert, cut);
        plan.experts.dispatcher = dispatcher;
        plan.experts.routing = Routing::kCapacity;
        plan.experts.factor = factor;
        const double rank = gemm_flops(lower(model, plan).programs[0], "moe.experts");
        const auto tokens = static_cast<double>(plan.tokens() * plan.global_batch);
        const double each = 3.0 * 2.0 * 3.0 * static_cast<double>(model.hidden * e.width);
        const double all = tokens * static_cast<double>(e.top_k * model.layers) * each;
        EXPECT_DOUBLE_EQ(rank * static_cast<double>(plan.accelerators), factor * all);
      }
    }
  }
}

// One expert for every token is an MLP: the same GEMMs, and the router's beside them.
TEST(ExpertFlops, OneExpertIsAnMlp) {
  Model model = all_sparse();
  model.experts = Experts{1, 1, model.intermediate, 0, 0, 1, false};
  Model dense = model;
  dense.experts = Experts{};
  const Plan plan = expert_plan(model, {1, 1, 1, 1}, 1);
  const Program sparse = lower(model, plan).programs[0];
  const Program plain = lower(dense, plan).programs[0];
  EXPECT_DOUBLE_EQ(gemm_flops(sparse, "moe.experts"), gemm_flops(plain, "mlp."));
  EXPECT_EQ(parameter_count(model), parameter_count(dense) + model.layers * model.hidden);
  EXPECT_EQ(active_parameter_count(model), parameter_count(model));
}

// A natural imbalance makes the busiest rank's work so many times the mean.
TEST(ExpertFlops, ImbalanceOfTheBusiestRank) {
  const Model model = all_sparse();
  Plan plan = expert_plan(model, {1, 1, 1, 4}, 4);
  const double even = gemm_flops(lower(model, plan).programs[0], "moe.experts");
  plan.experts.routing = Routing::kNatural;
  plan.experts.factor = 1.5;
  EXPECT_DOUBLE_EQ(gemm_flops(lower(model, plan).programs[0], "moe.experts"), 1.5 * even);
}

// Against simulated loads: normal, with a fixed sum, the largest of the ranks' sums.
TEST(ExpertFlops, NaturalImbalanceIsTheExpectedMaximum) {
  EXPECT_EQ(natural_imbalance(64, 1), 1);
  EXPECT_NEAR(natural_imbalance(64, 64), 1.62, 0.02);
  std::mt19937_64 random(7);
  std::normal_distribution<double> load(1, 0.26);
  for (const auto& [experts, ranks] : {std::pair{8, 2}, {8, 8}, {64, 8}, {128, 64}, {256, 64}}) {
    double sum = 0;
    constexpr int kDraws = 4000;
    for (int d = 0; d < kDraws; ++d) {
      std::vector<double> loads(static_cast<std::size_t>(experts));
      for (double& x : loads) x = load(random);
      const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / experts;
      const int own = experts / ranks;
      double most = -1;
      for (int r = 0; r < ranks; ++r) {
        const auto first = loads.begin() + r * own;
        most = std::max(most, std::accumulate(first, first + own, 0.0) / own - mean);
      }
      sum += 1 + most;
    }
    EXPECT_NEAR(natural_imbalance(experts, ranks), sum / kDraws, 0.02) << experts << " " << ranks;
  }
}

std::vector<std::int32_t> members(const Workload& workload, std::int32_t rank, const char* name) {
  const RankBinding& binding = workload.ranks[static_cast<std::size_t>(rank)];
  const auto& slots = workload.programs[binding.program.index()].group_slots;
  const auto at = std::find(slots.begin(), slots.end(), name) - slots.begin();
  std::vector<std::int32_t> out;
  for (const RankId r : workload.groups[binding.groups[static_cast<std::size_t>(at)].index()]) {
    out.push_back(r.value);
  }
  return out;
}

// Megatron-LM's order "tp-cp-ep-dp-pp" with the experts' own degrees: expert_tensor fastest, then
// expert, then the ranks that hold the same experts; context ranks among them.
TEST(ExpertGroups, AsMegatronOrdersThem) {
  const Model model = all_sparse();
  for (const std::int64_t context : {1, 2}) {
    Plan plan = expert_plan(model, {2, 1, 1, 8}, 4);
    plan.sharding = Sharding::kOptimizer;
    plan.context = context;
    plan.global_batch = plan.batch_ranks();
    const Workload workload = lower(model, plan);
    EXPECT_EQ(members(workload, 5, kExpertGroup), (std::vector<std::int32_t>{4, 5, 6, 7}));
    EXPECT_EQ(members(workload, 5, kExpertDataGroup), (std::vector<std::int32_t>{1, 5, 9, 13}));
    plan.experts.tensor = 2;
    const Workload cut = lower(model, plan);
    EXPECT_EQ(members(cut, 5, kExpertGroup), (std::vector<std::int32_t>{1, 3, 5, 7}));
    EXPECT_EQ(members(cut, 5, kExpertTensorGroup), (std::vector<std::int32_t>{4, 5}));
    EXPECT_EQ(members(cut, 5, kExpertDataGroup), (std::vector<std::int32_t>{5, 13}));
  }
}

// Prediction of a second token: one more layer, one more pass of the output matrix, and the matrix
// [h, 2h] that joins its inputs.
TEST(MultiTokenPrediction, CostsALayerAndAHead) {
  Model model = small_latent();
  const Plan plan = expert_plan(model, {1, 1, 1, 1}, 1);
  const Program plain = lower(model, plan).programs[0];
  model.predict_layers = 1;
  const Program more = lower(model, plan).programs[0];
  const auto tokens = static_cast<double>(plan.tokens());
  const auto h = static_cast<double>(model.hidden);
  EXPECT_DOUBLE_EQ(gemm_flops(more, "predict1.head"), gemm_flops(plain, "head."));
  EXPECT_DOUBLE_EQ(gemm_flops(more, "predict1.join"), 3 * 2 * tokens * 2 * h * h);
  EXPECT_DOUBLE_EQ(gemm_flops(more, "moe.") / gemm_flops(plain, "moe."), 4.0 / 3.0);
  EXPECT_DOUBLE_EQ(gemm_flops(more, "attention.") / gemm_flops(plain, "attention."), 5.0 / 4.0);
}

Bytes kept_by_layer(const Program& program) {
  Bytes sum = 0;
  for (const FrameLayout& layout : program.layouts) {
    if (layout.name != "saved") continue;
    for (const Buffer& buffer : layout.buffers) sum += buffer.saved ? buffer.bytes() : 0;
  }
  return sum;
}

// fp8: two copies of a byte of every matrix but the router's; the inputs of the experts' linears
// and of the projections to queries, keys and values are kept in a byte instead of two, that of the
// attention's output beside the two that attention reads; the router keeps its own in two. Dispatch
// carries what it carried.
TEST(ExpertPrecision, BytesOfFp8) {
  for (const bool shared : {false, true}) {
    Model model = all_sparse();
    if (shared) model.experts.shared_width = 64;
    const Experts& e = model.experts;
    Plan plan = expert_plan(model, {1, 1, 1, 4}, 2);
    const Program plain = lower(model, plan).programs[0];
    plan.precision.linear = DType::kFp8;
    const Workload workload = lower(model, plan);
    ASSERT_TRUE(verify(workload).ok()) << verify(workload).error().message;
    const Program& low = workload.programs[0];
    const std::int64_t h = model.hidden;
    const std::int64_t matrices = 4 * h * h + 3 * h * (e.count / 2 * e.width + e.shared_width);
    EXPECT_EQ(persistent(low, BufferKind::kParameters) - persistent(plain, BufferKind::kParameters),
              2 * model.layers * matrices);
    const std::int64_t tokens = plan.tokens();
    // y1, the experts' input and activation: a byte less; the attention's output: one more. Shared
    // experts: the activation a byte less, their input a byte beside the router's.
    const std::int64_t routed = tokens * e.top_k * (h + e.width);
    const std::int64_t of_shared = shared ? tokens * (h - e.shared_width) : 0;
    EXPECT_EQ(kept_by_layer(low) - kept_by_layer(plain),
              -tokens * h - routed + tokens * h + of_shared);
    const auto exchanged = [](const Program& p) {
      return collective_bytes(p, kExpertGroup, CollectiveKind::kAllToAll);
    };
    EXPECT_EQ(exchanged(low), exchanged(plain));
    each_op(low, [](const Op& op, const Work& work, const Call&) {
      const auto* gemm = std::get_if<Gemm>(&work);
      if (gemm == nullptr) return;
      const std::string name = op.name;
      const bool cast = !name.starts_with("head.") && !name.starts_with("moe.router");
      EXPECT_EQ(gemm->in, cast ? DType::kFp8 : DType::kBf16) << name;
      EXPECT_EQ(gemm->split_accumulator, cast && name.ends_with("_gradient")) << name;
    });
    plan.sharding = Sharding::kParameters;  // copies live as long as a pass
    const auto sharded = [&](DType linear) {
      plan.precision.linear = linear;
      return persistent(lower(model, plan).programs[0], BufferKind::kParameters);
    };
    EXPECT_EQ(sharded(DType::kFp8), sharded(DType::kBf16));
  }
}

// Rows of experts are padded and the padding is taken out, in both passes, where Transformer
// Engine's linears multiply in low precision and the dispatcher does not pad on the way.
TEST(Experts, PadRowsInLowPrecision) {
  const Model model = small_moe();
  const auto passes = [&](DType linear, Dispatcher dispatcher, bool single) {
    Plan plan = expert_plan(model, {1, 1, 1, 4}, 2);
    plan.precision.linear = linear;
    plan.experts.dispatcher = dispatcher;
    plan.experts.single_kernel = single;
    std::int64_t count = 0;
    std::int64_t layers = 0;
    each_op(lower(model, plan).programs[0], [&](const Op& op, const Work& work, const Call&) {
      if (op.name == "moe.experts.up") ++layers;
      if (op.name.find("experts.pad") == std::string::npos &&
          op.name.find("experts.unpad") == std::string::npos) {
        return;
      }
      ++count;
      EXPECT_EQ(std::get<Kernel>(work).rows, plan.tokens() * model.experts.top_k) << op.name;
      EXPECT_EQ(std::get<Kernel>(work).cols, model.hidden) << op.name;
    });
    EXPECT_GT(layers, 0);
    return count / layers;
  };
  EXPECT_EQ(passes(DType::kFp8, Dispatcher::kAllToAll, false), 4);
  EXPECT_EQ(passes(DType::kFp4, Dispatcher::kDeepEp, false), 4);
  EXPECT_EQ(passes(DType::kFp8, Dispatcher::kHybridEp, false), 0);
  EXPECT_EQ(passes(DType::kFp8, Dispatcher::kAllToAll, true), 0);
  EXPECT_EQ(passes(DType::kBf16, Dispatcher::kAllToAll, false), 0);
}

// What a token passes through, in billions, as the models' authors print it.
TEST(Presets, ActiveParameters) {
  const std::string folder = std::string(FORETRAIN_SOURCE_DIR) + "/configs/models/";
  for (const auto& [name, billions] : {std::pair{"mixtral-8x7b", 12.9},
                                       {"mixtral-8x22b", 39.1},
                                       {"qwen3-30b-a3b", 3.3},
                                       {"qwen3-235b-a22b", 22.0},
                                       {"deepseek-v2", 21.0},
                                       {"deepseek-v3", 37.0},
                                       {"llama-4-scout", 17.0},
                                       {"llama-4-maverick", 17.0},
                                       {"qwen1.5-moe-a2.7b", 2.7},
                                       {"qwen2-57b-a14b", 14.0},
                                       {"gpt-oss-20b", 3.6},
                                       {"gpt-oss-120b", 5.1}}) {
    const Result<Json> json = read_json_file(folder + name + ".json");
    ASSERT_TRUE(json.ok()) << json.error().message;
    const Result<Model> model = read_model(json.value(), name, "");
    ASSERT_TRUE(model.ok()) << model.error().message;
    const Model& m = model.value();
    // OpenAI leaves the token table out.
    const std::int64_t left_out = m.type == "gpt_oss" ? m.vocabulary * m.hidden : 0;
    const auto active = static_cast<double>(active_parameter_count(m) - left_out);
    EXPECT_NEAR(active / 1e9 / billions, 1, 0.025) << name;
  }
}

// Parts that a row reaches: formula against draws, without groups, with parts within a group and
// with parts of several groups.
TEST(FanOut, MatchesDraws) {
  constexpr std::array<FanOut, 4> kCases = {FanOut{8, 64, 1, 1}, FanOut{8, 64, 8, 4},
                                            FanOut{6, 160, 8, 3}, FanOut{2, 16, 4, 2}};
  std::mt19937_64 random(11);
  for (const FanOut& f : kCases) {
    for (const std::int32_t parts : {2, 4, 8}) {
      constexpr std::int32_t kDraws = 4000;
      std::int64_t hit = 0;
      for (std::int32_t draw = 0; draw < kDraws; ++draw) {
        std::vector<std::int32_t> groups(static_cast<std::size_t>(f.groups));
        std::iota(groups.begin(), groups.end(), 0);
        std::shuffle(groups.begin(), groups.end(), random);
        std::vector<std::int32_t> items;
        for (std::int32_t g = 0; g < f.limit; ++g) {
          for (std::int32_t i = 0; i < f.items / f.groups; ++i) {
            items.push_back(groups[static_cast<std::size_t>(g)] * (f.items / f.groups) + i);
          }
        }
        std::shuffle(items.begin(), items.end(), random);
        std::vector<bool> reached(static_cast<std::size_t>(parts));
        for (std::int32_t k = 0; k < f.drawn; ++k) {
          reached[static_cast<std::size_t>(items[static_cast<std::size_t>(k)] /
                                           (f.items / parts))] = true;
        }
        hit += std::count(reached.begin(), reached.end(), true);
      }
      EXPECT_NEAR(parts_hit(f, parts), static_cast<double>(hit) / kDraws, 0.06 * parts / 2)
          << f.groups << " groups, " << parts << " parts";
    }
  }
}

}  // namespace
}  // namespace foretrain

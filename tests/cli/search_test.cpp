// A search finds what brute force finds, and its bounds are below what is simulated.
#include "tools/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sim/base/rng.h"
#include "tests/support/sanitized.h"
#include "tools/search/bounds/case_bounds.h"
#include "tools/search/bounds/memory_bound.h"
#include "tools/search/robustness.h"
#include "tools/search/search_case.h"

namespace foretrain {
namespace {

/// A RUN that is simulated in a millisecond: so many layers, ranks and GiB of a device.
Json small_run(std::int64_t layers, std::int64_t ranks, double gib, bool experts) {
  const std::string common = R"("num_hidden_layers": )" + std::to_string(layers) +
                             R"(, "hidden_size": 2048, "num_attention_heads": 16,
      "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32000)";
  const std::string model =
      experts ? R"({"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 1024, )" +
                    common + "}"
              : R"({"model_type": "llama", "intermediate_size": 5632, )" + common + "}";
  const std::string text = R"({"model": )" + model +
                           R"(, "cluster": {"preset": "dgx-h100", "accelerators": )" +
                           std::to_string(ranks) + R"(, "device": {"preset": "h100-sxm-80gb",
      "memory_gib": )" + std::to_string(gib) +
                           R"(}}, "batch": {"global": 16, "sequence": 4096}})";
  return parse_json(text, "a small RUN").value();
}

struct SmallSpace {
  std::int64_t layers, ranks;
  double gib;
  bool experts;
  std::vector<std::string> fixed;
};

/// Thirty spaces: of each model and cluster some with much memory, little and too little, some keys
/// of each left to the RUN so that they stay small.
std::vector<SmallSpace> small_spaces() {
  const std::vector<std::vector<std::string>> fixes = {
      {"recompute", "overlap.tensor", "parallel.context", "parallel.virtual_pipeline"},
      {"recompute", "batch.micro", "parallel.context", "sharding.level"},
      {"parallel.tensor", "batch.micro", "parallel.context", "parallel.virtual_pipeline",
       "overlap.tensor"}};
  std::vector<SmallSpace> out;
  for (const bool experts : {false, true}) {
    for (const auto& [layers, ranks] : {std::pair(4, 4), std::pair(6, 8)}) {
      for (const double gib : {80.0, 9.0, 5.0}) {
        for (std::vector<std::string> fixed : fixes) {
          // The ways to spread experts multiply the space.
          if (experts) fixed.emplace_back("parallel.expert_tensor");
          if (experts && ranks == 8) fixed.emplace_back("sharding.level");
          out.push_back({layers, ranks, gib, experts, fixed});
        }
      }
    }
  }
  return out;
}

SearchOptions options_of(const SmallSpace& space) {
  SearchOptions out;
  out.space.fixed = space.fixed;
  out.budget_s = 1e6;
  return out;
}

/// Every bound of a plan is below what is simulated of it.
void expect_bounds_below(const SearchCase& of, CaseBounds& bounds, std::size_t plan,
                         const foretrain::Run& run, const Prediction& predicted) {
  for (const Ask ask : {Ask::kFirst, Ask::kMemory, Ask::kTime}) {
    for (const std::size_t sample : bounds.lacking(plan, ask)) {
      bounds.learn(sample, answer_of(of, bounds.request(sample)));
    }
    EXPECT_TRUE(bounds.lacking(plan, ask).empty());
  }
  const std::string written = dump_json(run.resolved);
  EXPECT_LE(bounds.first_seconds(plan), predicted.iteration_time_s) << written;
  EXPECT_LE(bounds.seconds(plan), predicted.iteration_time_s) << written;
  // Of pools the fullest device is told, which need not be the one that holds most.
  if (!run.cluster.pools.empty()) return;
  EXPECT_LE(bounds.least_gib(plan), predicted.memory.peak_gib) << written;
  EXPECT_LE(least_memory_gib(run), predicted.memory.peak_gib) << written;
}

PredictOptions step_alone() {
  PredictOptions out;
  out.verify = out.sensitivity = false;
  out.step_alone = true;
  return out;
}

/// A search finds the best plan that simulating every plan finds, and every bound is below.
void expect_search_of_all(const Json& run, const SearchOptions& options) {
  const Result<std::vector<SearchCase>> cases = search_cases(run, "small", options);
  ASSERT_TRUE(cases.ok()) << cases.error().message;
  const SearchCase& of = cases.value().front();
  CaseBounds bounds(of);
  double best = 0;
  std::int64_t refused = 0;
  std::int64_t bounded = 0;
  for (std::size_t p = 0; p < of.space.size(); ++p) {
    const Json written = of.space.run_of(of.space.at(p));
    const Result<foretrain::Run> one = resolve_run(written, "small", {});
    if (!one.ok()) {
      ++refused;
      continue;
    }
    const Result<Prediction> predicted = predict(one.value(), step_alone());
    ASSERT_TRUE(predicted.ok()) << predicted.error().message;
    const double seconds = predicted.value().iteration_time_s;
    expect_bounds_below(of, bounds, p, one.value(), predicted.value());
    bounded += bounds.seconds(p) > 0.5 * seconds ? 1 : 0;
    if (predicted.value().memory.fits && (best == 0 || seconds < best)) best = seconds;
  }
  EXPECT_GT(bounded, 0) << "no bound is near what it bounds";
  const Result<SearchResult> found = search_plans(run, "small", options, {});
  ASSERT_TRUE(found.ok()) << found.error().message;
  const SearchResult& result = found.value();
  const Certificate& c = result.certificate;
  EXPECT_TRUE(c.complete);
  EXPECT_EQ(c.gap, 0);
  EXPECT_EQ(c.plans, static_cast<std::int64_t>(of.space.size()));
  EXPECT_EQ(c.plans, c.refused + c.excluded + c.too_large + c.bounded + c.simulated + c.open);
  EXPECT_EQ(c.open, 0);
  EXPECT_LE(c.refused, refused);
  ASSERT_EQ(result.plans.empty(), best == 0);
  if (result.plans.empty()) return;
  EXPECT_EQ(result.plans.front().iteration_time_s, best);
  for (const FoundPlan& plan : result.plans) {
    const Result<foretrain::Run> again = resolve_run(plan.run, "found", {});
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_TRUE(plan.memory.fits);
    EXPECT_LE(plan.memory.peak_gib, again.value().cluster.device.memory_gib);
  }
}

class SearchOfSmallSpace : public testing::TestWithParam<std::size_t> {};

TEST_P(SearchOfSmallSpace, FindsWhatBruteForceFinds) {
  const SmallSpace small = small_spaces()[GetParam()];
  expect_search_of_all(small_run(small.layers, small.ranks, small.gib, small.experts),
                       options_of(small));
}

/// What other plans of a space have alike with those that a sample was made of, and what not.
TEST(Search, BoundsHoldWhereKeysOfAllKindsAreSearched) {
  SearchOptions options;
  options.budget_s = 1e6;
  options.space.fixed = {"gradients.dtype", "overlap.tensor", "parallel.context",
                         "parallel.virtual_pipeline", "recompute"};
  options.space.numerics = true;
  Json run = small_run(4, 8, 20, false);
  set_key(run, "model.hidden_size", Json(8192));
  set_key(run, "model.intermediate_size", Json(28672));
  set_key(run, "model.num_attention_heads", Json(64));
  expect_search_of_all(run, options);

  options.space.numerics = false;
  options.space.fixed = {"overlap.tensor", "parallel.context", "parallel.virtual_pipeline",
                         "sharding.level", "recompute",        "parallel.expert_tensor"};
  options.space.free = {"launch.cuda_graph"};
  run = small_run(4, 8, 80, true);
  set_key(run, "batch.sequence", Json(256));
  expect_search_of_all(run, options);
}

TEST(Search, BoundsHoldWhereNothingIsHidden) {
  SearchOptions options;
  options.budget_s = 1e6;
  options.space.fixed = {"overlap.tensor", "parallel.context", "recompute"};
  Json run = small_run(6, 8, 80, false);
  set_key(run, "overlap.gradient_reduce", Json(false));
  set_key(run, "overlap.parameter_gather", Json(false));
  expect_search_of_all(run, options);
  for (const char* system : {"pytorch-fsdp", "deepspeed"}) {
    run = small_run(4, 8, 80, false);
    run.set("system", Json(system));
    expect_search_of_all(run, options);
  }
}

// A step of one microbatch adds no gradients up, whatever the level.
TEST(Search, BoundsHoldOfOneMicrobatch) {
  SearchOptions options;
  options.budget_s = 1e6;
  for (const char* gradients :
       {R"({"dtype": "compute", "accumulation": "separate", "clip_norm": 0})",
        R"({"clip_norm": 0})"}) {
    Json run = parse_json(R"({"model": "gpt3-6.7b", "recompute": "none",
        "cluster": {"preset": "dgx-h100", "accelerators": 8}, "kernels": {"optimizer": "sgd"},
        "batch": {"global": 1, "sequence": 1024, "micro": 1},
        "parallel": {"tensor": 1, "pipeline": 8, "context": 1, "virtual_pipeline": 1}})",
                          "one")
                   .value();
    run.set("gradients", parse_json(gradients, "gradients").value());
    expect_search_of_all(run, options);
  }
}

/// No bound of drawn plans is above what is simulated; the mean is above `share` of it.
void expect_bounds_of_drawn_plans(const Json& run, double share) {
  const Result<std::vector<SearchCase>> cases = search_cases(run, "large", {});
  ASSERT_TRUE(cases.ok()) << cases.error().message;
  const SearchCase& of = cases.value().front();
  CaseBounds bounds(of);
  constexpr int kDrawn = foretrain::cases(40, 8);
  int drawn = 0;
  double sum = 0;
  for (std::uint64_t draw = 0; drawn < kDrawn && draw < std::uint64_t{10} * kDrawn; ++draw) {
    const std::size_t plan = mix_u64(17, draw) % of.space.size();
    const Result<foretrain::Run> one = resolve_run(of.space.run_of(of.space.at(plan)), "drawn", {});
    if (!one.ok() || !bounds.bounds(plan)) continue;
    const Result<Prediction> predicted = predict(one.value(), step_alone());
    ASSERT_TRUE(predicted.ok()) << predicted.error().message;
    expect_bounds_below(of, bounds, plan, one.value(), predicted.value());
    sum += bounds.seconds(plan) / predicted.value().iteration_time_s;
    ++drawn;
  }
  EXPECT_EQ(drawn, kDrawn);
  EXPECT_GT(sum, share * kDrawn) << "bounds are far below";
}

// Nodes of two kinds, the quick ones first or last; their layers divided by number or by time.
TEST(Search, BoundsHoldOnPools) {
  for (const char* order : {"dgx-h100 dgx-1v-32gb", "dgx-1v-32gb dgx-h100"}) {
    const std::string text = order;
    const std::string first = text.substr(0, text.find(' '));
    const std::string second = text.substr(text.find(' ') + 1);
    Json run = parse_json(R"({"model": "gpt3-6.7b", "precision": "fp16",
        "kernels": {"attention": "unfused"}, "batch": {"global": 128, "sequence": 2048},
        "parallel": {"pipeline_partition": "profiled"},
        "cluster": {"pools": [{"preset": ")" +
                              first + R"(", "accelerators": 8},
                              {"preset": ")" +
                              second + R"(", "accelerators": 8}]}})",
                          "pools")
                   .value();
    expect_bounds_of_drawn_plans(run, 0.3);
  }
}

TEST(Search, FindsTheBestOnPools) {
  Json run = small_run(6, 8, 40, false);
  run.set("cluster", parse_json(R"({"pools": [{"preset": "dgx-h100", "accelerators": 4},
                                             {"preset": "dgx-a100-80gb", "accelerators": 4}]})",
                                "cluster")
                         .value());
  SearchOptions options;
  options.space.fixed = {"parallel.context", "parallel.virtual_pipeline", "recompute",
                         "batch.micro"};
  options.budget_s = 1e6;
  expect_search_of_all(run, options);
}

/// A question of published size, with every key of its space free.
struct LargeSpace {
  const char *model, *cluster, *system, *precision;
  std::int64_t accelerators, sequences, length;
};
class SearchOfLargeSpace : public testing::TestWithParam<LargeSpace> {};

TEST_P(SearchOfLargeSpace, BoundsHoldOfDrawnPlans) {
  const LargeSpace& large = GetParam();
  Json run{Json::Object{}};
  run.set("model", Json(large.model));
  run.set("system", Json(large.system));
  run.set("precision", Json(large.precision));
  set_key(run, "cluster.preset", Json(large.cluster));
  set_key(run, "cluster.accelerators", Json(large.accelerators));
  set_key(run, "batch.global", Json(large.sequences));
  set_key(run, "batch.sequence", Json(large.length));
  expect_bounds_of_drawn_plans(run, 0.75);
}

INSTANTIATE_TEST_SUITE_P(
    Questions, SearchOfLargeSpace,
    testing::Values(LargeSpace{"gpt3-175b", "dgx-a100-80gb", "megatron-lm", "bf16", 512, 512, 2048},
                    LargeSpace{"llama-3-70b", "mi300x", "megatron-lm", "bf16", 64, 128, 4096},
                    LargeSpace{"mixtral-8x7b", "dgx-h100", "megatron-lm", "bf16", 64, 256, 4096},
                    LargeSpace{"llama-3-8b", "aws-p4d", "megatron-lm", "bf16", 16, 64, 4096},
                    LargeSpace{"gpt3-13b", "dgx-1v-32gb", "megatron-lm", "fp16", 32, 128, 2048},
                    LargeSpace{"gpt3-13b", "dgx-a100-80gb", "deepspeed", "bf16", 32, 128, 2048}));

TEST(Search, TakesModelsThatListTheirLayersWithExperts) {
  SearchOptions options;
  options.budget_s = 1e6;
  options.space.fixed = {"overlap.tensor", "parallel.context", "parallel.virtual_pipeline",
                         "sharding.level", "recompute",        "parallel.expert_tensor"};
  Json run = small_run(6, 8, 80, true);
  set_key(run, "model.mlp_only_layers", parse_json("[1, 3, 4]", "layers").value());
  set_key(run, "model.intermediate_size", Json(512));
  expect_search_of_all(run, options);
}

INSTANTIATE_TEST_SUITE_P(Thirty, SearchOfSmallSpace,
                         testing::Range<std::size_t>(0, small_spaces().size()));

/// A space that a search takes several rounds for.
SearchOptions some_options() {
  SearchOptions out;
  out.space.fixed = {"parallel.context", "overlap.tensor"};
  out.budget_s = 1e6;
  return out;
}

TEST(Search, HasTheSameAnswerForAnyNumberOfThreads) {
  const Json run = small_run(6, 8, 8, false);
  SearchOptions options = some_options();
  std::vector<SearchResult> results;
  for (const std::size_t threads : {1U, 3U}) {
    options.threads = threads;
    Result<SearchResult> one = search_plans(run, "small", options, {});
    ASSERT_TRUE(one.ok()) << one.error().message;
    results.push_back(std::move(one.value()));
  }
  const SearchResult& a = results[0];
  const SearchResult& b = results[1];
  ASSERT_EQ(a.plans.size(), b.plans.size());
  ASSERT_FALSE(a.plans.empty());
  for (std::size_t i = 0; i < a.plans.size(); ++i) {
    EXPECT_EQ(a.plans[i].run, b.plans[i].run);
    EXPECT_EQ(a.plans[i].iteration_time_s, b.plans[i].iteration_time_s);
  }
  EXPECT_EQ(a.certificate.simulated, b.certificate.simulated);
  EXPECT_EQ(a.certificate.bounded, b.certificate.bounded);
}

// Bounds spare most of the simulations; a search that stops early says how much is open.
TEST(Search, StopsWhenAskedAndSaysWhatIsOpen) {
  const Json run = small_run(6, 8, 80, false);
  const SearchOptions options = some_options();
  const Result<SearchResult> whole = search_plans(run, "small", options, {});
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  const Certificate& all = whole.value().certificate;
  EXPECT_LT(all.simulated, all.plans / 2);
  const auto until_one = [](const SearchProgress& now) { return now.best == nullptr; };
  const Result<SearchResult> early = search_plans(run, "small", options, until_one);
  ASSERT_TRUE(early.ok()) << early.error().message;
  EXPECT_TRUE(early.value().interrupted);
  const Certificate& some = early.value().certificate;
  EXPECT_EQ(some.plans, some.refused + some.excluded + some.too_large + some.bounded +
                            some.simulated + some.open);
  ASSERT_FALSE(early.value().plans.empty());
  const double best = whole.value().plans.front().iteration_time_s;
  const double found = early.value().plans.front().iteration_time_s;
  EXPECT_GE(found, best);
  if (!some.complete) {
    EXPECT_GT(some.open, 0);
    EXPECT_GE(best, found * (1 - some.gap) * (1 - 1e-12));
  }
}

TEST(Search, TheFrontHasWhatNoOtherPlanBeats) {
  const Result<SearchResult> found =
      search_plans(small_run(4, 4, 80, false), "small", some_options(), {});
  ASSERT_TRUE(found.ok()) << found.error().message;
  const std::vector<FoundPlan>& plans = found.value().plans;
  const std::vector<std::size_t> front = pareto_front(plans);
  ASSERT_FALSE(front.empty());
  EXPECT_EQ(plans[front.front()].iteration_time_s, plans.front().iteration_time_s);
  for (const FoundPlan& plan : plans) {
    const bool covered = std::any_of(front.begin(), front.end(), [&](std::size_t i) {
      return plans[i].iteration_time_s <= plan.iteration_time_s &&
             plans[i].memory.peak_gib <= plan.memory.peak_gib;
    });
    EXPECT_TRUE(covered);
  }
}

/// Every number of layers that each of two stages may compute again, with every layout.
double best_of_all_stages(const SearchCase& of, const Json& run, std::int64_t layers) {
  PredictOptions alone;
  alone.verify = alone.sensitivity = false;
  alone.step_alone = true;
  double best = 1e9;
  for (std::int64_t first = 1; first < layers; ++first) {
    for (std::int64_t again = 0; again <= first; ++again) {
      for (std::int64_t other = 0; other <= layers - first; ++other) {
        Json written = run;
        const std::string stages = R"([{"layers":)" + std::to_string(first) + R"(,"recompute":)" +
                                   std::to_string(again) + R"(},{"layers":)" +
                                   std::to_string(layers - first) + R"(,"recompute":)" +
                                   std::to_string(other) + "}]";
        written.set("pipeline_stages", parse_json(stages, "stages").value());
        const Result<Run> resolved = of.resolve(written);
        EXPECT_TRUE(resolved.ok()) << resolved.error().message;
        if (!resolved.ok()) return best;
        const Result<Prediction> one = predict(resolved.value(), alone);
        if (one.ok() && one.value().memory.within(1)) {
          best = std::min(best, one.value().iteration_time_s);
        }
      }
    }
  }
  return best;
}

// Two stages that lack memory: the search's stages are as good as any, and better than even ones.
TEST(Search, TunesStagesAsWellAsBruteForce) {
  for (const double gib : {9.0, 10.0, 11.0}) {
    Json run = small_run(8, 2, gib, false);
    run.set("parallel", parse_json(R"({"tensor":1,"pipeline":2})", "parallel").value());
    SearchOptions options;
    options.space.over = {"recompute", "pipeline_stages"};
    options.budget_s = 1e6;
    const Result<SearchResult> found = search_plans(run, "small", options, {});
    ASSERT_TRUE(found.ok()) << found.error().message;
    ASSERT_FALSE(found.value().plans.empty());
    const FoundPlan& best = found.value().plans.front();
    const Json* stages = best.run.find("pipeline_stages");
    ASSERT_NE(stages, nullptr) << gib;
    EXPECT_EQ(best.changes.back().first, "pipeline_stages");
    EXPECT_TRUE(best.memory.within(1));
    const auto even = std::find_if(
        found.value().plans.begin(), found.value().plans.end(),
        [](const FoundPlan& one) { return one.run.find("pipeline_stages") == nullptr; });
    EXPECT_LT(best.objective, even->objective);
    const Result<std::vector<SearchCase>> cases = search_cases(run, "small", options);
    ASSERT_TRUE(cases.ok()) << cases.error().message;
    const double of_all = best_of_all_stages(cases.value().front(), run, 8);
    EXPECT_LE(best.iteration_time_s, 1.002 * of_all) << gib;
    EXPECT_GE(best.iteration_time_s, 0.999999 * of_all) << gib;
  }
}

// Where no plan fits with all stages alike, one may whose stages do what each needs.
TEST(Search, TunesStagesOfPlansThatDoNotFitEvenly) {
  Json run = small_run(8, 2, 9, false);
  run.set("parallel", parse_json(R"({"tensor":1,"pipeline":2})", "parallel").value());
  run.set("recompute", parse_json(R"({"modules":["layer"],"layers":0})", "recompute").value());
  run.set("pipeline_stages", parse_json(R"([{"recompute":"full"},{}])", "stages").value());
  SearchOptions options;
  options.space.over = {"pipeline_stages"};
  options.budget_s = 1e6;
  const Result<SearchResult> found = search_plans(run, "small", options, {});
  ASSERT_TRUE(found.ok()) << found.error().message;
  ASSERT_FALSE(found.value().plans.empty());
  const FoundPlan& best = found.value().plans.front();
  EXPECT_TRUE(best.memory.within(1));
  EXPECT_LE(best.objective, found.value().own->objective);
  for (const FoundPlan& plan : found.value().plans) {
    ASSERT_FALSE(plan.changes.empty());  // the RUN's own stages are not the search's
    EXPECT_EQ(plan.changes.back().first, "pipeline_stages");
  }
}

// Six ranks of one replica: 3 divides no heads, but stages of 4 and 2 have six ranks together.
TEST(Search, FindsTensorDegreesByStage) {
  const Json run = small_run(6, 6, 80, false);
  SearchOptions options;
  options.space.free = {"pipeline_stages"};
  options.space.fixed = {"parallel.pipeline_layout", "recompute", "parallel.context",
                         "sharding.level"};
  options.conditions = {"parallel.data == 1"};
  options.budget_s = 1e6;
  const Result<SearchResult> found = search_plans(run, "small", options, {});
  ASSERT_TRUE(found.ok()) << found.error().message;
  const auto has_degrees = [](const FoundPlan& plan) {
    const Json* stages = plan.run.find("pipeline_stages");
    return stages != nullptr && (*stages->array())[0].find("tensor") != nullptr;
  };
  const FoundPlan& best = found.value().plans.front();
  ASSERT_TRUE(has_degrees(best)) << dump_json(best.run, -1);
  EXPECT_FALSE(has_degrees(found.value().plans.back()));
  const Result<std::vector<SearchCase>> cases = search_cases(run, "small", options);
  ASSERT_TRUE(cases.ok()) << cases.error().message;
  const Result<foretrain::Run> resolved = cases.value().front().resolve(best.run);
  ASSERT_TRUE(resolved.ok()) << resolved.error().message;
  EXPECT_EQ(resolved.value().plan.data, 1);
  const Result<Prediction> again = predict(resolved.value(), {});
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again.value().iteration_time_s, best.iteration_time_s);
  // A RUN with such stages is itself a question, of its own data-parallel degree.
  SearchOptions kept;
  kept.space.over = {"recompute"};
  kept.space.fixed = {"pipeline_stages"};
  const Result<SearchResult> more = search_plans(best.run, "small", kept, {});
  ASSERT_TRUE(more.ok()) << more.error().message;
  ASSERT_FALSE(more.value().plans.empty());
  EXPECT_LE(more.value().plans.front().iteration_time_s, best.iteration_time_s);
}

// Tuning changes no key that the RUN states and nobody frees, nor one that is fixed.
TEST(Search, TuningLeavesWhatStays) {
  Json run = small_run(8, 2, 10, false);
  run.set("parallel",
          parse_json(R"({"tensor":1,"pipeline":2,"virtual_pipeline":2})", "parallel").value());
  SearchOptions options;
  options.space.over = {"recompute"};
  options.budget_s = 1e6;
  const Result<SearchResult> chunks = search_plans(run, "small", options, {});
  ASSERT_TRUE(chunks.ok()) << chunks.error().message;
  ASSERT_FALSE(chunks.value().plans.empty());
  for (const FoundPlan& plan : chunks.value().plans) {
    EXPECT_EQ(*value_of_key(plan.run, "parallel.virtual_pipeline"), Json(2));
    const Json* stages = plan.run.find("pipeline_stages");
    if (stages == nullptr) continue;
    EXPECT_EQ((*stages->array())[0].find("layers"), nullptr);
  }
  run.set("recompute", "full");
  options.space.over = {"offload"};
  const Result<SearchResult> offload = search_plans(run, "small", options, {});
  ASSERT_TRUE(offload.ok()) << offload.error().message;
  for (const FoundPlan& plan : offload.value().plans) {
    const Json* stages = plan.run.find("pipeline_stages");
    if (stages == nullptr) continue;
    EXPECT_EQ((*stages->array())[0].find("recompute"), nullptr);
  }
}

// What the user fixed stays; nobody tunes stages who was not asked to.
TEST(Search, TunesNoStagesUnasked) {
  Json run = small_run(8, 2, 15, false);
  run.set("parallel", parse_json(R"({"tensor":1,"pipeline":2})", "parallel").value());
  SearchOptions options;
  options.budget_s = 1e6;
  for (const bool fixed : {false, true}) {
    if (fixed) {
      options.space.over = {"recompute"};
      options.space.fixed = {"pipeline_stages"};
    }
    const Result<SearchResult> found = search_plans(run, "small", options, {});
    ASSERT_TRUE(found.ok()) << found.error().message;
    for (const FoundPlan& plan : found.value().plans) {
      EXPECT_EQ(plan.run.find("pipeline_stages"), nullptr);
    }
  }
}

UnsurePlan unsure(double objective, double first, double second) {
  UnsurePlan out;
  out.objective = objective;
  out.by_part[0] = first;
  out.by_part[1] = second;
  return out;
}

// One plan wins always; equal work in equal shares keeps its order; a plan that is better by as
// much as the kinds of work that differ deviate together wins in 84 % of draws, as one deviation
// of a normal distribution says.
TEST(SearchRobustness, PricesOfPartsMissTogether) {
  constexpr std::size_t kDraws = 20000;
  EXPECT_EQ(shares_of_wins({unsure(1, 0.1, 0.1)}, 0, kDraws), std::vector<double>{1});
  EXPECT_EQ(shares_of_wins({unsure(1, 0.1, 0.2), unsure(1.01, 0.1, 0.2)}, 0, kDraws),
            (std::vector<double>{1, 0}));
  const double apart = 0.05 * std::sqrt(2.0);
  const std::vector<double> wins =
      shares_of_wins({unsure(1, 0.05, 0), unsure(1 + apart, 0, 0.05 / (1 + apart))}, 0, kDraws);
  EXPECT_NEAR(wins[0], 0.8413, 0.01);
  EXPECT_NEAR(wins[0] + wins[1], 1, 1e-12);
}

// Plans with the same shares err alike. Shares that differ by d in two parts make errors whose
// difference deviates by sigma sqrt(2 d): a plan better by so much wins in 84 % of draws.
TEST(SearchRobustness, PlansErrApartByWhatTheyDifferIn) {
  constexpr std::size_t kDraws = 20000;
  UnsurePlan one = unsure(1, 0, 0);
  one.shares[0] = 0.7;
  one.shares[1] = 0.3;
  UnsurePlan other = one;
  other.objective = 1.0001;
  EXPECT_EQ(shares_of_wins({one, other}, 0.05, kDraws), (std::vector<double>{1, 0}));
  other.shares[0] = 0.6;
  other.shares[1] = 0.4;
  const double apart = 0.05 * std::sqrt(2 * 0.1);
  other.objective = 1 + apart;
  EXPECT_NEAR(shares_of_wins({one, other}, 0.05, kDraws)[0], 0.8413, 0.015);
}

TEST(Search, SaysHowOftenTheBestPlanWins) {
  SearchOptions options;
  options.budget_s = 1e6;
  const Result<SearchResult> found = search_plans(small_run(4, 4, 80, false), "small", options, {});
  ASSERT_TRUE(found.ok()) << found.error().message;
  const SearchResult& result = found.value();
  EXPECT_GT(result.draws, 0);
  double sum = 0;
  for (std::int64_t i = 0; i < result.drawn_plans; ++i) {
    sum += result.plans[static_cast<std::size_t>(i)].wins;
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_GT(result.plans.front().wins, 0);
}

TEST(SearchCondition, IsAnExpressionOfNamedValues) {
  const std::vector<std::string> names = {"memory.peak_gib", "parallel.tensor", "schedule"};
  const Json gib(71.5);
  const Json tensor(8);
  const Json schedule("interleaved-1f1b");
  const auto values = [&](const std::string& name) -> const Json* {
    return name == "parallel.tensor" ? &tensor : name == "schedule" ? &schedule : nullptr;
  };
  const auto all = [&](const std::string& name) {
    return name == "memory.peak_gib" ? &gib : values(name);
  };
  const auto holds = [&](const char* text, const Condition::Values& of) {
    const Result<Condition> one = Condition::parse(text, names);
    EXPECT_TRUE(one.ok()) << text;
    return one.ok() ? one.value().holds(of) : std::nullopt;
  };
  EXPECT_EQ(holds("memory.peak_gib <= 72", all), std::optional(true));
  EXPECT_EQ(holds("memory.peak_gib <= 72", values), std::nullopt);
  EXPECT_EQ(holds("parallel.tensor > 8 and memory.peak_gib <= 72", values), std::optional(false));
  EXPECT_EQ(holds("parallel.tensor * 2 - 1 == 15", values), std::optional(true));
  EXPECT_EQ(holds("schedule == interleaved-1f1b", values), std::optional(true));
  EXPECT_EQ(holds("not (schedule != 1f1b or parallel.tensor < 2)", values), std::optional(false));
  for (const char* wrong :
       {"memory.peak <= 72", "parallel.tensor <=", "<= 8", "(parallel.tensor < 2",
        "parallel.tensor < 2 )", "parallel.tensor == pp.x"}) {
    EXPECT_FALSE(Condition::parse(wrong, names).ok()) << wrong;
  }
}

}  // namespace
}  // namespace foretrain

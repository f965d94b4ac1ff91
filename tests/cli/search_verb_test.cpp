// The verb `search`: its answer as a RUN, JSON and a table, its flags, its errors.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

constexpr const char* kSearchedRun = R"({
  "model": {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 2048,
            "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 5632,
            "vocab_size": 32000},
  "cluster": {"preset": "dgx-h100", "accelerators": 8},
  "parallel": {"context": 1},
  "batch": {"global": 16, "sequence": 4096},
  "recompute": "none", "overlap": {"tensor": false}
})";

TEST(SearchVerb, WritesTheBestPlanAsARunThatSimulatesAlike) {
  const Workplace place;
  place.write("run.json", kSearchedRun);
  const CommandResult found = place.run({"search", "run.json", "--out", "best.json", "--json",
                                         "s.json", "--csv", "s.csv", "--threads", "1"});
  ASSERT_EQ(found.exit_code, 0) << found.err;
  EXPECT_NE(found.out.find("proved"), std::string::npos) << found.out;
  const Json result = parse_json(place.read("s.json"), "s.json").value();
  for (const char* key : {"best", "plans", "front", "certificate", "wall_s"}) {
    EXPECT_NE(result.find(key), nullptr) << key;
  }
  for (const char* key : {"plans", "refused", "bounded", "simulated", "gap", "complete"}) {
    EXPECT_NE(result.find("certificate")->find(key), nullptr) << key;
  }
  const Json& best = *result.find("best");
  for (const char* key :
       {"run", "changes", "iteration_time_s", "tokens_per_s", "mfu", "memory", "cost"}) {
    EXPECT_NE(best.find(key), nullptr) << key;
  }
  const CommandResult simulated =
      place.run({"simulate", "best.json", "--no-advice", "--require-fit", "--json", "-"});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  const Json again = parse_json(simulated.out, "stdout").value();
  EXPECT_EQ(*again.find("iteration_time_s"), *best.find("iteration_time_s"));
  EXPECT_EQ(*again.find("memory")->find("peak_gib"), *best.find("memory")->find("peak_gib"));
  // A line for each plan that was simulated, and the header.
  const std::string table = place.read("s.csv");
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'),
            1 + std::ssize(*result.find("plans")->array()));
}

// Experts that follow the tensor degree are one plan, whole experts another.
TEST(SearchVerb, KnowsWhatAutoStandsFor) {
  const Workplace place;
  place.write("run.json", R"({"model": {"preset": "mixtral-8x7b", "num_hidden_layers": 4},
    "cluster": {"preset": "dgx-h100", "accelerators": 16},
    "parallel": {"tensor": 2, "expert": 8, "pipeline": 1},
    "batch": {"global": 32, "micro": 1, "sequence": 2048}})");
  const CommandResult found =
      place.run({"search", "run.json", "--over", "parallel.expert_tensor", "--json", "-"});
  ASSERT_EQ(found.exit_code, 0) << found.err;
  const Json result = parse_json(found.out, "stdout").value();
  ASSERT_EQ(result.find("plans")->array()->size(), 2U);
  for (const Json& plan : *result.find("plans")->array()) {
    const Json* cut = plan.find("changes")->find("/parallel/expert_tensor");
    const CommandResult simulated =
        place.run({"simulate", "run.json", "--no-advice", "--quiet", "--json", "-", "--set",
                   "parallel.expert_tensor=" + (cut == nullptr ? "2" : dump_json(*cut, -1))});
    const Json again = parse_json(simulated.out, "stdout").value();
    EXPECT_EQ(*again.find("iteration_time_s"), *plan.find("iteration_time_s"));
  }
}

TEST(SearchVerb, KeepsWhatTheRunStatesUnlessItIsFree) {
  const Workplace place;
  place.write("run.json", kSearchedRun);
  const auto best = [&place](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"search", "run.json", "--set", "parallel.tensor=8", "--set",
                                 "parallel.pipeline=1", "--json", "-"});
    const CommandResult found = place.run(flags);
    EXPECT_EQ(found.exit_code, 0) << found.err;
    const Json result = parse_json(found.out, "stdout").value();
    return *result.find("best")->find("run")->find("parallel")->find("tensor");
  };
  EXPECT_EQ(best({}), Json(8));
  EXPECT_NE(best({"--free", "parallel.tensor"}), Json(8));
  EXPECT_EQ(best({"--range", "parallel.tensor=4..4"}), Json(4));
  EXPECT_EQ(best({"--free", "parallel.tensor", "--where", "parallel.tensor == 2"}), Json(2));
}

// A search that goes on simulates nothing again, and ends as if it had never stopped.
TEST(SearchVerb, GoesOnFromWhatWasKept) {
  const Workplace place;
  place.write("run.json", kSearchedRun);
  const std::vector<std::string> all = {"search",      "run.json", "--fix",
                                        "batch.micro", "--json",   "-"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), all.begin(), all.end());
    return place.run(more);
  };
  const CommandResult whole = with({});
  const CommandResult first = with({"--resume", "state.json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Json state = parse_json(place.read("state.json"), "state").value();
  // As if it had been stopped halfway, with a result that only the file can know.
  Json half = state;
  Json::Array kept = *state.find("plans")->array();
  kept.resize(kept.size() / 2 + 1);
  bool marked = false;
  for (Json& plan : kept) {
    marked = plan.find("mfu") != nullptr;
    if (!marked) continue;
    plan.set("mfu", Json(0.125));
    break;
  }
  ASSERT_TRUE(marked);
  half.set("plans", Json(kept));
  place.write("half.json", dump_json(half));
  const CommandResult again = with({"--resume", "half.json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto plans = [](const CommandResult& of) {
    return *parse_json(of.out, "stdout").value().find("plans")->array();
  };
  const Json::Array a = plans(whole);
  const Json::Array b = plans(again);
  ASSERT_EQ(a, plans(first));
  ASSERT_EQ(a.size(), b.size());
  std::size_t from_file = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(*a[i].find("changes"), *b[i].find("changes"));
    EXPECT_EQ(*a[i].find("iteration_time_s"), *b[i].find("iteration_time_s"));
    from_file += *b[i].find("mfu") == Json(0.125) ? 1 : 0;
  }
  EXPECT_EQ(from_file, 1U);
  EXPECT_EQ(parse_json(place.read("half.json"), "half").value().find("plans")->array()->size(),
            state.find("plans")->array()->size());
}

TEST(SearchVerb, RefusesWhatAnotherSearchKept) {
  const Workplace place;
  place.write("run.json", kSearchedRun);
  const auto with = [&](const std::string& file, const std::string& micro) {
    return place.run({"search", "run.json", "--set", "batch.micro=" + micro, "--fix", "recompute",
                      "--quiet", "--resume", file});
  };
  ASSERT_EQ(with("state.json", "1").exit_code, 0);
  const std::string before = place.read("state.json");
  const CommandResult other = with("state.json", "2");
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("state.json: /question"), std::string::npos) << other.err;
  EXPECT_EQ(place.read("state.json"), before);
  for (const char* broken : {"{", "[]", "{}", R"({"schema": "foretrain/search/1"})",
                             R"({"schema": "foretrain/search-state/1", "plans": 3})"}) {
    place.write("broken.json", broken);
    EXPECT_EQ(with("broken.json", "1").exit_code, 1) << broken;
    EXPECT_EQ(place.read("broken.json"), broken);
  }
  EXPECT_EQ(with("-", "1").exit_code, 1);
  // Plans without what became of them are no plans.
  Json state = parse_json(before, "state").value();
  Json::Array plans = *state.find("plans")->array();
  for (Json& plan : plans) plan.erase("fate");
  state.set("plans", Json(std::move(plans)));
  place.write("fateless.json", dump_json(state));
  const CommandResult fateless = with("fateless.json", "1");
  EXPECT_EQ(fateless.exit_code, 1);
  EXPECT_NE(fateless.err.find("/plans/0/fate"), std::string::npos) << fateless.err;
}

// The section of a RUN says the same as the flags; `simulate` reads over it.
TEST(SearchVerb, ReadsTheSectionOfTheRun) {
  const Workplace place;
  place.write("run.json", kSearchedRun);
  Json run = parse_json(kSearchedRun, "run").value();
  run.set("search", parse_json(R"({"where": ["parallel.tensor <= 2"], "fix": ["batch.micro"],
                                   "objective": "cost", "price": ["2.5"]})",
                               "search")
                        .value());
  place.write("asks.json", dump_json(run));
  const CommandResult section = place.run({"search", "asks.json", "--json", "-"});
  const CommandResult flags =
      place.run({"search", "run.json", "--where", "parallel.tensor <= 2", "--fix", "batch.micro",
                 "--objective", "cost", "--price", "2.5", "--json", "-"});
  ASSERT_EQ(section.exit_code, 0) << section.err;
  ASSERT_EQ(flags.exit_code, 0) << flags.err;
  const Json a = parse_json(section.out, "stdout").value();
  const Json b = parse_json(flags.out, "stdout").value();
  EXPECT_EQ(*a.find("plans"), *b.find("plans"));
  EXPECT_EQ(*a.find("certificate"), *b.find("certificate"));
  EXPECT_GT(a.find("best")->find("cost")->number(), 0);
  EXPECT_EQ(a.find("best")->find("run")->find("search"), nullptr);
  EXPECT_EQ(place.run({"simulate", "asks.json", "--no-advice"}).exit_code, 0);
}

TEST(SearchVerb, ExitsWithThreeWhereNothingFits) {
  const Workplace place;
  place.write("run.json", kSearchedRun);
  const CommandResult none =
      place.run({"search", "run.json", "--set",
                 R"(cluster.device={"preset":"h100-sxm-80gb","memory_gib":1.5})"});
  EXPECT_EQ(none.exit_code, 3) << none.out << none.err;
  EXPECT_NE(none.out.find("No plan fits. The nearest:"), std::string::npos) << none.out;
  EXPECT_NE(none.err.find("no plan was found that fits"), std::string::npos) << none.err;
}

TEST(SearchVerb, SearchesOverSizesOfACluster) {
  const Workplace place;
  place.write("run.json", kSearchedRun);
  const CommandResult found = place.run({"search", "run.json", "--accelerators", "4,8", "--fix",
                                         "batch.micro", "--fix", "sharding.level", "--json", "-"});
  ASSERT_EQ(found.exit_code, 0) << found.err;
  const Json result = parse_json(found.out, "stdout").value();
  EXPECT_EQ(*result.find("best")->find("accelerators"), Json(8));
}

TEST(SearchVerb, ExplainsWhyAPlanIsNotTheBest) {
  const Workplace place;
  place.write("run.json", kSearchedRun);
  const CommandResult found = place.run({"search", "run.json", "--explain", "parallel.tensor=8"});
  ASSERT_EQ(found.exit_code, 0) << found.err;
  EXPECT_NE(found.out.find("With parallel.tensor=8\n"), std::string::npos) << found.out;
  EXPECT_NE(found.out.find("% slower than the best of all"), std::string::npos) << found.out;
}

TEST(SearchVerb, NamesWhatIsWrongWithAFlag) {
  const Workplace place;
  place.write("run.json", kSearchedRun);
  struct Case {
    std::vector<std::string> flags;
    const char* says;
    int exit_code = 1;
  };
  const std::vector<Case> cases = {
      {{"--free", "parallel.tensr"},
       "--free parallel.tensr: is no key of a plan (did you mean \"parallel.tensor\"?)"},
      {{"--fix", "model"}, "--fix model: is no key of a plan"},
      {{"--free", "batch.micro", "--fix", "batch.micro"}, "stands in --fix too"},
      {{"--free", "host.data_us"}, "give --range host.data_us=A..B"},
      {{"--range", "parallel.tensor=8..2"}, "expected KEY=A..B"},
      {{"--range", "parallel.tensor=900..999"}, "no value that the search tries"},
      {{"--where", "memory.peak <= 3"}, "nothing is called memory.peak"},
      {{"--where", "parallel.tensor <="}, "found its end"},
      {{"--over", "recomputation"}, "--over recomputation: is no key of a plan"},
      {{"--objective", "beauty"}, "--objective", 2},
      {{"--price", "cheap"}, "--price cheap: expected a price"},
      {{"--clusters", "dgx-h100,dgx-a100-80gb", "--objective", "cost"}, "no price of dgx-h100"},
  };
  for (const Case& one : cases) {
    std::vector<std::string> flags = one.flags;
    flags.insert(flags.begin(), {"search", "run.json"});
    const CommandResult result = place.run(flags);
    EXPECT_EQ(result.exit_code, one.exit_code) << one.says << "\n" << result.out << result.err;
    EXPECT_NE(result.err.find(one.says), std::string::npos) << one.says << "\n" << result.err;
  }
}

}  // namespace
}  // namespace foretrain

// The verb `compare`: every instant of a step has one owner, and what is compared lines up.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <random>

#include "tests/cli/run_command.h"
#include "tools/compare/attribution.h"

namespace foretrain {
namespace {

/// Whose an instant is, by looking at all; what runs is counted.
const Busy* owner_at(const std::vector<Busy>& busy, std::int64_t at, std::vector<double>& all) {
  const Busy* owner = nullptr;
  for (const Busy& one : busy) {
    if (one.begin > at || one.end <= at) continue;
    all[one.group] += 1;
    if (owner == nullptr || one.of < owner->of) owner = &one;
  }
  return owner;
}

// Of each instant the owner, looked up one by one.
TEST(Attribution, GivesEveryInstantToOne) {
  std::mt19937 draw(7);
  const auto below = [&draw](std::uint32_t n) { return static_cast<std::int64_t>(draw() % n); };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Busy> busy;
    for (std::int64_t i = below(30); i >= 0; --i) {
      const std::int64_t begin = below(100) - 10;
      const auto of = static_cast<FamilyClass>(below(3));
      busy.push_back({begin, begin + below(20), static_cast<std::uint32_t>(below(4)), of});
    }
    std::stable_sort(busy.begin(), busy.end(),
                     [](const Busy& a, const Busy& b) { return a.begin < b.begin; });
    const std::vector<Window> windows = {{0, 30}, {40, 41}, {41, 90}};
    std::vector<std::int64_t> exposed(4);
    std::vector<double> all(4);
    std::int64_t idle = 0;
    for (const Window& window : windows) {
      for (std::int64_t at = window.begin; at < window.end; ++at) {
        const Busy* owner = owner_at(busy, at, all);
        ++(owner == nullptr ? idle : exposed[owner->group]);
      }
    }
    const Attribution found = attribute(busy, windows, 4, 3);
    EXPECT_EQ(found.exposed, exposed);
    EXPECT_EQ(found.busy, all);
    EXPECT_EQ(found.idle, idle);
    EXPECT_EQ(found.length, 80);
  }
}

TEST(Attribution, TellsShortGaps) {
  const std::vector<Busy> busy = {{0, 10}, {12, 20}, {50, 60}};
  const Attribution found = attribute(busy, {{0, 60}}, 1, 5);
  EXPECT_EQ(found.idle, 32);
  EXPECT_EQ(found.short_idle, 2);
}

Json compared(const Workplace& place, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "compare");
  arguments.insert(arguments.end(), {"--json", "-"});
  const CommandResult result = place.run(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string nothing = R"({"families": [], "phases": [], "idle_s": 0})";
  return parse_json(result.exit_code == 0 ? result.out : nothing, "stdout").value();
}

const Json* family_of(const Json& json, const std::string& name) {
  for (const Json& row : *json.find("families")->array()) {
    if (*row.find("family") == Json(name)) return &row;
  }
  return nullptr;
}

/// What no family has is idle: to the last digit but rounding.
void expect_adds_up(const Json& json) {
  double sum = json.find("idle_s")->number();
  for (const Json& row : *json.find("families")->array()) sum += row.find("a_exposed_s")->number();
  const double step = at(json, "a/step_s").number();
  EXPECT_NEAR(sum, step, 1e-9 * step);
}

constexpr const char* kTrace = R"json({"traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0,
   "dur": 100},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "pid": 1, "tid": 1, "ts": 100,
   "dur": 300},
  {"ph": "X", "cat": "kernel", "name": "nvjet_a", "pid": 0, "tid": 7, "ts": 10, "dur": 40},
  {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "pid": 0, "tid": 9,
   "ts": 30, "dur": 40},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 8,
   "ts": 60, "dur": 20},
  {"ph": "X", "cat": "kernel", "name": "mystery", "pid": 0, "tid": 7, "ts": 390, "dur": 30}],
  "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
  "distributedInfo": {"rank": 0, "world_size": 8}})json";

// Steps of 100 and 300 us: gemm 40; all-reduce 40, of it 20 beside the gemm; copy 20, of it 10
// beside the all-reduce; of the last kernel 10 lie within.
TEST(Compare, TakesATraceApart) {
  const Workplace place;
  place.write("trace.json", kTrace);
  const Json json = compared(place, {"trace.json"});
  expect_adds_up(json);
  EXPECT_DOUBLE_EQ(at(json, "a/step_s").number(), 200e-6);
  EXPECT_EQ(at(json, "a/ranks"), Json(8));
  EXPECT_EQ(at(json, "a/device"), Json("NVIDIA H100 80GB HBM3"));
  EXPECT_TRUE(json.find("b")->is_null());
  const auto us = [&json](const char* family, const char* key) {
    const Json* row = family_of(json, family);
    return row == nullptr ? -1 : std::round(row->find(key)->number() * 1e6 * 2);  // of two steps
  };
  EXPECT_EQ(us("gemm", "a_exposed_s"), 40);
  EXPECT_EQ(us("nccl_all_reduce", "a_s"), 40);
  EXPECT_EQ(us("nccl_all_reduce", "a_exposed_s"), 20);
  EXPECT_EQ(us("copy_host_to_device", "a_s"), 20);
  EXPECT_EQ(us("copy_host_to_device", "a_exposed_s"), 10);
  EXPECT_EQ(us("other", "a_s"), 10);
  EXPECT_NEAR(json.find("unclassified_share")->number(), 10.0 / 90, 1e-9);
  const Json late = compared(place, {"trace.json", "--gpu-steps"});
  expect_adds_up(late);
  EXPECT_DOUBLE_EQ(at(late, "a/step_s").number(), 210e-6);
}

TEST(Compare, TakesASpanForOneStepOrSeveral) {
  const Workplace place;
  place.write("trace.json", R"([
    {"ph": "X", "cat": "kernel", "name": "nvjet_a", "pid": 0, "tid": 7, "ts": 10, "dur": 40},
    {"ph": "X", "cat": "kernel", "name": "nvjet_a", "pid": 0, "tid": 7, "ts": 60, "dur": 50}])");
  const Json one = compared(place, {"trace.json"});
  expect_adds_up(one);
  EXPECT_DOUBLE_EQ(at(one, "a/step_s").number(), 100e-6);
  EXPECT_NE(dump_json(*at(one, "a").find("notes")).find("taken as one step"), std::string::npos);
  EXPECT_DOUBLE_EQ(at(compared(place, {"trace.json", "--steps", "2"}), "a/step_s").number(), 50e-6);
  const CommandResult gpu = place.run({"compare", "trace.json", "--gpu-steps"});
  EXPECT_EQ(gpu.exit_code, 1);
  EXPECT_NE(gpu.err.find("no annotations"), std::string::npos) << gpu.err;
}

// Ranks in files of their own: a mean over them, and the last one's communication is transfer.
TEST(Compare, ReadsTheRanksOfAFolder) {
  const Workplace place;
  std::filesystem::create_directory(place.path("in/ranks"));
  place.write("ranks/0.json", kTrace);
  std::string second = kTrace;
  const std::string from = "\"ts\": 30, \"dur\": 40}";
  second.replace(second.find("\"ts\": 30, \"dur\": 40"), from.size() - 1,
                 "\"ts\": 50, \"dur\": 20");
  place.write("ranks/1.json", second);
  place.write("ranks/notes.json", "{\"mine\": 1}");
  const Json json = compared(place, {"ranks"});
  expect_adds_up(json);
  EXPECT_EQ(at(json, "a/ranks_read"), Json(2));
  const Json* reduce = family_of(json, "nccl_all_reduce");
  ASSERT_NE(reduce, nullptr);
  EXPECT_NEAR(reduce->find("a_s")->number(), 15e-6, 1e-12);
  EXPECT_NEAR(reduce->find("a_waiting_s")->number(), 5e-6, 1e-12);
  EXPECT_EQ(compared(place, {"ranks/0.json,ranks/1.json"}).find("families")->array()->size(),
            json.find("families")->array()->size());
}

TEST(Compare, TakesARunApartAsSimulateDoes) {
  const Workplace& place = small_place();
  const Json alone = compared(place, {"run.json"});
  expect_adds_up(alone);
  const Json predicted = simulated(place, "run.json", {}, {"--no-advice"});
  EXPECT_EQ(at(alone, "a/step_s"), *predicted.find("iteration_time_s"));
  EXPECT_EQ(at(alone, "a/ranks"), *predicted.find("accelerators"));
  EXPECT_EQ(at(alone, "a/device"), *predicted.find("accelerator"));
  double phases = alone.find("idle_s")->number();
  for (const Json& phase : *alone.find("phases")->array()) {
    phases += phase.find("a_exposed_s")->number();
  }
  EXPECT_NEAR(phases, at(alone, "a/step_s").number(), 1e-9);
}

// A RUN, its timeline and its result are one step.
TEST(Compare, FindsNoDifferenceWhereThereIsNone) {
  const Workplace& place = small_place();
  ASSERT_EQ(place
                .run({"simulate", "run.json", "--no-advice", "--quiet", "--timeline",
                      "line.json.gz", "--json", "result.json"})
                .exit_code,
            0);
  for (const char* other : {"run.json", "line.json.gz", "result.json"}) {
    const Json json = compared(place, {"run.json", other});
    expect_adds_up(json);
    ASSERT_FALSE(json.find("families")->array()->empty());
    for (const Json& row : *json.find("families")->array()) {
      EXPECT_NEAR(row.find("difference_s")->number(), 0, 1e-12) << other << dump_json(row);
    }
  }
  const Json slower = compared(place, {"run.json", "result.json", "--set", "overlap.tensor=false"});
  expect_adds_up(slower);
}

TEST(Compare, ChecksTheWorldAndTheDevice) {
  const Workplace& place = small_place();
  place.write("trace.json", kTrace);
  const Json json = compared(place, {"run.json", "trace.json"});
  expect_adds_up(json);
  const CommandResult text = place.run({"compare", "run.json", "trace.json"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("% less"), std::string::npos) << text.out;
  const CommandResult other =
      place.run({"compare", "run.json", "trace.json", "--set",
                 "cluster={\"preset\":\"dgx-a100-80gb\",\"accelerators\":16}"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_NE(other.out.find("A has 16 ranks, B 8"), std::string::npos) << other.out;
  EXPECT_NE(other.out.find("A is of a100-sxm-80gb, B of NVIDIA H100"), std::string::npos)
      << other.out;
}

TEST(Compare, SaysWhatIsWrong) {
  const Workplace& place = small_place();
  place.write("trace.json", kTrace);
  place.write("cut.json", std::string(kTrace).substr(0, 500));
  place.write("words.txt", "some words");
  place.write("profile.json", R"({"schema": "foretrain/profile/2"})");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"nowhere.json"}, "no such file"},
      {{"cut.json"}, "cut.json: byte 500: the file ends here"},
      {{"words.txt"}, "words.txt: is neither JSON with known keys nor SQLite"},
      {{"profile.json"}, "found the schema foretrain/profile/2; accepted are a RUN"},
      {{"trace.json", "--steps", "3"}, "has annotations of 2 steps"},
      {{"run.json", "--steps", "3"}, "--steps is of traces"},
      {{"trace.json,run.json"}, "run.json is no trace"},
      {{"trace.json", "--json", "trace.json"}, "would be overwritten"},
      {{"cut.json,trace.json", "--json", "trace.json"}, "would be overwritten"},
  };
  for (const auto& [arguments, says] : cases) {
    std::vector<std::string> all = arguments;
    all.insert(all.begin(), "compare");
    const CommandResult result = place.run(all);
    EXPECT_EQ(result.exit_code, 1) << says;
    EXPECT_NE(result.err.find(says), std::string::npos) << says << "\n" << result.err;
  }
}

// Two calls of one product, the second with a part added up in a kernel of its own; an attention;
// one product whose layout nobody tells.
constexpr const char* kShapes =
    R"json({
 "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
 "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 0, "dur": 30,
   "args": {"Input Dims": [[8, 64, 128], [32, 128], []], "Input type": ["c10::BFloat16", "", ""]}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 4,
   "args": {"Input Dims": [[512, 128], [128, 32]], "Input Strides": [[128, 1], [1, 128]],
            "Input type": ["c10::BFloat16", "c10::BFloat16"], "External id": 5}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 11, "dur": 4,
   "args": {"Input Dims": [[512, 128], [128, 32]], "Input Strides": [[128, 1], [1, 128]],
            "Input type": ["c10::BFloat16", "c10::BFloat16"]}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 21, "dur": 4,
   "args": {"Input Dims": [[16, 16], [16, 16]], "Input type": ["float", "float"]}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::_flash_attention_forward", "pid": 1, "tid": 1,
   "ts": 31, "dur": 4, "args": {"Input Dims": [[2, 512, 8, 64], [2, 512, 4, 64], [2, 512, 4, 64]],
   "Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"],
   "Concrete Inputs": ["", "", "", "", "", "512", "512", "0.", "True", "False"]}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 2,
   "dur": 1, "args": {"correlation": 1}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 12,
   "dur": 1, "args": {"correlation": 2}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 13,
   "dur": 1, "args": {"correlation": 3}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 22,
   "dur": 1, "args": {"correlation": 4}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 32,
   "dur": 1, "args": {"correlation": 5}},
  {"ph": "X", "cat": "kernel", "name": "nvjet_a", "pid": 0, "tid": 7, "ts": 40, "dur": 10,
   "args": {"correlation": 1}},
  {"ph": "X", "cat": "kernel", "name": "nvjet_a", "pid": 0, "tid": 7, "ts": 50, "dur": 11,
   "args": {"correlation": 2}},
  {"ph": "X", "cat": "kernel", "name": "cublasLt::splitKreduce_kernel", "pid": 0, "tid": 7,
   "ts": 61, "dur": 1, "args": {"correlation": 3}},
  {"ph": "X", "cat": "kernel", "name": "mystery_gemm", "pid": 0, "tid": 7, "ts": 70, "dur": 1,
   "args": {"correlation": 4}},
  {"ph": "X", "cat": "kernel", "name": "pytorch_flash::flash_fwd_kernel", "pid": 0, "tid": 7,
   "ts": 80, "dur": 20.5, "args": {"correlation": 5}}]})json";

TEST(Compare, MakesAProfileOfMeasuredKernels) {
  const Workplace& place = small_place();
  place.write("shapes.json", kShapes);
  const CommandResult made = place.run({"compare", "shapes.json", "--profile", "p.json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_NE(made.err.find("2 shapes of 3 calls; 1 calls of products"), std::string::npos)
      << made.err;
  const Json profile = parse_json(place.read("p.json"), "p.json").value();
  EXPECT_EQ(at(profile, "machine/device"), Json("h100-sxm-80gb"));
  std::map<std::string, double> means;
  for (const Json& sample : *profile.find("samples")->array()) {
    means[*sample.find("shape")->string()] = sample.find("mean_us")->number();
  }
  const std::map<std::string, double> expected = {
      {"gemm 512x32x128 nt bf16->bf16", 11},
      {"attention batch 2 heads 8/4 length 512x512 head 64 causal flash2 bf16", 20.5}};
  EXPECT_EQ(means, expected);
  const CommandResult priced =
      place.run({"simulate", "run.json", "--profile", "p.json", "--no-advice", "--set",
                 R"(cluster={"preset":"dgx-h100","accelerators":8})"});
  EXPECT_EQ(priced.exit_code, 0) << priced.err;
  EXPECT_NE(priced.out.find("priced from p.json"), std::string::npos) << priced.out;
  place.write("trace.json", kTrace);
  const CommandResult none = place.run({"compare", "trace.json", "--profile", "q.json"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("record_shapes=True"), std::string::npos) << none.err;
  EXPECT_FALSE(place.has("q.json"));
}

// Both steps in one trace, A's processes before B's.
TEST(Compare, DrawsBothSteps) {
  const Workplace& place = small_place();
  place.write("trace.json", kTrace);
  const CommandResult drawn =
      place.run({"compare", "run.json", "trace.json", "--trace", "both.json", "--quiet"});
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  const Json trace = parse_json(place.read("both.json"), "both.json").value();
  std::vector<std::string> processes;
  bool kernel = false;
  for (const Json& event : *trace.find("traceEvents")->array()) {
    if (*event.find("name") == Json("process_name")) {
      processes.push_back(*at(event, "args/name").string());
    }
    kernel = kernel || *event.find("name") == Json("nvjet_a");
  }
  ASSERT_EQ(processes.size(), 2U);
  EXPECT_EQ(processes[0].substr(0, 7), "A: rank");
  EXPECT_EQ(processes[1], "B: rank 0, measured");
  EXPECT_TRUE(kernel);
}

// Whoever gives a trace to another verb is told which one takes it.
TEST(Compare, IsNamedWhereATraceIsGivenToAnotherVerb) {
  const Workplace& place = small_place();
  place.write("trace.json", kTrace);
  place.write("nsight.sqlite", "SQLite format 3");
  const std::vector<std::vector<std::string>> cases = {
      {"simulate", "trace.json"},
      {"search", "trace.json"},
      {"goodput", "trace.json", "--json", "out.json"},
      {"show", "trace.json"},
      {"score", "trace.json"},
      {"simulate", "run.json", "--profile", "trace.json"},
      {"simulate", "nsight.sqlite"}};
  for (const std::vector<std::string>& arguments : cases) {
    const CommandResult result = place.run(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments[0];
    EXPECT_NE(result.err.find("a trace that a profiler wrote; `foretrain compare "),
              std::string::npos)
        << arguments[0] << "\n"
        << result.err;
  }
}

/// Traces that others published, where a checkout has them beside it.
TEST(Compare, TakesPublishedTracesApart) {
  const std::string folder = FORETRAIN_SOURCE_DIR "/../shared/data/traces/";
  struct Case {
    const char* file;
    std::int64_t ranks;
    double step_s;
    std::vector<const char*> has;
  };
  const Case cases[] = {
      {"deepseek_v3_train_h800.json.gz", 64, 0.112202, {"gemm", "attention", "deepep"}},
      {"hta_nccl_parser_config__nccl_data.json.gz",
       2,
       0.222368,
       {"gemm", "nccl_all_reduce", "nccl_broadcast"}},
      {"hta_timeline_analysis__sampled_rank-0.json.gz", 128, 0.61512, {"gemm", "nccl_send_recv"}},
  };
  const Workplace place;
  for (const Case& one : cases) {
    if (!std::filesystem::exists(folder + one.file)) GTEST_SKIP() << "no " << folder << one.file;
    const Json json = compared(place, {folder + one.file});
    expect_adds_up(json);
    EXPECT_EQ(at(json, "a/ranks"), Json(one.ranks)) << one.file;
    EXPECT_NEAR(at(json, "a/step_s").number(), one.step_s, 1e-6) << one.file;
    EXPECT_LT(json.find("unclassified_share")->number(), 0.01) << one.file;
    for (const char* family : one.has) EXPECT_NE(family_of(json, family), nullptr) << family;
  }
}

}  // namespace
}  // namespace foretrain

// execute, calibrate, validate: what they write, and how they refuse.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

constexpr const char* kTiny = R"({
  "name": "tiny",
  "model": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16,
            "vocab_size": 96, "attn_pdrop": 0, "resid_pdrop": 0},
  "cluster": {"preset": "host", "accelerators": 1},
  "batch": {"global": 4, "micro": 1, "sequence": 16},
  "precision": "fp32",
  "kernels": {"attention": "unfused"}
})";

class Execution : public ::testing::Test {
 protected:
  Execution() {
    x_place.write("run.json", kTiny);
    // No profile of the user's own plays a part.
    set("XDG_DATA_HOME", x_place.path("data").c_str());
  }
  ~Execution() override {
    for (const auto& [name, before] : x_before) {
      before ? setenv(name.c_str(), before->c_str(), 1) : unsetenv(name.c_str());
    }
  }
  /// Sets a variable of the environment for this test.
  void set(const char* name, const char* value) {
    const char* before = std::getenv(name);
    x_before.emplace(name, before == nullptr ? std::nullopt : std::optional<std::string>(before));
    setenv(name, value, 1);
  }
  Json executed(std::vector<std::string> more) const {
    more.insert(more.begin(), {"execute", "run.json", "--steps", "3", "--json", "-"});
    const CommandResult result = x_place.run(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const Result<Json> json = parse_json(result.out, "stdout");
    EXPECT_TRUE(json.ok()) << result.out;
    return json.ok() ? json.value() : Json();
  }
  void expect_refused(std::vector<std::string> arguments, const std::vector<std::string>& said) {
    const std::vector<std::string> before = x_place.files();
    const CommandResult result = x_place.run(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments[0];
    for (const std::string& text : said) {
      EXPECT_NE(result.err.find(text), std::string::npos) << text << " in " << result.err;
    }
    EXPECT_EQ(x_place.files(), before);
  }
  Workplace x_place;
  std::map<std::string, std::optional<std::string>> x_before;  ///< of the environment
};

std::vector<double> losses(const Json& json) {
  std::vector<double> out;
  const Json steps = at(json, "steps");
  for (const Json& step : *steps.array()) out.push_back(at(step, "loss").number());
  return out;
}

void expect_equal_losses(const Json& a, const Json& b) {
  const std::vector<double> x = losses(a);
  const std::vector<double> y = losses(b);
  ASSERT_EQ(x.size(), 3);
  ASSERT_EQ(y.size(), 3);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i] / y[i], 1, 1e-5);
}

// The library that multiplies is the user's choice, and said; a price is of one library.
TEST_F(Execution, TheLibraryOfProducts) {
  const Json plain = executed({"--blas", "plain"});
  EXPECT_EQ(*at(at(plain, "machine"), "blas").string(), "plain loops");
  expect_equal_losses(executed({}), plain);
  const CommandResult known = x_place.run({"execute", "run.json", "--blas", "onednn", "--quiet"});
  if (known.exit_code != 0) {
    EXPECT_NE(known.err.find("libdnnl-dev"), std::string::npos) << known.err;
    return;
  }
  const Json onednn = executed({"--blas", "onednn"});
  EXPECT_EQ(at(at(onednn, "machine"), "blas").string()->substr(0, 6), "oneDNN");
  expect_equal_losses(onednn, plain);
}

TEST_F(Execution, OneRankLearnsAndIsTraced) {
  const Json json = executed({"--trace", "t.json", "--timeline", "line.json.gz"});
  const std::vector<double> loss = losses(json);
  ASSERT_EQ(loss.size(), 3);
  EXPECT_NEAR(loss[0], std::log(96.0), 0.3);  // drawn labels from small weights
  EXPECT_LT(loss[2], loss[0]);
  EXPECT_GT(at(json, "step_time_s").number(), 0);
  const Result<Json> trace = parse_json(x_place.read("t.json"), "t.json");
  ASSERT_TRUE(trace.ok());
  EXPECT_GT(at(trace.value(), "traceEvents").array()->size(), 100);
  EXPECT_TRUE(x_place.has("line.json.gz"));
}

TEST_F(Execution, ThreadsAndProcessesTrainLikeOneRank) {
  const Json one = executed({});
  const std::vector<std::string> tensor = {"--ranks", "2", "--set", "parallel.tensor=2"};
  std::vector<std::string> threads = tensor;
  threads.emplace_back("--threads");
  const Json by_threads = executed(threads);
  EXPECT_EQ(at(by_threads, "transport"), Json("threads"));
  expect_equal_losses(one, by_threads);
#if defined(__SANITIZE_ADDRESS__)
  // Open MPI leaves memory to the end of the process and unloads the modules that allocated it.
  set("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1");
#endif
  const Json by_default = executed(tensor);
  expect_equal_losses(one, by_default);
  if (at(by_default, "transport") != Json("mpi")) GTEST_SKIP() << "no MPI here: threads only";
}

TEST_F(Execution, RefusesByNameBeforeAnythingStarts) {
  expect_refused({"execute", "run.json", "--set", "precision=bf16", "--set",
                  "kernels.attention=flash", "--trace", "t.json"},
                 {"stores fp32", "bf16", "set precision to fp32"});
  expect_refused({"execute", "run.json", "--set", "model.n_embd=65536", "--set",
                  "model.n_layer=400", "--json", "out.json"},
                 {"out of memory", "GiB", "this machine has"});
  expect_refused({"execute", "run.json", "--ranks", "3", "--set", "parallel.tensor=2"}, {"3"});
  expect_refused({"simulate", "run.json", "--profile", "none.json"}, {"--profile", "none.json"});
  EXPECT_EQ(x_place.run({"execute", "run.json", "--device", "abacus"}).exit_code, 2);
  EXPECT_EQ(x_place.run({"execute"}).exit_code, 2);
}

TEST_F(Execution, CudaNeedsADevice) {
  expect_refused({"calibrate", "--name", "h100-sxm-80gb"}, {"--name", "host"});
  if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "here is a device";
  expect_refused({"validate", "run.json", "--device", "cuda"}, {"--device cuda", "--device host"});
  expect_refused({"calibrate", "--device", "cuda"}, {"--device cuda", "--device host"});
  expect_refused({"execute", "run.json", "--device", "cuda"},
                 {"--device cuda", "CUDA", "--device host"});
}

TEST_F(Execution, InterruptedCalibrationKeepsWhatItHas) {
  const std::string command = "cd '" + x_place.path("in").string() + "' && timeout -s INT 3 " +
                              FORETRAIN_BINARY + " calibrate --out p.json 2> err";
  const int status = std::system(command.c_str());
  EXPECT_NE(status, 0);
  EXPECT_NE(x_place.read("err").find("--resume goes on"), std::string::npos) << x_place.read("err");
  const Result<Json> profile = parse_json(x_place.read("p.json"), "p.json");
  ASSERT_TRUE(profile.ok());
  ASSERT_GT(at(profile.value(), "samples").array()->size(), 3);
  // What the host ran at, and what of it is not read.
  EXPECT_NE(at(profile.value(), "machine/state/not_readable").string()->find("power"),
            std::string::npos);
  // It prices a simulation, and says for how much of it.
  const Json with = simulated(x_place, "run.json", {}, {"--profile", "p.json"});
  const Json without_it = simulated(x_place, "run.json");
  EXPECT_NE(at(with, "iteration_time_s"), at(without_it, "iteration_time_s"));
  EXPECT_EQ(at(without_it, "provenance/analytic").number(), 1);
  EXPECT_NE(dump_json(at(with, "notes")).find("priced from p.json"), std::string::npos);
  // Another machine's is not gone on with.
  Json other = profile.value();
  other.find("machine")->set("processor", "abacus");
  x_place.write("other.json", dump_json(other));
  expect_refused({"calibrate", "--resume", "--out", "other.json"},
                 {"other.json", "another machine", "abacus", "--force"});
  // Nor is it a price for other devices.
  expect_refused({"simulate", "llama-3-8b-8-h100", "--profile", "p.json"}, {"--profile", "host"});
}

// A place that cannot be written to is named before the work.
TEST_F(Execution, PlacesForResultsAreCheckedFirst) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"execute", "run.json", "--trace", "none/x.json"},
        {"validate", "run.json", "--json", "none/x.json"},
        {"calibrate", "--out", "none/x.json"}}) {
    const CommandResult result = x_place.run(words);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find("none/x.json cannot be written"), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_LT(result.cpu_s, 5);
    EXPECT_LT(result.wall_s, 60);
  }
}

// What is measured anew does not take what was there away.
TEST_F(Execution, AnOldProfileStaysBeside) {
  x_place.write("p.json", "something");
  const CommandResult made =
      x_place.run({"calibrate", "--quick", "--budget", "1", "--out", "p.json", "--threads"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(x_place.read("p.json.before"), "something");
  EXPECT_NE(made.err.find("p.json.before"), std::string::npos) << made.err;
  expect_refused({"calibrate", "--force", "--out", "q.json"}, {"--force", "--resume"});
}

// One that is damaged and that nobody named stops nothing.
TEST_F(Execution, ADamagedProfileOfTheUserIsPassedOver) {
  std::filesystem::create_directories(x_place.path("data/foretrain/profiles"));
  std::ofstream(x_place.path("data/foretrain/profiles/host.json"))
      << "{\"schema\": \"foretrain/prof";
  const Json json = simulated(x_place, "run.json");
  EXPECT_NE(dump_json(at(json, "notes")).find("not priced from the profile"), std::string::npos);
  expect_refused({"simulate", "run.json", "--profile",
                  x_place.path("data/foretrain/profiles/host.json").string()},
                 {"host.json"});
}

// PyTorch's kernels price systems that call PyTorch, and no others.
TEST_F(Execution, AFrameworksKernelsAreItsOwn) {
  x_place.write("p.json", R"({"schema": "foretrain/profile/2",
    "machine": {"device": "h100-sxm-80gb", "processor": "some GPU", "date": "a day"},
    "samples": [{"op": "rms-norm", "shape": "rms-norm 4096x4096 bf16 67133440 B",
      "by": "framework", "library": "PyTorch 2.9", "dtype": "bf16", "size": 67133440, "count": 9,
      "median_us": 400, "p10_us": 400, "p90_us": 400}]})");
  const auto step_s = [this](const char* run, const char* system, bool priced) {
    const std::vector<std::string> sets = {std::string("system=\"") + system + "\""};
    const Json json = simulated(
        x_place, run, sets,
        priced ? std::vector<std::string>{"--profile", "p.json"} : std::vector<std::string>{});
    return at(json, "iteration_time_s").number();
  };
  const char* const run = "llama-3-8b-8-h100";
  EXPECT_GT(step_s(run, "megatron-lm", true), 1.01 * step_s(run, "megatron-lm", false));
  EXPECT_EQ(step_s("maxtext-llama-2-70b-64-h100", "maxtext", true),
            step_s("maxtext-llama-2-70b-64-h100", "maxtext", false));
}

// The shapes of a run are what prices it.
TEST_F(Execution, ShapesOfARunPriceIt) {
  const CommandResult made =
      x_place.run({"calibrate", "--quick", "--shapes-of", "run.json", "--out", "p.json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json with = simulated(x_place, "run.json", {}, {"--profile", "p.json"});
  EXPECT_GT(at(with, "provenance/measured").number(), 0.99);
  expect_refused({"calibrate", "--shapes-of", "llama-3-8b-8-h100"},
                 {"--shapes-of llama-3-8b-8-h100", "8 ranks"});
}

// A device's profile: the state that prices a product, and what was measured beside held SMs.
TEST_F(Execution, WhySaysStateAndSlowdown) {
  x_place.write("p.json", R"({"schema": "foretrain/profile/1",
    "machine": {"device": "h100-sxm-80gb", "processor": "some GPU", "date": "a day"},
    "samples": [
      {"op": "launch", "shape": "by the host", "dtype": "fp32", "size": 1, "count": 9,
       "median_us": 4, "p10_us": 4, "p90_us": 4},
      {"op": "gemm nt", "shape": "gemm 8192x4096x4096 nt bf16->bf16", "state": "burst",
       "dtype": "bf16", "size": 274877906944, "count": 9, "median_us": 380, "p10_us": 380,
       "p90_us": 381},
      {"op": "gemm nt", "shape": "gemm 8192x4096x4096 nt bf16->bf16", "state": "sustained",
       "dtype": "bf16", "size": 274877906944, "count": 99, "median_us": 420, "p10_us": 419,
       "p90_us": 421, "clock_mhz": 1500, "power_w": 690},
      {"op": "gemm nt", "shape": "gemm 8192x4096x4096 nt bf16->bf16", "sms_beside": 16,
       "dtype": "bf16", "size": 274877906944, "count": 99, "median_us": 525, "p10_us": 524,
       "p90_us": 526, "alone_us": 420}],
    "fits": []})");
  const CommandResult why = x_place.run(
      {"show", "llama-3-8b-8-h100", "--set", "profile=\"p.json\"", "--why", "attention.qkv"});
  ASSERT_EQ(why.exit_code, 0) << why.err;
  EXPECT_NE(why.out.find("by 1 sample of gemm of bf16, sustained"), std::string::npos) << why.out;
  EXPECT_NE(why.out.find("1.25 times beside 16 SMs (1 sample)"), std::string::npos) << why.out;
  const Json with = simulated(x_place, "llama-3-8b-8-h100", {}, {"--profile", "p.json"});
  EXPECT_NE(dump_json(at(with, "notes")).find("products sustained, slowdown beside"),
            std::string::npos)
      << dump_json(at(with, "notes"));
}

TEST_F(Execution, ValidationComparesAndGates) {
  const std::vector<std::string> base = {
      "validate",         "run.json", "--ranks", "2", "--set",    "parallel.tensor=2",
      "--seconds-per-op", "0.005",    "--steps", "3", "--threads"};
  std::vector<std::string> open = base;
  open.insert(open.end(), {"--json", "v.json"});
  const CommandResult result = x_place.run(open);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("gemm"), std::string::npos);
  const Result<Json> json = parse_json(x_place.read("v.json"), "v.json");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(at(json.value(), "numerics/matches_one_rank"), Json(true));
  EXPECT_LT(at(json.value(), "numerics/max_relative_difference").number(), 1e-5);
  const double predicted = at(json.value(), "predicted/step_time_s").number();
  const double executed = at(json.value(), "executed/step_time_s").number();
  EXPECT_GT(predicted, 0);
  EXPECT_GT(at(json.value(), "executed/cpu_time_s").number(), 0);
  EXPECT_NEAR(at(json.value(), "error/step_time_s").number(), predicted / executed - 1, 1e-9);
  std::vector<std::string> gated = base;
  gated.insert(gated.end(), {"--max-error", "0", "--quiet"});
  const CommandResult failed = x_place.run(gated);
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_NE(failed.err.find("--max-error"), std::string::npos);
}

}  // namespace
}  // namespace foretrain

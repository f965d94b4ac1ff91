// `execute --checkpoint`: states that are whole, and runs that go on as if nothing had happened.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

constexpr const char* kSavedRun = R"({
  "model": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16,
            "vocab_size": 96, "attn_pdrop": 0, "resid_pdrop": 0},
  "cluster": {"preset": "host", "accelerators": 1},
  "batch": {"global": 4, "micro": 1, "sequence": 16},
  "precision": "fp32", "kernels": {"attention": "unfused"}})";

using Words = std::vector<std::string>;

Words together(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

CommandResult execute(const Workplace& place, int steps, const Words& more) {
  return place.run(
      together({"execute", "run.json", "--steps", std::to_string(steps), "--json", "-"}, more));
}

/// Losses of the steps that the command ran.
std::vector<double> losses(const Workplace& place, int steps, const Words& more) {
  const CommandResult result = execute(place, steps, more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Result<Json> json = parse_json(result.out, "stdout");
  std::vector<double> out;
  if (!json.ok()) return out;
  for (const Json& step : *json.value().find("steps")->array()) {
    out.push_back(step.find("loss")->number());
  }
  return out;
}

std::vector<double> last(const std::vector<double>& all, std::size_t count) {
  return {all.end() - static_cast<std::ptrdiff_t>(std::min(count, all.size())), all.end()};
}

/// The steps of the states in a folder.
std::vector<int> saved(const Workplace& place) {
  std::vector<int> out;
  for (const auto& entry : std::filesystem::directory_iterator(place.path("in/states"))) {
    if (std::filesystem::exists(entry.path() / "state.json")) {
      out.push_back(std::stoi(entry.path().filename().string().substr(5)));
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

const Words kStates = {"--checkpoint", "states"};
const Words kResumed = {"--checkpoint", "states", "--resume"};

class SavedState : public testing::TestWithParam<Words> {};

TEST_P(SavedState, GoesOnAsIfNothingHadHappened) {
  const Workplace place;
  place.write("run.json", kSavedRun);
  const std::vector<double> whole = losses(place, 6, GetParam());
  ASSERT_EQ(whole.size(), 6U);
  EXPECT_NE(whole.front(), whole.back());
  EXPECT_EQ(losses(place, 3, together(kStates, GetParam())),
            std::vector<double>(whole.begin(), whole.begin() + 3));
  EXPECT_EQ(losses(place, 6, together(kResumed, GetParam())), last(whole, 3));
  EXPECT_EQ(saved(place), (std::vector<int>{5, 6}));  // --keep 2
}
INSTANTIATE_TEST_SUITE_P(
    Each, SavedState,
    testing::Values(Words{}, Words{"--ranks", "4", "--threads", "--set", "parallel.tensor=2"},
                    Words{"--ranks", "2", "--threads", "--set", "parallel.pipeline=2"},
                    Words{"--ranks", "2", "--threads", "--set", "sharding.level=parameters"},
                    Words{"--ranks", "2", "--threads", "--set", "offload.optimizer=cpu", "--set",
                          "sharding.level=gradients"}));

TEST(SavedStates, AKilledRunGoesOn) {
  const Workplace place;
  place.write("run.json", kSavedRun);
  const std::string command = "cd " + place.path("in").string() + " && timeout -s KILL 0.4 " +
                              FORETRAIN_BINARY +
                              " execute run.json --steps 90000 --checkpoint states --quiet "
                              "> /dev/null 2>&1";
  EXPECT_NE(std::system(command.c_str()), 0);
  const std::vector<int> steps = saved(place);
  ASSERT_FALSE(steps.empty());
  const int end = steps.back() + 2;
  EXPECT_EQ(losses(place, end, kResumed), last(losses(place, end, {}), 2));
}

TEST(SavedStates, ADamagedOneIsLeftOut) {
  const Workplace place;
  place.write("run.json", kSavedRun);
  const std::vector<double> whole = losses(place, 5, kStates);
  std::string bytes = place.read("states/step-5/rank-0.state");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  place.write("states/step-5/rank-0.state", bytes);
  const CommandResult result = execute(place, 5, kResumed);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("its checksum is not that of state.json"), std::string::npos)
      << result.err;
  const Json json = parse_json(result.out, "stdout").value();
  EXPECT_EQ(json.find("checkpoint")->find("resumed_after")->number(), 4);
  EXPECT_EQ(json.find("steps")->array()->back().find("loss")->number(), whole.back());
}

TEST(SavedStates, OfAnotherPlanAreRefused) {
  const Workplace place;
  place.write("run.json", kSavedRun);
  losses(place, 2, kStates);
  for (const Words& other :
       {Words{"--set", "model.n_layer=3"}, Words{"--ranks", "2", "--threads"}}) {
    const CommandResult result = execute(place, 4, together(kResumed, other));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find("is of another plan"), std::string::npos) << result.err;
  }
  const CommandResult done = execute(place, 2, kResumed);
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_NE(done.err.find("has done 2 already"), std::string::npos) << done.err;
}

TEST(SavedStates, WithoutOneARunBegins) {
  const Workplace place;
  place.write("run.json", kSavedRun);
  EXPECT_EQ(losses(place, 3, kResumed), losses(place, 3, {}));
}

}  // namespace
}  // namespace foretrain

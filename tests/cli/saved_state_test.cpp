// `execute --checkpoint`: states that are whole, and runs that go on as if nothing had happened.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "executor/tcp_socket.h"
#include "sim/base/rng.h"
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
  // Killed once a state is there, however slow the machine is.
  const std::string command = "cd " + place.path("in").string() + " && { " + FORETRAIN_BINARY +
                              " execute run.json --steps 90000 --checkpoint states --quiet "
                              "> /dev/null 2>&1 & p=$!; for i in $(seq 600); do "
                              "ls states/step-*/state.json > /dev/null 2>&1 && break; sleep 0.05; "
                              "done; sleep 0.2; kill -KILL $p; }";
  EXPECT_EQ(std::system(command.c_str()), 0);
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

/// Losses of plans that share out the sums in other ways.
void expect_alike(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i] / b[i], 1, 2e-6) << i;
}

Words ranks(int count, const Words& sets) {
  Words out = {"--threads", "--ranks", std::to_string(count)};
  for (const std::string& set : sets) out.insert(out.end(), {"--set", set});
  return out;
}

/// A plan that writes, and one that goes on.
struct Change {
  const char* name;
  Words from, to;
};
void PrintTo(const Change& change, std::ostream* out) { *out << change.name; }

class ChangedPlan : public testing::TestWithParam<Change> {};

TEST_P(ChangedPlan, GoesOnAsOneThatNothingDisturbed) {
  const Workplace place;
  place.write("run.json", kSavedRun);
  const std::vector<double> whole = losses(place, 6, GetParam().from);
  losses(place, 3, together(kStates, GetParam().from));
  const std::vector<double> other = losses(place, 6, together(kResumed, GetParam().to));
  expect_alike(other, last(whole, 3));
  // Its own states then serve the first plan again.
  expect_alike(losses(place, 8, together(kResumed, GetParam().from)),
               last(losses(place, 8, GetParam().from), 2));
}
INSTANTIATE_TEST_SUITE_P(
    Each, ChangedPlan,
    testing::Values(
        Change{"fewer replicas", ranks(4, {}), ranks(2, {})},
        Change{"sharded states on one rank", ranks(4, {"sharding.level=optimizer"}), {}},
        Change{"sharded parameters on half", ranks(4, {"sharding.level=parameters"}),
               ranks(2, {"sharding.level=gradients"})},
        Change{"tensor ranks for replicas",
               ranks(4, {"parallel.tensor=4", "sharding.level=optimizer"}),
               ranks(2, {"parallel.tensor=2"})},
        Change{"more ranks", ranks(1, {}),
               ranks(4, {"parallel.tensor=2", "sharding.level=optimizer"})},
        Change{"stages for shards", ranks(2, {"parallel.pipeline=2"}),
               ranks(2, {"sharding.level=parameters"})},
        Change{"a tensor rank and a stage less",
               ranks(4, {"parallel.tensor=2", "parallel.pipeline=2"}), ranks(1, {})},
        Change{"states on the host",
               ranks(2, {"offload.optimizer=cpu", "sharding.level=gradients"}), ranks(1, {})}));

/// A process that runs one rank of two in a job over TCP.
std::string rank_command(const Workplace& place, int rank, int port, const std::string& more) {
  return "cd " + place.path("in").string() + " && RANK=" + std::to_string(rank) +
         " LOCAL_RANK=" + std::to_string(rank) +
         " WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port) + " exec " +
         FORETRAIN_BINARY + " execute run.json --ranks 2 --checkpoint states --quiet " + more;
}

TEST(SavedStates, ARankThatIsKilledEndsTheRunWhichGoesOnOnTheSameAndOnASmallerPlan) {
  const Words sharded = {"--set", "sharding.level=optimizer"};
  Rng rng(11);
  for (int draw = 0; draw < 2; ++draw) {
    const Workplace place;
    place.write("run.json", kSavedRun);
    const int port = own_end(listen_at(true, 0).value()).port;
    const auto step = static_cast<int>(1 + rng.below(12));
    const auto killed = rng.below(2);
    const std::string more =
        "--steps 90000 --keep 900 --set sharding.level=optimizer > /dev/null 2>&1";
    // The drawn rank dies as soon as the state after the drawn step stands; the other one ends by
    // itself, with an error.
    const std::string script =
        "(" + rank_command(place, 0, port, more) + ") & zero=$!; (" +
        rank_command(place, 1, port, more) + ") & one=$!; " + "for i in $(seq 2000); do test -e " +
        place.path("in/states/step-" + std::to_string(step) + "/state.json").string() +
        " && break; sleep 0.005; done; kill -9 $" + (killed == 0 ? "zero" : "one") + "; wait $" +
        (killed == 0 ? "one" : "zero");
    EXPECT_NE(std::system(script.c_str()), 0);
    const std::vector<int> steps = saved(place);
    ASSERT_FALSE(steps.empty());
    EXPECT_GE(steps.back(), step);
    const int end = steps.back() + 3;
    const Words same = together(ranks(2, {}), sharded);
    const std::vector<double> undisturbed = last(losses(place, end, same), 3);
    const std::string keep =
        "cp -r " + place.path("in/states").string() + " " + place.path("in/again").string();
    ASSERT_EQ(std::system(keep.c_str()), 0);
    EXPECT_EQ(losses(place, end, together(kResumed, same)), undisturbed);
    expect_alike(losses(place, end, {"--checkpoint", "again", "--resume"}), undisturbed);
  }
}

TEST(SavedStates, OfAnotherModelOrBatchAreRefused) {
  const Workplace place;
  place.write("run.json", kSavedRun);
  losses(place, 2, kStates);
  const std::pair<const char*, const char*> cases[] = {
      {"model.n_layer=3", "is of another model: 2 layers of 32"},
      {"model.n_head=8", "4 heads of 8"},
      {"model.n_inner=64", "is of another model: it has no "},
      {"batch.global=8", "4 sequences of 16 tokens a step, and the RUN's steps have 8 of 16"},
      {"batch.sequence=8", "the RUN's steps have 4 of 8"}};
  for (const auto& [set, message] : cases) {
    const CommandResult result = execute(place, 4, together(kResumed, {"--set", set}));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find("states/step-2/state.json"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
  }
  const CommandResult done = execute(place, 2, kResumed);
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_NE(done.err.find("has done 2 already"), std::string::npos) << done.err;
}

TEST(SavedStates, AreMeasuredBesideWhatIsPredicted) {
  const Workplace place;
  place.write("run.json", kSavedRun);
  const Words two = ranks(2, {"sharding.level=optimizer"});
  const auto checkpoint = [&place](int steps, const Words& more) {
    const CommandResult result = execute(place, steps, more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return *parse_json(result.out, "stdout").value().find("checkpoint");
  };
  const auto number = [](const Json& json, const char* key) { return at(json, key).number(); };
  const Json measured = checkpoint(3, together(kStates, two));
  EXPECT_EQ(at(measured, "save_s").array()->size(), 3U);
  EXPECT_GT(at(measured, "save_s").array()->front().number(), 0);
  EXPECT_EQ(at(measured, "store_measured"), Json(true));
  const double bytes = number(measured, "bytes_gib") * 1024 * 1024 * 1024;
  EXPECT_NEAR(number(measured, "predicted_save_s"),
              bytes / 1e9 / number(measured, "store_write_gb_per_s"), 1e-9);
  EXPECT_TRUE(at(measured, "load_s").is_null());
  // Weights of 4 bytes on each rank, two moments of each once, padding apart.
  const double parameters = 32 * (96 + 16) + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32;
  EXPECT_NEAR(bytes / (parameters * (2 * 4 + 8)), 1, 0.05);
  // As the RUN says, and of another plan, which reads every byte that it needs.
  const Json given = checkpoint(5, together(kResumed, {"--set",
                                                       "campaign={\"steps\":9,\"checkpoint\":"
                                                       "{\"store_gb_per_s\":0.5}}"}));
  EXPECT_EQ(at(given, "store_measured"), Json(false));
  EXPECT_EQ(at(given, "of_other_plan"), Json(true));
  EXPECT_GT(number(given, "load_s"), 0);
  EXPECT_GT(number(given, "predicted_load_s"), parameters * 12 / 0.5e9 * 0.99);
  EXPECT_LT(number(given, "predicted_load_s"), parameters * 20 / 0.5e9);
  EXPECT_FALSE(place.has("states/probe-0"));
  const std::string text =
      place.run(together({"execute", "run.json", "--steps", "7"}, kResumed)).out;
  for (const char* part : {"Read        ", "Wrote       2 states to states", "predicted at ",
                           "measured in that folder"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(SavedStates, WithoutOneARunBegins) {
  const Workplace place;
  place.write("run.json", kSavedRun);
  EXPECT_EQ(losses(place, 3, kResumed), losses(place, 3, {}));
}

}  // namespace
}  // namespace foretrain

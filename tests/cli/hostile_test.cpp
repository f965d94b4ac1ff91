// What files hold is shown and never obeyed; what a machine lacks is said in one message.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/printable.h"
#include "sim/base/threads.h"
#include "tests/cli/run_command.h"
#include "tests/support/sanitized.h"
#include "tools/predict/predict.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

/// A title of a terminal, red, a bell, a line of its own, text from right to left, C1, a formula.
const std::string kHostile = "=\x1b]0;owned\x07\x1b[31m\n<b>\xe2\x80\xae\xc2\x9b";
const std::string kHostileJson = R"(=\u001b]0;owned\u0007\u001b[31m\n<b>\u202e\u009b)";

void expect_plain(const std::string& text) { EXPECT_EQ(printable(text), text); }

/// Every text of `json` in turn is made hostile: `use` gets each document.
void with_each_text(const Json& json, const std::function<void(const Json&)>& use) {
  const std::function<void(const Json&, const std::function<void(Json)>&)> walk =
      [&](const Json& node, const std::function<void(Json)>& put) {
        if (node.string() != nullptr) put(Json(*node.string() + kHostile));
        if (const Json::Array* list = node.array()) {
          for (std::size_t i = 0; i < list->size(); ++i) {
            walk((*list)[i], [&, i](Json inner) {
              Json::Array copy = *list;
              copy[i] = std::move(inner);
              put(Json(std::move(copy)));
            });
          }
        }
        if (const Json::Object* members = node.object()) {
          for (std::size_t i = 0; i < members->size(); ++i) {
            walk((*members)[i].second, [&, i](Json inner) {
              Json::Object copy = *members;
              copy[i].second = std::move(inner);
              put(Json(std::move(copy)));
            });
            Json::Object renamed = *members;
            renamed[i].first += kHostile;
            put(Json(std::move(renamed)));
          }
        }
      };
  walk(json, use);
}

struct HostileFile {
  const char* what;
  std::string json;
  std::vector<std::string> command;  ///< of the file f.json
};

class HostileTexts : public testing::TestWithParam<HostileFile> {};

TEST_P(HostileTexts, ReachNoTerminal) {
  const Workplace place;
  const HostileFile& file = GetParam();
  place.write("run.json", kSmallRun);
  place.write("f.json", file.json);
  const CommandResult plain = place.run(file.command);
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  with_each_text(parse_json(file.json, "f.json").value(), [&](const Json& hostile) {
    place.write("f.json", dump_json(hostile));
    const CommandResult result = place.run(file.command);
    EXPECT_LE(result.exit_code, 3) << dump_json(hostile) << result.err;
    expect_plain(result.out);
    expect_plain(result.err);
    if (result.exit_code == 0) {
      // A name of two lines would break a table.
      EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'),
                std::count(plain.out.begin(), plain.out.end(), '\n'))
          << result.out;
    }
  });
}

const HostileFile kHostileFiles[] = {
    {"run",
     R"({"name": "small", "model": "gpt2", "cluster": {"preset": "dgx-a100-80gb",
        "accelerators": 2}, "parallel": {"tensor": 2}, "batch": {"global": 2, "sequence": 64}})",
     {"simulate", "f.json", "--no-advice"}},
    {"rows",
     R"([{"id": "a", "group": "g", "facts": {"software": "x"}, "run": {"name": "n",
        "model": "gpt2", "cluster": {"preset": "dgx-a100-80gb", "accelerators": 1},
        "batch": {"global": 1, "sequence": 64}}, "source": "s", "measured":
        {"step_time_s": 0.1}}])",
     {"score", "f.json", "--worst", "1", "--csv", "out.csv"}},
    {"cluster",
     R"({"preset": "dgx-a100-80gb", "accelerators": 8, "device": {"preset":
        "a100-sxm-80gb", "name": "mine"}})",
     {"simulate", "run.json", "--no-advice", "--set", "cluster=f.json"}},
    {"system",
     R"({"name": "mine", "description": "d", "framework": "f", "defaults":
        {"schedule": "1f1b"}, "lacks": []})",
     {"simulate", "run.json", "--no-advice", "--set", "system=f.json"}},
    {"launch",
     R"({"model": {"name": "llama3", "flavor": "8B"}, "training": {"local_batch_size": 1,
        "seq_len": 64, "other": "what"}, "profiling": {"save_traces_folder": "f"}})",
     {"import", "f.json", "--from", "torchtitan", "--cluster", "dgx-h100"}},
};
INSTANTIATE_TEST_SUITE_P(Each, HostileTexts, testing::ValuesIn(kHostileFiles),
                         [](const auto& tested) { return std::string(tested.param.what); });

TEST(Hostile, WordsOfTheCommandLineReachNoTerminal) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const std::vector<std::vector<std::string>> commands = {
      {kHostile},
      {"simulate", kHostile},
      {"simulate", "run.json", "--set", kHostile},
      {"simulate", "run.json", "--set", kHostile + "=1"},
      {"simulate", "run.json", "--set", "schedule=" + kHostile},
      {"simulate", "run.json", "--json", kHostile + "/x"},
      {"simulate", "run.json", "--max-step-s", kHostile},
      {"score", kHostile},
      {"list", kHostile},
      {"show", kHostile},
      {"import", kHostile},
      {"export", "run.json", "--to", kHostile},
      {"compare", kHostile},
  };
  for (const std::vector<std::string>& command : commands) {
    const CommandResult result = place.run(command);
    EXPECT_GT(result.exit_code, 0);
    EXPECT_LE(result.exit_code, 2) << command[0];
    expect_plain(result.err);
    EXPECT_EQ(result.out, "");
  }
}

TEST(Hostile, MessagesAreShort) {
  const Workplace place;
  const std::string nines(100000, '9');
  for (const std::string& text :
       {"{\"model\": " + nines + "}", "{\"" + nines + "\": 1}", "{\"model\": \"" + nines + "\"}",
        "{\"model\": \"gpt2\", \"cluster\": {\"" + nines + "\": \"" + nines + "\"}}"}) {
    place.write("run.json", text);
    const CommandResult result = place.run({"simulate", "run.json"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_LT(result.err.size(), 10000U);
  }
}

// A file of one kind is none of another.
TEST(Hostile, SchemasSayWhatAFileIs) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  place.write("f.json", R"({"schema": "foretrain/profile/1"})");
  for (const char* set :
       {"system=f.json", "cluster=f.json", "cluster.device=f.json", "schedule=f.json"}) {
    const CommandResult result = place.run({"simulate", "run.json", "--set", set});
    expect_refused(place, result, {"foretrain/profile/1"}, {"f.json", "run.json"});
  }
  expect_refused(place, place.run({"simulate", "f.json"}), {"/schema", "foretrain/run/1"},
                 {"f.json", "run.json"});
  place.write("f.json", R"({"schema": 3})");
  expect_refused(place, place.run({"simulate", "run.json", "--set", "system=f.json"}),
                 {"/schema: found 3, expected \"foretrain/system/1\""}, {"f.json", "run.json"});
}

TEST(Hostile, PlacesOfFaultsAreNamed) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  place.write("three.json", "3");
  const std::vector<std::string> files = {"run.json", "three.json"};
  for (const char* key : {"cluster", "cluster.device", "model", "system"}) {
    const CommandResult result =
        place.run({"simulate", "run.json", "--set", std::string(key) + "=three.json"});
    expect_refused(place, result, {"three.json", "found 3"}, files);
    EXPECT_EQ(result.err.find(": :"), std::string::npos) << result.err;
  }
}

TEST(Hostile, ProfilesSayOfWhatTheyAre) {
  const Workplace place;
  place.write("p.json", R"({"schema": "foretrain/profile/2", "machine": 0, "samples": []})");
  expect_refused(place, place.run({"simulate", "gpt-small-host", "--profile", "p.json"}),
                 {"p.json: /machine: found 0, expected an object"}, {"p.json"});
}

TEST(Hostile, RowsAreCountedOnce) {
  const Workplace place;
  place.write("rows.json", R"([{"id": "a", "run": {"model": "gpt2"}, "measured": {}}])");
  expect_refused(place, place.run({"score", "rows.json", "./rows.json"}), {"is given twice"},
                 {"rows.json"});
  expect_refused(place, place.run({"score", ".", "rows.json"}), {"is given twice"}, {"rows.json"});
}

// Threads share the work, and nothing of what it comes to depends on how.
TEST(ThreadCounts, ChangeNothing) {
  const Workplace place;
  place.write("run.json", R"({"model": {"preset": "gpt2", "n_layer": 4}, "cluster": {"preset":
    "dgx-a100-80gb", "accelerators": 4}, "batch": {"global": 8, "sequence": 128},
    "campaign": {"tokens": 1e7, "reliability": {"failures_per_node_day": 0.5}}})");
  place.write("rows.json", R"([{"id": "a", "run": {"model": "gpt2", "cluster": {"preset":
    "dgx-a100-80gb", "accelerators": 1}, "batch": {"global": 1, "sequence": 64}}, "source": "s",
    "measured": {"step_time_s": 0.1}}, {"id": "b", "run": {"model": "gpt2", "cluster": {"preset":
    "dgx-h100", "accelerators": 2}, "batch": {"global": 2, "sequence": 64}}, "source": "s",
    "measured": {"step_time_s": 0.1}}])");
  const std::vector<std::vector<std::string>> commands = {
      {"score", "rows.json", "--csv", "-"},
      {"goodput", "run.json", "--campaigns", "40", "--json", "-", "--no-advice"},
      {"search", "run.json", "--over", "parallel,recompute", "--csv", "-"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--quiet", "--threads", "1"});
    const CommandResult one = place.run(command);
    EXPECT_EQ(one.exit_code, 0) << one.err;
    for (const char* threads : {"2", "3", "8", "32"}) {
      command.back() = threads;
      EXPECT_EQ(place.run(command).out, one.out) << command[0] << " --threads " << threads;
    }
  }
}

// Stages of a long step are written, laid out and walked at once, or one after the other where this
// thread shares the cores.
TEST(ThreadCounts, OfStagesChangeNothing) {
  const Result<foretrain::Run> run = load_run(
      "llama-3-8b-8-h100", {"parallel.pipeline=8", "parallel.tensor=1", "batch.global=256"});
  ASSERT_TRUE(run.ok()) << run.error().message;
  PredictOptions options;
  options.whole = true;
  options.sensitivity = false;
  const Result<Prediction> at_once = predict(run.value(), options);
  ASSERT_TRUE(at_once.ok()) << at_once.error().message;
  std::optional<Result<Prediction>> alone;
  in_parallel(
      1, [&](std::size_t) { alone = predict(run.value(), options); }, 1);
  ASSERT_TRUE(alone->ok()) << alone->error().message;
  const Prediction& a = at_once.value();
  const Prediction& b = alone->value();
  EXPECT_EQ(a.iteration_time_s, b.iteration_time_s);
  EXPECT_EQ(a.operations, b.operations);
  EXPECT_EQ(a.simulated.events, b.simulated.events);
  EXPECT_EQ(a.critical_rank, b.critical_rank);
  EXPECT_EQ(a.memory.peak_gib, b.memory.peak_gib);
  EXPECT_EQ(a.memory.reserved_gib, b.memory.reserved_gib);
  EXPECT_EQ(a.memory.by_kind_gib, b.memory.by_kind_gib);
  EXPECT_EQ(a.memory.peak_at, b.memory.peak_at);
  for (std::size_t part = 0; part < a.breakdown.size(); ++part) {
    EXPECT_EQ(a.breakdown[part].ps, b.breakdown[part].ps);
  }
}

// XDG Base Directory Specification: paths that are not absolute are to be ignored.
TEST(ProfileFolder, IsAbsolute) {
  const char* const before = std::getenv("XDG_DATA_HOME");
  const std::string kept = before == nullptr ? "" : before;
  setenv("XDG_DATA_HOME", "/data", 1);
  EXPECT_EQ(profile_folder(), "/data/foretrain/profiles");
  setenv("XDG_DATA_HOME", "data", 1);
  EXPECT_NE(profile_folder(), "data/foretrain/profiles");
  before == nullptr ? unsetenv("XDG_DATA_HOME") : setenv("XDG_DATA_HOME", kept.c_str(), 1);
}

TEST(Usage, OneMessageAndExitTwo) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const CommandResult verb = place.run({"frob"});
  EXPECT_EQ(verb.exit_code, 2);
  EXPECT_EQ(verb.err, "foretrain: no verb \"frob\" (foretrain --help lists the verbs)\n");
  for (const char* set : {"foo", "=1", ""}) {
    const CommandResult result = place.run({"simulate", "run.json", "--set", set});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find("expected KEY=VALUE"), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace foretrain

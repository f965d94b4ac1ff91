// Do several processes search as one does, and what becomes of them when one is gone?
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "executor/tcp_socket.h"
#include "tests/cli/run_command.h"
#include "tools/search/team/questions.h"

namespace foretrain {
namespace {

constexpr const char* kQuestion = R"({
  "model": {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 2048,
            "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 5632,
            "vocab_size": 32000},
  "cluster": {"preset": "dgx-h100", "accelerators": 16},
  "batch": {"global": 32, "sequence": 4096}
})";

class SearchRanks : public ::testing::Test {
 protected:
  SearchRanks() { x_place.write("run.json", kQuestion); }

  int shell(const std::string& script) const {
    x_place.write("script", script);
    const int status = std::system(("cd '" + x_place.path("in").string() +
                                    "' && XDG_DATA_HOME=none OMPI_ALLOW_RUN_AS_ROOT=1 "
                                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                                    "ASAN_OPTIONS=detect_leaks=0 /bin/sh ./script > out 2> err")
                                       .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  static std::string search(const std::string& flags) {
    return std::string("timeout 60 ") + FORETRAIN_BINARY +
           " search run.json --quiet --threads 1 --budget 50 --fix parallel.virtual_pipeline " +
           flags;
  }
  std::string as_rank(int rank, int size = 2) const {
    return "RANK=" + std::to_string(rank) + " WORLD_SIZE=" + std::to_string(size) +
           " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(x_port) + " ";
  }
  /// Lines of a script: rank 1 searches, as $other, and that becomes of it when it has used a fifth
  /// of a second of a core, as it has when it answers.
  std::string other_that(const std::string& end, const std::string& flags) const {
    return as_rank(1) + "exec " + FORETRAIN_BINARY + " search run.json " + flags +
           " & other=$!; (while [ $(awk '{print $14}' /proc/$other/stat) -lt 20 ]; do "
           "sleep 0.02; done; " +
           end + ") & ";
  }
  std::string err() const { return x_place.read("err"); }
  /// What must be alike: the best plan, its step, how many plans there are, whether it is proved.
  std::string answer(const std::string& name) const {
    const Result<Json> out = parse_json(x_place.read(name), name);
    if (!out.ok()) return "none: " + err();
    const Json plans = at(out.value(), "plans");
    if (plans.array() == nullptr || plans.array()->empty()) return "no plan: " + err();
    const Json& best = plans.array()->front();
    return dump_json(at(best, "run")) + dump_json(at(best, "iteration_time_s")) +
           dump_json(at(out.value(), "certificate/plans")) +
           dump_json(at(out.value(), "certificate/complete"));
  }
  std::string alone() const {
    EXPECT_EQ(shell(search("--json alone.json --free pipeline_stages")), 0) << err();
    return answer("alone.json");
  }
  Workplace x_place;
  int x_port = [] {
    const Result<Socket> socket = listen_at(true, 0);
    return socket.ok() ? own_end(socket.value()).port : 0;
  }();
};

TEST_F(SearchRanks, ThatTcpConnectsFindTheSame) {
  const std::string flags = "--free pipeline_stages --json ";
  ASSERT_EQ(shell(as_rank(1, 3) + search(flags + "other.json") + " & " + as_rank(2, 3) +
                  search(flags + "other.json") + " & " + as_rank(0, 3) +
                  search(flags + "team.json") + " && wait $!"),
            0)
      << err();
  EXPECT_EQ(err(), "");
  EXPECT_EQ(answer("team.json"), alone());
  EXPECT_FALSE(x_place.has("other.json")) << "rank 0 alone writes";
}

TEST_F(SearchRanks, OfMpiFindTheSame) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
  ASSERT_EQ(shell("mpirun -n 2 --oversubscribe --bind-to none " +
                  search("--free pipeline_stages --json team.json")),
            0)
      << err();
  EXPECT_EQ(answer("team.json"), alone());
}

TEST_F(SearchRanks, OfAnotherQuestionAreRefused) {
  for (const char* flags : {"--fix recompute", "--free pipeline_stages", "--csv other.csv"}) {
    const bool alike = std::string(flags).starts_with("--csv");  // rank 0's own business
    EXPECT_EQ(shell(as_rank(1) + search(flags) + " & " + as_rank(0) + search("") +
                    "; code=$?; wait $! || exit 77; exit $code"),
              alike ? 0 : 1)
        << flags << err();
    if (alike) continue;
    EXPECT_NE(err().find("rank 1 of the search searches something else than rank 0"),
              std::string::npos)
        << err();
  }
}

// A fault of the RUN is told once, by rank 0.
TEST_F(SearchRanks, TellAFaultOnce) {
  const std::string wrong = search("--set batch.global=-3");
  EXPECT_EQ(shell(as_rank(1) + wrong + " & " + as_rank(0) + wrong +
                  "; code=$?; wait $! || exit 77; exit $code"),
            1);
  const std::size_t first = err().find("batch");
  ASSERT_NE(first, std::string::npos) << err();
  EXPECT_EQ(err().find("foretrain:", err().find("foretrain:") + 1), std::string::npos) << err();
}

// A rank that only one of them lacks the file for ends the search of all.
TEST_F(SearchRanks, ThatLackTheFileAreNamed) {
  EXPECT_EQ(shell(as_rank(1) + FORETRAIN_BINARY + " search none.json & " + as_rank(0) + search("") +
                  "; code=$?; wait $! || exit 77; exit $code"),
            1);
  EXPECT_NE(err().find("rank 1 of the search"), std::string::npos) << err();
}

TEST_F(SearchRanks, ThatLoseOneSearchOn) {
  const std::string flags =
      "--quiet --budget 50 --fix parallel.virtual_pipeline --free pipeline_stages";
  ASSERT_EQ(shell(other_that("kill -9 $other", flags) + as_rank(0) +
                  search("--free pipeline_stages --json team.json")),
            0)
      << err();
  EXPECT_NE(err().find("other ranks help no more"), std::string::npos) << err();
  EXPECT_EQ(answer("team.json"), alone());
}

// Long after the other is gone, and where it would have helped with an explanation.
TEST_F(SearchRanks, ThatLoseOneSearchOnForLong) {
  const std::string flags = "--threads 1 --budget 8 --free schedule";
  const int code =
      shell(other_that("kill -9 $other", flags) + as_rank(0) + "timeout 60 " + FORETRAIN_BINARY +
            " search run.json " + flags + " --json team.json --explain parallel.tensor=2 > told");
  EXPECT_TRUE(code == 0 || code == 3) << code << err();  // 3: too slow a machine finds no plan
  EXPECT_NE(err().find("other ranks help no more"), std::string::npos) << err();
  EXPECT_TRUE(x_place.has("team.json"));
  if (code == 0) {
    EXPECT_NE(x_place.read("told").find("With parallel.tensor=2"), std::string::npos);
  }
}

// One that is stopped is no help, and holds nobody up.
TEST_F(SearchRanks, ThatAreStoppedAreLeft) {
  const std::string flags =
      "--quiet --budget 50 --fix parallel.virtual_pipeline --free pipeline_stages";
  ASSERT_EQ(shell(other_that("kill -STOP $other", flags) + as_rank(0) +
                  search("--free pipeline_stages --json team.json") +
                  "; code=$?; kill -9 $other; exit $code"),
            0)
      << err();
  EXPECT_NE(err().find("rank 1 is silent"), std::string::npos) << err();
  EXPECT_EQ(answer("team.json"), alone());
}

TEST(SearchQuestions, ArriveAsTheyWereSent) {
  FoundPlan plan;
  plan.run = parse_json(R"({"a": [1, 1.5, "x", null, true, {"b": {}}]})", "plan").value();
  plan.changes = {{"a.b", Json(2)}};
  plan.memory.peak_at = "op";
  plan.memory.by_kind_gib[1] = 3;
  Question asked = TuneQuestion{plan, Tuning::kOneChunk, 2.5};
  const std::string bytes = packed(asked);
  const std::optional<Question> got = unpacked_question(bytes);
  ASSERT_TRUE(got);
  const auto& tune = std::get<TuneQuestion>(*got);
  EXPECT_EQ(tune.plan.run, plan.run);
  EXPECT_EQ(tune.plan.changes, plan.changes);
  EXPECT_EQ(tune.plan.memory.peak_at, "op");
  EXPECT_EQ(tune.plan.memory.by_kind_gib, plan.memory.by_kind_gib);
  EXPECT_EQ(tune.seconds, 2.5);

  SampleAnswer sample;
  sample.layers.emplace().layers.resize(2);
  sample.layers->layers[1].saved = 7;
  sample.times.emplace().first.gathers[-1].of_layer = 0.25;
  sample.kernels.resize(1);
  sample.kernels[0].layer_s = 0.5;
  const std::string answered = packed(Answer(sample));
  const std::optional<Answer> back = unpacked_answer(answered);
  ASSERT_TRUE(back);
  const auto& known = std::get<SampleAnswer>(*back);
  EXPECT_EQ(known.layers->layers[1].saved, 7);
  EXPECT_EQ(known.times->first.gathers.at(-1).of_layer, 0.25);
  EXPECT_EQ(known.kernels[0].layer_s, 0.5);
  EXPECT_EQ(packed(*back), answered);
}

TEST(SearchQuestions, BrokenBytesAreNone) {
  FoundPlan plan;
  plan.run = parse_json(R"({"a": ["xyz"]})", "plan").value();
  const std::string bytes = packed(Question(UnsureQuestion{plan}));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(unpacked_question(bytes.substr(0, size))) << size;
  }
  EXPECT_FALSE(unpacked_question(bytes + 'x'));
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string broken = bytes;
    broken[at] = static_cast<char>(0xff);
    unpacked_question(broken);  // ends, and asks for no memory that is not there
  }
}

}  // namespace
}  // namespace foretrain

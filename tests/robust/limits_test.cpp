// Limits of the shell (ulimit), full devices and signals, on the program itself.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

class Limits : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers map more than a limit lets them";
    std::string name = (fs::temp_directory_path() / "foretrain-limits-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    x_folder = name;
    std::ofstream(x_folder / "run.json") << R"({"model": {"preset": "gpt2", "n_layer": 2},
      "cluster": {"preset": "dgx-a100-80gb", "accelerators": 2}, "parallel": {"tensor": 2},
      "batch": {"global": 2, "sequence": 64}})";
    std::ofstream(x_folder / "rows.json") << R"([{"id": "a", "run": {"model": {"preset": "gpt2",
      "n_layer": 2}, "cluster": {"preset": "dgx-a100-80gb", "accelerators": 1}, "batch":
      {"global": 1, "sequence": 64}}, "source": "none", "measured": {"step_time_s": 0.1}}])";
    std::ofstream(x_folder / "train.sh")
        << "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 "
           "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
           "--micro-batch-size 1 --global-batch-size 8 --bf16\n";
  }
  void TearDown() override {
    if (!x_folder.empty()) fs::remove_all(x_folder);
  }

  /// What a shell answers in the folder; $F is the program. 124: no end in 20 s.
  int shell(const std::string& line) {
    const std::string all = "cd '" + x_folder.string() +
                            "' && export F='" FORETRAIN_BINARY "' && timeout 20 bash -c '" + line +
                            "' > out 2> err < /dev/null";
    const int status = std::system(all.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string err() const { return read_text_file((x_folder / "err").string()).value(); }
  fs::path in_folder(const std::string& name) const { return x_folder / name; }

  /// One message, exit 1, the old output, and nothing that was not there; or all is well.
  void expect_told(const std::string& line) {
    std::ofstream(x_folder / "o.json") << "old";
    const int code = shell(line);
    EXPECT_TRUE(code == 0 || code == 1) << line << " exits with " << code << "\n" << err();
    std::istringstream lines(err());
    for (std::string one; std::getline(lines, one);) {
      EXPECT_TRUE(one.starts_with("foretrain: ")) << line << "\n" << one;
    }
    EXPECT_EQ(code == 1, !err().empty()) << line << "\n" << err();
    const std::string text = read_text_file((x_folder / "o.json").string()).value();
    EXPECT_TRUE(text == "old" || parse_json(text, "o.json").ok()) << line;
    for (const auto& entry : fs::directory_iterator(x_folder)) {
      EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << line << entry.path();
    }
  }

 private:
  fs::path x_folder;
};

TEST_F(Limits, OfAddressSpaceAreTold) {
  // From what the loader needs to what the verb needs.
  for (const int mib : {12, 16, 20, 30, 50, 100}) {
    const std::string limit = "ulimit -v " + std::to_string(1024 * mib) + "; ";
    if (shell(limit + "$F --version") == 127) continue;  // not even its libraries
    expect_told(limit + "$F --version");
    expect_told(limit + "$F simulate run.json --quiet --json o.json");
    expect_told(limit + "$F score rows.json --quiet --threads 1024 --json o.json");
    expect_told(limit + "$F simulate llama-3.1-405b-16384-h100 --no-advice --quiet --json o.json");
  }
}

// Each thread takes stack and heap, and the main thread's stack grows beside them.
TEST_F(Limits, OfAddressSpaceEndNoThreadsBadly) {
  const std::string rows = FORETRAIN_SOURCE_DIR "/configs/published/activation-recomputation.json";
  for (const int mib : {100, 160, 250}) {
    expect_told("ulimit -v " + std::to_string(1024 * mib) + "; $F score " + rows +
                " --only kor-4 --quiet --json o.json --threads 16");
  }
}

TEST_F(Limits, OfThreadsAreTold) {
  expect_told(
      "ulimit -v 700000; $F execute gpt-small-host --quiet --threads --ranks 64 --steps 1 "
      "--set batch.global=128 --set batch.sequence=16 --set batch.micro=1 --json o.json");
}

TEST_F(Limits, ThatAUserSetsAreTold) {
  const std::string simulate =
      "$F simulate llama-3.1-405b-16384-h100 --no-advice --quiet --json o.json ";
  EXPECT_EQ(shell(simulate + "--budget 0.001"), 1);
  EXPECT_NE(err().find("more than the 1.00 ms of --budget; allow more"), std::string::npos)
      << err();
  EXPECT_EQ(shell(simulate + "--max-memory 0.001"), 1);
  EXPECT_NE(err().find("more than the 0.001 GiB of --max-memory; allow more"), std::string::npos)
      << err();
  EXPECT_FALSE(fs::exists(in_folder("o.json")));
  EXPECT_EQ(shell(simulate + "--budget 60 --max-memory 4"), 0) << err();
  EXPECT_EQ(shell("$F simulate run.json --budget 0"), 2);
  EXPECT_EQ(shell("$F simulate run.json --max-memory nan"), 2);
}

// A budget has time for the step before it has time for advice.
TEST_F(Limits, OfTimeLeaveAdviceOutFirst) {
  const std::string simulate = "$F simulate llama-3.1-405b-16384-h100 --quiet --json o.json ";
  const auto result = [this] {
    return parse_json(read_text_file(in_folder("o.json").string()).value(), "o.json").value();
  };
  ASSERT_EQ(shell(simulate + "--no-advice"), 0) << err();
  const Json alone = result();
  const double estimate = alone.find("simulation")->find("estimated_s")->number();
  ASSERT_EQ(shell(simulate + "--budget " + std::to_string(1.5 * estimate)), 0) << err();
  const Json bounded = result();
  EXPECT_EQ(*bounded.find("iteration_time_s"), *alone.find("iteration_time_s"));
  EXPECT_EQ(*bounded.find("simulation")->find("advice_left_out"), Json(true));
  EXPECT_EQ(*bounded.find("sensitivity"), Json(Json::Object{}));
  ASSERT_EQ(shell(simulate + "--budget " + std::to_string(1000 * estimate)), 0) << err();
  EXPECT_EQ(*result().find("simulation")->find("advice_left_out"), Json(false));
  EXPECT_FALSE(result().find("sensitivity")->object()->empty());
}

TEST_F(Limits, OfFilesAreTold) {
  for (const int files : {4, 5, 6, 8}) {
    const std::string limit = "ulimit -n " + std::to_string(files) + "; ";
    if (shell(limit + "$F --version") == 127) continue;  // not even its libraries
    expect_told(limit + "$F simulate run.json --quiet --json o.json");
  }
  expect_told("ulimit -f 1; $F simulate run.json --quiet --json o.json --trace t.json");
  EXPECT_NE(err().find("File too large"), std::string::npos) << err();
}

TEST_F(Limits, FullDevicesAreTold) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const char* command :
       {"--help", "--version", "simulate --help", "simulate run.json", "list models", "doctor",
        "show run.json", "schema run", "completion bash", "score rows.json",
        "import train.sh --cluster dgx-h100", "export run.json --to megatron-lm",
        "compare run.json", "search run.json --over recompute"}) {
    EXPECT_EQ(shell("$F " + std::string(command) + " > /dev/full"), 1) << command;
    EXPECT_NE(err().find("standard output: cannot be written: No space left"), std::string::npos)
        << command << "\n"
        << err();
  }
}

TEST_F(Limits, SignalsLeaveNothing) {
  std::ofstream(in_folder("t.json")) << "old";
  for (const char* signal : {"TERM", "HUP", "XCPU"}) {
    // The signal comes once the temporary is there.
    const int code = shell(
        "$F simulate llama-3.1-405b-16384-h100 --no-advice --quiet --trace t.json "
        "--trace-ranks $(seq -s, 0 800) & P=$!; for i in $(seq 2000); do "
        "[ -e .foretrain-$P-1.tmp ] && break; kill -0 $P 2> /dev/null || break; sleep 0.005; done; "
        "kill -" +
        std::string(signal) + " $P; wait $P");
    EXPECT_TRUE(code > 128 || code == 0) << signal;  // it may be done before the signal comes
    const std::string text = read_text_file(in_folder("t.json").string()).value();
    EXPECT_TRUE(text == "old" || text.ends_with("]}\n")) << signal;
    for (const auto& entry : fs::directory_iterator(in_folder(""))) {
      EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << signal << entry.path();
    }
  }
}

}  // namespace
}  // namespace foretrain

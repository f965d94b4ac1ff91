// Memory runs out at any allocation of any verb: one message, exit 1, old files whole, nothing
// left.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/rng.h"
#include "sim/base/threads.h"
#include "tests/robust/failing_allocator.h"
#include "tests/support/sanitized.h"
#include "tools/cli/command_line.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOld = "old content";

const std::map<std::string, std::string>& inputs() {
  static const std::map<std::string, std::string> files = {
      {"run.json", R"({"name": "small", "model": {"preset": "gpt2", "n_layer": 2},
         "cluster": {"preset": "dgx-a100-80gb", "accelerators": 2}, "parallel": {"tensor": 2},
         "batch": {"global": 2, "sequence": 64},
         "campaign": {"tokens": 1e6, "reliability": {"failures_per_node_day": 0.1}}})"},
      {"tiny.json", R"({"model": {"model_type": "gpt2", "vocab_size": 16, "n_embd": 8,
         "n_layer": 1, "n_head": 2, "n_positions": 8, "attn_pdrop": 0, "resid_pdrop": 0,
         "embd_pdrop": 0}, "cluster": {"preset": "host", "accelerators": 2}, "batch": {"global": 2,
         "micro": 1, "sequence": 8}, "precision": "fp32", "kernels": {"attention": "unfused"}})"},
      {"rows.json", R"([{"id": "a", "run": {"model": {"preset": "gpt2", "n_layer": 2}, "cluster":
         {"preset": "dgx-a100-80gb", "accelerators": 1}, "batch": {"global": 1, "sequence": 64}},
         "source": "none", "measured": {"step_time_s": 0.1}}])"},
      {"train.sh",
       "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 \\\n"
       "  --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 \\\n"
       "  --micro-batch-size 1 --global-batch-size 8 --bf16\n"}};
  return files;
}

struct VerbCase {
  const char* verb;
  std::vector<std::string> words;
  std::vector<std::string> outputs;
};

struct Outcome {
  int code = -1;  ///< 128 + the signal's number if one ended it
  std::string err;
  long allocations = 0;
};

class Place {
 public:
  Place() {
    std::string name = (fs::temp_directory_path() / "foretrain-robust-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
    x_folder = name;
    for (const auto& [file, text] : inputs()) std::ofstream(x_folder / file) << text;
    x_err = memfd_create("stderr", MFD_CLOEXEC);
    x_shared = static_cast<long*>(
        mmap(nullptr, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }
  ~Place() {
    std::error_code ignored;
    fs::remove_all(x_folder, ignored);
    close(x_err);
    munmap(x_shared, sizeof(long));
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  Place(Place&&) = delete;
  Place& operator=(Place&&) = delete;

  void set_outputs(const VerbCase& verb) {
    for (const std::string& file : verb.outputs) std::ofstream(x_folder / file) << kOld;
  }

  /// The command in a process of its own, whose `nth` allocation fails.
  Outcome run(const VerbCase& verb, long nth, bool lasting) {
    if (ftruncate(x_err, 0) != 0 || lseek(x_err, 0, SEEK_SET) != 0) return {};
    *x_shared = 0;
    const pid_t child = fork();
    if (child == 0) run_here(verb, nth, lasting);
    Outcome out;
    int status = 0;
    waitpid(child, &status, 0);
    out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    out.allocations = *x_shared;
    std::vector<char> text(1 << 14);
    const ssize_t size = pread(x_err, text.data(), text.size(), 0);
    out.err.assign(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
    return out;
  }

  /// What is not as it was and is no whole output either; "" where all is well.
  std::string damage(const VerbCase& verb) const {
    std::set<std::string> known(verb.outputs.begin(), verb.outputs.end());
    for (const auto& [file, text] : inputs()) known.insert(file);
    for (const auto& entry : fs::directory_iterator(x_folder)) {
      const std::string name = entry.path().filename().string();
      if (!known.contains(name)) return name + " was left";
    }
    for (const std::string& file : verb.outputs) {
      const Result<std::string> text = read_text_file((x_folder / file).string());
      if (!text.ok()) return file + " is gone";
      const bool json = file.ends_with(".json");
      const bool whole = json ? parse_json(text.value(), file).ok() : text.value().size() > 100;
      if (text.value() != kOld && !whole) return file + " is half written";
    }
    return "";
  }

 private:
  [[noreturn]] void run_here(const VerbCase& verb, long nth, bool lasting) {
    const int null = open("/dev/null", O_RDWR);
    for (const int fd : {0, 1}) dup2(null, fd);
    dup2(x_err, 2);
    if (chdir(x_folder.c_str()) != 0) _exit(99);
    alarm(60);  // a hang is a failure
    std::vector<std::string> words = {"foretrain", verb.verb};
    words.insert(words.end(), verb.words.begin(), verb.words.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    fail_allocation(nth, lasting);
    const int code = run_guarded(static_cast<int>(words.size()), argv.data());
    *x_shared = allocations();
    _exit(code);
  }

  fs::path x_folder;
  int x_err = -1;
  long* x_shared = nullptr;
};

// std::variant of libstdc++ 12 destroys, in its copy constructor, what was never made.
TEST(JsonCopies, ThatRunOutOfMemoryLeaveNothing) {
  Json json{Json::Object{}};
  for (int i = 0; i < 5; ++i) {
    Json inner{Json::Object{}};
    inner.set("a key too long for the string itself", Json(std::string(50, 'x')));
    inner.set("b", Json(Json::Array{Json(std::string(40, 'y')), Json(1)}));
    json.set("another key that is as long " + std::to_string(i), inner);
  }
  long failed = 0;
  for (bool whole = false; !whole; ++failed) {
    try {
      fail_allocation(failed + 1, false);
      const Json copy = json;
      fail_allocation(0, false);
      EXPECT_EQ(copy, json);
      whole = true;
    } catch (const std::bad_alloc&) {
      fail_allocation(0, false);
    }
  }
  EXPECT_GT(failed, 20);
}

// Threads that wait for each other to be there are let go when there is no memory for the last.
TEST(AllAtOnce, EndsWhereverMemoryRunsOut) {
  int failed = 0;
  int done = 0;
  for (long nth = 1; done == 0; ++nth) {
    for (const bool lasting : {true, false}) {
      fail_allocation(nth, lasting);
      bool whole = false;
      try {
        whole = all_at_once(3, [](std::size_t) {}).ok();
      } catch (const std::bad_alloc&) {
      }
      fail_allocation(0, false);
      ++(whole ? done : failed);
    }
  }
  EXPECT_GT(failed, 6);
}

TEST(AReason, NeedsNoMemory) {
  const auto runs_out = []() -> Result<int> { throw std::bad_alloc(); };
  fail_allocation(1, true);
  const Result<int> result = or_want(runs_out);
  fail_allocation(0, false);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "out of memory");
}

class OutOfMemory : public testing::TestWithParam<VerbCase> {};

/// The allocation that fails: of the first thousand after the command line is parsed all in a
/// thorough run (FORETRAIN_THOROUGH=1), else some; then drawn ones.
std::vector<long> failing_allocations(long parsed, long all) {
  const bool thorough = std::getenv("FORETRAIN_THOROUGH") != nullptr;
  constexpr long kEach = 1000;
  const long step = thorough ? 1 : cases(53, 211);
  const int drawn = thorough ? 1000 : cases(8, 4);
  std::vector<long> out;
  for (long n = parsed; n < std::min(all, parsed + kEach); n += step) out.push_back(n);
  Rng rng(20261127);
  for (int i = 0; i < drawn; ++i) {
    out.push_back(1 + rng.below(all));
  }
  return out;
}

TEST_P(OutOfMemory, IsOneMessageAndNothingIsLost) {
  const VerbCase& verb = GetParam();
  Place place;
  place.set_outputs(verb);
  const Outcome whole = place.run(verb, 0, false);
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(place.damage(verb), "");
  const long parsed = place.run({"--version", {}, {}}, 0, false).allocations;
  ASSERT_GT(parsed, 0);
  ASSERT_GT(whole.allocations, parsed);
  int told = 0;
  for (const long nth : failing_allocations(parsed, whole.allocations)) {
    for (const bool lasting : {false, true}) {
      place.set_outputs(verb);
      const Outcome outcome = place.run(verb, nth, lasting);
      const std::string at = std::string(verb.verb) + ", allocation " + std::to_string(nth) +
                             (lasting ? " and later ones: " : ": ") + outcome.err;
      ASSERT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome.code << " " << at;
      ASSERT_EQ(place.damage(verb), "") << at;
      if (outcome.code == 0) continue;  // threads or buffers that are done without
      ++told;
      std::istringstream lines(outcome.err);
      for (std::string line; std::getline(lines, line);) {
        ASSERT_TRUE(line.starts_with("foretrain: ")) << at;
      }
      ASSERT_NE(outcome.err.find("memory"), std::string::npos) << at;
    }
  }
  EXPECT_GT(told, 0);
}

const VerbCase kVerbs[] = {
    {"simulate",
     {"run.json", "--json", "o.json", "--trace", "t.json", "--timeline", "l.json", "--report",
      "r.html"},
     {"o.json", "t.json", "l.json", "r.html"}},
    {"search",
     {"run.json", "--over", "recompute", "--threads", "2", "--json", "o.json", "--csv", "o.csv"},
     {"o.json", "o.csv"}},
    {"goodput",
     {"run.json", "--campaigns", "2", "--threads", "2", "--json", "o.json", "--no-advice"},
     {"o.json"}},
    {"import", {"train.sh", "--cluster", "dgx-h100", "--out", "o.json", "--quiet"}, {"o.json"}},
    {"export", {"run.json", "--to", "megatron-lm", "--out", "o.sh", "--quiet"}, {"o.sh"}},
    {"compare", {"run.json", "--json", "o.json"}, {"o.json"}},
    {"score",
     {"rows.json", "--threads", "2", "--json", "o.json", "--csv", "o.csv"},
     {"o.json", "o.csv"}},
    {"show", {"run.json", "--json", "o.json"}, {"o.json"}},
    {"list", {"--json", "o.json"}, {"o.json"}},
    {"execute",
     {"tiny.json", "--threads", "--steps", "1", "--blas", "plain", "--json", "o.json"},
     {"o.json"}},
};
INSTANTIATE_TEST_SUITE_P(Each, OutOfMemory, testing::ValuesIn(kVerbs),
                         [](const auto& tested) { return std::string(tested.param.verb); });

}  // namespace
}  // namespace foretrain

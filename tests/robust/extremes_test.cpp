// The largest and least legal value of every key, each alone: an answer or a message, in time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "tests/support/sanitized.h"
#include "tools/cli/command_line.h"
#include "tools/predict/documents/key_documents.h"

namespace foretrain {
namespace {

/// "--set" of each bound of each number of a schema.
void add_bounds(const Json& schema, const std::string& path, std::vector<std::string>& sets) {
  for (const char* bound : {"minimum", "maximum", "exclusiveMinimum"}) {
    if (const Json* value = schema.find(bound); value != nullptr && !path.empty()) {
      sets.push_back(path + "=" + dump_json(*value, -1));
    }
  }
  if (const Json* choices = schema.find("anyOf"); choices != nullptr && choices->array()) {
    for (const Json& choice : *choices->array()) add_bounds(choice, path, sets);
  }
  if (const Json* members = schema.find("properties"); members != nullptr && members->object()) {
    for (const auto& [key, inner] : *members->object()) {
      add_bounds(inner, path.empty() ? key : path + "." + key, sets);
    }
  }
}

/// The exit code of a command in a process of its own, 128 + the signal's number if one ended it;
/// `err` is what it said.
int code_of(std::vector<std::string> words, std::string& err) {
  const int file = memfd_create("stderr", MFD_CLOEXEC);
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_RDWR);
    for (const int fd : {0, 1}) dup2(null, fd);
    dup2(file, 2);
    alarm(kSanitized ? 120 : 10);  // a hang is a failure
    if (!kSanitized) {
      constexpr rlim_t kRoom = rlim_t{4} << 30;
      const rlimit limit{kRoom, kRoom};
      setrlimit(RLIMIT_AS, &limit);
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    _exit(run_guarded(static_cast<int>(words.size()), argv.data()));
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::vector<char> text(1 << 14);
  const ssize_t size = pread(file, text.data(), text.size(), 0);
  err.assign(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  close(file);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// A run of one layer that most sections of keys go with.
class Extremes : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "foretrain-keys-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    x_folder = name;
    std::ofstream(run()) << R"({"model": {"preset": "gpt2", "n_layer": 2},
      "cluster": {"preset": "dgx-a100-80gb", "accelerators": 4}, "parallel": {"tensor": 2},
      "batch": {"global": 4, "sequence": 64},
      "campaign": {"tokens": 1e6, "reliability": {"failures_per_node_day": 0.1}}})";
  }
  void TearDown() override { std::filesystem::remove_all(x_folder); }
  std::string run() const { return x_folder + "/run.json"; }

  void each_bound(const std::string& verb, const std::string& prefix,
                  const std::vector<std::string>& more) const {
    std::vector<std::string> sets;
    add_bounds(schema_of("run"), "", sets);
    std::size_t tried = 0;
    const std::size_t step = kSanitized && std::getenv("FORETRAIN_THOROUGH") == nullptr ? 7 : 1;
    for (std::size_t i = 0; i < sets.size(); i += step) {
      const bool campaign = sets[i].starts_with("campaign.");
      if (campaign != (prefix == "campaign.") || sets[i].starts_with("search.")) continue;
      ++tried;
      std::vector<std::string> words = {"foretrain", verb, run(), "--quiet", "--set", sets[i]};
      words.insert(words.end(), more.begin(), more.end());
      std::string err;
      const int code = code_of(words, err);
      EXPECT_TRUE(code == 0 || code == 1) << sets[i] << " exits with " << code << "\n" << err;
      EXPECT_EQ(code == 1, err.starts_with("foretrain: ")) << sets[i] << "\n" << err;
    }
    EXPECT_GT(tried * step, 10U);
  }

 private:
  std::string x_folder;
};

TEST_F(Extremes, OfARunAreAnswered) { each_bound("simulate", "", {"--no-advice"}); }

TEST_F(Extremes, OfACampaignAreAnswered) {
  each_bound("goodput", "campaign.", {"--no-advice", "--campaigns", "2", "--threads", "1"});
}

}  // namespace
}  // namespace foretrain

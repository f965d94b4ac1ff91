#include "tests/cli/run_command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace foretrain {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

/// Runs `command` (its first word is the program) with its output in two files; the exit code.
int start(const std::vector<std::string>& command, const fs::path& out, const fs::path& err,
          const fs::path& folder, double& cpu_s) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), flags, 0600);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  pid_t child = 0;
  const int failed = posix_spawn(&child, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return -1;
  int status = 0;
  rusage used{};
  if (wait4(child, &status, 0, &used) != child) return -1;
  cpu_s = seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

const char* const kSmallRun = R"({
  "model": "gpt3-125m",
  "cluster": {"preset": "dgx-a100-80gb", "accelerators": 8},
  "parallel": {"tensor": 2, "pipeline": 2},
  "batch": {"global": 16, "micro": 2, "sequence": 512}
})";

Workplace::Workplace() {
  std::string name = (fs::temp_directory_path() / "foretrain-cli-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no temporary folder " << name;
  x_folder = name;
  fs::create_directory(x_folder / "in");
}

Workplace::~Workplace() {
  std::error_code ignored;
  fs::remove_all(x_folder, ignored);
}

CommandResult Workplace::run(const std::vector<std::string>& arguments) const {
  return run_program(FORETRAIN_BINARY, arguments);
}

CommandResult Workplace::run_on_loop_gpu(const std::vector<std::string>& arguments) const {
  return run_program(FORETRAIN_LOOP_BINARY, arguments);
}

CommandResult Workplace::run_program(const std::string& program,
                                     const std::vector<std::string>& arguments) const {
  std::vector<std::string> command = {program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const fs::path out = x_folder / "stdout";
  const fs::path err = x_folder / "stderr";
  CommandResult result;
  const auto begin = std::chrono::steady_clock::now();
  result.exit_code = start(command, out, err, x_folder / "in", result.cpu_s);
  result.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.out = text_of(out);
  result.err = text_of(err);
  return result;
}

void Workplace::write(const std::string& name, const std::string& text) const {
  std::ofstream(x_folder / "in" / name, std::ios::binary) << text;
}

bool Workplace::has(const std::string& name) const { return fs::exists(x_folder / "in" / name); }

std::string Workplace::read(const std::string& name) const {
  return text_of(x_folder / "in" / name);
}

std::vector<std::string> Workplace::files() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(x_folder / "in")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> with_sets(std::vector<std::string> arguments,
                                   const std::vector<std::string>& sets) {
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  return arguments;
}

Json simulated(const Workplace& place, const std::string& run, const std::vector<std::string>& sets,
               const std::vector<std::string>& more) {
  std::vector<std::string> arguments = with_sets({"simulate", run, "--json", "-", "--quiet"}, sets);
  arguments.insert(arguments.end(), more.begin(), more.end());
  const CommandResult result = place.run(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const Result<Json> json = parse_json(result.out, "stdout");
  if (!json.ok()) {
    ADD_FAILURE() << json.error().message;
    return {};
  }
  return json.value();
}

Json at(const Json& json, const std::string& path) {
  const Json* found = &json;
  std::istringstream keys(path);
  for (std::string key; found != nullptr && std::getline(keys, key, '/');) found = found->find(key);
  return found == nullptr ? Json() : *found;
}

Json without(const Json& json, const std::vector<std::string>& keys) {
  Json out = json;
  for (const std::string& key : keys) out.erase(key);
  return out;
}

void expect_refused(const Workplace& place, const CommandResult& result,
                    const std::vector<std::string>& parts, const std::vector<std::string>& files) {
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("foretrain: ")) << result.err;
  EXPECT_TRUE(result.err.ends_with("\n"));
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) {  // a fault a line
    EXPECT_TRUE(line.starts_with("foretrain: ")) << line;
    EXPECT_LT(line.size(), 1200U);
  }
  for (const std::string& part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " is not in: " << result.err;
  }
  EXPECT_EQ(place.files(), files);
}

}  // namespace foretrain

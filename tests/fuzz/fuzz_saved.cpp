// Any document is read in place of what a search, an execution or a system keeps in a file
// (FORETRAIN_FUZZED), or is refused with a message.
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "executor/state/saved_state.h"
#include "executor/state/state_map.h"
#include "tests/fuzz/bytes_file.h"
#include "tools/predict/defaults.h"
#include "tools/predict/run_file.h"
#include "tools/search/search_state.h"

namespace foretrain {
namespace {

template <typename T>
void check(const Result<T>& read) {
  FT_CHECK(read.ok() || !read.error().message.empty(), "an error without a message");
}

Json small_run() {
  return parse_json(R"({
    "model": {"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4,
              "n_positions": 128, "vocab_size": 500},
    "cluster": {"preset": "dgx-h100", "accelerators": 8},
    "batch": {"global": 8, "micro": 1, "sequence": 64}})",
                    "run")
      .value();
}

[[maybe_unused]] void system(const Json& json) {
  static const Run plain = resolve_run(small_run(), "run", {}).value();
  Run run = plain;
  check(lay_system(run, json));
}

/// What a search kept, whatever question the document says that it answers.
[[maybe_unused]] void search_state(Json json) {
  static const SearchOptions options;
  static const std::vector<SearchCase> cases = search_cases(small_run(), "run", options).value();
  static const Json question = [] {
    const std::string path = memory_folder() + "/none.json";
    const Result<SearchState> none = SearchState::open(path, cases, options);
    FT_CHECK(none.ok() && none.value().save().ok(), "no state of a search");
    return *read_json_file(path).value().find("question");
  }();
  if (json.find("question") != nullptr) json.set("question", question);
  const Result<SearchState> read =
      SearchState::open(memory_file(dump_json(json, -1)), cases, options);
  check(read);
  if (!read.ok()) return;
  for (std::uint32_t plan = 0; plan < 4; ++plan) (void)read.value().find(0, plan);
}

/// The list of a checkpoint.
[[maybe_unused]] void state_list(const Json& json) {
  static const std::string path = [] {
    const std::string folder = memory_folder() + "/step-1";
    std::filesystem::create_directory(folder);
    return folder + "/state.json";
  }();
  static const int file = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  put_bytes(file, dump_json(json, -1));
  Workload workload;
  workload.programs.resize(1);
  workload.ranks.resize(1);
  workload.ranks.front().program = ProgramId(0);
  std::vector<std::string> notes;
  StateFolder folder;
  folder.path = memory_folder();
  folder.model = "a model";
  const Result<SavedPoint> found = newest_state(folder, workload, notes);
  check(found);
  FT_CHECK(!found.ok() || found.value().steps == 1 || !notes.empty(), "left out without a note");
}

/// Which elements a rank's file has: a part of a tensor of 8 x 8 is read from it.
[[maybe_unused]] void state_map(const Json& json) {
  static const std::string path = [] {
    const std::string name = memory_folder() + "/rank-0.state";
    const int file = ::open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    put_bytes(file, std::string(1024, '\1'));
    ::close(file);
    return name;
  }();
  const Json* list = json.find("runs");
  const Result<std::vector<StateRun>> runs = read_state_runs(list ? *list : json, "fuzz");
  check(runs);
  if (!runs.ok()) return;
  const StateSource source({path}, {runs.value()});
  StateRun wanted;
  wanted.tensor = "w";
  wanted.layer = 0;
  wanted.rows = wanted.width = wanted.cols = 8;
  wanted.begin = 4;
  wanted.count = 40;
  std::array<float, 40> values{};
  for (std::size_t part = 0; part < kStateParts; ++part) {
    check(source.read(wanted, part, values.data()));
  }
}

}  // namespace
}  // namespace foretrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foretrain;  // NOLINT(google-build-using-namespace): a main of its own
  const Result<Json> json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (json.ok()) FORETRAIN_FUZZED(json.value());
  return 0;
}

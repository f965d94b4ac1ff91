// Which elements of the model's tensors the states of a rank are, and how a rank of another plan
// reads the ranges that it needs from the files of all ranks that wrote.
//
// A run is an interval of a slice of a tensor, row-major. For each run the map of a rank says where
// its file has the weights and the two moments of Adam. A reader looks for the rectangle of rows
// and columns that it needs, in whatever files hold parts of it.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "executor/host_rank.h"
#include "sim/base/json.h"

namespace foretrain {

/// Of every element: the weight, and Adam's moments.
inline constexpr std::size_t kStateParts = 3;
inline constexpr std::size_t kWeightPart = 0;

/// Elements [begin, begin + count) of a slice of a tensor.
struct StateRun {
  std::string tensor;
  std::int32_t layer = -1;
  std::int64_t rows = 0, width = 0;                     ///< of the tensor
  std::int64_t first_row = 0, first_col = 0, cols = 0;  ///< of the slice
  std::int64_t begin = 0, count = 0;
  std::array<std::int64_t, kStateParts> at{};  ///< byte of the rank's file where each part begins
};

/// A run in the memory of a rank.
struct OwnRun {
  StateRun run;
  std::array<float*, kStateParts> values{};
  float* master = nullptr;  ///< the fp32 copy of the weights; none where there is none
};

/// What the rank's optimizer writes: every element of it once, padding left out.
std::vector<OwnRun> updated_runs(HostRank<float>& rank);
/// All weights that the rank holds, the moments left out: also those that other ranks update.
std::vector<OwnRun> held_weights(HostRank<float>& rank);

Json json_of(const std::vector<StateRun>& runs);
Result<std::vector<StateRun>> read_state_runs(const Json& json, const std::string& source);

/// Tensors of all ranks: "NAME of layer L: R x C", sorted.
std::vector<std::string> tensors_of(const Workload& workload);

/// The files of a saved state.
class StateSource {
 public:
  /// `runs`: of each rank whose file is that of the same index.
  StateSource(std::vector<std::filesystem::path> files,
              const std::vector<std::vector<StateRun>>& runs);

  /// Fills `into` with that part of the run's elements; what pads the tensor becomes zero.
  Status read(const StateRun& wanted, std::size_t part, float* into) const;
  /// Bytes that `read` took from the files so far.
  Bytes bytes() const { return x_bytes; }

 private:
  /// A run, and which file has it.
  struct Where {
    std::size_t file = 0;
    StateRun run;
  };
  std::vector<std::filesystem::path> x_files;
  std::map<std::pair<std::string, std::int32_t>, std::vector<Where>> x_runs;  ///< by tensor, layer
  mutable Bytes x_bytes = 0;
};

}  // namespace foretrain

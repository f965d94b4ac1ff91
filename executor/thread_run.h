// All ranks of a Workload as threads of this process: for tests, and for one rank.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/host_rank.h"

namespace foretrain {

/// A tensor of the whole model, row-major; `layer` is -1 at the ends.
struct WholeTensor {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;
};
using TensorKey = std::pair<std::string, std::int32_t>;
using WholeModel = std::map<TensorKey, WholeTensor>;

template <typename T>
class ThreadRun {
 public:
  /// The workload must outlive it, and be verified.
  static Result<std::unique_ptr<ThreadRun>> create(const Workload& workload,
                                                   const HostOptions& options);

  /// One step of all ranks; the mean loss.
  Result<double> step();

  /// The model's weights put together from what the ranks' optimizers wrote; elements that several
  /// ranks hold must be close to each other (`worst_copy` is the largest difference).
  WholeModel weights(double* worst_copy = nullptr) const;
  /// The gradients of a run of one rank.
  WholeModel gradients() const;

  const std::vector<std::unique_ptr<HostRank<T>>>& ranks() const { return x_ranks; }

 private:
  ThreadRun() = default;
  const Workload* x_workload = nullptr;
  std::unique_ptr<Transport> x_transport;
  std::vector<std::unique_ptr<HostRank<T>>> x_ranks;
};

}  // namespace foretrain

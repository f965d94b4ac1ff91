#include "executor/thread_run.h"

#include <algorithm>
#include <cmath>

#include "executor/kernels.h"
#include "sim/base/check.h"
#include "sim/base/threads.h"

namespace foretrain {

template <typename T>
Result<std::unique_ptr<ThreadRun<T>>> ThreadRun<T>::create(const Workload& workload,
                                                           const HostOptions& options) {
  FT_TRY(check_executable(workload));
  use_one_blas_thread();
  std::unique_ptr<ThreadRun> run(new ThreadRun());
  run->x_workload = &workload;
  run->x_transport = make_thread_transport(workload);
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    run->x_ranks.push_back(
        std::make_unique<HostRank<T>>(workload, RankId(r), *run->x_transport, options));
    FT_TRY(run->x_ranks.back()->set_up());
  }
  return run;
}

template <typename T>
Result<double> ThreadRun<T>::step() {
  std::vector<Status> results(x_ranks.size(), ok_status());
  FT_TRY(all_at_once(x_ranks.size(), [this, &results](std::size_t r) {
    results[r] = or_want([&] { return x_ranks[r]->step(); });
    if (!results[r].ok()) x_transport->abort(results[r].error().message);
  }));
  for (const Status& status : results) {
    if (!status.ok()) return status.error();
  }
  for (const auto& rank : x_ranks) {
    if (const double loss = rank->loss(); !std::isnan(loss)) return loss;
  }
  return input_error("no rank computes a loss");
}

template <typename T>
WholeModel ThreadRun<T>::weights(double* worst_copy) const {
  WholeModel out;
  std::map<TensorKey, std::vector<bool>> known;
  double worst = 0;
  for (const auto& rank : x_ranks) {
    const auto updated = rank->updated();
    for (const auto& slice : rank->memory().slices()) {
      const TensorKey key{slice.tensor->name, slice.layer};
      WholeTensor& whole = out[key];
      std::vector<bool>& have = known[key];
      if (whole.values.empty()) {
        whole.rows = slice.tensor->rows;
        whole.cols = slice.tensor->cols;
        whole.values.resize(static_cast<std::size_t>(whole.rows * whole.cols));
        have.resize(whole.values.size());
      }
      const T* values = rank->memory().values(slice.owner);
      for (std::int64_t i = slice.begin; i < slice.end; ++i) {
        const std::int64_t row = slice.first_row + i / slice.cols;
        const std::int64_t element = slice.element + i;
        const bool own = std::any_of(updated.begin(), updated.end(), [&](const auto& u) {
          return u.owner == slice.owner && element >= u.begin && element < u.end;
        });
        if (row >= whole.rows || !own) continue;
        const auto at =
            static_cast<std::size_t>(row * whole.cols + slice.first_col + i % slice.cols);
        const double value = values[element];
        if (have[at]) worst = std::max(worst, std::abs(whole.values[at] - value));
        whole.values[at] = value;
        have[at] = true;
      }
    }
  }
  for (const auto& [key, have] : known) {
    FT_CHECK(std::find(have.begin(), have.end(), false) == have.end(),
             "an element of a weight that no rank updates");
  }
  if (worst_copy != nullptr) *worst_copy = worst;
  return out;
}

template <typename T>
WholeModel ThreadRun<T>::gradients() const {
  FT_CHECK(x_ranks.size() == 1, "gradients of a run of one rank");
  HostRank<T>& rank = *x_ranks[0];
  const Program& program = rank.program();
  // Gradient buffers lie like the parameters: the optimizer reads the one and writes the other.
  std::map<FrameId, FrameId> gradient_of;
  const TaskList list(program);
  for (const auto& [stream, index] : list.issue) {
    const QueuedOp& task = list.tasks[static_cast<std::size_t>(stream)][index];
    const std::optional<UpdatedWeights> update = updated_weights(list, task);
    if (!update) continue;
    const std::vector<FrameId>& frames = list.call_of(task).frames;
    gradient_of[frames[static_cast<std::size_t>(update->weights.frame)]] =
        frames[static_cast<std::size_t>(list.op_of(task).reads[0].frame)];
  }
  WholeModel out;
  for (const auto& slice : rank.memory().slices()) {
    WholeTensor& whole = out[{slice.tensor->name, slice.layer}];
    whole.rows = slice.tensor->rows;
    whole.cols = slice.tensor->cols;
    const T* values = rank.memory().values(gradient_of.at(slice.owner)) + slice.element;
    whole.values.assign(values, values + whole.rows * whole.cols);
  }
  return out;
}

template class ThreadRun<float>;
template class ThreadRun<double>;

}  // namespace foretrain

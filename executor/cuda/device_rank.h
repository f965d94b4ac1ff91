// One rank on a device: queues the ops of a step on its streams as the Program says and reads when
// each began and ended.
//
// An op's time begins when its stream and its events let it, so it holds the way of its launch to
// the device where the queue had run dry.
//
// With graphs the ops between two host syncs are captured and launched as one, from the second step
// on: the first takes scratch memory and chooses algorithms.
//
// Left out: offloading.
#pragma once

#include <memory>
#include <vector>

#include "executor/cuda/device.h"
#include "executor/cuda/memory_plan.h"
#include "executor/rank_runner.h"

namespace foretrain {

class DeviceRank final : public RankRunner {
 public:
  /// The workload must outlive it, and be verified and executable on devices.
  DeviceRank(const Workload& workload, RankId rank, Transport& transport,
             const HostOptions& options, std::unique_ptr<Device> device);
  Status set_up() override;
  Status step() override;
  const std::vector<std::vector<OpRecord>>& records() const override { return x_records; }
  double loss() const override { return x_loss; }
  Status set_values(FrameId frame, std::int16_t buffer,
                    const std::function<double(std::int64_t)>& value) override;
  double issue_seconds() const override { return x_issue_seconds; }
  double queued_seconds() const override { return x_queued_seconds; }

  const MemoryPlan& plan() const { return x_plan; }
  const MemoryLayout& layout() const { return x_layout; }
  /// The first buffer of a frame that owns memory, as numbers.
  Result<std::vector<float>> values(FrameId frame);

 private:
  /// What is handed to the device, one for each op in issue order.
  struct Launch {
    std::size_t stream = 0;
    const Task* task = nullptr;
    DeviceOperands x;
    std::byte* staging = nullptr;  ///< of input copies
  };
  Status list_launches();
  Status draw();
  Status start_masters();
  Status run();
  Status queue_all();
  Status queue(std::size_t i);
  Status dispatch(const Launch& launch);
  Status communicate(const Launch& launch, const Collective& work);
  Status exchange(const Launch& launch, const P2PBatch& work);
  Status read_results();
  OpContext context_of(const Launch& launch) const;
  static bool is_input(const Work& work, const DeviceOperands& x) {
    return std::holds_alternative<Copy>(work) && x.reads.empty();
  }

  const Program& x_program;
  const RankBinding& x_binding;
  RankId x_rank;
  Transport& x_transport;
  HostOptions x_options;
  std::unique_ptr<Device> x_device;
  std::vector<Place> x_places;
  TaskList x_list;
  MemoryLayout x_layout;
  MemoryPlan x_plan;
  std::byte* x_memory = nullptr;
  std::vector<Launch> x_launches;
  std::vector<std::size_t> x_mark_of;  ///< by event: that of the op that records it
  std::vector<std::vector<OpRecord>> x_records;
  std::int64_t x_step = 0;
  double x_loss = 0;
  double x_issue_seconds = 0;
  double x_queued_seconds = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace foretrain

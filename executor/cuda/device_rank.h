// One rank on a device: queues the ops of a step on its streams as the Program says and reads when
// each began and ended.
//
// Without `mark_ops` only what streams or the host wait for is marked, and no mark has a time.
//
// An op's time begins when its stream and its events let it, so it holds the way of its launch to
// the device where the queue had run dry.
//
// With graphs the ops between two host syncs are captured and launched as one, from the second step
// on: the first takes scratch memory and chooses algorithms.
//
// What a plan keeps in memory of the host is pinned, what it keeps in storage lies in a mapped
// file. The host's part of a stream's work runs when the stream has come there.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "executor/cuda/device.h"
#include "executor/cuda/memory_plan.h"
#include "executor/file_memory.h"
#include "executor/rank_runner.h"

namespace foretrain {

class DeviceRank final : public RankRunner {
 public:
  /// The workload must outlive it, and be verified and executable on devices.
  DeviceRank(const Workload& workload, RankId rank, Transport& transport, HostOptions options,
             std::unique_ptr<Device> device);
  Status set_up() override;
  Status step() override;
  const std::vector<std::vector<OpRecord>>& records() const override { return x_records; }
  double loss() const override { return x_loss; }
  Status set_values(FrameId frame, std::int16_t buffer,
                    const std::function<double(std::int64_t)>& value) override;
  Status repeat_values(FrameId frame, std::int16_t buffer,
                       const std::vector<double>& pattern) override;
  DType type_of(FrameId frame, std::int16_t buffer) const override;
  /// By the device where the buffer lies there.
  Status fill_values(FrameId frame, std::int16_t buffer, const Fill& fill) override;
  /// Their time ends with the next step's work.
  Status hold_sms(int sms, bool copies) override;
  double held_gb_per_s() const override { return x_held_gb_per_s; }
  double issue_seconds() const override { return x_issue_seconds; }
  double queued_seconds() const override { return x_queued_seconds; }
  void mark_ops(bool on) override { x_options.marks = on; }
  void queue_ahead(bool on) override { x_ahead = on; }
  double step_seconds() const override { return x_step_seconds; }

  const MemoryPlan& plan() const { return x_plan; }
  const MemoryLayout& layout() const { return x_layout; }
  /// The first buffer of a frame that owns memory, as numbers.
  Result<std::vector<float>> values(FrameId frame);

 private:
  /// Memory of the host that stands for an operand on the device while the host computes.
  struct Stand {
    std::byte* device = nullptr;
    std::size_t at = 0, bytes = 0;  ///< in the staging memory of the stream
    bool read = false, written = false;
  };
  /// What is handed to the device, one for each op in issue order.
  struct Launch {
    std::size_t stream = 0;
    const QueuedOp* task = nullptr;
    DeviceOperands x;
    std::byte* staging = nullptr;  ///< of input copies
    std::vector<Stand> stands;     ///< of work of the host
  };
  Status take_memory();
  Operand operand(const Call& call, const View& view, std::size_t offset) const;
  Status list_launches();
  static void list_stands(Launch& launch);
  std::size_t staged_bytes(const Launch& launch) const;
  Operand kept(const Launch& launch, const View& view) const;
  Status write(const Operand& to, const void* from, std::size_t bytes);
  Status read(void* to, const Operand& from, std::size_t bytes);
  Operand whole(std::size_t buffer) const;
  Status draw();
  Status start_masters();
  Status run();
  Status queue_all();
  Status queue(std::size_t i);
  Status poison(std::size_t stream, const PlannedBlock& block);
  Status dispatch(const Launch& launch);
  Status copy(const Launch& launch);
  Status compute_on_host(const Launch& launch, const Kernel& kernel);
  Status communicate(const Launch& launch, const Collective& work);
  Status exchange(const Launch& launch, const P2PBatch& work);
  Status read_results();
  OpContext context_of(const Launch& launch) const;

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
  FileMemory x_files;
  std::array<std::byte*, 3> x_memory{};  ///< by Memory
  std::vector<std::byte*> x_staging;     ///< by stream, of the host
  std::vector<Launch> x_launches;
  std::vector<std::size_t> x_mark_of;  ///< by event: that of the op that records it
  std::vector<bool> x_waited;          ///< by launch: streams or the host wait for its end
  std::vector<std::vector<OpRecord>> x_records;
  std::int64_t x_step = 0;
  bool x_alone = false;  ///< no other rank waits for this one
  bool x_holds = false;  ///< SMs
  bool x_ahead = false;  ///< steps start when they are queued
  double x_loss = 0;
  double x_issue_seconds = 0;
  double x_held_gb_per_s = 0;
  double x_step_seconds = 0;
  double x_queued_seconds = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace foretrain

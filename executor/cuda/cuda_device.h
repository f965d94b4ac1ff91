// Device on CUDA: a stream for each stream of the Program, an event for each mark.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/cuda/device.h"
#include "executor/cuda/device_session.h"
#include "executor/cuda/launch_support.h"

namespace foretrain {

/// Why no device can be used here, or their number.
Result<int> count_cuda_devices();

class CudaDevice final : public Device, private device::LaunchSupport {
 public:
  CudaDevice(const Workload& workload, RankId rank, Transport& transport,
             std::shared_ptr<DeviceSession> session)
      : x_workload(workload), x_rank(rank), x_transport(transport), x_session(std::move(session)) {}
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  CudaDevice(CudaDevice&&) = delete;
  CudaDevice& operator=(CudaDevice&&) = delete;
  ~CudaDevice() override;

  Status open(std::size_t streams, std::size_t marks) override;
  Result<std::size_t> free_bytes() override;
  Result<std::byte*> take(std::size_t bytes) override;
  Result<std::byte*> take_host(std::size_t bytes) override;
  Status write(std::byte* to, const void* from, std::size_t bytes) override;
  Status read(void* to, const std::byte* from, std::size_t bytes) override;
  Status fill_random(std::byte* to, DType type, std::int64_t count,
                     const Content& content) override;
  void time_marks(bool on) override { x_timed = on; }
  Status hold_back() override;
  void let_go() override { x_go.store(true); }
  Status begin() override;
  Status end() override;
  Status mark(std::size_t stream, std::size_t mark) override;
  Status wait(std::size_t stream, std::size_t mark) override;
  Status wait_on_host(std::size_t mark) override;
  Status begin_piece(std::size_t piece) override;
  Status end_piece(std::size_t piece) override;
  Status finish() override;
  Result<Time> time_of(std::size_t mark) override;
  Result<Time> step_time() override;
  void abandon() override;
  void record(bool on) override;
  void begin_op(std::size_t op) override;
  void end_op() override;
  std::vector<Time> busy_times(std::size_t ops) override;
  Status hold_sms(int sms, bool copies) override;
  Result<double> release_sms() override;
  Status copy(std::size_t stream, std::byte* to, const std::byte* from, std::size_t bytes) override;
  Status on_host(std::size_t stream, std::function<void()> work) override;
  Status fill(std::size_t stream, std::byte* to, int byte, std::size_t bytes) override;
  Status compute(std::size_t stream, const Work& work, const OpContext& context,
                 const DeviceOperands& x) override;
  Status collectives(std::size_t stream, GroupId group,
                     std::span<const DeviceCollective> calls) override;
  Status exchange(std::size_t stream, std::span<const MessageCall> messages) override;

 private:
  void* scratch(std::size_t stream, int which, std::size_t bytes) override;
  const float* rope_table(std::int64_t length, std::int64_t head_dim) override;
  void product(cudaStream_t stream, std::size_t index, const Product& product) override;
  void fail(const std::string& what) override;
  void fail(const Error& what);
  template <typename T>
  T* got(Result<T*> result);
  /// Event number so and so, made when it is first recorded.
  Result<cudaEvent_t> event(std::vector<cudaEvent_t>& of, std::size_t number, bool timed);
  Status record_event(std::vector<cudaEvent_t>& of, std::size_t number, bool timed,
                      std::size_t stream);
  Result<Time> since_origin(cudaEvent_t event) const;
  void let_sms_go();
  void destroy_graphs();
  Status cudnn_attention(std::size_t stream, const Attention& work, const DeviceOperands& x);

  const Workload& x_workload;
  RankId x_rank;
  Transport& x_transport;
  std::shared_ptr<DeviceSession> x_session;
  std::vector<cudaStream_t> x_streams;  ///< the session's
  // Of each mark an event that tells when, and one that only orders streams: steps whose marks have
  // no times and captured pieces wait for the latter.
  std::vector<cudaEvent_t> x_marks, x_orders;
  std::vector<cudaEvent_t> x_ends;    ///< of the step, by stream
  std::vector<cudaEvent_t> x_origin;  ///< one
  std::vector<cudaEvent_t> x_fork;    ///< one; of pieces
  bool x_timed = true;
  std::atomic<bool> x_go{true};  ///< for what holds a step back, on CUDA's thread
  // Of graphs: which marks this piece has recorded, and what is launched again.
  std::vector<bool> x_ordered;
  std::vector<cudaGraphExec_t> x_pieces;
  bool x_capturing = false, x_in_pieces = false;
  std::vector<void*> x_blocks, x_host_blocks;     ///< given back to the session
  std::deque<std::function<void()>> x_host_work;  ///< of this step
  std::unique_ptr<NcclGroups> x_nccl;
  std::optional<Error> x_problem;  ///< the first of this op
};

}  // namespace foretrain

#include "executor/host_rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>

#include "executor/kernels.h"
#include "executor/mixers/mixers.h"
#include "executor/token_data.h"
#include "sim/base/check.h"
#include "sim/base/threads.h"

namespace foretrain {
namespace {

double cpu_now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A thread for each stream that has tasks.
template <typename Run>
Status start_streams(std::vector<std::jthread>& threads, const TaskList& list, const Run& run) {
  threads.reserve(list.tasks.size());
  try {
    for (std::size_t s = 0; s < list.tasks.size(); ++s) {
      if (!list.tasks[s].empty()) threads.emplace_back(run, s);
    }
  } catch (const std::system_error& reason) {
    return input_error("a stream needs a thread: " + reason.code().message());
  }
  return ok_status();
}

}  // namespace

template <typename T>
HostRank<T>::HostRank(const Workload& workload, RankId rank, Transport& transport,
                      const HostOptions& options)
    : x_program(workload.programs[workload.ranks[rank.index()].program.index()]),
      x_binding(workload.ranks[rank.index()]),
      x_rank(rank),
      x_transport(transport),
      x_options(options),
      x_places(places_of(workload, rank)),
      x_memory(x_program, x_places, options.check),
      x_list(x_program),
      x_wake(x_program.streams.size()) {
  x_events.resize(x_list.events);
  const bool own = workload.ranks.size() == 1 || transport.ranks_are_processes();
  x_clock = own ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_THREAD_CPUTIME_ID;
}

template <typename T>
Status HostRank<T>::set_up() {
  FT_TRY(x_memory.set_up(x_options.training.seed));
  start_masters();
  return ok_status();
}

template <typename T>
typename HostRank<T>::Kept HostRank<T>::kept(const Call& call, const View& view) const {
  const KeptView found = kept_view(x_list, call, view);
  return {found.frame(), x_memory.at(*found.call, found.view)};
}

/// A master copy starts as the weights.
template <typename T>
void HostRank<T>::start_masters() {
  for (const auto& [stream, index] : x_list.issue) {
    const QueuedOp& task = x_list.tasks[static_cast<std::size_t>(stream)][index];
    const std::optional<UpdatedWeights> update = updated_weights(x_list, task);
    if (!update || !update->master) continue;
    const Call& call = x_list.call_of(task);
    const Operand weights = kept(call, update->weights).operand;
    const Operand master = kept(call, *update->master).operand;
    std::copy_n(reinterpret_cast<const T*>(weights.data), weights.count,
                reinterpret_cast<T*>(master.data));
  }
}

template <typename T>
std::vector<typename HostRank<T>::Updated> HostRank<T>::updated() const {
  std::vector<Updated> out;
  for (const auto& [stream, index] : x_list.issue) {
    const QueuedOp& task = x_list.tasks[static_cast<std::size_t>(stream)][index];
    const std::optional<UpdatedWeights> update = updated_weights(x_list, task);
    if (!update) continue;
    const Call& call = x_list.call_of(task);
    const auto values = [&](const View& view) {
      return reinterpret_cast<T*>(kept(call, view).operand.data);
    };
    const Kept weights = kept(call, update->weights);
    const std::int64_t begin = weights.operand.begin;
    out.push_back({weights.frame, begin, begin + weights.operand.count,
                   reinterpret_cast<T*>(weights.operand.data), values(update->momentum),
                   values(update->variance), update->master ? values(*update->master) : nullptr});
  }
  return out;
}

template <typename T>
double HostRank<T>::loss() const {
  if (!x_list.loss_frame.valid()) return std::numeric_limits<double>::quiet_NaN();
  Call call;
  call.frames = {x_list.loss_frame};
  const View view{0, x_list.loss_buffer, 0, 4, 1, GroupSlot()};
  return static_cast<double>(*reinterpret_cast<const T*>(x_memory.at(call, view).data));
}

template <typename T>
DType HostRank<T>::type_of(FrameId frame, std::int16_t buffer) const {
  const FrameLayout& layout = x_program.layouts[x_program.frames[frame.index()].layout.index()];
  return layout.buffers[static_cast<std::size_t>(buffer)].dtype;
}

template <typename T>
Status HostRank<T>::set_values(FrameId frame, std::int16_t buffer,
                               const std::function<double(std::int64_t)>& value) {
  Call call;
  call.frames = {frame};
  const FrameLayout& layout = x_program.layouts[x_program.frames[frame.index()].layout.index()];
  const Buffer& shape = layout.buffers[static_cast<std::size_t>(buffer)];
  const Operand x = x_memory.at(call, View{0, buffer, 0, shape.bytes(), 1, GroupSlot()});
  for (std::int64_t i = 0; i < x.count; ++i) {
    if (shape.dtype == DType::kInt64) {
      reinterpret_cast<std::int64_t*>(x.data)[i] = static_cast<std::int64_t>(value(i));
    } else if (shape.dtype == DType::kUint8) {
      reinterpret_cast<std::uint8_t*>(x.data)[i] = static_cast<std::uint8_t>(value(i));
    } else {
      reinterpret_cast<T*>(x.data)[i] = static_cast<T>(value(i));
    }
  }
  return ok_status();
}

template <typename T>
Time HostRank<T>::now() const {
  return time_of(std::chrono::steady_clock::now());
}

template <typename T>
Time HostRank<T>::time_of(std::chrono::steady_clock::time_point at) const {
  const auto passed = at - x_start;
  return Time{std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count() * 1000};
}

template <typename T>
void HostRank<T>::fail(const std::string& what) noexcept {
  {
    const std::lock_guard lock(x_mutex);
    if (!x_failed) x_failure = reason_or_want(what.c_str());
    x_failed = true;
    x_host.notify_all();
    for (std::condition_variable& stream : x_wake) stream.notify_all();
  }
  x_transport.abort(what);
}

template <typename T>
Status HostRank<T>::step() {
  const std::size_t streams = x_list.tasks.size();
  std::fill(x_events.begin(), x_events.end(), false);
  x_issued.assign(streams, 0);
  x_done.assign(streams, 0);
  x_asleep.assign(streams, std::nullopt);
  x_records.assign(streams, {});
  for (std::size_t s = 0; s < streams; ++s) x_records[s].reserve(x_list.tasks[s].size());
  x_cpu_seconds = x_wall_seconds = 0;
  std::vector<std::jthread> workers;
  const Status done = or_want([&]() -> Status {
    FT_TRY(start_streams(workers, x_list, [this](std::size_t s) {
      const Status ran = or_want([this, s] {
        run_stream(s);
        return ok_status();
      });
      if (!ran.ok()) fail(ran.error().message);
    }));
    FT_TRY(x_transport.barrier(x_rank));
    x_start = std::chrono::steady_clock::now();
    issue();
    return ok_status();
  });
  if (!done.ok()) fail(done.error().message);  // the streams end, and the other ranks
  workers.clear();
  ++x_step;
  return x_failed ? Status(reason_or_want(x_failure.message.c_str())) : ok_status();
}

/// The host: hands ops to their streams in order; blocks at HostSync and HostDelay only.
template <typename T>
void HostRank<T>::issue() {
  std::unique_lock lock(x_mutex);
  for (const auto& [stream, position] : x_list.issue) {
    const auto s = static_cast<std::size_t>(stream);
    const std::size_t index = position;
    const Work& work = x_program.works[x_list.op_of(x_list.tasks[s][index]).work.index()];
    if (const auto* delay = std::get_if<HostDelay>(&work)) {
      wake_streams(lock);
      std::this_thread::sleep_for(std::chrono::nanoseconds(delay->time.ps / 1000));
      lock.lock();
    }
    x_issued[s] = index + 1;
    if (std::holds_alternative<HostSync>(work)) {
      wake_streams(lock);
      lock.lock();
      x_host.wait(lock, [&] { return x_failed || x_done[s] > index; });
    }
    if (x_failed) return;
  }
  wake_streams(lock);
}

template <typename T>
bool HostRank<T>::is_ready(std::size_t stream, std::size_t index) const {
  const std::vector<std::size_t>& waits = x_list.tasks[stream][index].waits;
  return x_issued[stream] > index && std::all_of(waits.begin(), waits.end(), [this](std::size_t e) {
           return bool{x_events[e]};
         });
}

/// Wakes the streams whose next op can start, and no others: a thread that wakes for nothing takes
/// the core from a kernel. Lets go of the lock first: they would wake only to wait for it.
template <typename T>
void HostRank<T>::wake_streams(std::unique_lock<std::mutex>& lock) {
  std::vector<std::size_t> ready;
  for (std::size_t s = 0; s < x_asleep.size(); ++s) {
    if (!x_asleep[s] || !is_ready(s, *x_asleep[s])) continue;
    x_asleep[s].reset();
    ready.push_back(s);
  }
  lock.unlock();
  for (const std::size_t s : ready) x_wake[s].notify_one();
}

template <typename T>
void HostRank<T>::run_stream(std::size_t stream) {
  for (std::size_t i = 0; i < x_list.tasks[stream].size(); ++i) {
    if (!run_task(stream, i)) return;
  }
}

template <typename T>
bool HostRank<T>::run_task(std::size_t stream, std::size_t index) {
  const QueuedOp& task = x_list.tasks[stream][index];
  {
    std::unique_lock lock(x_mutex);
    while (!x_failed && !is_ready(stream, index)) {
      x_asleep[stream] = index;
      x_wake[stream].wait(lock);
    }
    x_asleep[stream].reset();
    if (x_failed) return false;
  }
  OpRecord record{task.call, task.op, now(), Time{}, Time{}, Time{}};
  const Call& call = x_program.calls[static_cast<std::size_t>(task.call)];
  const Op& op = x_list.op_of(task);
  const Work& work = x_program.works[op.work.index()];
  const bool kernel = std::holds_alternative<Gemm>(work) ||
                      std::holds_alternative<Attention>(work) ||
                      std::holds_alternative<Scan>(work) || kernel_in(work) != nullptr;
  if (kernel) x_transport.kernel_begins(x_rank);
  const double cpu_before = kernel ? cpu_now(x_clock) : 0;
  Arrival there;
  const Status status = [&] {
    const OpUnderWay under_way(x_transport, x_rank, op.name);
    return execute(call, op, there);
  }();
  const double cpu_after = kernel || there ? cpu_now(x_clock) : 0;
  if (kernel) x_transport.kernel_ends(x_rank);
  if (!status.ok()) {
    fail("rank " + std::to_string(x_rank.value) + ", " + op.name + ": " + status.error().message);
    return false;
  }
  record.end = now();
  if (kernel || there) {
    record.work = record.end - (there ? time_of(there->at) : record.begin);
    record.cpu =
        min(Time::from_seconds(cpu_after - (there ? there->cpu_seconds : cpu_before)), record.work);
  }
  x_records[stream].push_back(record);
  std::unique_lock lock(x_mutex);
  x_cpu_seconds += record.cpu.seconds();
  x_wall_seconds += record.work.seconds();
  if (task.event >= 0) x_events[static_cast<std::size_t>(task.event)] = true;
  x_done[stream] = index + 1;
  const bool failed = x_failed;
  if (std::holds_alternative<HostSync>(work)) x_host.notify_all();
  if (task.event >= 0) wake_streams(lock);
  return !failed;
}

template <typename T>
Status HostRank<T>::execute(const Call& call, const Op& op, Arrival& there) {
  for (const BufferRef& ref : op.allocates) FT_TRY(x_memory.allocate(call, ref));
  FT_TRY(dispatch(call, op, there));
  for (const BufferRef& ref : op.frees) x_memory.release(call, ref);
  return ok_status();
}

template <typename T>
Status HostRank<T>::dispatch(const Call& call, const Op& op, Arrival& there) {
  Operands<T> x;
  for (const View& view : op.reads) x.reads.push_back(x_memory.at(call, view));
  for (const View& view : op.writes) x.writes.push_back(x_memory.at(call, view));
  const Work& work = x_program.works[op.work.index()];
  OpContext context;
  context.batch = x_program.batch;
  context.training = x_options.training;
  context.step = x_options.training.first_step + x_step;
  context.layer = call.layer;
  context.microbatch = call.microbatch;
  context.op = &op;
  context.places = &x_places;
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    run_gemm(*gemm, x);
  } else if (const auto* attention = std::get_if<Attention>(&work)) {
    run_attention(*attention, context, x);
  } else if (const auto* scan = std::get_if<Scan>(&work)) {
    run_scan(*scan, x);
  } else if (const Kernel* kernel = kernel_in(work)) {
    run_kernel(*kernel, context, x);
  } else if (const auto* collective = std::get_if<Collective>(&work)) {
    FT_TRY(communicate(*collective, x, there));
  } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    FT_TRY(exchange(*batch, x, there));
  } else if (const auto* pause = std::get_if<Pause>(&work)) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause->time.ps / 1000));
  } else if (std::holds_alternative<HostDelay>(work)) {
    // What nothing computes with: kept because a framework would.
    for (const Operand& write : x.writes) std::memset(write.data, 0, HostMemory<T>::size_of(write));
  } else if (std::holds_alternative<Copy>(work)) {
    if (x.reads.empty()) load_tokens(context, x.writes[0]);
    for (std::size_t i = 0; i < x.reads.size(); ++i) {
      std::memcpy(x.writes[i].data, x.reads[i].data, HostMemory<T>::size_of(x.reads[i]));
    }
  }
  return x_options.check ? check_written(op, x) : ok_status();
}

template <typename T>
Status HostRank<T>::communicate(const Collective& work, const Operands<T>& x, Arrival& there) {
  CollectiveCall call;
  call.kind = work.kind;
  call.maximum = work.maximum;
  // Counts of tokens are of eight bytes too, and are moved only.
  call.doubles = sizeof(T) == sizeof(double) || work.dtype == DType::kInt64;
  call.root = work.root;
  // Of a broadcast only the root reads, of a reduction only the root writes.
  const std::byte* const send = x.reads.empty() ? x.writes[0].data : x.reads[0].data;
  std::byte* const receive = x.writes.empty() ? x.reads[0].data : x.writes[0].data;
  const GroupId group = x_binding.groups[work.group.index()];
  for (const CollectiveRun& run : runs_of(work, x_places[work.group.index()].size)) {
    call.count = run.count;
    call.send = send + static_cast<std::size_t>(run.send) * call.element();
    call.receive = receive + static_cast<std::size_t>(run.receive) * call.element();
    Arrival again;
    FT_TRY(x_transport.collective(x_rank, group, call, there.has_value() ? &again : &there));
  }
  return ok_status();
}

template <typename T>
Status HostRank<T>::exchange(const P2PBatch& work, const Operands<T>& x, Arrival& there) {
  std::vector<MessageCall> messages;
  std::size_t read = 0;
  std::size_t write = 0;
  for (const Message& message : work.messages) {
    const Operand& operand = message.send ? x.reads[read++] : x.writes[write++];
    messages.push_back({message.send, x_binding.channels[message.channel.index()],
                        message.bytes * static_cast<Bytes>(kWidth<T>), operand.data});
  }
  return x_transport.exchange(x_rank, messages, &there);
}

/// NaN in what an op wrote: it read what nothing wrote, left a part unwritten, or diverged. Only
/// the root of a reduce has written.
template <typename T>
Status HostRank<T>::check_written(const Op& op, const Operands<T>& x) const {
  const auto* collective = std::get_if<Collective>(&x_program.works[op.work.index()]);
  if (collective != nullptr && collective->kind == CollectiveKind::kReduce &&
      x_places[collective->group.index()].index != collective->root) {
    return ok_status();
  }
  for (std::size_t w = 0; w < x.writes.size(); ++w) {
    if (x.writes[w].buffer->dtype != DType::kFp32) continue;
    const T* values = x.out(w);
    const std::int64_t count = x.writes[w].count;
    const T* bad = std::find_if(values, values + count, [](T v) { return std::isnan(v); });
    if (bad == values + count) continue;
    return input_error("writes NaN to " + x.writes[w].buffer->name + "[" +
                       std::to_string(bad - values) + "] (operand " + std::to_string(w) + " of " +
                       text_of(x_program.works[op.work.index()]) + ")");
  }
  return ok_status();
}

template class HostRank<float>;
template class HostRank<double>;

}  // namespace foretrain

#include "executor/cuda/device_rank.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "executor/cuda/host_update.h"
#include "executor/token_data.h"

namespace foretrain {
namespace {

// Marks of an op: where it begins, where it ends.
std::size_t begin_of(std::size_t op) { return 2 * op; }
std::size_t end_of(std::size_t op) { return 2 * op + 1; }

constexpr std::size_t kStandAlignment = 256;
bool is_stored(const Operand& x) { return x.buffer->memory == Memory::kStorage; }

bool is_work_of_host(const Work& work) {
  const auto* opaque = std::get_if<Opaque>(&work);
  return opaque != nullptr && opaque->where == Memory::kHost;
}

}  // namespace

DeviceRank::DeviceRank(const Workload& workload, RankId rank, Transport& transport,
                       HostOptions options, std::unique_ptr<Device> device)
    : x_program(workload.programs[workload.ranks[rank.index()].program.index()]),
      x_binding(workload.ranks[rank.index()]),
      x_rank(rank),
      x_transport(transport),
      x_options(std::move(options)),
      x_device(std::move(device)),
      x_places(places_of(workload, rank)),
      x_list(x_program),
      x_layout(x_program, x_places),
      x_plan(x_list, x_layout),
      x_alone(workload.ranks.size() == 1),
      x_loss(std::numeric_limits<double>::quiet_NaN()) {}

Status DeviceRank::set_up() {
  FT_TRY(x_device->open(x_list.tasks.size(), 2 * x_list.issue.size()));
  FT_TRY(take_memory());
  FT_TRY(list_launches());
  FT_TRY(draw());
  return start_masters();
}

Status DeviceRank::take_memory() {
  FT_ASSIGN(const std::size_t room, x_device->free_bytes());
  const auto bytes_in = [this](Memory memory) { return x_plan.space(memory).bytes; };
  const auto missing = [](const std::string& what, std::size_t bytes, const std::string& rest) {
    return "out of " + what + ": this rank needs " + std::to_string(bytes >> 20) + " MiB" + rest +
           "; use a smaller model or batch";
  };
  const std::size_t bytes = bytes_in(Memory::kDevice);
  if (bytes > room) {
    // An op that needs it alone can be left out.
    return unsupported(missing("device memory", bytes,
                               ", the device has " + std::to_string(room >> 20) + " MiB free"));
  }
  FT_ASSIGN(x_memory[0], x_device->take(bytes));
  if (const std::size_t host = bytes_in(Memory::kHost); host > 0) {
    FT_ASSIGN(x_memory[1], x_device->take_host(host));
  }
  if (const std::size_t stored = bytes_in(Memory::kStorage); stored > 0) {
    x_memory[2] = x_files.map(stored);
    if (x_memory[2] == nullptr)
      return input_error(missing("room in the folder for temporary files", stored, ""));
  }
  return ok_status();
}

/// `offset`: of the view in its memory.
Operand DeviceRank::operand(const Call& call, const View& view, std::size_t offset) const {
  const MemoryLayout::Home home = x_layout.home(call, view);
  Operand out;
  out.buffer = &x_layout.buffer(home.buffer);
  const Bytes element = bytes_of(out.buffer->dtype, 1);
  out.data = x_memory[static_cast<std::size_t>(out.buffer->memory)] + offset;
  out.count = view.bytes / element;
  out.begin = home.offset / element;
  return out;
}

Status DeviceRank::list_launches() {
  x_mark_of.assign(x_list.events, 0);
  std::vector<std::size_t> staging(x_list.tasks.size(), 0);
  for (std::size_t i = 0; i < x_list.issue.size(); ++i) {
    Launch launch;
    launch.stream = static_cast<std::size_t>(x_list.issue[i].first);
    launch.task = &x_list.tasks[launch.stream][x_list.issue[i].second];
    const Call& call = x_list.call_of(*launch.task);
    const Op& op = x_list.op_of(*launch.task);
    const std::vector<std::size_t>& offsets = x_plan.operands[i];
    std::size_t next = 0;
    for (const View& view : op.reads) {
      launch.x.reads.push_back(operand(call, view, offsets[next++]));
    }
    for (const View& view : op.writes) {
      launch.x.writes.push_back(operand(call, view, offsets[next++]));
    }
    const Work& work = x_list.work_of(*launch.task);
    if (launch.task->event >= 0)
      x_mark_of[static_cast<std::size_t>(launch.task->event)] = end_of(i);
    x_waited.push_back(launch.task->event >= 0 || std::holds_alternative<HostSync>(work));
    if (std::holds_alternative<Copy>(work) && launch.x.reads.empty()) {
      FT_ASSIGN(launch.staging, x_device->take_host(bytes_of(launch.x.writes[0])));
    }
    if (is_work_of_host(work)) list_stands(launch);
    staging[launch.stream] = std::max(staging[launch.stream], staged_bytes(launch));
    x_launches.push_back(std::move(launch));
  }
  x_staging.assign(staging.size(), nullptr);
  for (std::size_t s = 0; s < staging.size(); ++s) {
    if (staging[s] == 0) continue;
    FT_ASSIGN(x_staging[s], x_device->take_host(staging[s]));
  }
  return ok_status();
}

/// An operand that is read and written stands there once.
void DeviceRank::list_stands(Launch& launch) {
  std::size_t end = 0;
  const auto stand_for = [&](const Operand& x) -> Stand& {
    const auto known = std::find_if(launch.stands.begin(), launch.stands.end(),
                                    [&x](const Stand& stand) { return stand.device == x.data; });
    if (known != launch.stands.end()) return *known;
    launch.stands.push_back({x.data, end, bytes_of(x), false, false});
    end += (bytes_of(x) + kStandAlignment - 1) / kStandAlignment * kStandAlignment;
    return launch.stands.back();
  };
  for (const Operand& x : launch.x.reads) {
    if (is_on_device(x)) stand_for(x).read = true;
  }
  for (const Operand& x : launch.x.writes) {
    if (is_on_device(x)) stand_for(x).written = true;
  }
}

/// Of the host, for one op of its stream.
std::size_t DeviceRank::staged_bytes(const Launch& launch) const {
  std::size_t out = 0;
  for (const Stand& stand : launch.stands) out = std::max(out, stand.at + stand.bytes);
  if (!std::holds_alternative<Copy>(x_list.work_of(*launch.task))) return out;
  for (std::size_t i = 0; i < launch.x.reads.size(); ++i) {
    const bool through = is_on_device(launch.x.reads[i]) != is_on_device(launch.x.writes[i]) &&
                         (is_stored(launch.x.reads[i]) || is_stored(launch.x.writes[i]));
    if (through) out = std::max(out, bytes_of(launch.x.reads[i]));
  }
  return out;
}

/// Where the content of an operand is between steps.
Operand DeviceRank::kept(const Launch& launch, const View& view) const {
  const KeptView found = kept_view(x_list, x_list.call_of(*launch.task), view);
  const MemoryLayout::Home home = x_layout.home(*found.call, found.view);
  return operand(*found.call, found.view,
                 x_plan.buffers[home.buffer].offset + static_cast<std::size_t>(home.offset));
}

/// A buffer that stays, from its first element on.
Operand DeviceRank::whole(std::size_t b) const {
  const Buffer& buffer = x_layout.buffer(b);
  return {x_memory[static_cast<std::size_t>(buffer.memory)] + x_plan.buffers[b].offset,
          buffer.count, 0, &buffer};
}

Status DeviceRank::hold_sms(int sms, bool copies) {
  FT_TRY(x_device->hold_sms(sms, copies));
  x_holds = true;
  return ok_status();
}

OpContext DeviceRank::context_of(const Launch& launch) const {
  const Call& call = x_list.call_of(*launch.task);
  OpContext context;
  context.batch = x_program.batch;
  context.training = x_options.training;
  context.step = x_step;
  context.layer = call.layer;
  context.microbatch = call.microbatch;
  context.op = &x_list.op_of(*launch.task);
  context.places = &x_places;
  return context;
}

Status DeviceRank::step() {
  Status done = run();
  if (!done.ok()) x_device->abandon();
  if (!done.ok() && !x_alone) {
    x_transport.abort("rank " + std::to_string(x_rank.value) + ": " + done.error().message);
  }
  ++x_step;
  return done;
}

Status DeviceRank::run() {
  for (const Launch& launch : x_launches) {
    if (launch.staging == nullptr) continue;
    Operand host = launch.x.writes[0];
    host.data = launch.staging;
    load_tokens(context_of(launch), host);
  }
  FT_TRY(x_transport.barrier(x_rank));
  // Other ranks that stepped meanwhile may have wanted it otherwise.
  x_device->record(x_options.records);
  x_device->time_marks(x_options.marks);
  const bool ahead = x_ahead && !x_options.graphs;
  if (ahead) FT_TRY(x_device->hold_back());
  FT_TRY(x_device->begin());
  const auto begin = std::chrono::steady_clock::now();
  const Status queued = queue_all();
  if (ahead) x_device->let_go();
  FT_TRY(queued);
  x_issue_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (x_options.queued) x_options.queued();
  FT_TRY(x_device->finish());
  x_held_gb_per_s = 0;
  if (std::exchange(x_holds, false)) {
    FT_ASSIGN(x_held_gb_per_s, x_device->release_sms());
  }
  return read_results();
}

Status DeviceRank::queue_all() {
  const bool graphs = x_options.graphs && x_step > 0;
  std::size_t piece = 0;
  if (graphs) FT_TRY(x_device->begin_piece(piece));
  for (std::size_t i = 0; i < x_launches.size(); ++i) {
    const Status queued = queue(i);
    if (!queued.ok()) {
      return Error{x_list.op_of(*x_launches[i].task).name + ": " + queued.error().message,
                   queued.error().kind};
    }
    if (!std::holds_alternative<HostSync>(x_list.work_of(*x_launches[i].task))) continue;
    if (graphs) FT_TRY(x_device->end_piece(piece));
    FT_TRY(x_device->wait_on_host(end_of(i)));
    if (graphs) FT_TRY(x_device->begin_piece(++piece));
  }
  if (graphs) FT_TRY(x_device->end_piece(piece));
  return x_device->end();
}

Status DeviceRank::queue(std::size_t i) {
  const Launch& launch = x_launches[i];
  for (const std::size_t event : launch.task->waits) {
    FT_TRY(x_device->wait(launch.stream, x_mark_of[event]));
  }
  const Work& work = x_list.work_of(*launch.task);
  if (const auto* delay = std::get_if<HostDelay>(&work)) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(delay->time.ps / 1000));
  }
  for (const PlannedBlock& block : x_plan.allocates[i]) {
    if (x_options.check) FT_TRY(poison(launch.stream, block));
  }
  if (x_options.marks) FT_TRY(x_device->mark(launch.stream, begin_of(i)));
  x_device->begin_op(i);
  Status done = dispatch(launch);
  x_device->end_op();
  if (!done.ok() || !(x_options.marks || x_waited[i])) return done;
  return x_device->mark(launch.stream, end_of(i));
}

/// What nothing wrote shows as NaN.
Status DeviceRank::poison(std::size_t stream, const PlannedBlock& block) {
  std::byte* const data = x_memory[static_cast<std::size_t>(block.memory)] + block.offset;
  if (block.memory == Memory::kDevice) return x_device->fill(stream, data, 0xff, block.bytes);
  return x_device->on_host(stream, [data, block] { std::memset(data, 0xff, block.bytes); });
}

Status DeviceRank::dispatch(const Launch& launch) {
  const Work& work = x_list.work_of(*launch.task);
  if (const auto* collective = std::get_if<Collective>(&work)) {
    return communicate(launch, *collective);
  }
  if (const auto* batch = std::get_if<P2PBatch>(&work)) return exchange(launch, *batch);
  if (std::holds_alternative<Copy>(work)) return copy(launch);
  if (std::holds_alternative<HostSync>(work)) return ok_status();
  if (std::holds_alternative<HostDelay>(work)) {
    // What nothing computes with: kept because a framework would.
    for (const Operand& write : launch.x.writes) {
      FT_TRY(x_device->fill(launch.stream, write.data, 0, bytes_of(write)));
    }
    return ok_status();
  }
  if (const auto* pause = std::get_if<Pause>(&work)) {
    const std::chrono::nanoseconds time(pause->time.ps / 1000);
    return x_device->on_host(launch.stream, [time] { std::this_thread::sleep_for(time); });
  }
  const Kernel* const kernel = kernel_in(work);
  if (is_work_of_host(work)) return compute_on_host(launch, *kernel);
  if (std::holds_alternative<Opaque>(work)) {
    return x_device->compute(launch.stream, Work{*kernel}, context_of(launch), launch.x);
  }
  return x_device->compute(launch.stream, work, context_of(launch), launch.x);
}

/// The host moves what comes from or goes to storage, by way of memory that the device can copy.
Status DeviceRank::copy(const Launch& launch) {
  if (launch.staging != nullptr) {
    const Operand& to = launch.x.writes[0];
    return x_device->copy(launch.stream, to.data, launch.staging, bytes_of(to));
  }
  for (std::size_t i = 0; i < launch.x.reads.size(); ++i) {
    const Operand& from = launch.x.reads[i];
    const Operand& to = launch.x.writes[i];
    const std::size_t bytes = bytes_of(from);
    const auto by_host = [&](std::byte* there, const std::byte* here) {
      return x_device->on_host(launch.stream,
                               [there, here, bytes] { std::memcpy(there, here, bytes); });
    };
    std::byte* const between = x_staging[launch.stream];
    if (is_stored(from) && is_on_device(to)) {
      FT_TRY(by_host(between, from.data));
      FT_TRY(x_device->copy(launch.stream, to.data, between, bytes));
    } else if (is_on_device(from) && is_stored(to)) {
      FT_TRY(x_device->copy(launch.stream, between, from.data, bytes));
      FT_TRY(by_host(to.data, between));
    } else if (is_on_device(from) || is_on_device(to)) {
      FT_TRY(x_device->copy(launch.stream, to.data, from.data, bytes));
    } else {
      FT_TRY(by_host(to.data, from.data));
    }
  }
  return ok_status();
}

/// What lies on the device is copied to the host before, and back after.
Status DeviceRank::compute_on_host(const Launch& launch, const Kernel& kernel) {
  std::byte* const between = x_staging[launch.stream];
  DeviceOperands seen = launch.x;
  for (const Stand& stand : launch.stands) {
    for (std::vector<Operand>* operands : {&seen.reads, &seen.writes}) {
      for (Operand& x : *operands) {
        if (x.data == stand.device) x.data = between + stand.at;
      }
    }
    if (!stand.read) continue;
    FT_TRY(x_device->copy(launch.stream, between + stand.at, stand.device, stand.bytes));
  }
  FT_TRY(x_device->on_host(launch.stream, [&kernel, context = context_of(launch), seen] {
    run_on_host(kernel, context, seen);
  }));
  for (const Stand& stand : launch.stands) {
    if (!stand.written) continue;
    FT_TRY(x_device->copy(launch.stream, stand.device, between + stand.at, stand.bytes));
  }
  return ok_status();
}

Status DeviceRank::communicate(const Launch& launch, const Collective& work) {
  DeviceCollective call;
  call.kind = work.kind;
  call.maximum = work.maximum;
  call.type = launch.x.reads.empty() ? launch.x.type_out(0) : launch.x.type_in(0);
  call.members = x_places[work.group.index()].size;
  call.root = work.root;
  // Of a broadcast only the root reads, of a reduction only the root writes.
  const std::byte* const send =
      launch.x.reads.empty() ? launch.x.writes[0].data : launch.x.reads[0].data;
  std::byte* const receive =
      launch.x.writes.empty() ? launch.x.reads[0].data : launch.x.writes[0].data;
  std::vector<DeviceCollective> calls;
  for (const CollectiveRun& run : runs_of(work, call.members)) {
    call.count = run.count;
    call.send = send + bytes_of(call.type, run.send);
    call.receive = receive + bytes_of(call.type, run.receive);
    calls.push_back(call);
  }
  return x_device->collectives(launch.stream, x_binding.groups[work.group.index()], calls);
}

Status DeviceRank::exchange(const Launch& launch, const P2PBatch& work) {
  std::vector<MessageCall> messages;
  std::size_t read = 0;
  std::size_t write = 0;
  for (const Message& message : work.messages) {
    const Operand& operand = message.send ? launch.x.reads[read++] : launch.x.writes[write++];
    messages.push_back(
        {message.send, x_binding.channels[message.channel.index()], message.bytes, operand.data});
  }
  return x_device->exchange(launch.stream, messages);
}

Status DeviceRank::read_results() {
  x_records.assign(x_list.tasks.size(), {});
  FT_ASSIGN(const Time whole_step, x_device->step_time());
  x_step_seconds = whole_step.seconds();
  const std::vector<Time> busy = x_device->busy_times(x_launches.size());
  Time queued;
  Time known;
  for (std::size_t i = 0; i < x_launches.size(); ++i) {
    OpRecord record;
    record.call = x_launches[i].task->call;
    record.op = x_launches[i].task->op;
    if (x_options.marks) {
      FT_ASSIGN(record.begin, x_device->time_of(begin_of(i)));
      FT_ASSIGN(record.end, x_device->time_of(end_of(i)));
    }
    if (!busy.empty() && busy[i].ps > 0) {
      record.work = busy[i];
      if (x_options.marks) {
        record.work = min(record.work, record.end - record.begin);
        queued = queued + (record.end - record.begin - record.work);
        known = known + record.work;
      }
      record.cpu = record.work;
    }
    x_records[x_launches[i].stream].push_back(record);
  }
  x_queued_seconds = known.ps > 0 ? queued.seconds() : std::numeric_limits<double>::quiet_NaN();
  if (!x_list.loss_frame.valid()) return ok_status();
  float loss = 0;
  FT_TRY(read(&loss, whole(x_layout.index_of(x_list.loss_frame, x_list.loss_buffer)), sizeof loss));
  x_loss = static_cast<double>(loss);
  return ok_status();
}

}  // namespace foretrain

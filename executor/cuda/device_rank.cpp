#include "executor/cuda/device_rank.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "executor/token_data.h"

namespace foretrain {
namespace {

/// Numbers as a buffer of that type stores them, and back.
std::vector<std::byte> pack(const std::vector<float>& values, DType type) {
  std::vector<std::byte> out;
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    out.resize(values.size() * sizeof(T));
    auto* const to = reinterpret_cast<T*>(out.data());
    for (std::size_t i = 0; i < values.size(); ++i) to[i] = stored<T>(values[i]);
  });
  return out;
}

std::vector<float> unpack(const std::vector<std::byte>& bytes, DType type) {
  std::vector<float> out;
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto* const from = reinterpret_cast<const T*>(bytes.data());
    for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) out.push_back(to_float(from[i]));
  });
  return out;
}

// Marks of an op: where it begins, where it ends.
std::size_t begin_of(std::size_t op) { return 2 * op; }
std::size_t end_of(std::size_t op) { return 2 * op + 1; }

}  // namespace

DeviceRank::DeviceRank(const Workload& workload, RankId rank, Transport& transport,
                       const HostOptions& options, std::unique_ptr<Device> device)
    : x_program(workload.programs[workload.ranks[rank.index()].program.index()]),
      x_binding(workload.ranks[rank.index()]),
      x_rank(rank),
      x_transport(transport),
      x_options(options),
      x_device(std::move(device)),
      x_places(places_of(workload, rank)),
      x_list(x_program),
      x_layout(x_program, x_places),
      x_plan(x_list, x_layout),
      x_loss(std::numeric_limits<double>::quiet_NaN()) {}

Status DeviceRank::set_up() {
  FT_TRY(x_device->open(x_list.tasks.size(), 2 * x_list.issue.size()));
  FT_ASSIGN(const std::size_t room, x_device->free_bytes());
  if (x_plan.bytes > room) {
    return input_error("out of device memory: this rank needs " +
                       std::to_string(x_plan.bytes >> 20) + " MiB, the device has " +
                       std::to_string(room >> 20) + " MiB free; use a smaller model or batch");
  }
  FT_ASSIGN(x_memory, x_device->take(x_plan.bytes));
  x_device->record(x_options.records);
  FT_TRY(list_launches());
  FT_TRY(draw());
  return start_masters();
}

Status DeviceRank::list_launches() {
  x_mark_of.assign(x_list.events, 0);
  for (std::size_t i = 0; i < x_list.issue.size(); ++i) {
    Launch launch;
    launch.stream = static_cast<std::size_t>(x_list.issue[i].first);
    launch.task = &x_list.tasks[launch.stream][x_list.issue[i].second];
    const Call& call = x_list.call_of(*launch.task);
    const Op& op = x_list.op_of(*launch.task);
    std::size_t next = 0;
    const auto operand = [&](const View& view) {
      const MemoryLayout::Home home = x_layout.home(call, view);
      Operand out;
      out.buffer = &x_layout.buffer(home.buffer);
      const Bytes element = bytes_of(out.buffer->dtype, 1);
      out.data = x_memory + x_plan.operands[i][next++];
      out.count = view.bytes / element;
      out.begin = home.offset / element;
      return out;
    };
    for (const View& view : op.reads) launch.x.reads.push_back(operand(view));
    for (const View& view : op.writes) launch.x.writes.push_back(operand(view));
    if (launch.task->event >= 0)
      x_mark_of[static_cast<std::size_t>(launch.task->event)] = end_of(i);
    if (is_input(x_list.work_of(*launch.task), launch.x)) {
      const auto bytes = static_cast<std::size_t>(launch.x.writes[0].count) * sizeof(std::int64_t);
      FT_ASSIGN(launch.staging, x_device->take_host(bytes));
    }
    x_launches.push_back(std::move(launch));
  }
  return ok_status();
}

Status DeviceRank::draw() {
  for (std::size_t b = 0; b < x_layout.size(); ++b) {
    const Buffer& buffer = x_layout.buffer(b);
    if (x_plan.buffers[b].bytes == 0 || !is_real(buffer.dtype)) continue;
    std::vector<float> values(static_cast<std::size_t>(buffer.count), 0.0F);
    bool any = false;
    for (const TensorSlice& slice : x_layout.slices()) {
      if (x_layout.index_of(slice.owner, 0) != b) continue;
      any = true;
      draw_parameters(slice, x_options.training.seed, [&](std::int64_t element, float value) {
        values[static_cast<std::size_t>(element)] = value;
      });
    }
    if (!any) continue;
    const std::vector<std::byte> packed = pack(values, buffer.dtype);
    FT_TRY(x_device->write(x_memory + x_plan.buffers[b].offset, packed.data(), packed.size()));
  }
  return ok_status();
}

/// A master copy starts as the weights that the same optimizer op writes.
Status DeviceRank::start_masters() {
  for (const Launch& launch : x_launches) {
    const auto* kernel = std::get_if<Kernel>(&x_list.work_of(*launch.task));
    if (kernel == nullptr || kernel->kind != KernelKind::kAdam || launch.x.writes.size() < 4) {
      continue;
    }
    const Operand& weights = launch.x.writes[0];
    const DType type = weights.buffer->dtype;
    std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(type, weights.count)));
    FT_TRY(x_device->read(bytes.data(), weights.data, bytes.size()));
    const std::vector<float> values = unpack(bytes, type);
    FT_TRY(x_device->write(launch.x.writes[3].data, values.data(), values.size() * sizeof(float)));
  }
  return ok_status();
}

Status DeviceRank::set_values(FrameId frame, std::int16_t buffer,
                              const std::function<double(std::int64_t)>& value) {
  const std::size_t b = x_layout.index_of(frame, buffer);
  const Buffer& shape = x_layout.buffer(b);
  std::vector<std::byte> bytes(static_cast<std::size_t>(shape.bytes()));
  if (is_real(shape.dtype)) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < shape.count; ++i) values.push_back(static_cast<float>(value(i)));
    bytes = pack(values, shape.dtype);
  } else {
    for (std::int64_t i = 0; i < shape.count; ++i) {
      if (shape.dtype == DType::kInt64) {
        reinterpret_cast<std::int64_t*>(bytes.data())[i] = static_cast<std::int64_t>(value(i));
      } else {
        bytes[static_cast<std::size_t>(i)] = static_cast<std::byte>(value(i));
      }
    }
  }
  return x_device->write(x_memory + x_plan.buffers[b].offset, bytes.data(), bytes.size());
}

Result<std::vector<float>> DeviceRank::values(FrameId frame) {
  const std::size_t b = x_layout.index_of(frame, 0);
  std::vector<std::byte> bytes(static_cast<std::size_t>(x_layout.buffer(b).bytes()));
  FT_TRY(x_device->read(bytes.data(), x_memory + x_plan.buffers[b].offset, bytes.size()));
  return unpack(bytes, x_layout.buffer(b).dtype);
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
  if (!done.ok()) {
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
  FT_TRY(x_device->begin());
  const auto begin = std::chrono::steady_clock::now();
  FT_TRY(queue_all());
  x_issue_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  FT_TRY(x_device->finish());
  return read_results();
}

Status DeviceRank::queue_all() {
  const bool graphs = x_options.graphs && x_step > 0;
  std::size_t piece = 0;
  if (graphs) FT_TRY(x_device->begin_piece(piece));
  for (std::size_t i = 0; i < x_launches.size(); ++i) {
    const Status queued = queue(i);
    if (!queued.ok()) {
      return input_error(x_list.op_of(*x_launches[i].task).name + ": " + queued.error().message);
    }
    if (!std::holds_alternative<HostSync>(x_list.work_of(*x_launches[i].task))) continue;
    if (graphs) FT_TRY(x_device->end_piece(piece));
    FT_TRY(x_device->wait_on_host(end_of(i)));
    if (graphs) FT_TRY(x_device->begin_piece(++piece));
  }
  return graphs ? x_device->end_piece(piece) : ok_status();
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
    if (!x_options.check) break;
    FT_TRY(x_device->fill(launch.stream, x_memory + block.offset, 0xff, block.bytes));
  }
  FT_TRY(x_device->mark(launch.stream, begin_of(i)));
  x_device->begin_op(i);
  Status done = dispatch(launch);
  x_device->end_op();
  if (!done.ok()) return done;
  return x_device->mark(launch.stream, end_of(i));
}

Status DeviceRank::dispatch(const Launch& launch) {
  const Work& work = x_list.work_of(*launch.task);
  if (const auto* collective = std::get_if<Collective>(&work)) {
    return communicate(launch, *collective);
  }
  if (const auto* batch = std::get_if<P2PBatch>(&work)) return exchange(launch, *batch);
  if (launch.staging != nullptr) {
    const Operand& to = launch.x.writes[0];
    return x_device->upload(launch.stream, to.data, launch.staging,
                            static_cast<std::size_t>(to.count) * sizeof(std::int64_t));
  }
  if (std::holds_alternative<HostSync>(work) || std::holds_alternative<HostDelay>(work)) {
    return ok_status();
  }
  return x_device->compute(launch.stream, work, context_of(launch), launch.x);
}

Status DeviceRank::communicate(const Launch& launch, const Collective& work) {
  DeviceCollective call;
  call.kind = work.kind;
  call.maximum = work.maximum;
  call.type = launch.x.reads.empty() ? launch.x.type_out(0) : launch.x.type_in(0);
  call.count = work.count;
  call.members = x_places[work.group.index()].size;
  call.root = work.root;
  // Of a broadcast only the root reads, of a reduction only the root writes.
  call.send = launch.x.reads.empty() ? launch.x.writes[0].data : launch.x.reads[0].data;
  call.receive = launch.x.writes.empty() ? launch.x.reads[0].data : launch.x.writes[0].data;
  return x_device->collective(launch.stream, x_binding.groups[work.group.index()], call);
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
  const std::vector<Time> busy = x_device->busy_times(x_launches.size());
  Time queued;
  Time known;
  for (std::size_t i = 0; i < x_launches.size(); ++i) {
    OpRecord record;
    record.call = x_launches[i].task->call;
    record.op = x_launches[i].task->op;
    FT_ASSIGN(record.begin, x_device->time_of(begin_of(i)));
    FT_ASSIGN(record.end, x_device->time_of(end_of(i)));
    if (!busy.empty() && busy[i].ps > 0) {
      record.work = record.cpu = min(busy[i], record.end - record.begin);
      queued = queued + (record.end - record.begin - record.work);
      known = known + record.work;
    }
    x_records[x_launches[i].stream].push_back(record);
  }
  x_queued_seconds = known.ps > 0 ? queued.seconds() : std::numeric_limits<double>::quiet_NaN();
  if (!x_list.loss_frame.valid()) return ok_status();
  const std::size_t b = x_layout.index_of(x_list.loss_frame, x_list.loss_buffer);
  float loss = 0;
  FT_TRY(x_device->read(&loss, x_memory + x_plan.buffers[b].offset, sizeof loss));
  x_loss = static_cast<double>(loss);
  return ok_status();
}

}  // namespace foretrain

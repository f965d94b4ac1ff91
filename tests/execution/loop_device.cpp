#include "tests/execution/loop_device.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "executor/cuda/compute.h"
#include "executor/cuda/fill_kernels.h"
#include "executor/cuda/fp8.h"
#include "executor/cuda/host_loops.h"
#include "executor/kernels.h"

namespace foretrain {
namespace {

/// A worker of a team of threads; all of them call sum, max and sync.
class ThreadTeam {
 public:
  struct Shared {
    explicit Shared(std::size_t workers, std::size_t floats)
        : meeting(static_cast<std::ptrdiff_t>(workers)),
          memory(floats, std::nanf("")),
          slots(workers) {}
    std::barrier<> meeting;
    std::vector<float> memory;
    std::vector<double> slots;
  };
  ThreadTeam(Shared& shared, std::size_t rank) : x_shared(shared), x_rank(rank) {}
  std::int64_t rank() const { return static_cast<std::int64_t>(x_rank); }
  std::int64_t size() const { return static_cast<std::int64_t>(x_shared.slots.size()); }
  void sync() const { x_shared.meeting.arrive_and_wait(); }
  float* shared() const { return x_shared.memory.data(); }
  template <typename V>
  V sum(V v) const {
    return over_all(v, [](V a, V b) { return a + b; });
  }
  float max(float v) const {
    return over_all(v, [](float a, float b) { return std::max(a, b); });
  }

 private:
  template <typename V, typename Of>
  V over_all(V v, Of of) const {
    x_shared.slots[x_rank] = static_cast<double>(v);
    sync();
    V out = static_cast<V>(x_shared.slots[0]);
    for (std::size_t w = 1; w < x_shared.slots.size(); ++w) {
      out = of(out, static_cast<V>(x_shared.slots[w]));
    }
    sync();
    return out;
  }

  Shared& x_shared;
  std::size_t x_rank;
};

class Loops : public device::HostLoops {
 public:
  explicit Loops(std::size_t workers) : x_workers(workers) {}
  template <typename F>
  void rows(std::int64_t n, const F& f, std::size_t floats = 0) {
    if (x_workers == 1) return HostLoops::rows(n, f, floats);
    ThreadTeam::Shared shared(x_workers, floats);
    std::vector<std::thread> workers;
    for (std::size_t w = 0; w < x_workers; ++w) {
      workers.emplace_back([&, w] {
        ThreadTeam team(shared, w);
        for (std::int64_t i = 0; i < n; ++i) {
          f(team, i);
          team.sync();
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
  }
  void product(const Product& p) {
    if (p.in == DType::kFp8) return product_of_fp8(p);
    with_type(p.in, [&](auto in) {
      with_type(p.out, [&](auto out) {
        using A = typename decltype(in)::Type;
        using C = typename decltype(out)::Type;
        for (std::int64_t b = 0; b < p.batch; ++b) one_product<A, C>(p, b);
      });
    });
  }

 private:
  template <typename T>
  static std::vector<float> widen(const T* from, std::int64_t rows, std::int64_t cols,
                                  std::int64_t pitch) {
    std::vector<float> out;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) out.push_back(to_float(from[r * pitch + c]));
    }
    return out;
  }
  /// Widened first; one scale an operand, none is one.
  static void product_of_fp8(const Product& p) {
    const auto widened = [&p](const void* from, std::int64_t count, const float* scale, bool e5m2) {
      std::vector<float> out;
      const auto* const bytes = static_cast<const std::uint8_t*>(from);
      for (std::int64_t i = 0; i < count * p.batch; ++i) {
        out.push_back((scale == nullptr ? 1.0F : *scale) *
                      (e5m2 ? from_e5m2(bytes[i]) : from_e4m3(bytes[i])));
      }
      return out;
    };
    const std::vector<float> a = widened(p.a, p.m * p.k, p.scale_a, p.a_is_e5m2);
    const std::vector<float> b = widened(p.b, p.n * p.k, p.scale_b, false);
    Product wide = p;
    wide.in = DType::kFp32;
    wide.a = a.data();
    wide.b = b.data();
    with_type(p.out, [&](auto out) {
      for (std::int64_t i = 0; i < p.batch; ++i) {
        one_product<float, typename decltype(out)::Type>(wide, i);
      }
    });
  }
  template <typename A, typename C>
  static void one_product(const Product& p, std::int64_t b) {
    const auto a_rows = p.transpose_a ? p.k : p.m;
    const auto a_cols = p.transpose_a ? p.m : p.k;
    const auto b_rows = p.transpose_b ? p.n : p.k;
    const auto b_cols = p.transpose_b ? p.k : p.n;
    const auto left = widen(static_cast<const A*>(p.a) + b * p.stride_a, a_rows, a_cols, p.lda);
    const auto right = widen(static_cast<const A*>(p.b) + b * p.stride_b, b_rows, b_cols, p.ldb);
    std::vector<float> sums(static_cast<std::size_t>(p.m * p.n));
    multiply(Matrices<float>{p.transpose_a, p.transpose_b, p.m, p.n, p.k, left.data(), right.data(),
                             sums.data(), a_cols, b_cols, p.n, p.alpha, 0.0F});
    C* const out = static_cast<C*>(p.c) + b * p.stride_c;
    const auto* const bias = static_cast<const C*>(p.bias);
    for (std::int64_t i = 0; i < p.m; ++i) {
      for (std::int64_t j = 0; j < p.n; ++j) {
        float v = sums[static_cast<std::size_t>(i * p.n + j)];
        if (p.beta != 0) v += p.beta * to_float(out[i * p.ldc + j]);
        if (bias != nullptr) v += to_float(bias[j]);
        out[i * p.ldc + j] = stored<C>(v);
      }
    }
  }

  std::size_t x_workers;
};

/// A stream: a thread that does what is queued, in order.
class Worker {
 public:
  using Item = std::function<Status()>;
  explicit Worker(std::size_t team) : x_loops(team), x_thread([this] { run(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Worker(Worker&&) = delete;
  Worker& operator=(Worker&&) = delete;
  ~Worker() {
    push({});
    x_thread.join();
  }
  void push(Item item) {
    const std::lock_guard lock(x_mutex);
    x_items.push_back(std::move(item));
    x_changed.notify_all();
  }
  /// Waits until all is done; the first error since the last call.
  Status drain() {
    std::unique_lock lock(x_mutex);
    x_changed.wait(lock, [this] { return x_items.empty(); });
    return std::exchange(x_status, ok_status());
  }
  Loops& loops() { return x_loops; }

 private:
  void run() {
    std::unique_lock lock(x_mutex);
    for (;;) {
      x_changed.wait(lock, [this] { return !x_items.empty(); });
      const Item item = x_items.front();
      if (!item) return;
      lock.unlock();
      const Status status = item();
      lock.lock();
      if (!status.ok() && x_status.ok()) x_status = status;
      x_items.pop_front();
      x_changed.notify_all();
    }
  }

  Loops x_loops;
  std::mutex x_mutex;
  std::condition_variable x_changed;
  std::deque<Item> x_items;
  Status x_status = ok_status();
  std::thread x_thread;
};

class LoopDevice final : public Device {
 public:
  LoopDevice(RankId rank, Transport& transport, std::size_t team, LoopGpu gpu)
      : x_rank(rank), x_transport(transport), x_team(team), x_gpu(std::move(gpu)) {
    use_one_blas_thread();
  }

  Status open(std::size_t streams, std::size_t marks) override {
    x_marked.assign(marks, 0);
    x_queued.assign(marks, false);
    while (x_workers.size() < streams) x_workers.push_back(std::make_unique<Worker>(x_team));
    return ok_status();
  }
  Result<std::size_t> free_bytes() override { return std::size_t{1} << 30; }
  Result<std::byte*> take(std::size_t bytes) override {
    x_blocks.emplace_back(bytes / sizeof(std::uint64_t) + 1);
    return reinterpret_cast<std::byte*>(x_blocks.back().data());
  }
  Result<std::byte*> take_host(std::size_t bytes) override { return take(bytes); }
  Status write(std::byte* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return ok_status();
  }
  Status read(void* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return ok_status();
  }
  Status fill_random(std::byte* to, DType type, std::int64_t count,
                     const Content& content) override {
    device::HostLoops loops;
    device::fill_random(loops, to, type, count, content);
    return ok_status();
  }
  Status begin() override {
    if (x_gpu.begin) x_gpu.begin();
    x_marked.assign(x_marked.size(), 0);
    x_queued.assign(x_queued.size(), false);
    x_now = 0;
    x_begin = std::chrono::steady_clock::now();
    x_pieces = 0;
    return ok_status();
  }
  Status mark(std::size_t stream, std::size_t mark) override {
    x_queued[mark] = true;
    return queue(stream, [this, mark] {
      const std::lock_guard lock(x_mutex);
      x_marked[mark] = tick();
      x_changed.notify_all();
      return ok_status();
    });
  }
  Status wait(std::size_t stream, std::size_t mark) override {
    if (!x_queued[mark] && x_capturing && x_pieces > 0) return ok_status();
    // CUDA takes an event that is not recorded yet for one that is over.
    if (!x_queued[mark]) return input_error("a wait for what is not queued yet");
    return queue(stream, [this, mark] { return wait_on_host(mark); });
  }
  Status wait_on_host(std::size_t mark) override {
    std::unique_lock lock(x_mutex);
    x_changed.wait(lock, [&] { return x_marked[mark] > 0; });
    return ok_status();
  }
  Status begin_piece(std::size_t piece) override {
    if (x_capturing || piece != x_pieces) return input_error("pieces out of order");
    x_capturing = true;
    // What an earlier piece marked is over: waits for it are none.
    x_queued.assign(x_queued.size(), false);
    return ok_status();
  }
  /// A piece starts when the one before has ended.
  Status end_piece(std::size_t piece) override {
    if (!x_capturing || piece != x_pieces) return input_error("pieces out of order");
    ++x_pieces;
    x_capturing = false;
    FT_TRY(drain());
    for (auto& [stream, item] : x_captured) x_workers[stream]->push(std::move(item));
    x_captured.clear();
    return ok_status();
  }
  void time_marks(bool on) override { x_timed = on; }
  Status end() override {
    x_ended.assign(x_workers.size(), 0);
    for (std::size_t s = 0; s < x_workers.size(); ++s) {
      FT_TRY(queue(s, [this, s] {
        const std::lock_guard lock(x_mutex);
        x_ended[s] = tick();
        return ok_status();
      }));
    }
    return ok_status();
  }
  Status finish() override { return drain(); }
  Status drain() {
    Status first = ok_status();
    for (const auto& worker : x_workers) {
      Status status = worker->drain();
      if (first.ok()) first = std::move(status);
    }
    return first;
  }
  Result<Time> time_of(std::size_t mark) override {
    if (!x_timed) return input_error("the time of a mark that has none");
    if (x_marked[mark] == 0) return input_error("the time of what was not marked");
    return Time{x_marked[mark]};
  }
  Result<Time> step_time() override {
    std::int64_t last = 0;
    for (const std::int64_t end : x_ended) last = std::max(last, end);
    return Time{last};
  }
  std::vector<Time> busy_times(std::size_t ops) override {
    return x_gpu.busy ? std::vector<Time>(ops, x_gpu.busy()) : std::vector<Time>();
  }
  void record(bool on) override {
    if (x_gpu.record) x_gpu.record(on);
  }
  Status hold_sms(int sms, bool copies) override {
    if (x_gpu.holds) return x_gpu.holds(sms, copies);
    return x_gpu.hold ? x_gpu.hold(sms) : Device::hold_sms(sms, copies);
  }
  Result<double> release_sms() override {
    if (x_gpu.release) FT_TRY(x_gpu.release());
    return x_gpu.held_gb_per_s;
  }
  Status copy(std::size_t stream, std::byte* to, const std::byte* from,
              std::size_t bytes) override {
    return queue(stream, [=, this] { return write(to, from, bytes); });
  }
  Status on_host(std::size_t stream, std::function<void()> work) override {
    return queue(stream, [work = std::move(work)] {
      work();
      return ok_status();
    });
  }
  Status fill(std::size_t stream, std::byte* to, int byte, std::size_t bytes) override {
    return queue(stream, [=] {
      std::memset(to, byte, bytes);
      return ok_status();
    });
  }
  Status compute(std::size_t stream, const Work& work, const OpContext& context,
                 const DeviceOperands& x) override {
    return queue(stream, [this, stream, work, context, x] {
      device::compute(x_workers[stream]->loops(), work, context, x);
      for (const Operand& out : x.writes) {
        if (is_real(out.buffer->dtype) && any_nan(out)) {
          const std::string what = "writes NaN to " + out.buffer->name + " (" + text_of(work) + ")";
          x_transport.abort(what);
          return Status(input_error(what));
        }
      }
      return ok_status();
    });
  }
  Status collectives(std::size_t stream, GroupId group,
                     std::span<const DeviceCollective> calls) override {
    for (const DeviceCollective& call : calls) FT_TRY(collective(stream, group, call));
    return ok_status();
  }
  Status exchange(std::size_t stream, std::span<const MessageCall> messages) override {
    const std::vector<MessageCall> all(messages.begin(), messages.end());
    return queue(stream, [this, all] { return x_transport.exchange(x_rank, all); });
  }

 private:
  /// Picoseconds since the step's begin, later at every call; of the marks' lock.
  std::int64_t tick() {
    constexpr std::int64_t kOfMark = 1'000'000;
    if (!x_gpu.wall_clock) return x_now += kOfMark;
    const auto passed = std::chrono::steady_clock::now() - x_begin;
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count();
    return x_now = std::max(x_now + 1, static_cast<std::int64_t>(ns) * 1000);
  }
  Status collective(std::size_t stream, GroupId group, const DeviceCollective& call) {
    return queue(stream, [this, group, call] {
      CollectiveCall out;
      out.kind = call.kind;
      out.maximum = call.maximum;
      out.count = call.count;
      out.root = call.root;
      out.send = call.send;
      out.receive = call.receive;
      out.doubles = call.type == DType::kInt64;  // moved only
      if (call.type == DType::kFp32 || out.doubles) {
        return x_transport.collective(x_rank, group, out);
      }
      return in_floats(group, call, out);
    });
  }
  /// Of halves: added up in fp32.
  Status in_floats(GroupId group, const DeviceCollective& call, CollectiveCall out) {
    const std::int64_t part = call.count / call.members;
    const bool gathers = call.kind == CollectiveKind::kAllGather;
    const bool scatters = call.kind == CollectiveKind::kReduceScatter;
    std::vector<float> send(static_cast<std::size_t>(gathers ? part : call.count));
    std::vector<float> receive(static_cast<std::size_t>(scatters ? part : call.count));
    Status done = ok_status();
    with_type(call.type, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      const auto* const from = static_cast<const T*>(call.send);
      auto* const to = static_cast<T*>(call.receive);
      for (std::size_t i = 0; i < send.size(); ++i) send[i] = to_float(from[i]);
      for (std::size_t i = 0; i < receive.size(); ++i) receive[i] = to_float(to[i]);
      out.send = send.data();
      out.receive = receive.data();
      done = x_transport.collective(x_rank, group, out);
      std::vector<T> stored_back;
      for (const float value : receive) stored_back.push_back(stored<T>(value));
      const std::size_t bytes = stored_back.size() * sizeof(T);
      // Others of the rank may read what a broadcast's root has already.
      if (std::memcmp(to, stored_back.data(), bytes) == 0) return;
      std::memcpy(to, stored_back.data(), bytes);
    });
    return done;
  }
  Status queue(std::size_t stream, Worker::Item item) {
    if (x_capturing) {
      x_captured.emplace_back(stream, std::move(item));
    } else {
      x_workers[stream]->push(std::move(item));
    }
    return ok_status();
  }
  static bool any_nan(const Operand& x) {
    bool out = false;
    with_type(x.buffer->dtype, [&](auto tag) {
      const auto* const values = reinterpret_cast<const typename decltype(tag)::Type*>(x.data);
      for (std::int64_t i = 0; i < x.count; ++i) out = out || std::isnan(to_float(values[i]));
    });
    return out;
  }

  RankId x_rank;
  Transport& x_transport;
  std::size_t x_team;
  LoopGpu x_gpu;
  std::deque<std::vector<std::uint64_t>> x_blocks;
  bool x_capturing = false;
  std::size_t x_pieces = 0;  ///< that this step has ended
  std::vector<std::pair<std::size_t, Worker::Item>> x_captured;
  std::vector<bool> x_queued;  ///< of the thread that issues
  std::mutex x_mutex;          ///< of the marks
  std::condition_variable x_changed;
  std::vector<std::int64_t> x_marked, x_ended;  ///< x_ended: by stream
  bool x_timed = true;
  std::int64_t x_now = 0;
  std::chrono::steady_clock::time_point x_begin;
  std::vector<std::unique_ptr<Worker>> x_workers;  ///< last: they end first
};

}  // namespace

std::unique_ptr<Device> make_loop_device(RankId rank, Transport& transport, std::size_t team,
                                         LoopGpu gpu) {
  return std::make_unique<LoopDevice>(rank, transport, team, std::move(gpu));
}

}  // namespace foretrain

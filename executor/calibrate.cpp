#include "executor/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "executor/host_rank.h"
#include "executor/kernels.h"
#include "executor/random.h"

namespace foretrain {
namespace {

constexpr double kClean = 0.98;
constexpr std::size_t kFewest = 10;               ///< operations
constexpr std::int64_t kClockLimit = 10'000'000;  ///< ps

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Positive numbers near one half, so that no kernel meets a NaN or a denormal.
void fill(HostRank<float>& rank, const MicroOp& micro, std::int64_t sets) {
  std::uint64_t state = 88172645463325252ULL;
  const auto next = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  };
  Call call;
  for (std::int64_t s = 0; s < sets; ++s) {
    call.frames = {FrameId(static_cast<std::size_t>(s))};
    for (std::size_t b = 0; b < micro.buffers.size(); ++b) {
      const Buffer& buffer = micro.buffers[b];
      const View view{0, static_cast<std::int16_t>(b), 0, buffer.bytes(), 1, GroupSlot()};
      const Operand x = rank.memory().at(call, view);
      for (std::int64_t i = 0; i < x.count; ++i) {
        const std::uint64_t bits = next() >> 11;
        if (buffer.dtype == DType::kInt64) {
          reinterpret_cast<std::int64_t*>(x.data)[i] = static_cast<std::int64_t>(
              bits % static_cast<std::uint64_t>(std::max<std::int64_t>(1, micro.batch.vocabulary)));
        } else if (buffer.dtype == DType::kUint8) {
          reinterpret_cast<std::uint8_t*>(x.data)[i] = static_cast<std::uint8_t>(bits & 1);
        } else {
          reinterpret_cast<float*>(x.data)[i] =
              0.25F + 0.5F * static_cast<float>(static_cast<double>(bits) * 0x1.0p-53);
        }
      }
    }
  }
}

/// Times in us, of those that nobody disturbed and of all (CPU time where disturbed).
struct Times {
  std::vector<double> clean, all;
};

class Bench {
 public:
  Bench(std::int64_t ranks, RankId self, Transport& transport, const CalibrateOptions& options)
      : x_ranks(ranks), x_self(self), x_transport(transport), x_options(options) {
    const Workload world = micro_ranks(ranks);
    x_everyone = GroupId(world.groups.empty() ? 0 : world.groups.size() - 1);
  }

  /// What rank 0 says.
  Result<bool> agree(bool value) {
    if (x_ranks == 1) return value;
    float flag = x_self.value == 0 && value ? 1 : 0;
    CollectiveCall call;
    call.maximum = true;
    call.count = 1;
    call.send = call.receive = &flag;
    FT_TRY(x_transport.collective(x_self, x_everyone, call));
    return flag > 0;
  }

  Result<Sample> operation(const MicroOp& micro) {
    const bool gemm = sample_key(micro.work, 1).op.starts_with("gemm") ||
                      std::holds_alternative<Attention>(micro.work);
    const double guess = std::max(1e-7, sample_size(micro.work) / (gemm ? 5e10 : 4e9));
    const Bytes bytes = std::max<Bytes>(1, micro.bytes());
    const std::int64_t sets = std::clamp<std::int64_t>(x_options.rotation / bytes + 1, 2, 64);
    const auto repeats =
        static_cast<std::int64_t>(std::clamp(0.02 / guess, static_cast<double>(sets), 200.0));
    const Workload workload = micro_workload(micro, x_ranks, sets, repeats);
    HostRank<float> rank(workload, x_self, x_transport, HostOptions{});
    FT_TRY(rank.set_up());
    fill(rank, micro, sets);
    const bool talks = std::holds_alternative<Collective>(micro.work) ||
                       std::holds_alternative<P2PBatch>(micro.work);
    const std::int64_t members = talks ? micro.key.ranks : 1;
    return sample(rank, micro.key, members, sample_size(micro.work), false);
  }

  /// From the end of one op to the begin of the next.
  Result<Sample> overhead(const char* op, const Workload& workload) {
    HostRank<float> rank(workload, x_self, x_transport, HostOptions{});
    FT_TRY(rank.set_up());
    SampleKey key{op, op == std::string(kEventSample) ? "to another stream" : "on one stream",
                  x_ranks};
    return sample(rank, std::move(key), 1, 1, true);
  }

 private:
  Result<Sample> sample(HostRank<float>& rank, SampleKey key, std::int64_t members, double size,
                        bool gaps) {
    Times times;
    Sample out;
    out.key = std::move(key);
    out.dtype = "fp32";
    out.size = size;
    const auto begin = Clock::now();
    bool more = true;
    for (int step = 0; more; ++step) {
      FT_TRY(rank.step());
      FT_ASSIGN(const auto gathered, x_transport.gather(x_self, pack(rank, gaps)));
      if (x_self.value == 0 && step > 0) unpack(gathered, members, times);
      if (x_self.value == 0 && step > 1) more = !enough(times, seconds_since(begin), out);
      FT_ASSIGN(more, agree(more));
    }
    return out;
  }

  /// By operation: its time; where it was disturbed its CPU time, negative.
  std::vector<std::int64_t> pack(const HostRank<float>& rank, bool gaps) const {
    std::vector<std::int64_t> out;
    if (!gaps) {
      for (const OpRecord& r : rank.records()[0]) {
        const std::int64_t wall = std::max<std::int64_t>(1, (r.end - r.begin).ps);
        const bool clean =
            r.cpu.ps == 0 || static_cast<double>(r.cpu.ps) >= kClean * static_cast<double>(wall);
        // Reading the two clocks takes part of a microsecond.
        out.push_back(clean || wall < kClockLimit ? wall : -r.cpu.ps);
      }
      return out;
    }
    std::vector<OpRecord> all;
    for (const auto& stream : rank.records()) all.insert(all.end(), stream.begin(), stream.end());
    std::sort(all.begin(), all.end(),
              [](const OpRecord& a, const OpRecord& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < all.size(); ++i) {
      out.push_back(std::max<std::int64_t>(1, (all[i].begin - all[i - 1].end).ps));
    }
    return out;
  }

  /// Of a group's `members` ranks the shortest.
  static void unpack(const std::vector<std::vector<std::int64_t>>& gathered, std::int64_t members,
                     Times& out) {
    const auto group = static_cast<std::size_t>(members);
    for (std::size_t r = 0; r + group <= gathered.size(); r += group) {
      for (std::size_t i = 0; i < gathered[r].size(); ++i) {
        std::int64_t least = gathered[r][i];
        for (std::size_t m = 1; m < group; ++m) least = std::min(least, gathered[r + m][i]);
        if (least == 0) continue;
        const double us = std::abs(static_cast<double>(least)) * 1e-6;
        out.all.push_back(us);
        if (least > 0) out.clean.push_back(us);
      }
    }
  }

  /// Fills in the sample; whether it will do.
  bool enough(const Times& times, double passed, Sample& out) const {
    out.clean = times.clean.size() >= std::min(kFewest, times.all.size());
    std::vector<double> us = out.clean ? times.clean : times.all;
    std::sort(us.begin(), us.end());
    const auto at = [&us](double share) {
      return us.empty() ? 0
                        : us[static_cast<std::size_t>(
                              std::lround(share * static_cast<double>(us.size() - 1)))];
    };
    out.count = static_cast<std::int64_t>(us.size());
    out.median_us = at(0.5);
    out.p10_us = at(0.1);
    out.p90_us = at(0.9);
    out.stopped = "time";
    // A busy machine may calm down.
    if (passed > (out.clean ? 1 : 2) * x_options.seconds) return true;
    if (!out.clean || us.size() < kFewest) return false;
    if (at(0.75) - at(0.25) > x_options.spread * out.median_us) return false;
    out.stopped = "spread";
    return true;
  }

  std::int64_t x_ranks;
  RankId x_self;
  Transport& x_transport;
  const CalibrateOptions& x_options;
  GroupId x_everyone;
};

}  // namespace

Result<bool> calibrate_rank(const std::vector<MicroOp>& ops, std::int64_t ranks, RankId self,
                            Transport& transport, const CalibrateOptions& options,
                            Profile& profile) {
  use_one_blas_thread();
  Bench bench(ranks, self, transport, options);
  auto saved = Clock::now();
  const std::size_t all = ops.size() + 2;
  constexpr std::int64_t kHandOvers = 400;
  for (std::size_t i = 0; i < all; ++i) {
    SampleKey key = i >= 2   ? ops[i - 2].key
                    : i == 0 ? SampleKey{kDispatchSample, "on one stream", ranks}
                             : SampleKey{kEventSample, "to another stream", ranks};
    FT_ASSIGN(const bool stop, bench.agree(options.interrupted && options.interrupted()));
    if (stop) break;
    const bool known = !options.again && profile.find(key) != nullptr;
    FT_ASSIGN(const bool skip, bench.agree(known));
    if (skip) continue;
    if (self.value == 0 && options.progress) options.progress(i, all, key.shape);
    Result<Sample> sample =
        i >= 2   ? bench.operation(ops[i - 2])
        : i == 0 ? bench.overhead(kDispatchSample, dispatch_workload(ranks, kHandOvers))
                 : bench.overhead(kEventSample, event_workload(ranks, kHandOvers));
    if (!sample.ok()) return sample.error();
    if (self.value != 0) continue;
    profile.add(std::move(sample).value());
    if (options.save && seconds_since(saved) > 1) {
      FT_TRY(options.save());
      saved = Clock::now();
    }
  }
  if (self.value == 0 && options.save) FT_TRY(options.save());
  return !(options.interrupted && options.interrupted());
}

Result<bool> calibrate_threads(const std::vector<MicroOp>& ops, std::int64_t ranks,
                               const CalibrateOptions& options, Profile& profile) {
  const Workload world = micro_ranks(ranks);
  const std::unique_ptr<Transport> transport = make_thread_transport(world);
  std::vector<Result<bool>> results(static_cast<std::size_t>(ranks), true);
  std::vector<Profile> others(results.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      results[r] =
          calibrate_rank(ops, ranks, RankId(r), *transport, options, r == 0 ? profile : others[r]);
      if (!results[r].ok()) transport->abort(results[r].error().message);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Result<bool>& result : results) {
    if (!result.ok()) return result.error();
  }
  return results[0];
}

}  // namespace foretrain

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

constexpr std::size_t kOverheads = 3;  ///< samples that are no works: dispatch, event, launch
constexpr std::size_t kOfLaunch = 2;
constexpr std::size_t kFewest = 10;  ///< operations

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Positive numbers near one half, so that no kernel meets a NaN or a denormal.
Status fill(RankRunner& rank, const MicroOp& micro, std::int64_t sets) {
  std::uint64_t state = 88172645463325252ULL;
  const auto next = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    return (state ^= state << 17) >> 11;
  };
  const auto vocabulary =
      static_cast<std::uint64_t>(std::max<std::int64_t>(1, micro.batch.vocabulary));
  for (std::int64_t s = 0; s < sets; ++s) {
    for (std::size_t b = 0; b < micro.buffers.size(); ++b) {
      const DType type = micro.buffers[b].dtype;
      const FrameId frame(static_cast<std::size_t>(s));
      FT_TRY(rank.set_values(frame, static_cast<std::int16_t>(b), [&](std::int64_t) {
        const std::uint64_t bits = next();
        if (type == DType::kInt64) return static_cast<double>(bits % vocabulary);
        if (type == DType::kUint8) return static_cast<double>(bits & 1);
        return 0.25 + 0.5 * static_cast<double>(bits) * 0x1.0p-53;
      }));
    }
  }
  return ok_status();
}

/// Whether the library of matrix products works in it.
bool multiplies(const Work& work) {
  return std::holds_alternative<Gemm>(work) || std::holds_alternative<Attention>(work);
}

/// Of what the op works on: its first operand.
std::string dtype_of(const MicroOp& micro) {
  const std::vector<View>& views = micro.op.reads.empty() ? micro.op.writes : micro.op.reads;
  if (views.empty()) return "";
  return std::string(name_of(micro.buffers[static_cast<std::size_t>(views[0].buffer)].dtype));
}

/// The value below which that share lies; `us` is sorted.
double at_share(const std::vector<double>& us, double share) {
  if (us.empty()) return 0;
  return us[static_cast<std::size_t>(std::lround(share * static_cast<double>(us.size() - 1)))];
}

/// Mean of what is at most three times the median: a step adds up means; what is longer was
/// somebody else's doing.
double mean_of(const std::vector<double>& us) {
  const double limit = 3 * at_share(us, 0.5);
  double sum = 0;
  std::int64_t count = 0;
  for (const double value : us) {
    if (value > limit) break;
    sum += value;
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

/// Fills in the sample; the distance between the quartiles, or -1 where too few were clean.
double summarize(const OpTimings& times, Sample& out) {
  out.clean = times.clean.size() >= std::min(kFewest, times.all.size());
  std::vector<double> us = out.clean ? times.clean : times.all;
  std::sort(us.begin(), us.end());
  out.count = static_cast<std::int64_t>(us.size());
  out.median_us = at_share(us, 0.5);
  out.p10_us = at_share(us, 0.1);
  out.p90_us = at_share(us, 0.9);
  out.mean_us = mean_of(us);
  out.stopped = "time";
  if (!out.clean || us.size() < kFewest) return -1;
  return at_share(us, 0.75) - at_share(us, 0.25);
}

/// By operation of the last step: its time; where it was disturbed its CPU time, negative.
std::vector<std::int64_t> durations(const RankRunner& rank) {
  std::vector<std::int64_t> out;
  for (const OpRecord& r : rank.records()[0]) {
    const std::int64_t wall = (r.work.ps > 0 ? r.work : r.end - r.begin).ps;
    out.push_back(r.disturbed() ? -std::max<std::int64_t>(1, r.cpu.ps)
                                : std::max<std::int64_t>(1, wall));
  }
  return out;
}

/// From the end of one op to the begin of the next.
std::vector<std::int64_t> gaps(const RankRunner& rank) {
  std::vector<OpRecord> all;
  for (const auto& stream : rank.records()) all.insert(all.end(), stream.begin(), stream.end());
  std::sort(all.begin(), all.end(),
            [](const OpRecord& a, const OpRecord& b) { return a.begin < b.begin; });
  std::vector<std::int64_t> out;
  for (std::size_t i = 1; i < all.size(); ++i) {
    out.push_back(std::max<std::int64_t>(1, (all[i].begin - all[i - 1].end).ps));
  }
  return out;
}

/// Host time of a launch, on average; none where the host runs the ops itself.
std::vector<std::int64_t> launches(const RankRunner& rank) {
  std::size_t ops = 0;
  for (const auto& stream : rank.records()) ops += stream.size();
  const double seconds = rank.issue_seconds();
  if (seconds <= 0 || ops == 0) return {};
  return {std::max<std::int64_t>(1, Time::from_seconds(seconds / static_cast<double>(ops)).ps)};
}

/// Of a group's `members` ranks the shortest.
void unpack(const std::vector<std::vector<std::int64_t>>& gathered, std::int64_t members,
            OpTimings& out) {
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

}  // namespace

Calibration::Calibration(const std::vector<MicroOp>& ops, std::int64_t ranks, RankId self,
                         Transport& transport, CalibrateOptions options)
    : x_ops(ops),
      x_ranks(ranks),
      x_self(self),
      x_transport(transport),
      x_options(std::move(options)),
      x_timings(ops.size() + kOverheads) {
  if (x_options.library.empty()) x_options.library = blas_name();
  use_one_blas_thread();
  const Workload world = micro_ranks(ranks);
  x_everyone = GroupId(world.groups.empty() ? 0 : world.groups.size() - 1);
}

/// What rank 0 says.
Result<bool> Calibration::agree(bool value) {
  if (x_ranks == 1) return value;
  float flag = x_self.value == 0 && value ? 1 : 0;
  CollectiveCall call;
  call.maximum = true;
  call.count = 1;
  call.send = call.receive = &flag;
  FT_TRY(x_transport.collective(x_self, x_everyone, call));
  return flag > 0;
}

SampleKey Calibration::key_of(std::size_t i) const {
  if (i == 0) return {kDispatchSample, "on one stream", x_ranks};
  if (i == 1) return {kEventSample, "to another stream", x_ranks};
  if (i == kOfLaunch) return {kLaunchSample, "by the host", x_ranks};
  return x_ops[i - kOverheads].key;
}

Result<std::unique_ptr<RankRunner>> Calibration::make_rank(const Workload& workload, bool records) {
  HostOptions options;
  options.records = records;
  Result<std::unique_ptr<RankRunner>> made =
      x_options.make_rank ? x_options.make_rank(workload, x_self, x_transport, options)
                          : std::unique_ptr<RankRunner>(std::make_unique<HostRank<float>>(
                                workload, x_self, x_transport, options));
  if (made.ok()) FT_TRY(made.value()->set_up());
  return made;
}

Result<Sample> Calibration::measure(std::size_t i) {
  constexpr std::int64_t kHandOvers = 400;
  Sample out;
  out.key = key_of(i);
  out.dtype = i < kOverheads ? "fp32" : dtype_of(x_ops[i - kOverheads]);
  if (i < kOverheads) {
    const Workload workload =
        i == 1 ? event_workload(x_ranks, kHandOvers) : dispatch_workload(x_ranks, kHandOvers);
    FT_ASSIGN(const auto rank, make_rank(workload, false));
    out.size = 1;
    FT_TRY(repeat(*rank, i, 1, out));
    return out;
  }
  const MicroOp& micro = x_ops[i - kOverheads];
  out.size = sample_size(micro.work);
  if (multiplies(micro.work)) out.library = x_options.library;
  const double guess = std::max(
      1e-7, out.size / (multiplies(micro.work) ? x_options.gemm_rate : x_options.byte_rate));
  const Bytes bytes = std::max<Bytes>(1, micro.bytes());
  const std::int64_t sets =
      std::clamp<std::int64_t>(x_options.rotation / bytes + 1, 2, x_options.most_sets);
  const bool talks = std::holds_alternative<Collective>(micro.work) ||
                     std::holds_alternative<P2PBatch>(micro.work);
  // On a busy machine every transfer waits for a partner that has lost its core.
  const double most = std::max(talks ? 50.0 : 200.0, static_cast<double>(sets));
  const auto repeats =
      static_cast<std::int64_t>(std::clamp(0.02 / guess, static_cast<double>(sets), most));
  const Workload workload = micro_workload(micro, x_ranks, sets, repeats);
  FT_ASSIGN(const auto rank, make_rank(workload, true));
  FT_TRY(fill(*rank, micro, sets));
  FT_TRY(repeat(*rank, i, talks ? micro.key.ranks : 1, out));
  return out;
}

Status Calibration::repeat(RankRunner& rank, std::size_t i, std::int64_t members, Sample& out) {
  OpTimings& timings = x_timings[i];
  const std::size_t before = timings.all.size();
  const auto begin = Clock::now();
  bool more = true;
  for (int step = 0; more; ++step) {
    FT_TRY(rank.step());
    FT_ASSIGN(const auto gathered, x_transport.gather(x_self, i == kOfLaunch   ? launches(rank)
                                                              : i < kOverheads ? gaps(rank)
                                                                               : durations(rank)));
    if (x_self.value == 0 && step > 0) unpack(gathered, members, timings);
    if (x_self.value == 0 && step > 0) {
      const double quartiles = summarize(timings, out);
      const double passed = seconds_since(begin);
      // A busy machine may calm down.
      const bool over = passed > (out.clean ? 1 : 2) * x_options.seconds;
      const bool close = step > 1 && quartiles >= 0 && timings.all.size() >= before + kFewest &&
                         quartiles <= x_options.spread * out.median_us;
      if (close && !over) out.stopped = "spread";
      more = !over && !close;
    }
    FT_ASSIGN(more, agree(more));
  }
  return ok_status();
}

/// What need not be measured: samples of the same library that the profile has.
void Calibration::find_known(const Profile& profile) {
  for (std::size_t i = 0; i < x_timings.size(); ++i) {
    const Sample* known = x_options.again ? nullptr : profile.find(key_of(i));
    const bool is_no_device = i == kOfLaunch && !x_options.make_rank;
    x_known.push_back(is_no_device || (known != nullptr && (known->library.empty() ||
                                                            known->library == x_options.library)));
  }
}

Result<bool> Calibration::round(Profile& profile) {
  auto saved = Clock::now();
  const std::size_t all = x_timings.size();
  if (x_known.empty()) find_known(profile);
  const auto stop = [this] { return x_options.interrupted && x_options.interrupted(); };
  for (std::size_t i = 0; i < all; ++i) {
    FT_ASSIGN(const bool stopped, agree(stop()));
    if (stopped) break;
    FT_ASSIGN(const bool skip, agree(x_known[i]));
    if (skip) continue;
    if (x_self.value == 0 && x_options.progress) x_options.progress(i, all, key_of(i).shape);
    FT_ASSIGN(Sample sample, measure(i));
    if (x_self.value != 0 || sample.count == 0) continue;
    profile.add(std::move(sample));
    if (x_options.save && seconds_since(saved) > 1) {
      FT_TRY(x_options.save());
      saved = Clock::now();
    }
  }
  if (x_self.value == 0 && x_options.save) FT_TRY(x_options.save());
  return !stop();
}

Result<bool> calibrate_rank(const std::vector<MicroOp>& ops, std::int64_t ranks, RankId self,
                            Transport& transport, const CalibrateOptions& options,
                            Profile& profile) {
  Calibration calibration(ops, ranks, self, transport, options);
  return calibration.round(profile);
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

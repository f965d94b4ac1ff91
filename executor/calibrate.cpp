#include "executor/calibrate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <thread>

#include "executor/host_rank.h"
#include "executor/kernels.h"
#include "executor/random.h"
#include "sim/base/threads.h"

namespace foretrain {
namespace {

/// Samples that are no works. Host time of launches is a device's, so are graphs.
struct Overhead {
  const char* op;
  const char* shape;
  bool is_launch, in_graph;
};
constexpr std::array kAllOverheads = {
    Overhead{kDispatchSample, "on one stream", false, false},
    Overhead{kEventSample, "to another stream", false, false},
    Overhead{kLaunchSample, "by the host", true, false},
    Overhead{kGraphDispatchSample, "on one stream, in a graph", false, true},
    Overhead{kGraphLaunchSample, "by the host, captured", true, true}};
constexpr std::size_t kOverheads = kAllOverheads.size();
constexpr std::size_t kOfEvents = 1;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Numbers of both signs for what products and attention multiply: from them the units take their
/// power, and so the clock. Else positive ones near one half, so that no kernel meets a NaN or a
/// denormal; so are the sums that attention keeps beside its operands.
Status fill(RankRunner& rank, const MicroOp& micro, std::int64_t sets) {
  constexpr std::uint64_t kSeed = 88172645463325252ULL;
  const auto* attention = std::get_if<Attention>(&micro.work);
  Fill how;
  how.vocabulary = std::max<std::int64_t>(1, micro.batch.vocabulary);
  for (std::int64_t s = 0; s < sets; ++s) {
    for (std::size_t b = 0; b < micro.buffers.size(); ++b) {
      how.seed = mix(mix(kSeed, static_cast<std::uint64_t>(s)), b);
      how.signed_normal = std::holds_alternative<Gemm>(micro.work) ||
                          (attention != nullptr && micro.buffers[b].dtype == attention->dtype);
      FT_TRY(rank.fill_values(FrameId(static_cast<std::size_t>(s)), static_cast<std::int16_t>(b),
                              how));
    }
  }
  return ok_status();
}

/// Of what the op works on: its first operand.
std::string dtype_of(const MicroOp& micro) {
  const std::vector<View>& views = micro.op.reads.empty() ? micro.op.writes : micro.op.reads;
  if (views.empty()) return "";
  return std::string(name_of(micro.buffers[static_cast<std::size_t>(views[0].buffer)].dtype));
}

}  // namespace

bool multiplies(const Work& work) {
  return std::holds_alternative<Gemm>(work) || std::holds_alternative<Attention>(work);
}

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
  if (i < kOverheads) return {kAllOverheads.at(i).op, kAllOverheads.at(i).shape, x_ranks};
  return op_of(i).key;
}

const MicroOp& Calibration::op_of(std::size_t i) const { return x_ops[i - kOverheads]; }

Result<std::unique_ptr<RankRunner>> Calibration::make_rank(const Workload& workload, bool records,
                                                           bool graphs) {
  HostOptions options;
  options.records = records;
  options.graphs = graphs;
  options.queued = [this] { look(false); };
  Result<std::unique_ptr<RankRunner>> made =
      x_options.make_rank ? x_options.make_rank(workload, x_self, x_transport, options)
                          : std::unique_ptr<RankRunner>(std::make_unique<HostRank<float>>(
                                workload, x_self, x_transport, options));
  if (made.ok()) FT_TRY(made.value()->set_up());
  return made;
}

Result<std::unique_ptr<RankRunner>> Calibration::make_op_rank(const Workload& workload,
                                                              const MicroOp& micro,
                                                              const Turns& turns) {
  FT_ASSIGN(std::unique_ptr<RankRunner> rank, make_rank(workload, true, false));
  FT_TRY(fill(*rank, micro, turns.sets));
  return rank;
}

Result<Sample> Calibration::measure(std::size_t i, const Profile& profile) {
  Sample out;
  out.key = key_of(i);
  out.dtype = i < kOverheads ? "fp32" : dtype_of(op_of(i));
  if (i < kOverheads) {
    FT_TRY(measure_overhead(i, out));
    return out;
  }
  const MicroOp& micro = op_of(i);
  out.size = sample_size(micro.work);
  if (multiplies(micro.work)) out.library = x_options.library;
  if (micro.key.sms > 0) {
    FT_TRY(measure_beside(i, out));
  } else if (micro.key.state == kSustained) {
    SampleKey burst = micro.key;
    burst.state = kBurst;
    FT_TRY(measure_sustained(i, profile.find(burst), out));
  } else {
    FT_TRY(measure_op(i, out));
  }
  return out;
}

Status Calibration::measure_overhead(std::size_t i, Sample& out) {
  constexpr std::int64_t kHandOvers = 400;
  const Workload workload =
      i == kOfEvents ? event_workload(x_ranks, kHandOvers) : dispatch_workload(x_ranks, kHandOvers);
  const bool in_graph = kAllOverheads.at(i).in_graph;
  const bool is_launch = kAllOverheads.at(i).is_launch;
  FT_ASSIGN(const auto rank, make_rank(workload, !is_launch && !in_graph, in_graph));
  // Points of time around every op would be part of what is measured; so would waits for the host
  // be of gaps.
  rank->mark_ops(false);
  rank->queue_ahead(!is_launch);
  FT_TRY(step(*rank, i, 1, nullptr));
  if (!is_launch && gaps_of(*rank).empty()) rank->mark_ops(true);
  out.size = 1;
  const Status done = repeat(*rank, i, 1, out);
  // What a driver cannot capture does not end the calibration.
  return done.ok() || !in_graph ? done : Status(unsupported(done.error().message));
}

Calibration::Turns Calibration::turns_of(const MicroOp& micro) const {
  Turns out;
  const double rate = multiplies(micro.work) ? x_options.gemm_rate : x_options.byte_rate;
  const double guess = std::max(1e-7, sample_size(micro.work) / rate);
  const Bytes bytes = std::max<Bytes>(1, micro.bytes());
  // Operands that are larger than caches push themselves out.
  out.sets = std::clamp<std::int64_t>(x_options.rotation / bytes + 1, 1, x_options.most_sets);
  const std::int64_t fewest = std::max<std::int64_t>(2, out.sets);
  out.repeats = fewest;
  const bool talks = std::holds_alternative<Collective>(micro.work) ||
                     std::holds_alternative<P2PBatch>(micro.work);
  if (talks) out.members = micro.key.ranks;
  if (micro.key.state == kBurst) return out;
  // On a busy machine every transfer waits for a partner that has lost its core.
  const auto least = static_cast<double>(fewest);
  const double most = std::max(talks ? 50.0 : 200.0, least);
  out.repeats = static_cast<std::int64_t>(std::clamp(0.02 / guess, least, most));
  return out;
}

/// In a burst, or as it comes.
Status Calibration::measure_op(std::size_t i, Sample& out) {
  const MicroOp& micro = op_of(i);
  const Turns turns = turns_of(micro);
  const Workload workload = micro_workload(micro, x_ranks, turns.sets, turns.repeats);
  FT_ASSIGN(const auto rank, make_op_rank(workload, micro, turns));
  return repeat(*rank, i, turns.members, out);
}

Status Calibration::step(RankRunner& rank, std::size_t i, std::int64_t members,
                         OpTimings* timings) {
  const std::size_t looked = x_readings.size();
  FT_TRY(rank.step());
  if (x_readings.size() == looked) look(timings != nullptr && timings->states.empty());
  const bool is_launch = i < kOverheads && kAllOverheads.at(i).is_launch;
  FT_ASSIGN(const auto gathered, x_transport.gather(x_self, is_launch        ? launches_of(rank)
                                                            : i < kOverheads ? gaps_of(rank)
                                                                             : durations_of(rank)));
  const std::vector<MachineState> readings = std::exchange(x_readings, {});
  if (x_self.value != 0 || timings == nullptr) return ok_status();
  add_times(gathered, members, *timings);
  timings->states.insert(timings->states.end(), readings.begin(), readings.end());
  return ok_status();
}

Status Calibration::repeat(RankRunner& rank, std::size_t i, std::int64_t members, Sample& out) {
  constexpr double kMostPauses = 4;  // times the time that the op may take
  OpTimings& timings = x_timings[i];
  const std::size_t before = timings.all.size();
  const double pause = key_of(i).state == kBurst ? x_options.pause : 0;
  const auto begin = Clock::now();
  bool more = true;
  for (int number = 0; more; ++number) {
    if (pause > 0 && x_options.rest) {
      x_options.rest(pause);
    } else if (pause > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    }
    FT_TRY(step(rank, i, members, number > 0 ? &timings : nullptr));
    if (x_self.value == 0 && number == 0) more = !stop_asked();
    if (x_self.value == 0 && number > 0) {
      const double quartiles = summarize(timings, out);
      const double passed = seconds_since(begin);
      const bool enough = timings.all.size() >= before + kFewestTimings;
      // A busy machine may calm down.
      const double most = (out.clean ? 1 : 2) * x_options.seconds;
      const bool over = passed - pause * number > most || (enough && passed > kMostPauses * most);
      const bool close =
          number > 1 && quartiles >= 0 && enough && quartiles <= x_options.spread * out.median_us;
      if (close && !over) out.stopped = "spread";
      more = !over && !close && !stop_asked();
      // Too few to be a sample: the op counts as not begun.
      if (!more && !over && !close && !enough) out.count = 0;
    }
    FT_ASSIGN(more, agree(more));
  }
  return ok_status();
}

/// What need not be measured: samples of the same library that the profile has. An op of no state
/// is known in any.
void Calibration::find_known(const Profile& profile) {
  for (std::size_t i = 0; i < x_timings.size(); ++i) {
    const SampleKey key = key_of(i);
    const bool any = key.state.empty() && key.sms == 0;
    const Sample* known = x_options.again ? nullptr
                          : any           ? profile.priced_by(key)
                                          : profile.find(key);
    const bool of_device =
        i < kOverheads && (kAllOverheads.at(i).is_launch || kAllOverheads.at(i).in_graph);
    // Graphs of one rank tell those of several.
    const bool elsewhere =
        of_device && (!x_options.make_rank || (kAllOverheads.at(i).in_graph && x_ranks > 1));
    x_known.push_back(elsewhere || (known != nullptr && (known->library.empty() ||
                                                         known->library == x_options.library)));
  }
}

void Calibration::look(bool surely) {
  constexpr double kBetweenLooks = 0.02;
  if (x_options.state == nullptr || x_self.value != 0) return;
  if (!surely && seconds_since(x_looked) < kBetweenLooks) return;
  x_readings.push_back(x_options.state->read());
  x_looked = Clock::now();
}

/// What it ran at, and what was left out.
void Calibration::describe_machine(Profile& profile) const {
  Json state{Json::Object{}};
  write_state(median_state(profile), state);
  const std::string missing =
      x_options.state != nullptr ? x_options.state->missing() : x_options.no_state;
  if (!missing.empty()) state.set("not_readable", missing);
  profile.machine.set("state", std::move(state));
  Json::Array skipped;
  for (const std::string& one : x_skipped) skipped.emplace_back(one);
  if (!skipped.empty()) profile.machine.set("skipped", std::move(skipped));
}

Result<bool> Calibration::round(Profile& profile) {
  auto saved = Clock::now();
  const std::size_t all = x_timings.size();
  if (x_known.empty()) find_known(profile);
  const auto save = [&] {
    describe_machine(profile);
    return x_options.save ? x_options.save() : ok_status();
  };
  for (std::size_t i = 0; i < all; ++i) {
    FT_ASSIGN(const bool stopped, agree(stop_asked()));
    if (stopped) break;
    FT_ASSIGN(const bool skip, agree(x_known[i]));
    if (skip) continue;
    if (x_self.value == 0 && x_options.progress) x_options.progress(i, all, key_of(i).shape);
    Result<Sample> sample = measure(i, profile);
    if (!sample.ok() && sample.error().kind == ErrorKind::kUnsupported && x_ranks == 1) {
      x_skipped.push_back(key_of(i).shape + ": " + sample.error().message);
      x_known[i] = true;
      continue;
    }
    if (!sample.ok()) return sample.error();
    if (x_self.value != 0 || sample.value().count == 0) continue;
    profile.add(std::move(sample.value()));
    if (seconds_since(saved) > 1) {
      FT_TRY(save());
      saved = Clock::now();
    }
  }
  if (x_self.value == 0) FT_TRY(save());
  return !stop_asked();
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
  FT_TRY(all_at_once(results.size(), [&](std::size_t r) {
    results[r] = or_want([&] {
      return calibrate_rank(ops, ranks, RankId(r), *transport, options,
                            r == 0 ? profile : others[r]);
    });
    if (!results[r].ok()) transport->abort(results[r].error().message);
  }));
  for (const Result<bool>& result : results) {
    if (!result.ok()) return result.error();
  }
  return results[0];
}

}  // namespace foretrain

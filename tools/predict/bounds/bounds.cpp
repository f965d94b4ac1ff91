#include "tools/predict/bounds/bounds.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "models/emit/emit.h"
#include "models/schedule/schedule.h"
#include "sim/engine/replay_state.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

// Seconds of a core, rounded from profiles of whole runs in the release build, not measured one by
// one (docs/robustness.md, Bounds).
constexpr double kSecondsPerLowered = 0.45e-6;  ///< an operation of a Program's calls, once written
constexpr double kSecondsPerReplayed = 0.35e-6;
constexpr double kSecondsPerRank = 3e-6;  ///< bound to its groups and folded

constexpr double kBytesPerRank = 600;        ///< bindings, coordinates, colours
constexpr double kBytesBeside = 512 * 1024;  ///< tables, what asks for prices
/// Of the allocator, for each block.
constexpr double kBlock = 16;

// What no layer's pass takes more of: a bound for plans of which nothing has been written yet.
constexpr double kMostBytesPerPass = 64 * 1024;
constexpr double kMostSecondsPerPass = 100e-6;

template <typename T>
double heap(const std::vector<T>& items) {
  return items.empty() ? 0 : static_cast<double>(items.capacity() * sizeof(T)) + kBlock;
}

double bytes_of_op(const Op& op) {
  const double name = op.name.size() < 16 ? 0 : static_cast<double>(op.name.size()) + kBlock;
  return sizeof(Op) + name + heap(op.reads) + heap(op.writes) + heap(op.allocates) +
         heap(op.frees) + heap(op.waits);
}

std::int64_t ops_of_calls(const Program& program) {
  std::int64_t out = 0;
  for (const Call& call : program.calls) {
    out += std::ssize(program.segments[call.segment.index()].ops);
  }
  return out;
}

std::int64_t ops_of_segments(const Program& program) {
  std::int64_t out = 0;
  for (const Segment& segment : program.segments) out += std::ssize(segment.ops);
  return out;
}

std::int64_t events_of(const Program& program) {
  std::int64_t out = 0;
  for (const Frame& frame : program.frames) {
    out += std::ssize(program.layouts[frame.layout.index()].events);
  }
  return out;
}

/// Bytes of what the replay makes of a Program before prices: PreparedProgram.
double prepared_bytes(const Program& program) {
  double out = 0;
  for (const Call& call : program.calls) {
    constexpr double kStreams = 2;  // on which a call has something, as a rule
    out += kStreams * sizeof(StreamEntry) +
           sizeof(std::int32_t) * static_cast<double>(call.frames.size() + call.waits.size() + 1);
  }
  out += static_cast<double>(ops_of_segments(program)) * sizeof(PreparedOp);
  return out +
         static_cast<double>(events_of(program)) * (sizeof(std::int16_t) + sizeof(EventSource));
}

/// Bytes of one set of prices.
double priced_bytes(const Program& program) {
  double out =
      static_cast<double>(program.works.size()) * (sizeof(Cost) + sizeof(std::vector<Cost>));
  out += static_cast<double>(ops_of_segments(program)) * (2 * sizeof(Time) + 1);
  constexpr double kTimes = 3;  // of the host, and alone on the streams on which it has something
  return out + kTimes * static_cast<double>(program.calls.size()) * sizeof(Time);
}

/// Bytes of what the replay knows of an actor.
double state_bytes(const Program& program) {
  return sizeof(ActorState) + static_cast<double>(events_of(program)) * sizeof(Time) +
         static_cast<double>(program.streams.size()) * sizeof(Stream);
}

/// Whether a list of passes with other microbatches says nothing of this one.
bool is_of_whole_step(const Plan& plan) {
  return plan.schedule == Schedule::kFile || fits_durations(plan.schedule);
}

struct Counted {
  double ops = 0, bytes = 0;
};

Counted count_stage(const Model& model, Plan plan, std::int64_t microbatches) {
  plan.global_batch = microbatches * plan.micro_batch * plan.batch_ranks();
  const Program program = write_stage(model, plan, plan.pipeline / 2);
  return {
      static_cast<double>(ops_of_calls(program)),
      bytes_of(program) + prepared_bytes(program) + priced_bytes(program) + state_bytes(program)};
}

/// A number in a file of the kernel, behind `key` where that is given; < 0: none.
double number_in(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key)) continue;
    char* end = nullptr;
    const char* const begin = line.c_str() + key.size();
    const double value = std::strtod(begin, &end);
    return end == begin ? -1 : value;
  }
  return -1;
}

/// Bytes that a control group holds and would give back: files in memory, and the kernel's caches.
double given_back(const std::string& group) {
  double out = 0;
  for (const char* key : {"inactive_file ", "active_file ", "slab_reclaimable "}) {
    out += std::max(0.0, number_in(group + "/memory.stat", key));
  }
  return out;
}

/// The folder of this process's control group, of version 2; "" where there is none.
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::")) return "/sys/fs/cgroup" + line.substr(3);
  }
  return "";
}

}  // namespace

double bytes_of(const Program& program) {
  double out = heap(program.frames) + heap(program.calls) + heap(program.works);
  for (const Call& call : program.calls) out += heap(call.frames) + heap(call.waits);
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) out += bytes_of_op(op);
  }
  return out;
}

double free_of_group(const std::string& folder) {
  const double most = number_in(folder + "/memory.max");
  const double used = number_in(folder + "/memory.current");
  if (most < 0 || used < 0) return -1;
  return std::clamp(most - used + given_back(folder), 0.0, most);
}

double available_memory_gib() {
  constexpr double kShare = 0.9;
  std::vector<double> bytes;
  const double available = number_in("/proc/meminfo", "MemAvailable:");
  if (available >= 0) bytes.push_back(1024 * available);
  for (std::string group = control_group(); !group.empty();) {
    if (const double free = free_of_group(group); free >= 0) bytes.push_back(free);
    const std::size_t slash = group.rfind('/');
    group = group == "/sys/fs/cgroup" || slash == std::string::npos ? "" : group.substr(0, slash);
  }
  rlimit limit = {};
  const double pages = number_in("/proc/self/statm");
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && pages >= 0) {
    const double mapped = pages * static_cast<double>(sysconf(_SC_PAGESIZE));
    bytes.push_back(std::max(0.0, static_cast<double>(limit.rlim_cur) - mapped));
  }
  if (bytes.empty()) return 0;
  // Nobody asked for the bound: a small run is tried in any case.
  constexpr double kLeast = 256 * 1024 * 1024;
  return std::max(kLeast, kShare * *std::min_element(bytes.begin(), bytes.end())) / kGiB;
}

bool surely_within(const Model& model, const Plan& plan, std::int64_t microbatches,
                   const SimulationBounds& bounds) {
  const auto passes = static_cast<double>(plan.forwards * microbatches *
                                          std::max(model.layers, plan.pipeline) * plan.context);
  const auto ranks = static_cast<double>(plan.accelerators);
  SimulationCost most;
  most.seconds = kMostSecondsPerPass * passes + kSecondsPerRank * ranks;
  most.gib = (kMostBytesPerPass * passes + kBytesPerRank * ranks) / kGiB;
  return most.within(bounds);
}

SimulationCost cost_of_lowering(const Model& model, const Plan& plan, std::int64_t microbatches) {
  // Twice as many microbatches as stages fill a pipeline; from there on Programs grow evenly.
  const std::int64_t few = 2 * plan.pipeline;
  Counted all;
  if (microbatches <= 2 * few || is_of_whole_step(plan)) {
    all = count_stage(model, plan, microbatches);
  } else {
    const Counted first = count_stage(model, plan, few);
    const Counted second = count_stage(model, plan, 2 * few);
    const auto more = static_cast<double>(microbatches - few) / static_cast<double>(few);
    all.ops = first.ops + more * (second.ops - first.ops);
    all.bytes = first.bytes + more * (second.bytes - first.bytes);
  }
  const auto stages = static_cast<double>(plan.pipeline);
  const auto ranks = static_cast<double>(plan.accelerators);
  SimulationCost out;
  out.operations = std::llround(stages * all.ops);
  out.seconds =
      (kSecondsPerLowered + kSecondsPerReplayed) * stages * all.ops + kSecondsPerRank * ranks;
  out.gib = (kBytesBeside + stages * all.bytes + kBytesPerRank * ranks) / kGiB;
  return out;
}

SimulationCost cost_of_replay(const LoweredStep& step, const Quotient& quotient) {
  const Workload& replayed = step.replayed();
  const auto ranks = static_cast<double>(replayed.ranks.size());
  double lowered = 0;
  double bytes = kBytesBeside + kBytesPerRank * ranks;
  std::vector<std::int64_t> ops;
  for (const Program& program : step.workload.programs) {
    lowered += static_cast<double>(ops_of_calls(program));
    bytes += bytes_of(program);
  }
  for (const Program& program : replayed.programs) {
    ops.push_back(ops_of_calls(program));
    bytes += prepared_bytes(program) + (step.steps > 1 ? bytes_of(program) : 0);
  }
  std::set<std::pair<std::size_t, std::vector<PlacementId>>> priced;
  SimulationCost out;
  for (const Actor& actor : quotient.actors) {
    const std::size_t p = actor.program.index();
    const Program& program = replayed.programs[p];
    out.operations += ops[p];
    bytes += state_bytes(program) + sizeof(Actor) + heap(actor.groups) + heap(actor.channels);
    constexpr double kTimesOfRound = 3 * sizeof(Time);  // RoundTimes keeps those of every op
    if (step.more > 0) bytes += kTimesOfRound * static_cast<double>(ops[p]);
    std::vector<PlacementId> places = actor.group_places;
    places.insert(places.end(), actor.channel_places.begin(), actor.channel_places.end());
    if (priced.emplace(p, std::move(places)).second) bytes += priced_bytes(program);
  }
  // Programs of fewer microbatches are written twice (lowered_step.cpp).
  if (step.more > 0) lowered *= 2;
  out.seconds = kSecondsPerLowered * lowered + kSecondsPerRank * ranks +
                kSecondsPerReplayed * static_cast<double>(out.operations);
  out.gib = bytes / kGiB;
  return out;
}

Status check_bounds(const std::string& source, const SimulationBounds& bounds,
                    const SimulationCost& cost, const std::string& of_what) {
  if (cost.within(bounds)) return ok_status();
  const bool slow = bounds.seconds > 0 && cost.seconds > bounds.seconds;
  const std::string found = slow ? seconds_text(cost.seconds) : fixed(cost.gib, 3) + " GiB";
  std::string bound = "the " + seconds_text(bounds.seconds) + " of --budget";
  if (!slow) {
    bound = "the " + fixed(bounds.gib, 3) + " GiB " +
            (bounds.of_machine ? "that this machine has to give; --max-memory sets another bound"
                               : "of --max-memory");
  }
  return input_error(source + ": " + of_what + " would take about " + found + " for " +
                     count_text(cost.operations) + " operations, more than " + bound +
                     "; allow more, or take fewer microbatches (batch.global, batch.micro) or "
                     "stages (parallel.pipeline)");
}

}  // namespace foretrain

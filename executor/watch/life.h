// Whether ranks still do anything, and what: for those that wait for them.
//
// A process that is stopped, or that nothing reaches any more, says nothing. One whose threads hang
// still says that it is there; but then no rank of the job ends an op, uses its CPU or moves blocks
// of files. A kernel that takes long uses the CPU and is no hang, and so is no loop without end.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace foretrain {

using Moment = std::chrono::steady_clock::time_point;

/// After how many seconds without a sign of life a job ends; 0: never.
struct Silence {
  double seconds = 0;
  bool hangs =
      true;  ///< devices work while the host does nothing: there only processes are watched
  /// Where TCP connects the ranks: a process that is still here 3 s after its job has ended exits,
  /// as one that waits for a device would for ever.
  bool ends_process = true;
};

/// Where the ranks of a job are on one machine nothing but its scheduler delays signs of life.
/// Between machines TCP repeats what was lost after 0.2, 0.4, ... 12.8 s: 25.4 s for seven times.
constexpr double kSilenceHere = 4;
constexpr double kSilenceBetweenMachines = 30;

/// This machine's; "" where the system does not tell.
std::string host_name();

/// The letter of a process' state in /proc/N/stat: 'R', 'S', 'T', ...; 0 where it is not there.
char state_of_process(std::int64_t process);

/// What the threads of a rank do now.
class OpsUnderWay {
 public:
  void begins(const std::string& name);
  void ends(const std::string& name);
  /// A thread waits for other ranks, or does so no more.
  void waits(bool begins);

  struct State {
    std::uint64_t changes = 0;  ///< ops that began or ended so far
    bool waits = false;
    std::string text;  ///< "mlp.up and mlp.up.reduce", or "no operation"
  };
  State state() const;

 private:
  mutable std::mutex x_mutex;
  std::vector<const std::string*> x_names;
  std::uint64_t x_changes = 0;
  int x_waits = 0;
};

/// While it lives the thread waits for other ranks.
class WaitsHere {
 public:
  explicit WaitsHere(OpsUnderWay& ops) : x_ops(ops) { x_ops.waits(true); }
  WaitsHere(const WaitsHere&) = delete;
  WaitsHere& operator=(const WaitsHere&) = delete;
  WaitsHere(WaitsHere&&) = delete;
  WaitsHere& operator=(WaitsHere&&) = delete;
  ~WaitsHere() { x_ops.waits(false); }

 private:
  OpsUnderWay& x_ops;
};

/// Whether this process does anything.
class OwnLife {
 public:
  /// Larger than the last one where, since then, an op began or ended, the process used its CPU for
  /// more than 0.5 % of the time, or moved blocks of files.
  std::uint64_t look(std::uint64_t changes, Moment now);

 private:
  std::uint64_t x_life = 0;
  std::uint64_t x_changes = 0;
  Moment x_at;
  double x_cpu = 0;
  std::int64_t x_blocks = 0;
};

/// What a rank says of itself.
struct Sign {
  std::uint64_t life = 0;
  std::int64_t process = 0, ops = 0;  ///< its number; ops that began or ended
  bool waits = false;
  std::string host, doing;
};
std::string text_of(const Sign& sign);
/// Of what `text_of` wrote, but for `life`; what does not parse is empty.
Sign read_sign(const std::string& text);
/// This process'.
Sign own_sign(std::uint64_t life, const OpsUnderWay::State& state);

}  // namespace foretrain

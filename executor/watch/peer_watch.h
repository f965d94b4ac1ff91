// Judges from signs of life which rank of a job says nothing, and whether all of them hang.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "executor/watch/life.h"

namespace foretrain {

/// Why a job ends.
struct Verdict {
  std::string why;           ///< "": it goes on
  std::int64_t silent = -1;  ///< the rank that says nothing
};

/// Threads may call at the same time.
class PeerWatch {
 public:
  PeerWatch(std::int64_t self, std::size_t ranks, Silence silence, Moment now);

  /// Time between two signs of life of a rank, and two looks at those of others.
  std::chrono::milliseconds period() const;
  /// Anything came from the rank.
  void heard(std::int64_t rank, Moment now);
  /// The rank, or this process itself, said what it does.
  void told(std::int64_t rank, const Sign& sign, Moment now);
  /// Nothing is expected of the rank any more.
  void left(std::int64_t rank);
  /// From now on others need not do anything: this rank only waits for their end.
  void ends();

  /// Once a period: where a look comes late this process was stopped itself, and all begin anew.
  Verdict verdict(Moment now);
  /// "rank 1 is gone: WHY (process 12 on n1, last heard of 0.2 s ago, in mlp.up)".
  std::string gone(std::int64_t rank, const std::string& why, Moment now) const;

 private:
  struct Rank {
    Sign sign;
    bool told = false, left = false;
    Moment heard, lived;
  };
  Verdict hang(Moment now) const;
  std::string place_of(const Rank& rank) const;

  const std::int64_t x_self;
  const Silence x_silence;
  mutable std::mutex x_mutex;
  std::vector<Rank> x_ranks;
  Moment x_looked;
  bool x_ends = false;
};

}  // namespace foretrain

// What communication holds of one actor's SMs and memory bandwidth, and how long a kernel takes
// beside it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/cost/cost_model.h"
#include "sim/engine/stream_set.h"

namespace foretrain {

/// Rates of kernels beside what is held, those that were asked for last.
class RatesBeside {
 public:
  /// Units a ps (sim/engine/fluid.h); the cost lives as long as this.
  std::int64_t rate(const Cost& cost, int sm_count, std::int32_t sms, std::int32_t memory);

 private:
  struct Known {
    const Cost* cost = nullptr;
    std::int32_t sm_count = 0, sms = 0, memory = 0;
    std::int64_t rate = 0;
  };
  std::array<Known, 256> x_known{};
};

class Holds {
 public:
  /// From `begin` on, until `end`; a stream has at most one open hold.
  void open(std::int32_t stream, Time begin, const Cost& cost);
  void close(std::int32_t stream, Time end);
  /// How often one was opened or closed.
  std::int32_t changes() const { return x_changes; }
  bool is_open(std::int32_t stream) const { return x_open.contains(stream); }
  StreamSet open() const { return x_open; }  ///< whose hold has no end yet

  struct Answer {
    Time end;
    bool certain = true;  ///< false if a hold of unknown end reaches into it
  };
  /// The end of a kernel of `stream` that starts at `ready`, beside the holds of other streams.
  Answer end_beside(const Cost& cost, int sm_count, std::int32_t stream, Time ready,
                    RatesBeside& rates) const {
    if (x_open.empty() && !(ready < x_last_end)) return {ready + cost.duration, true};
    return end_among(cost, sm_count, stream, ready, rates);
  }

  /// Drops what no kernel that starts at `now` or later can meet, when it is worth the move.
  void forget(Time now);
  /// Whether so many are listed that fewer would be found sooner.
  bool worth_forgetting() const { return x_all.size() >= 8; }

 private:
  struct Hold {
    std::int32_t stream = 0;
    Time begin, end;  ///< end is kNever while unknown
    std::int32_t sms = 0, memory_share = 0;
  };
  /// What other streams hold at a time, and until when they hold as much.
  struct Beside {
    std::int32_t sms = 0, memory = 0;
    Time change;
  };
  Beside beside(std::int32_t stream, Time now) const;
  Answer end_among(const Cost& cost, int sm_count, std::int32_t stream, Time ready,
                   RatesBeside& rates) const;

  std::vector<Hold> x_all;  ///< by begin: those of a stream that runs ahead stand at the end
  StreamSet x_open;         ///< whose hold has no end yet
  Time x_last_end;          ///< of all that have ended
  std::int32_t x_changes = 0;
};

}  // namespace foretrain

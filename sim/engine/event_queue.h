// Queues of events: a total order by (time, sequence), so ties never depend on the heap's shape.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/base/units.h"

namespace foretrain {

/// On a clock of `At`, of events of `KindOf`.
template <typename At, typename KindOf>
class TimedQueue {
 public:
  using Kind = KindOf;
  struct Event {
    At at{};
    std::uint64_t sequence = 0;
    Kind kind{};
    std::int32_t subject = 0;   ///< transfer, or actor
    std::int32_t detail = 0;    ///< stream of the actor
    std::uint32_t version = 0;  ///< stale if the subject has moved on
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };

  void push(At at, Kind kind, std::int32_t subject, std::int32_t detail, std::uint32_t version) {
    const Event event{at, x_sequence++, kind, subject, detail, version};
    std::size_t hole = x_heap.size();
    x_heap.push_back(event);
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / kChildren;
      if (event > x_heap[parent]) break;
      x_heap[hole] = x_heap[parent];
      hole = parent;
    }
    x_heap[hole] = event;
  }
  bool empty() const { return x_heap.empty(); }
  const Event& top() const { return x_heap.front(); }
  Event pop() {
    const Event first = x_heap.front();
    const Event last = x_heap.back();
    x_heap.pop_back();
    if (x_heap.empty()) return first;
    std::size_t hole = 0;
    while (true) {
      const std::size_t begin = hole * kChildren + 1;
      const std::size_t end = std::min(begin + kChildren, x_heap.size());
      if (begin >= end) break;
      std::size_t least = begin;
      for (std::size_t c = begin + 1; c < end; ++c) {
        if (x_heap[least] > x_heap[c]) least = c;
      }
      if (x_heap[least] > last) break;
      x_heap[hole] = x_heap[least];
      hole = least;
    }
    x_heap[hole] = last;
    return first;
  }

 private:
  /// Four children lie in few cache lines: half the misses of a binary heap.
  static constexpr std::size_t kChildren = 4;
  std::vector<Event> x_heap;
  std::uint64_t x_sequence = 0;
};

enum class ReplayEvent : std::uint8_t { kTransferStart, kTransferEnd, kKernelEnd };
using EventQueue = TimedQueue<Time, ReplayEvent>;

}  // namespace foretrain

// The global queue: a total order by (time, sequence), so ties never depend on the heap's shape.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "sim/base/units.h"

namespace foretrain {

class EventQueue {
 public:
  enum class Kind : std::uint8_t { kTransferStart, kTransferEnd, kKernelEnd };
  struct Event {
    Time at;
    std::uint64_t sequence = 0;
    Kind kind = Kind::kTransferStart;
    std::int32_t subject = 0;   ///< transfer, or actor
    std::int32_t detail = 0;    ///< stream of the actor
    std::uint32_t version = 0;  ///< stale if the subject has moved on
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };

  void push(Time at, Kind kind, std::int32_t subject, std::int32_t detail, std::uint32_t version) {
    x_heap.push(Event{at, x_sequence++, kind, subject, detail, version});
  }
  bool empty() const { return x_heap.empty(); }
  Event pop() {
    const Event event = x_heap.top();
    x_heap.pop();
    return event;
  }

 private:
  std::priority_queue<Event, std::vector<Event>, std::greater<>> x_heap;
  std::uint64_t x_sequence = 0;
};

}  // namespace foretrain

// Transfers that meet on ports. Each port's bandwidth is shared in proportion to what its transfers
// ask for: with shares d_i of the port, all of them run at rate min(1, 1 / sum d_i); a transfer
// runs at the lowest rate of its ports.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engine/event_queue.h"
#include "sim/engine/fluid.h"

namespace foretrain {

/// An op that waits for a transfer's end.
struct Waiter {
  std::int32_t actor = 0, stream = 0;
  std::int32_t side = 0;  ///< for messages: 0 the sender, 1 the receiver
};

struct PortDemand {
  std::int32_t port = 0;
  std::int64_t share = 0;  ///< in 1/65536 of the port, over all ranks the actor stands for on it
};

struct Transfer {
  Time start;
  Time alone;
  std::vector<PortDemand> demands;
  std::vector<Waiter> waiters;
  // State.
  Progress progress;
  Time seen;              ///< when `progress` was last brought up to date
  std::int64_t rate = 0;  ///< 0 before it starts
  std::uint32_t version = 0;
  std::uint64_t change = 0;  ///< of wants, the last that it was brought up to
};

class Transfers {
 public:
  Transfers(std::int32_t ports, EventQueue& queue)
      : x_wanted(static_cast<std::size_t>(ports)),
        x_rate(static_cast<std::size_t>(ports), kOneRate),
        x_active(static_cast<std::size_t>(ports)),
        x_queue(queue) {}

  /// Announces a transfer; its start is queued.
  void add(Transfer transfer);
  /// The queue says it starts now.
  void start(std::int32_t id, Time now);
  /// The queue says it may end now: true if so (then its ports are free again).
  bool end(const EventQueue::Event& event);

  const Transfer& operator[](std::int32_t id) const { return x_all[static_cast<std::size_t>(id)]; }
  /// The transfer's place may be used again.
  void release(std::int32_t id) { x_free.push_back(id); }

 private:
  /// More, or less, is wanted of a port.
  void want(std::int32_t port, std::int64_t more);
  void retune(const Transfer& changed, Time now);

  std::vector<Transfer> x_all;
  std::vector<std::int32_t> x_free;
  std::uint64_t x_changes = 0;                      ///< of what is wanted
  std::vector<std::int64_t> x_wanted, x_rate;       ///< by port
  std::vector<std::vector<std::int32_t>> x_active;  ///< by port
  EventQueue& x_queue;
};

}  // namespace foretrain

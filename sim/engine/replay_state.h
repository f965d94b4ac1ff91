// What the replay knows at one moment: where every stream stands and what it waits for.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/engine/holds.h"
#include "sim/engine/prepared.h"
#include "sim/engine/transfers.h"

namespace foretrain {

enum class Wait : std::uint8_t { kNone, kEvent, kEpoch, kPartner, kQueue, kDone };

struct Stream {
  std::int32_t entry = 0;  ///< into PreparedProgram::entries
  std::int32_t op = -1;    ///< into PreparedProgram::ops; -1: the entry's own waits come first
  Wait wait = Wait::kNone;
  bool certain = true;         ///< of a kernel that is queued: Holds::Answer
  std::int16_t recorder = -1;  ///< the stream that records the event it waits for; -1 none
  /// Event id or epoch; of a kernel that is queued Holds::changes when its end was told.
  std::int32_t waiting_for = 0;
  std::int32_t open_messages = 0;
  std::uint32_t version = 0;  ///< of queued kernel ends
  Time free_at;               ///< end of the last op
  Time ready;                 ///< of the op that waits for a partner or the queue
  Time matched;               ///< messages: latest start so far
  Time arrived;               ///< messages: they do not all end before, as far as is known
};

struct ActorState {
  const Actor* actor = nullptr;
  const PreparedProgram* program = nullptr;
  const PreparedPrices* prices = nullptr;
  std::vector<Stream> streams;
  StreamSet ready;           ///< that may move on: those left out would not if they were asked
  StreamSet waiting;         ///< in Wait::kEvent
  std::vector<Time> events;  ///< when recorded; kNever before
  std::vector<Time> epoch;   ///< host time at the start of each epoch; kNever while unknown
  Holds holds;
  Time host_end, last_end;
  bool queued = false;  ///< is in the list of actors to run
};

struct GroupState {
  Time latest;
  std::vector<Waiter> waiters;  ///< who has arrived
};

struct ChannelState {
  struct End {
    const Cost* cost = nullptr;  ///< set when it has posted its message
    Time at;
    Waiter waiter;
  };
  std::array<End, 2> ends;                         // sender, receiver
  std::array<std::int16_t, 2> streams = {-1, -1};  ///< that post at the ends; -1 not known
};

struct ReplayState {
  std::vector<ActorState> actors;
  std::vector<GroupState> groups;
  std::vector<ChannelState> channels;
  RatesBeside rates;

  Stream& stream(const Waiter& waiter) {
    return actors[static_cast<std::size_t>(waiter.actor)]
        .streams[static_cast<std::size_t>(waiter.stream)];
  }
};

/// Everything at its beginning.
ReplayState initial_state(const Prepared& prepared);

/// Which ranks stand at which op and what each waits for.
Error deadlock_report(const Workload& workload, const Prepared& prepared, const ReplayState& state);

}  // namespace foretrain

// Folding: ranks that must behave alike become one actor.
//
// Colours are refined until stable (as in partition refinement of graphs): two ranks share a colour
// when they run the same Program on devices of one kind and every slot of theirs - group, channel,
// port - leads to the same colours under the same placement. By induction over time their ops then
// start and end at the same instants, so one of them stands for all, and `folded == full` holds to
// the picosecond.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/base/result.h"
#include "sim/cost/cost_model.h"
#include "sim/program/program.h"

namespace foretrain {

using ActorId = Id<struct ActorTag>;

/// One rank, or a class of equal ones.
struct Actor {
  ProgramId program;
  RankId rank;                         ///< the first of its ranks
  std::int64_t ranks = 1;              ///< how many it stands for
  std::vector<std::int32_t> groups;    ///< by GroupSlot: index into Quotient::groups, -1 unbound
  std::vector<std::int32_t> channels;  ///< by ChannelSlot: index into Quotient::channels
  std::vector<PlacementId> group_places, channel_places;
  std::array<std::int32_t, kPortCount> ports{};        ///< index into the ports
  std::array<std::int32_t, kPortCount> port_weight{};  ///< ranks of this actor on that one port
};

/// A group as actors see it: how many actors must arrive.
struct ActorGroup {
  std::int32_t members = 0;  ///< distinct actors
  std::int32_t size = 0;     ///< ranks of the real group
};

struct ActorChannel {
  ActorId source, destination;
  PlacementId place;
};

/// The first ranks that lie so.
struct PlacedRanks {
  PlacementId place;
  std::vector<RankId> ranks;
};

struct Quotient {
  std::vector<Actor> actors;
  std::vector<ActorGroup> groups;
  std::vector<ActorChannel> channels;
  std::int32_t ports = 0;
  std::vector<std::int32_t> actor_of;  ///< by rank
  std::vector<PlacedRanks> placed;     ///< in the order in which they were placed
};

/// Folds the workload, or with `full` gives every rank an actor of its own. Fails if `model` cannot
/// place a group.
Result<Quotient> make_quotient(const Workload& workload, CostModel& model, bool full);

/// Makes the placements of a quotient known to a model that has placed nothing yet, of the same
/// machine at other prices.
Status place_again(const Quotient& quotient, CostModel& model);

}  // namespace foretrain

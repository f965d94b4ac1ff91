#include "sim/engine/quotient.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "sim/base/check.h"
#include "sim/base/rng.h"

namespace foretrain {
namespace {

using Color = std::uint64_t;

Color mix(Color a, Color b) { return mix_u64(a, b); }
Color mix(Color a, std::int32_t b) {
  return mix(a, static_cast<Color>(static_cast<std::uint32_t>(b)));
}

/// Replaces colours by 0, 1, 2, ... in order of first appearance; returns how many there are.
std::int32_t renumber(std::vector<Color>& colors, std::vector<std::int32_t>& dense) {
  std::unordered_map<Color, std::int32_t> seen;
  dense.resize(colors.size());
  for (std::size_t i = 0; i < colors.size(); ++i) {
    dense[i] = seen.try_emplace(colors[i], static_cast<std::int32_t>(seen.size())).first->second;
  }
  return static_cast<std::int32_t>(seen.size());
}

/// Asks a model for placements, and keeps the first ranks of each.
class Placer {
 public:
  explicit Placer(CostModel& model) : x_model(model) {}

  Result<PlacementId> place(std::span<const RankId> ranks) {
    FT_ASSIGN(const PlacementId id, x_model.place(ranks));
    if (x_known.size() <= id.index()) x_known.resize(id.index() + 1);
    if (!x_known[id.index()]) x_placed.push_back({id, {ranks.begin(), ranks.end()}});
    x_known[id.index()] = true;
    return id;
  }
  const std::vector<PlacedRanks>& placed() const { return x_placed; }

 private:
  CostModel& x_model;
  std::vector<PlacedRanks> x_placed;
  std::vector<bool> x_known;  ///< by PlacementId
};

class Folder {
 public:
  Folder(const Workload& workload, CostModel& model)
      : x_workload(workload), x_model(model), x_placer(model) {}

  Status place() {
    for (const std::vector<RankId>& members : x_workload.groups) {
      FT_ASSIGN(const PlacementId place, x_placer.place(members));
      x_group_place.push_back(place);
    }
    for (const Channel& channel : x_workload.channels) {
      const std::array<RankId, 2> pair = {channel.source, channel.destination};
      FT_ASSIGN(const PlacementId place, x_placer.place(pair));
      x_channel_place.push_back(place);
    }
    number_ports();
    return ok_status();
  }

  Quotient run(bool full) {
    const std::size_t n = x_workload.ranks.size();
    x_color.resize(n);
    std::map<const CostModel*, Color> kinds;
    for (std::size_t r = 0; r < n; ++r) {
      const Color kind = kinds.try_emplace(&x_model.on(RankId(r)), kinds.size()).first->second;
      const auto program = static_cast<Color>(x_workload.ranks[r].program.value);
      x_color[r] = full ? r : kind * x_workload.programs.size() + program;
    }
    std::int32_t count = renumber(x_color, x_dense);
    if (full) {
      refine();  // gives groups, channels and ports their colours
      restore(n);
      return build(static_cast<std::int32_t>(n));
    }
    while (true) {
      refine();
      std::vector<std::int32_t> dense;
      const std::int32_t finer = renumber(x_color, dense);
      x_dense = std::move(dense);
      if (finer == count) break;
      count = finer;
    }
    return build(count);
  }

 private:
  void restore(std::size_t n) {
    for (std::size_t r = 0; r < n; ++r) x_dense[r] = static_cast<std::int32_t>(r);
  }

  void number_ports() {
    // The same number names different ports in each direction and on each kind of link.
    std::array<std::vector<std::int32_t>, kPortCount> seen;
    std::int32_t next = 0;
    x_port.resize(x_workload.ranks.size());
    for (std::size_t r = 0; r < x_port.size(); ++r) {
      for (std::size_t p = 0; p < kPortCount; ++p) {
        const std::int32_t id = x_model.port_of(RankId(r), static_cast<Port>(p));
        FT_CHECK(id >= 0, "a port without a number");
        const auto at = static_cast<std::size_t>(id);
        if (at >= seen[p].size()) seen[p].resize(std::max(at + 1, 2 * seen[p].size()), -1);
        if (seen[p][at] < 0) seen[p][at] = next++;
        x_port[r][p] = seen[p][at];
      }
    }
    x_ports = static_cast<std::size_t>(next);
  }

  /// One round: colours of groups, channels and ports from their ranks, then of ranks from theirs.
  void refine() {
    x_group_color.assign(x_workload.groups.size(), 0);
    x_port_color.assign(x_ports, 0);
    for (std::size_t r = 0; r < x_color.size(); ++r) {
      const RankBinding& rank = x_workload.ranks[r];
      const auto color = static_cast<Color>(x_dense[r]);
      for (std::size_t s = 0; s < rank.groups.size(); ++s) {
        if (!rank.groups[s].valid()) continue;
        // A sum, so that the order of members does not matter.
        x_group_color[rank.groups[s].index()] += mix(mix(1, color), static_cast<Color>(s));
      }
      for (std::size_t p = 0; p < kPortCount; ++p) {
        x_port_color[static_cast<std::size_t>(x_port[r][p])] +=
            mix(mix(2, color), static_cast<Color>(p));
      }
    }
    for (std::size_t g = 0; g < x_group_color.size(); ++g) {
      x_group_color[g] = mix(x_group_color[g], x_group_place[g].value);
    }
    x_channel_color.resize(x_workload.channels.size());
    for (std::size_t c = 0; c < x_channel_color.size(); ++c) {
      const Channel& channel = x_workload.channels[c];
      Color color = mix(3, x_dense[channel.source.index()]);
      color = mix(color, x_dense[channel.destination.index()]);
      color = mix(mix(color, channel.source_slot.value), channel.destination_slot.value);
      x_channel_color[c] = mix(color, x_channel_place[c].value);
    }
    for (std::size_t r = 0; r < x_color.size(); ++r) x_color[r] = next_color(r);
  }

  Color next_color(std::size_t r) const {
    const RankBinding& rank = x_workload.ranks[r];
    Color color = mix(4, x_dense[r]);
    for (const GroupId group : rank.groups) {
      color = mix(color, group.valid() ? x_group_color[group.index()] : 0);
    }
    for (const ChannelId channel : rank.channels) {
      color = mix(color, channel.valid() ? x_channel_color[channel.index()] : 0);
    }
    for (const std::int32_t port : x_port[r]) {
      color = mix(color, x_port_color[static_cast<std::size_t>(port)]);
    }
    return color;
  }

  Quotient build(std::int32_t count) {
    Quotient q;
    q.actor_of = x_dense;
    q.placed = x_placer.placed();
    q.actors.resize(static_cast<std::size_t>(count));
    std::vector<std::int32_t> group_of, channel_of, port_of;
    q.groups.resize(static_cast<std::size_t>(renumber(x_group_color, group_of)));
    q.channels.resize(static_cast<std::size_t>(renumber(x_channel_color, channel_of)));
    q.ports = renumber(x_port_color, port_of);
    std::vector<bool> seen(q.actors.size());
    for (std::size_t r = 0; r < x_dense.size(); ++r) {
      Actor& actor = q.actors[static_cast<std::size_t>(x_dense[r])];
      if (seen[static_cast<std::size_t>(x_dense[r])]) {
        ++actor.ranks;
        continue;
      }
      seen[static_cast<std::size_t>(x_dense[r])] = true;
      fill(actor, r, group_of, channel_of, port_of);
    }
    weigh_ports(q);
    for (std::size_t a = 0; a < q.actors.size(); ++a) connect(q, a);
    for (std::size_t g = 0; g < x_workload.groups.size(); ++g) {
      q.groups[static_cast<std::size_t>(group_of[g])].size =
          static_cast<std::int32_t>(x_workload.groups[g].size());
    }
    for (std::size_t c = 0; c < channel_of.size(); ++c) {
      ActorChannel& channel = q.channels[static_cast<std::size_t>(channel_of[c])];
      channel.place = x_channel_place[c];
      channel.source = ActorId(x_dense[x_workload.channels[c].source.index()]);
      channel.destination = ActorId(x_dense[x_workload.channels[c].destination.index()]);
    }
    return q;
  }

  void fill(Actor& actor, std::size_t r, const std::vector<std::int32_t>& group_of,
            const std::vector<std::int32_t>& channel_of,
            const std::vector<std::int32_t>& port_of) const {
    const RankBinding& rank = x_workload.ranks[r];
    actor.program = rank.program;
    actor.rank = RankId(r);
    for (const GroupId group : rank.groups) {
      actor.groups.push_back(group.valid() ? group_of[group.index()] : -1);
      actor.group_places.push_back(group.valid() ? x_group_place[group.index()] : PlacementId());
    }
    for (const ChannelId channel : rank.channels) {
      actor.channels.push_back(channel.valid() ? channel_of[channel.index()] : -1);
      actor.channel_places.push_back(channel.valid() ? x_channel_place[channel.index()]
                                                     : PlacementId());
    }
    for (std::size_t p = 0; p < kPortCount; ++p) {
      actor.ports[p] = port_of[static_cast<std::size_t>(x_port[r][p])];
    }
  }

  /// How many ranks of an actor's colour share the actor's port.
  void weigh_ports(Quotient& q) const {
    for (std::size_t r = 0; r < x_dense.size(); ++r) {
      Actor& actor = q.actors[static_cast<std::size_t>(x_dense[r])];
      for (std::size_t p = 0; p < kPortCount; ++p) {
        if (x_port[r][p] == x_port[actor.rank.index()][p]) ++actor.port_weight[p];
      }
    }
  }

  static void connect(Quotient& q, std::size_t a) {
    std::vector<std::int32_t> groups = q.actors[a].groups;
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    for (const std::int32_t group : groups) {
      if (group >= 0) ++q.groups[static_cast<std::size_t>(group)].members;
    }
  }

  const Workload& x_workload;
  const CostModel& x_model;
  Placer x_placer;
  std::vector<PlacementId> x_group_place, x_channel_place;
  std::vector<std::array<std::int32_t, kPortCount>> x_port;
  std::size_t x_ports = 0;
  std::vector<Color> x_color, x_group_color, x_channel_color, x_port_color;
  std::vector<std::int32_t> x_dense;
};

}  // namespace

Result<Quotient> make_quotient(const Workload& workload, CostModel& model, bool full) {
  Folder folder(workload, model);
  FT_TRY(folder.place());
  return folder.run(full);
}

Status place_again(const Quotient& quotient, CostModel& model) {
  for (const PlacedRanks& placed : quotient.placed) {
    FT_ASSIGN(const PlacementId place, model.place(placed.ranks));
    FT_CHECK(place == placed.place, "a model of another machine");
  }
  return ok_status();
}

}  // namespace foretrain

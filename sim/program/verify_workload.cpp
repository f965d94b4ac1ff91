#include <algorithm>
#include <map>
#include <set>

#include "sim/base/rng.h"
#include "sim/program/verify.h"

namespace foretrain {
namespace {

/// What a Program does with its group slots and channel slots, in issue order.
struct Traffic {
  std::vector<std::vector<std::uint64_t>> collectives;  ///< by group slot: fingerprints
  std::vector<std::int32_t> least_root, largest_root;   ///< by group slot
  std::vector<std::vector<Bytes>> sent, received;       ///< by channel slot
};

std::uint64_t fingerprint(const Collective& work) {
  std::uint64_t h = hash_u64(static_cast<std::uint64_t>(work.count));
  h = hash_u64(h + static_cast<std::uint64_t>(work.kind));
  h = hash_u64(h + static_cast<std::uint64_t>(work.dtype));
  h = hash_u64(h + static_cast<std::uint64_t>(work.root));
  for (const std::int64_t run : work.runs) h = hash_u64(h + static_cast<std::uint64_t>(run));
  return hash_u64(h + (work.maximum ? 1 : 0));
}

/// Collects a Program's traffic, op by op.
class TrafficReader {
 public:
  explicit TrafficReader(const Program& program)
      : x_program(program), x_stream_of(program.group_slots.size()) {
    x_traffic.collectives.resize(program.group_slots.size());
    x_traffic.least_root.resize(program.group_slots.size());
    x_traffic.largest_root.resize(program.group_slots.size());
    x_traffic.sent.resize(program.channel_slots.size());
    x_traffic.received.resize(program.channel_slots.size());
  }

  Status add(const Op& op) {
    const Work& work = x_program.works[op.work.index()];
    if (const auto* collective = std::get_if<Collective>(&work)) return add(op, *collective);
    if (const auto* batch = std::get_if<P2PBatch>(&work)) return add(op, *batch);
    return ok_status();
  }

  Traffic take() { return std::move(x_traffic); }

 private:
  Error wrong(const std::string& text) const {
    return input_error("program " + x_program.name + ": " + text);
  }

  Status add(const Op& op, const Collective& work) {
    const std::size_t slot = work.group.index();
    if (!work.group.valid() || slot >= x_traffic.collectives.size()) {
      return wrong("op " + op.name + " names no group");
    }
    StreamId& stream = x_stream_of[slot];
    if (stream.valid() && stream != op.stream) {
      return wrong("group " + x_program.group_slots[slot] + " is used on two streams");
    }
    stream = op.stream;
    x_traffic.collectives[slot].push_back(fingerprint(work));
    x_traffic.least_root[slot] = std::min(x_traffic.least_root[slot], work.root);
    x_traffic.largest_root[slot] = std::max(x_traffic.largest_root[slot], work.root);
    return ok_status();
  }

  Status add(const Op& op, const P2PBatch& work) {
    for (const Message& message : work.messages) {
      if (!message.channel.valid() || message.channel.index() >= x_traffic.sent.size()) {
        return wrong("op " + op.name + " names no channel");
      }
      auto& side = message.send ? x_traffic.sent : x_traffic.received;
      side[message.channel.index()].push_back(message.bytes);
    }
    return ok_status();
  }

  const Program& x_program;
  std::vector<StreamId> x_stream_of;  ///< by group slot
  Traffic x_traffic;
};

Result<Traffic> traffic_of(const Program& program) {
  TrafficReader reader(program);
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) FT_TRY(reader.add(op));
  }
  return reader.take();
}

Error at_rank(std::size_t rank, const std::string& text) {
  return input_error("rank " + std::to_string(rank) + ": " + text);
}

Status check_bindings(const Workload& workload, const std::vector<Traffic>& traffic) {
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    const RankBinding& rank = workload.ranks[r];
    if (rank.program.index() >= workload.programs.size()) return at_rank(r, "no such program");
    const Program& program = workload.programs[rank.program.index()];
    const Traffic& use = traffic[rank.program.index()];
    for (std::size_t s = 0; s < use.collectives.size(); ++s) {
      if (use.collectives[s].empty()) continue;
      if (s >= rank.groups.size() || !rank.groups[s].valid() ||
          rank.groups[s].index() >= workload.groups.size()) {
        return at_rank(r, "group slot " + program.group_slots[s] + " is used but not bound");
      }
    }
    for (std::size_t s = 0; s < use.sent.size(); ++s) {
      if (use.sent[s].empty() && use.received[s].empty()) continue;
      if (s >= rank.channels.size() || !rank.channels[s].valid() ||
          rank.channels[s].index() >= workload.channels.size()) {
        return at_rank(r, "channel slot " + program.channel_slots[s] + " is used but not bound");
      }
    }
  }
  return ok_status();
}

/// Groups name existing ranks, each once; a rank that uses a group is one of its members.
Status check_members(const Workload& workload, const std::vector<Traffic>& traffic) {
  std::set<std::pair<GroupId, RankId>> members;
  for (std::size_t g = 0; g < workload.groups.size(); ++g) {
    for (const RankId rank : workload.groups[g]) {
      const std::string text =
          "group " + std::to_string(g) + ": rank " + std::to_string(rank.value);
      if (rank.index() >= workload.ranks.size()) return input_error(text + " does not exist");
      if (!members.insert({GroupId(g), rank}).second) {
        return input_error(text + " stands twice among its members");
      }
    }
  }
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    const RankBinding& rank = workload.ranks[r];
    const Traffic& use = traffic[rank.program.index()];
    for (std::size_t s = 0; s < use.collectives.size(); ++s) {
      if (use.collectives[s].empty() || members.count({rank.groups[s], RankId(r)}) > 0) continue;
      return at_rank(r, "uses group " + std::to_string(rank.groups[s].value) +
                            ", which does not have it among its members");
    }
  }
  return ok_status();
}

Status check_groups(const Workload& workload, const std::vector<Traffic>& traffic) {
  std::vector<const std::vector<std::uint64_t>*> expected(workload.groups.size(), nullptr);
  std::vector<std::size_t> bound(workload.groups.size(), 0);
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    const RankBinding& rank = workload.ranks[r];
    const Traffic& use = traffic[rank.program.index()];
    for (std::size_t s = 0; s < use.collectives.size(); ++s) {
      if (use.collectives[s].empty()) continue;
      const std::size_t g = rank.groups[s].index();
      ++bound[g];
      const auto members = static_cast<std::int32_t>(workload.groups[g].size());
      if (use.least_root[s] < 0 || use.largest_root[s] >= members) {
        return at_rank(
            r, "a collective on group " + workload.programs[rank.program.index()].group_slots[s] +
                   " has root " +
                   std::to_string(use.least_root[s] < 0 ? use.least_root[s] : use.largest_root[s]) +
                   ", the group has " + std::to_string(members) + " members");
      }
      if (expected[g] == nullptr) {
        expected[g] = &use.collectives[s];
      } else if (expected[g] != &use.collectives[s] && *expected[g] != use.collectives[s]) {
        return at_rank(r, "its collectives on group " +
                              workload.programs[rank.program.index()].group_slots[s] +
                              " differ from those of another member");
      }
    }
  }
  for (std::size_t g = 0; g < bound.size(); ++g) {
    if (bound[g] != 0 && bound[g] != workload.groups[g].size()) {
      return input_error("group " + std::to_string(g) + " has " +
                         std::to_string(workload.groups[g].size()) + " members, but " +
                         std::to_string(bound[g]) + " ranks use it");
    }
  }
  return ok_status();
}

Status check_channels(const Workload& workload, const std::vector<Traffic>& traffic) {
  std::set<std::pair<const void*, const void*>> equal;  // pairs already compared
  for (std::size_t c = 0; c < workload.channels.size(); ++c) {
    const Channel& channel = workload.channels[c];
    if (channel.source.index() >= workload.ranks.size() ||
        channel.destination.index() >= workload.ranks.size()) {
      return input_error("channel " + std::to_string(c) + " joins ranks that do not exist");
    }
    const RankBinding& source = workload.ranks[channel.source.index()];
    const RankBinding& destination = workload.ranks[channel.destination.index()];
    const auto binds = [c](const RankBinding& rank, ChannelSlot slot) {
      return slot.index() < rank.channels.size() && rank.channels[slot.index()] == ChannelId(c);
    };
    if (!binds(source, channel.source_slot) || !binds(destination, channel.destination_slot)) {
      return input_error("channel " + std::to_string(c) + " is not bound by both of its ends");
    }
    const auto known = [&workload](const RankBinding& rank, ChannelSlot slot) {
      return slot.index() < workload.programs[rank.program.index()].channel_slots.size();
    };
    if (!known(source, channel.source_slot) || !known(destination, channel.destination_slot)) {
      return input_error("channel " + std::to_string(c) + " ends at slots that do not exist");
    }
    const auto& sent = traffic[source.program.index()].sent[channel.source_slot.index()];
    const auto& received =
        traffic[destination.program.index()].received[channel.destination_slot.index()];
    if (!equal.insert({&sent, &received}).second) continue;
    if (sent == received) continue;
    return at_rank(channel.source.index(),
                   "sends " + std::to_string(sent.size()) + " messages to rank " +
                       std::to_string(channel.destination.value) + ", which expects " +
                       std::to_string(received.size()) + " or other sizes");
  }
  return ok_status();
}

}  // namespace

Status verify(const Workload& workload) {
  std::vector<Traffic> traffic;
  for (const Program& program : workload.programs) {
    FT_TRY(verify(program));
    FT_ASSIGN(Traffic use, traffic_of(program));
    traffic.push_back(std::move(use));
  }
  FT_TRY(check_bindings(workload, traffic));
  FT_TRY(check_members(workload, traffic));
  FT_TRY(check_groups(workload, traffic));
  return check_channels(workload, traffic);
}

}  // namespace foretrain

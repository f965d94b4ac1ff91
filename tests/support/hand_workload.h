// Workloads and prices written by hand, op by op, for tests of the engine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/cost/cost_model.h"
#include "sim/program/builder.h"

namespace foretrain {

/// Prices named kernels from a table; a collective of n elements and a message of n bytes take
/// n ps. 16 SMs.
class HandPrices : public CostModel {
 public:
  std::map<std::string, Cost> kernels;
  Time launch;                                ///< of every op but host delays
  std::int32_t sms_held = 0, port_share = 0;  ///< of communication
  bool waits_idle = false;                    ///< likewise
  std::int32_t ranks_per_nic = 1;

  int sm_count() const override { return 16; }
  Result<PlacementId> place(std::span<const RankId>) override { return PlacementId(0); }
  Result<Cost> price(const Work& work, std::span<const PlacementId>) const override {
    Cost cost;
    cost.launch = launch;
    if (const auto* kernel = std::get_if<Opaque>(&work)) {
      const auto it = kernels.find(kernel->name);
      if (it == kernels.end()) return unsupported("no price for " + kernel->name);
      cost = it->second;
      cost.launch = launch;
    } else if (const auto* delay = std::get_if<HostDelay>(&work)) {
      cost.launch = delay->time;
    } else if (const auto* pause = std::get_if<Pause>(&work)) {
      cost.launch = Time{};
      cost.duration = pause->time;
    } else if (const auto* collective = std::get_if<Collective>(&work)) {
      transfer(cost, collective->count);
    } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
      transfer(cost, batch->messages[0].bytes);
    } else if (const auto* copy = std::get_if<Copy>(&work)) {
      cost.duration = Time{copy->bytes};
      cost.port_share[static_cast<std::size_t>(Port::kNicOut)] = port_share;
    }
    return cost;
  }
  std::string explain(const Work&, std::span<const PlacementId>) const override { return "hand"; }
  std::int32_t port_of(RankId rank, Port port) const override {
    return rank.value / ranks_per_nic * kPortCount + static_cast<std::int32_t>(port);
  }

  /// A kernel bound by arithmetic that takes `ps` alone.
  void kernel(const std::string& name, std::int64_t ps) {
    kernels[name].duration = kernels[name].compute = Time{ps};
  }

 private:
  void transfer(Cost& cost, std::int64_t ps) const {
    cost.duration = Time{ps};
    cost.sms_held = sms_held;
    cost.waits_idle = waits_idle;
    cost.port_share[static_cast<std::size_t>(Port::kNicOut)] = port_share;
    cost.port_share[static_cast<std::size_t>(Port::kNicIn)] = port_share;
  }
};

/// One rank's Program: a segment of ops that touch no buffers, called once.
class HandProgram {
 public:
  explicit HandProgram(const std::string& name, int events = 8) : x_builder(name) {
    x_builder.stream("compute");
    FrameLayout layout;
    layout.name = "frame";
    for (int e = 0; e < events; ++e) layout.events.push_back("event " + std::to_string(e));
    x_segment.name = "all";
    x_segment.frames = {x_builder.layout(std::move(layout))};
  }

  /// `waits` and `records` are numbers of events; -1 records none.
  HandProgram& op(const std::string& stream, Work work, const std::vector<int>& waits = {},
                  int records = -1) {
    Op op;
    op.stream = x_builder.stream(stream);
    op.name = "op " + std::to_string(x_segment.ops.size());
    op.work = x_builder.work(std::move(work));
    for (const int event : waits) op.waits.push_back({0, static_cast<std::int16_t>(event)});
    if (records >= 0) op.records = EventRef{0, static_cast<std::int16_t>(records)};
    x_segment.ops.push_back(std::move(op));
    return *this;
  }
  HandProgram& kernel(const std::string& name, const std::vector<int>& waits = {},
                      int records = -1) {
    return op("compute", Opaque{name, 0, 0, DType::kBf16}, waits, records);
  }
  HandProgram& all_reduce(const std::string& stream, const std::string& group, std::int64_t ps,
                          const std::vector<int>& waits = {}, int records = -1) {
    const Collective work{CollectiveKind::kAllReduce, x_builder.group(group), ps, DType::kFp32,
                          false};
    return op(stream, work, waits, records);
  }
  Message message(bool send, const std::string& channel, Bytes ps) {
    return Message{send, x_builder.channel(channel), ps};
  }

  Program build() {
    const LayoutId layout = x_segment.frames[0];
    const SegmentId id = x_builder.segment(std::move(x_segment));
    x_builder.call(Call{id, 0, 0, {x_builder.frame(layout)}, {}});
    return std::move(x_builder).build();
  }

 private:
  ProgramBuilder x_builder;
  Segment x_segment;
};

/// Rank r runs programs[r]; `groups` and `channels` are bound by hand.
inline Workload workload_of(std::vector<Program> programs) {
  Workload out;
  for (std::size_t r = 0; r < programs.size(); ++r) {
    RankBinding rank;
    rank.program = ProgramId(r);
    rank.groups.resize(programs[r].group_slots.size());
    rank.channels.resize(programs[r].channel_slots.size());
    out.ranks.push_back(std::move(rank));
  }
  out.programs = std::move(programs);
  return out;
}
/// Binds slot `slot` of every member to a new group.
inline void bind_group(Workload& workload, const std::vector<int>& members, int slot) {
  const GroupId id(workload.groups.size());
  workload.groups.emplace_back();
  for (const int rank : members) {
    workload.groups.back().emplace_back(rank);
    workload.ranks[static_cast<std::size_t>(rank)].groups[static_cast<std::size_t>(slot)] = id;
  }
}
inline void bind_channel(Workload& workload, int from, int from_slot, int to, int to_slot) {
  const ChannelId id(workload.channels.size());
  workload.channels.push_back(
      Channel{RankId(from), RankId(to), ChannelSlot(from_slot), ChannelSlot(to_slot)});
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  workload.ranks[at(from)].channels[at(from_slot)] = id;
  workload.ranks[at(to)].channels[at(to_slot)] = id;
}

}  // namespace foretrain

// Do experts in groups of shards move what the groups' sizes say?
#include <gtest/gtest.h>

#include <map>

#include "models/lower.h"
#include "models/slots.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Bytes of the full arrays of the collectives of one rank, by group and kind.
using GroupBytes = std::map<std::pair<std::string, CollectiveKind>, Bytes>;

GroupBytes bytes_of_groups(const Workload& workload) {
  GroupBytes out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const auto* c = std::get_if<Collective>(&program.works[op.work.index()]);
      if (c == nullptr) continue;
      out[{program.group_slots[c->group.index()], c->kind}] += bytes_of(c->dtype, c->count);
    }
  }
  return out;
}

std::size_t size_of_group(const Workload& workload, const char* group) {
  const Program& program = workload.programs[0];
  for (std::size_t g = 0; g < program.group_slots.size(); ++g) {
    if (program.group_slots[g] == group) {
      return workload.groups[workload.ranks[0].groups[g].index()].size();
    }
  }
  return 0;
}

std::int64_t expert_elements(const Model& model, std::int64_t expert) {
  std::int64_t out = 0;
  for (const Parameter& p : layer_parameters(model, {Mixer::kAttention, FeedForward::kExperts})) {
    if (p.expert) out += p.count();
  }
  return out * model.sparse_layers() / expert;
}

// Of G data ranks a group, T tensor ranks each and experts over E ranks, G T / E share the states
// of the same experts and gather them from each other; of what one of them keeps the sum goes over
// the W groups: 2 bytes of P_E / (G T / E) parameters.
TEST(HybridShardingOfExperts, MovesShardsInGroupsAndSumsAcrossThem) {
  Model model = small_moe();
  model.experts.shared_width = 0;
  for (const std::int64_t group : {2, 4, 8}) {
    for (const std::int64_t expert : {2, 4, 8}) {
      for (const std::int64_t tensor : {1, 2}) {
        if (group * tensor % expert != 0) continue;
        Plan plan = small_plan(model, {tensor, 1, 1, 16 / tensor}, 1);
        if (plan.data % group != 0) continue;
        plan.sequence = tensor > 1;
        plan.experts.expert = expert;
        plan.sharding = Sharding::kParameters;
        plan.shard_group = group;
        plan.units.reduce = plan.precision.compute;
        const Workload workload = lower(model, plan);
        const Status status = verify(workload);
        ASSERT_TRUE(status.ok()) << status.error().message;
        GroupBytes bytes = bytes_of_groups(workload);
        const std::int64_t shards = group * tensor / expert;
        const std::int64_t replicas = plan.data / group;
        const Bytes all = 2 * expert_elements(model, expert);
        const char* gathers = replicas > 1 ? kExpertShardGroup : kExpertDataGroup;
        const Bytes moved = shards > 1 ? all : 0;
        EXPECT_EQ((bytes[{gathers, CollectiveKind::kAllGather}]), 2 * moved);
        EXPECT_EQ((bytes[{gathers, CollectiveKind::kReduceScatter}]), moved);
        const Bytes across = replicas > 1 ? all / shards : 0;
        EXPECT_EQ((bytes[{kExpertReplicaGroup, CollectiveKind::kAllReduce}]), across);
        if (replicas > 1) {
          EXPECT_EQ(size_of_group(workload, kExpertReplicaGroup),
                    static_cast<std::size_t>(replicas));
        }
        if (shards > 1) {
          EXPECT_EQ(size_of_group(workload, gathers), static_cast<std::size_t>(shards));
        }
      }
    }
  }
}

}  // namespace
}  // namespace foretrain

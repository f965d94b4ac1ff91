#include "sim/campaign/policy.h"

#include <algorithm>

namespace foretrain {

bool Policy::keeps_running(std::int64_t /*missing*/, std::int64_t /*most_missing*/) const {
  return false;
}

std::int64_t Policy::replicas_lost(std::int64_t missing, const Fleet& fleet) const {
  // A start forms whole replicas of the nodes that are left.
  return (missing * fleet.replicas + fleet.nodes - 1) / fleet.nodes;
}

namespace {

/// Waits for every node, from the queue or from repair.
class WaitPolicy : public Policy {
 public:
  Reaction react(const Situation& /*situation*/) const override { return {}; }
};

/// Takes spares while there are some.
class SparesPolicy : public Policy {
 public:
  Reaction react(const Situation& s) const override { return {std::min(s.lost, s.pool), 0}; }
};

/// Spares first; then starts with fewer replicas while that can be.
class ShrinkPolicy : public Policy {
 public:
  Reaction react(const Situation& s) const override {
    const std::int64_t spares = std::min(s.lost, s.pool);
    const std::int64_t room = std::max<std::int64_t>(0, s.most_missing - s.missing);
    return {spares, std::min(s.lost - spares, room)};
  }
};

/// The other replicas go on as if the one that failed had never been: parameters are whole in each.
class DropReplicaPolicy : public ShrinkPolicy {
 public:
  bool keeps_running(std::int64_t missing, std::int64_t most_missing) const override {
    return missing <= most_missing;
  }
  std::int64_t replicas_lost(std::int64_t missing, const Fleet& fleet) const override {
    // Every node that fails is taken to be of another replica.
    const std::int64_t of_node = std::max<std::int64_t>(1, fleet.replicas / fleet.nodes);
    return std::min(missing * of_node, fleet.replicas);
  }
};

/// Peers of the same stage in other replicas take over the microbatches of the node that failed
/// (ReCycle, SOSP 2024): nodes of one replica's worth cost one replica. Optimistic where several
/// fail in one stage.
class ReroutePolicy : public ShrinkPolicy {
 public:
  bool keeps_running(std::int64_t missing, std::int64_t most_missing) const override {
    return missing <= most_missing;
  }
};

}  // namespace

std::unique_ptr<Policy> make_policy(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kWait:
      return std::make_unique<WaitPolicy>();
    case PolicyKind::kSpares:
      return std::make_unique<SparesPolicy>();
    case PolicyKind::kShrink:
      return std::make_unique<ShrinkPolicy>();
    case PolicyKind::kDropReplica:
      return std::make_unique<DropReplicaPolicy>();
    case PolicyKind::kReroute:
      return std::make_unique<ReroutePolicy>();
  }
  return nullptr;
}

}  // namespace foretrain

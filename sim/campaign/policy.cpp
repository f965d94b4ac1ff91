#include "sim/campaign/policy.h"

#include <algorithm>

namespace foretrain {

bool Policy::survives(const Blow& blow, const Fleet& /*fleet*/) const {
  return goes_on() && blow.missing + blow.lost <= blow.room;
}

std::int64_t Policy::pace_index(std::int64_t missing, const Fleet& fleet) const {
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
  bool goes_on() const override { return true; }
  std::int64_t pace_index(std::int64_t missing, const Fleet& fleet) const override {
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
  bool goes_on() const override { return true; }
};

/// Pipelines of other depths cover the nodes that are left; states are copied from other pipelines
/// (Oobleck, SOSP 2023). Nodes lost at once hold every copy of a state only if they are as many as
/// there are pipelines.
class TemplatesPolicy : public ShrinkPolicy {
 public:
  bool goes_on() const override { return true; }
  bool survives(const Blow& blow, const Fleet& fleet) const override {
    if (!Policy::survives(blow, fleet) || fleet.pipelines.empty()) return false;
    const auto missing = static_cast<std::size_t>(blow.missing);
    return blow.lost < fleet.pipelines[std::min(missing, fleet.pipelines.size() - 1)];
  }
  std::int64_t pace_index(std::int64_t missing, const Fleet& /*fleet*/) const override {
    return missing;
  }
};

/// The node before holds the states of the one that failed and has run its forward passes (Bamboo,
/// NSDI 2023): it takes over its stage. Two neighbours in the ring of a pipeline are too many, and
/// so are several nodes at once, wherever they stand.
class RedundantPolicy : public ShrinkPolicy {
 public:
  bool goes_on() const override { return true; }
  bool survives(const Blow& blow, const Fleet& fleet) const override {
    return Policy::survives(blow, fleet) && blow.at_once == 1 && !blow.exposed;
  }
  bool redoes_step() const override { return false; }
  std::int64_t exposed(std::int64_t missing) const override { return 2 * missing; }
  std::int64_t pace_index(std::int64_t missing, const Fleet& fleet) const override {
    // A node that does the work of two sets the pace, however many there are; no two neighbours
    // are missing while it is every other node at most.
    if (2 * missing > fleet.nodes) return 2;
    return std::min<std::int64_t>(missing, 1);
  }
  std::int64_t plan_index(std::int64_t /*missing*/, const Fleet& /*fleet*/) const override {
    return 0;  // the stages stay
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
    case PolicyKind::kTemplates:
      return std::make_unique<TemplatesPolicy>();
    case PolicyKind::kRedundant:
      return std::make_unique<RedundantPolicy>();
  }
  return nullptr;
}

}  // namespace foretrain

// What a job does about nodes that it lost: each policy is one small class behind one interface.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/campaign/campaign.h"

namespace foretrain {

/// Once a failure is diagnosed.
struct Situation {
  std::int64_t lost = 0;          ///< nodes, of failures since the job last ran
  std::int64_t missing = 0;       ///< nodes that the job already runs without
  std::int64_t pool = 0;          ///< spares that are free
  std::int64_t most_missing = 0;  ///< nodes without which its plan still has step times
};

/// How a policy shares out the lost nodes. The job waits for the rest of them.
struct Reaction {
  std::int64_t from_pool = 0;
  std::int64_t without = 0;  ///< the job runs on without them
};

/// A failure, as it hits the job.
struct Blow {
  std::int64_t at_once = 0;  ///< nodes that it takes
  std::int64_t lost = 0;     ///< these, and those of failures that are not diagnosed yet
  std::int64_t missing = 0;  ///< nodes that the job already runs without
  std::int64_t room = 0;     ///< nodes that it can do without, spares counted
  bool exposed = false;      ///< its node is one of `Policy::exposed`
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual Reaction react(const Situation& situation) const = 0;
  /// Whether the job goes on through failures that it survives, without a checkpoint and a start.
  virtual bool goes_on() const { return false; }
  /// Whether it survives this one.
  virtual bool survives(const Blow& blow, const Fleet& fleet) const;
  /// Whether the step that such a failure interrupts begins again.
  virtual bool redoes_step() const { return true; }
  /// Nodes of a job without so many that it cannot lose.
  virtual std::int64_t exposed(std::int64_t /*missing*/) const { return 0; }
  /// Which of `Fleet::pace` a job without so many nodes has: here, how many replicas less.
  virtual std::int64_t pace_index(std::int64_t missing, const Fleet& fleet) const;
  /// Tells apart the plans that a job without so many nodes has: another one loads what it does not
  /// share out as the one that saved.
  virtual std::int64_t plan_index(std::int64_t missing, const Fleet& fleet) const {
    return pace_index(missing, fleet);
  }
};

std::unique_ptr<Policy> make_policy(PolicyKind kind);

}  // namespace foretrain

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

class Policy {
 public:
  virtual ~Policy() = default;
  virtual Reaction react(const Situation& situation) const = 0;
  /// Whether the job goes on from the step that failed, without a checkpoint and a start, while it
  /// has `missing` nodes less, of `most_missing` at most.
  virtual bool keeps_running(std::int64_t missing, std::int64_t most_missing) const;
  /// Replicas less that a job without so many nodes has.
  virtual std::int64_t replicas_lost(std::int64_t missing, const Fleet& fleet) const;
};

std::unique_ptr<Policy> make_policy(PolicyKind kind);

}  // namespace foretrain

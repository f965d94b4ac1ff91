// Where the time of one actor goes, from its spans alone: no names, flows or memory.
#pragma once

#include <array>
#include <vector>

#include "sim/engine/op_log.h"
#include "sim/timeline/breakdown.h"

namespace foretrain {

/// Seconds are summed over the spans of all streams, so that they may exceed the time.
struct Account {
  Breakdown breakdown{};  ///< of the time
  std::array<double, static_cast<std::size_t>(Part::kCount)> busy_s{};
  /// Seconds times the relative deviation of their prices.
  std::array<double, static_cast<std::size_t>(Part::kCount)> error_s{};
  std::array<double, 3> provenance_s{};  ///< by Provenance
  double all_s = 0;
};

/// Collects the spans of one actor.
class Accountant : public SpanSink {
 public:
  explicit Accountant(std::size_t actor) : x_actor(static_cast<std::int32_t>(actor)) {}

  void span(const OpTimes& times) override {
    if (times.actor == x_actor) push_op(x_streams, times);
  }

  /// Of the `length` from `begin` on.
  Account take(const Workload& workload, const Prepared& prepared, Time begin, Time length) const;

 private:
  std::int32_t x_actor;
  std::vector<OpLog> x_streams;
};

}  // namespace foretrain

// A step of many microbatches from one of few: what a round adds, where the replay proves it.
//
// The replay is a function of times that knows no absolute ones. Where some rounds of every actor
// are each what the one before was, D later, one more of them is D later again, and so is what
// follows, if nothing that follows hangs on what does not move with the rounds: on what was before
// these rounds, on a host that is slower than they are, or on rounds of another actor that are not
// alike. Each of these is checked. Where the event queue was needed (transfers
// that share ports, kernels beside communication whose end was not known), the rounds of all actors
// must also be alike at the same time, for two rounds. Where a check fails there is no answer, and
// a longer step is to be tried.
#pragma once

#include <optional>
#include <vector>

#include "sim/engine/account.h"
#include "sim/engine/replay.h"
#include "sim/program/rounds.h"

namespace foretrain {

/// Keeps the times of all ops of all actors.
class RoundTimes : public SpanSink {
 public:
  RoundTimes(const Workload& workload, const Prepared& prepared);

  void span(const OpTimes& times) override {
    x_times[static_cast<std::size_t>(times.actor)][place_of(times)] = {times.begin, times.start,
                                                                       times.end};
  }

  struct Steady {
    Time round;  ///< that one more round takes
    Time from;   ///< from here on a round's length of the actor asked for is as every later one
  };
  /// `rounds`: by Program. None where the replay does not prove it.
  std::optional<Steady> steady(const Replay& replay, const std::vector<Rounds>& rounds,
                               std::size_t actor) const;

 private:
  struct Times {
    Time begin, start, end;
  };
  friend class RoundProof;

  std::size_t program_of(std::size_t actor) const {
    return x_prepared.quotient.actors[actor].program.index();
  }
  std::size_t place_of(const OpTimes& times) const {
    const std::size_t program = program_of(static_cast<std::size_t>(times.actor));
    return x_first[program][static_cast<std::size_t>(times.call)] +
           static_cast<std::size_t>(times.op);
  }

  const Workload& x_workload;
  const Prepared& x_prepared;
  std::vector<std::vector<std::size_t>> x_first;  ///< by Program and call: its first op
  std::vector<std::vector<Times>> x_times;        ///< by actor and op
};

}  // namespace foretrain

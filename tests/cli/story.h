// What a Program does, told in lines that a test can hold against a system's description.
//
// What stands behind "after" is what a stream waits for; without it an operation starts when those
// before it on its stream are done. What runs on a stream of its own and no pass waits for runs
// beside the passes that follow it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/lower.h"

namespace foretrain {

using Lines = std::vector<std::string>;

/// A step of a small model as a system does it on 4 accelerators, unless `sets` say otherwise.
Workload lowered_workload(const std::string& system, std::vector<std::string> sets);

/// The Program of its first ranks.
Program lowered(const std::string& system, std::vector<std::string> sets);

/// Tells a Program call by call: passes, what stands between them, and messages. Left out: what the
/// norm and the loss exchange, and what a pass exchanges (`ops_of`).
class Story {
 public:
  /// With `pipelined` passes and messages are told with their microbatch: "layer forward 0 of 1".
  explicit Story(const Program& program, bool pipelined = false);
  Lines lines;

 private:
  struct Recorded {
    std::string label;
    StreamId stream;
    bool by_pass = false;
  };
  void tell(const Call& call);
  std::string label_of(const Call& call) const;
  std::string behind(const Call& call, StreamId stream) const;

  const Program& x_program;
  bool x_pipelined;
  std::map<std::string, int> x_numbers;
  std::map<std::pair<std::int32_t, std::int16_t>, Recorded> x_recorded;
};

/// Tells the products, cores of attention, collectives and messages of a segment in the order of
/// their issue. "after" names operations of the segment, also those that are not told; the last
/// line tells what else its end waits for. What is not on compute is told with its stream.
Lines ops_of(const Program& program, const std::string& segment);

Lines starting_with(const Lines& lines, const std::string& start);
Lines with_part(const Lines& lines, const std::string& part);

/// Lines behind whose "after" stands `what`.
Lines waiting_for(const Lines& lines, const std::string& what);

/// Ranks of a group that the Workload's first rank is in.
std::size_t members_of(const Workload& workload, const std::string& group);

}  // namespace foretrain

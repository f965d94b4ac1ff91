// The `schedule` of a RUN: its name or file, and what it needs of the plan.
#pragma once

#include "models/plan/plan.h"

namespace foretrain {

/// Reads `schedule`: a name, the path of a JSON file (`read_schedule_file`), or an object with what
/// zb-auto works with. zb-v and dualpipev have two chunks a stage.
void read_schedule(JsonReader& run, Plan& plan);

/// Refuses degrees and features that the schedule does not go with; checks its file or works it
/// out.
void check_schedule(JsonReader& run, const Model& model, Plan& plan);

/// As a RUN writes it.
std::string name_of(Schedule schedule);
/// Of a file its path.
std::string name_of(const Plan& plan);

}  // namespace foretrain

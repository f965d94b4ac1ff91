// The `schedule` of a RUN: its name or file, and what it needs of the plan.
#pragma once

#include "models/plan.h"

namespace foretrain {

/// Reads `schedule`: a name, or the path of a JSON file (`read_schedule_file`), which is opened by
/// `check_schedule`. zb-v has two chunks a stage.
void read_schedule(JsonReader& run, Plan& plan);

/// Refuses degrees and features that the schedule does not go with, and reads its file.
void check_schedule(JsonReader& run, Plan& plan);

}  // namespace foretrain

// The `schedule` of a RUN: its name or file, and what it needs of the plan.
#pragma once

#include "models/plan/plan.h"
#include "models/plan/violations.h"

namespace foretrain {

struct ScheduleRequest;

/// The names of schedules, by `Schedule`.
const std::vector<std::string>& schedule_names();

/// Which schedule it is: by name, or a JSON file's (`read_schedule_file`). zb-v and dualpipev have
/// two chunks a stage.
void derive_schedule(JsonReader& run, const ScheduleRequest& asked, Plan& plan);

/// Refuses degrees and features that the schedule does not go with.
void check_schedule(const Model& model, const Plan& plan, Violations& out);

/// Works out the passes of schedules that fit durations, and checks those of a file. The plan is
/// one that goes with its schedule.
void derive_passes(JsonReader& run, const Model& model, Plan& plan);

/// As a RUN writes it.
std::string name_of(Schedule schedule);
/// Of a file its path.
std::string name_of(const Plan& plan);

}  // namespace foretrain

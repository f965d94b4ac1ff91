// Do traces show the schedule, the host and waiting, in the same rows of every rank?
#include <gtest/gtest.h>

#include <map>

#include "tests/cli/run_command.h"
#include "traces/timeline_json.h"

namespace foretrain {
namespace {

constexpr const char* kTracedRun = R"({"model": "llama-3-8b",
  "cluster": {"preset": "dgx-h100", "accelerators": 8}, "parallel": {"tensor": 2, "pipeline": 4},
  "batch": {"global": 8, "micro": 1, "sequence": 1024}})";

const std::string& event_text(const Json& event, const char* key) {
  static const std::string none;
  const Json* found = event.find(key);
  return found == nullptr || found->string() == nullptr ? none : *found->string();
}

double event_number(const Json& event, const char* key) {
  const Json* found = event.find(key);
  return found == nullptr ? -1 : found->number();
}

/// A trace by row: process, name of the row.
struct DrawnRows {
  std::map<std::pair<int, std::string>, std::vector<const Json*>> events;
  std::map<int, std::map<double, std::string>> names;  ///< by process, by place
};

DrawnRows drawn_rows(const Json& trace) {
  DrawnRows out;
  std::map<std::pair<int, int>, std::string> name;
  std::map<std::pair<int, int>, double> place;
  for (const Json& event : *trace.find("traceEvents")->array()) {
    const int process = static_cast<int>(event_number(event, "pid"));
    const std::pair at{process, static_cast<int>(event_number(event, "tid"))};
    if (event_text(event, "name") == "thread_name")
      name[at] = event_text(*event.find("args"), "name");
    if (event_text(event, "name") == "thread_sort_index") {
      place[at] = event_number(*event.find("args"), "sort_index");
      out.names[process][place[at]] = name[at];
    }
    const std::string& kind = event_text(event, "ph");
    if (kind == "X" || kind == "i") out.events[{process, name[at]}].push_back(&event);
  }
  return out;
}

Json trace_of_run(const Workplace& place, std::vector<std::string> sets) {
  place.write("run.json", kTracedRun);
  std::vector<std::string> command = {"simulate", "run.json", "--quiet",    "--no-advice",
                                      "--trace",  "t.json",   "--timeline", "line.json"};
  for (std::string& set : sets) {
    command.emplace_back("--set");
    command.push_back(std::move(set));
  }
  const CommandResult run = place.run(command);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return parse_json(place.read("t.json"), "t.json").value();
}

/// "F0 F1 B0 W0 ...", as the row of a rank has them, without the update.
std::string row_labels(const std::vector<const Json*>& events) {
  std::string out;
  for (const Json* event : events) {
    if (event_text(*event, "name") != "U") out += event_text(*event, "name") + " ";
  }
  return out;
}

// The row of every stage is the list that `show --schedule` prints.
TEST(Trace, ScheduleRowIsTheSchedule) {
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{"schedule=1f1b"},
        {"schedule=gpipe"},
        {"schedule=zb-h1"},
        {"schedule=interleaved-1f1b", "parallel.virtual_pipeline=2"},
        {"schedule=zb-v"}}) {
    const Workplace place;
    const Json trace = trace_of_run(place, sets);
    std::vector<std::string> command = {"show", "run.json", "--schedule"};
    for (const std::string& set : sets) command.insert(command.end(), {"--set", set});
    const CommandResult shown = place.run(command);
    ASSERT_EQ(shown.exit_code, 0) << shown.err;
    const Json schedule = parse_json(shown.out, "schedule").value();
    const DrawnRows rows = drawn_rows(trace);
    int stage = 0;
    for (const Json& passes : *schedule.find("stages")->array()) {
      std::string expected = " ";
      for (const Json& pass : *passes.array()) {
        const Json::Array& of = *pass.array();
        const std::string& kind = *of[2].string();
        const std::string label = kind + std::to_string(static_cast<int>(of[1].number())) + " ";
        // Chunks of neighbouring layers are one pass where they follow each other: in the V's turn.
        if (sets.front() != "schedule=zb-v" || !expected.ends_with(" " + label)) expected += label;
      }
      EXPECT_EQ(" " + row_labels(rows.events.at({++stage, "schedule"})), expected)
          << sets.front() << ", stage " << stage;
    }
    EXPECT_EQ(stage, 4);
  }
}

TEST(Trace, RowsHaveOneOrderInAllRanks) {
  const Workplace place;
  const DrawnRows rows = drawn_rows(trace_of_run(place, {}));
  std::map<std::string, double> place_of;
  ASSERT_EQ(rows.names.size(), 4U);
  for (const auto& [process, names] : rows.names) {
    EXPECT_EQ(names.at(1), "schedule");
    EXPECT_EQ(names.at(2), "host");
    for (const auto& [at, name] : names) {
      EXPECT_EQ(place_of.try_emplace(name, at).first->second, at) << process << " " << name;
    }
  }
}

// A slice of waiting ends where its transfer begins, and nothing else is written for a span.
TEST(Trace, WaitingStandsBesideTheTransfer) {
  const Workplace place;
  const Json trace = trace_of_run(place, {});
  const Timeline timeline = load_timeline(place.path("in/line.json").string()).value();
  std::size_t waits = 0;
  std::size_t written = 0;
  const DrawnRows rows = drawn_rows(trace);
  for (const auto& [row, events] : rows.events) {
    if (row.second == "schedule" || row.second == "host") continue;
    written += events.size();
    for (std::size_t i = 0; i < events.size(); ++i) {
      const std::string& name = event_text(*events[i], "name");
      if (!name.starts_with("wait: ")) continue;
      ++waits;
      ASSERT_LT(i + 1, events.size());
      const Json& transfer = *events[i + 1];
      EXPECT_EQ(event_text(transfer, "name"), name.substr(6));
      const double waited = event_number(*transfer.find("args"), "waited_us");
      EXPECT_NEAR(event_number(*events[i], "ts") + waited, event_number(transfer, "ts"), 1e-5);
      EXPECT_NEAR(event_number(*events[i], "dur"), waited, 1e-3);
    }
  }
  EXPECT_GT(waits, 20U);
  EXPECT_EQ(written, timeline.spans.size() + waits);
  EXPECT_LE(timeline.host.size(), timeline.spans.size());
}

// The host prepares 2 ms of data for every microbatch, issues everything, and is done by the end.
TEST(Trace, HostRowHasDelaysAndLaunches) {
  const Workplace place;
  const Json trace = trace_of_run(place, {"host.data_us=2000"});
  const double step = event_number(*trace.find("otherData"), "step_us");
  const DrawnRows rows = drawn_rows(trace);
  const auto& events = rows.events.at({1, "host"});
  int prepared = 0;
  int launched = 0;
  double last = 0;
  for (const Json* event : events) {
    const double begin = event_number(*event, "ts");
    const double length = event_number(*event, "dur");
    EXPECT_GE(begin, last - 1e-6);
    last = begin + length;
    if (event_text(*event, "name") == "data.prepare") {
      ++prepared;
      EXPECT_NEAR(length, 2000, 1e-3);
    }
    launched += event_text(*event, "name").starts_with("launch ") ? 1 : 0;
  }
  EXPECT_EQ(prepared, 8);
  EXPECT_GT(launched, 100);
  EXPECT_LE(last, step);
}

// Zero-length spans, as of a wait for the host, are instants; everything has a colour.
TEST(Trace, ZeroLengthEventsAreInstants) {
  const Workplace place;
  std::size_t instants = 0;
  const Json trace = trace_of_run(place, {});
  for (const Json& event : *trace.find("traceEvents")->array()) {
    const std::string& kind = event_text(event, "ph");
    EXPECT_TRUE(kind != "X" || event_number(event, "dur") > 0);
    if (kind == "i") ++instants;
    if (kind == "X" || kind == "i") {
      EXPECT_NE(event_text(event, "cname"), "");
    }
  }
  EXPECT_GT(instants, 0U);
}

}  // namespace
}  // namespace foretrain

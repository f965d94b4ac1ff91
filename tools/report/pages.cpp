#include "tools/report/pages.h"

#include <algorithm>
#include <cmath>

#include "sim/timeline/passes.h"
#include "tools/report/page.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

double number_of(const Json& json, const std::string& pointer) {
  const Json* at = value_at(json, pointer);
  return at == nullptr || !at->is_number() ? 0 : at->number();
}

std::string text_at(const Json& json, const std::string& pointer) {
  const Json* at = value_at(json, pointer);
  if (at == nullptr || at->is_null()) return "";
  return at->string() != nullptr ? *at->string() : dump_json(*at, -1);
}

Shown seconds(double value) { return {value, seconds_text(value)}; }
Shown gibibytes(double value) { return {value, fixed(value, 2) + " GiB"}; }
Shown percent_of(double share) { return {share, fixed(100 * share, 1) + " %"}; }
/// With thousands apart; of small numbers two digits that are not zero.
Shown plain(double value, int decimals = 1) {
  if (decimals == 0) return {value, count_text(std::llround(value))};
  const double size = std::fabs(value);
  if (size > 0 && size < std::pow(10, 1 - decimals)) {
    decimals = std::min(6, 1 - static_cast<int>(std::floor(std::log10(size))));
  }
  return {value, fixed(value, decimals)};
}

/// "memory_bound" and "exposed_tensor" as words.
std::string words(std::string key) {
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

/// "sharding.level = gradients" for each change of a searched plan.
std::string changes_of(const Json& plan) {
  const Json* changes = value_at(plan, "/changes");
  if (changes == nullptr || changes->object() == nullptr) return "";
  std::string out;
  for (const auto& [pointer, value] : *changes->object()) {
    std::string key = pointer.substr(pointer.find_first_not_of('/'));
    std::replace(key.begin(), key.end(), '/', '.');
    const std::string* text = value.string();
    out +=
        (out.empty() ? "" : ", ") + key + " = " + (text != nullptr ? *text : dump_json(value, -1));
  }
  return out.empty() ? "the RUN's own plan" : out;
}

/// A bar for each number of an object that is not zero.
std::vector<Bar> bars_of(const Json& json, const std::string& pointer, Shown (*shown)(double)) {
  std::vector<Bar> out;
  const Json* at = value_at(json, pointer);
  if (at == nullptr || at->object() == nullptr) return out;
  for (const auto& [key, value] : *at->object()) {
    if (value.is_number() && value.number() != 0)
      out.push_back({words(key), shown(value.number())});
  }
  return out;
}

void add_notes(Page& page, const Json& result) {
  const Json* notes = value_at(result, "/notes");
  if (notes == nullptr || notes->array() == nullptr || notes->array()->empty()) return;
  page.heading("Notes");
  for (const Json& note : *notes->array()) {
    if (note.string() != nullptr) page.paragraph(*note.string());
  }
}

// --- The schedule ------------------------------------------------------------------------------

int colour_of(PassDirection direction) {
  switch (direction) {
    case PassDirection::kForward:
      return 0;
    case PassDirection::kBackward:
      return 1;
    case PassDirection::kWeights:
      return 2;
    case PassDirection::kUpdate:
    case PassDirection::kCount:
      break;
  }
  return 3;
}

Box box_of(const SchedulePass& pass, std::size_t row) {
  Box out;
  out.row = row;
  out.begin = pass.begin.seconds();
  out.end = pass.end.seconds();
  out.colour = colour_of(pass.of.front().direction);
  out.label = label_of(pass);
  for (const SchedulePass::Of& of : pass.of) {
    if (!out.note.empty()) out.note += " and ";
    out.note += of.direction == PassDirection::kForward    ? "forward"
                : of.direction == PassDirection::kBackward ? "backward"
                : of.direction == PassDirection::kWeights  ? "gradients of weights"
                                                           : "update";
    if (of.microbatch >= 0) out.note += ", microbatch " + std::to_string(of.microbatch);
  }
  out.note += ", " + seconds_text(pass.begin.seconds()) + " to " + seconds_text(pass.end.seconds());
  return out;
}

constexpr std::size_t kMostLanes = 64;
constexpr std::size_t kMostBoxes = 20'000;

void add_schedule(Page& page, const TimelineSource& timeline) {
  const std::vector<Track>& tracks = timeline.head().tracks;
  std::vector<std::string> rows;
  std::vector<Box> boxes;
  bool all = true;
  for (std::size_t track = 0; track < tracks.size() && all; ++track) {
    const std::vector<SchedulePass> passes = schedule_passes(timeline, track);
    if (passes.empty()) continue;
    all = boxes.size() < kMostBoxes && rows.size() < kMostLanes;
    if (all) rows.push_back("rank " + std::to_string(tracks[track].rank.value));
    for (std::size_t i = 0; i < passes.size() && all; ++i) {
      all = boxes.size() < kMostBoxes;
      if (all) boxes.push_back(box_of(passes[i], rows.size() - 1));
    }
  }
  if (boxes.empty()) return;
  page.heading("Schedule");
  page.paragraph(
      "Passes on the compute stream of the ranks that stand for all: F forward, B backward, W "
      "gradients of weights alone, U the update, each with its microbatch. Gaps are waiting and "
      "exposed communication." +
      std::string(all ? "" : " Only the first passes are drawn."));
  page.lanes(rows, boxes, timeline.head().end.seconds());
}

void add_runs_like(Page& page, const Json& result) {
  const Json* runs = value_at(result, "/runs_like_yours");
  if (runs == nullptr || runs->array() == nullptr) return;
  page.heading("Runs like yours");
  if (runs->array()->empty()) {
    page.paragraph("No published run is near: nothing tells how well this one is predicted.");
    return;
  }
  page.paragraph("Published runs that are near, and how far their predicted steps are off.");
  std::vector<std::vector<Cell>> rows;
  for (const Json& run : *runs->array()) {
    const bool inside = text_at(run, "/in_interval") == "true";
    const double error = number_of(run, "/error");
    rows.push_back({Shown{error, (error < 0 ? "" : "+") + fixed(100 * error, 1) + " %"},
                    text_at(run, "/model") + " on " + text_at(run, "/accelerators") + " " +
                        text_at(run, "/device") + ", " + text_at(run, "/precision") + ", " +
                        text_at(run, "/system"),
                    seconds(number_of(run, "/measured_step_time_s")),
                    std::string(inside ? "yes" : "no"), text_at(run, "/name"),
                    text_at(run, "/source")});
  }
  page.table({"error", "run", "measured", "in its interval", "row", "source"}, rows);
}

}  // namespace

std::string simulation_page(const Json& result, const Json& run, const TimelineSource* timeline) {
  Page page(text_at(result, "/name"));
  page.paragraph(text_at(result, "/accelerators") + " " + text_at(result, "/accelerator") + ", " +
                 text_at(result, "/system") + " in " + text_at(result, "/precision"));
  const Json* interval = value_at(result, "/iteration_time_interval_s");
  const auto bound = [&](std::size_t i) {
    return interval == nullptr || interval->array() == nullptr ? 0
                                                               : (*interval->array())[i].number();
  };
  page.figures({{"step", seconds(number_of(result, "/iteration_time_s"))},
                {"nine of ten runs: from", seconds(bound(0))},
                {"to", seconds(bound(1))},
                {"tokens/s", plain(number_of(result, "/tokens_per_s"), 0)},
                {"MFU", percent_of(number_of(result, "/mfu"))},
                {"peak memory", gibibytes(number_of(result, "/memory/peak_gib"))},
                {"capacity", gibibytes(number_of(result, "/memory/capacity_gib"))},
                {"likely to fit", percent_of(number_of(result, "/memory/fits_probability"))}});
  page.heading("Time of the busiest rank");
  page.bars(bars_of(result, "/breakdown_s", seconds));
  if (timeline != nullptr) add_schedule(page, *timeline);
  page.heading("Memory at the peak");
  page.bars(bars_of(result, "/memory/by_kind_gib", gibibytes));
  page.paragraph("The peak is at " + text_at(result, "/memory/peak_at") + " on rank " +
                 text_at(result, "/memory/peak_rank") + ".");
  if (const std::vector<Bar> gains = bars_of(result, "/sensitivity", seconds); !gains.empty()) {
    page.heading("What a step gains if a resource is 10 % faster");
    page.bars(gains);
  }
  page.heading("Where prices come from");
  page.bars(bars_of(result, "/provenance", percent_of));
  add_runs_like(page, result);
  add_notes(page, result);
  page.heading("The RUN, all defaults filled in");
  page.text(dump_json(run));
  return page.html(result);
}

std::string search_page(const Json& result) {
  Page page("The best plans");
  const bool any =
      value_at(result, "/best") != nullptr && value_at(result, "/best")->object() != nullptr;
  if (any) {
    page.figures({{"best step", seconds(number_of(result, "/best/iteration_time_s"))},
                  {"tokens/s", plain(number_of(result, "/best/tokens_per_s"), 0)},
                  {"MFU", percent_of(number_of(result, "/best/mfu"))},
                  {"peak memory", gibibytes(number_of(result, "/best/memory/peak_gib"))},
                  {"plans", plain(number_of(result, "/certificate/plans"), 0)},
                  {"simulated", plain(number_of(result, "/certificate/simulated"), 0)},
                  {"gap left", percent_of(number_of(result, "/certificate/gap"))}});
  } else {
    page.paragraph("No plan fits.");
  }
  const Json* plans = value_at(result, "/plans");
  const Json* front = value_at(result, "/front");
  const auto add_points = [](const Json* list, bool marked, std::vector<Dot>& points) {
    if (list == nullptr || list->array() == nullptr) return;
    for (const Json& plan : *list->array()) {
      const std::string changes = changes_of(plan);
      points.push_back({number_of(plan, "/memory/peak_gib"), number_of(plan, "/iteration_time_s"),
                        seconds_text(number_of(plan, "/iteration_time_s")) + " " + changes,
                        marked});
    }
  };
  std::vector<Dot> points;
  add_points(plans, false, points);
  add_points(front, true, points);
  page.heading("Step time over memory");
  page.paragraph("Marked plans are on the front: no other is faster with less memory.");
  page.scatter("peak memory, GiB", "step, s", points);
  if (plans != nullptr && plans->array() != nullptr) {
    std::vector<std::vector<Cell>> rows;
    constexpr std::size_t kMost = 200;
    for (const Json& plan : *plans->array()) {
      if (rows.size() == kMost) break;
      const double mfu = number_of(plan, "/mfu");
      rows.push_back({seconds(number_of(plan, "/iteration_time_s")),
                      plain(number_of(plan, "/memory/peak_gib")), Shown{mfu, fixed(100 * mfu, 1)},
                      changes_of(plan)});
    }
    page.heading("Plans, the best first");
    page.table({"step", "GiB", "MFU %", "changes"}, rows);
  }
  page.heading("Certificate");
  page.bars(bars_of(result, "/certificate", [](double value) { return plain(value, 0); }));
  if (any) {
    page.heading("The best plan as a RUN");
    page.text(dump_json(*value_at(result, "/best/run")));
  }
  return page.html(result);
}

namespace {

constexpr std::size_t kMostSpans = 6000;

/// Colours of a campaign: training, work that is done again or slowly, checkpoints, the rest.
int colour_of(CampaignPart part) {
  if (part == CampaignPart::kProductive) return 0;
  if (part == CampaignPart::kRepeated || part == CampaignPart::kSlow) return 1;
  return part == CampaignPart::kCheckpoint ? 2 : 3;
}

/// Spans as they are drawn: where they are too many, checkpoints are left out, and what goes on
/// after one is one with what came before it.
std::vector<CampaignSpan> drawn_spans(const CampaignTimeline& timeline) {
  if (timeline.spans.size() <= kMostSpans) return timeline.spans;
  std::vector<CampaignSpan> out;
  for (const CampaignSpan& span : timeline.spans) {
    if (span.part == CampaignPart::kCheckpoint) continue;
    if (!out.empty() && out.back().part == span.part) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
  }
  if (out.size() > kMostSpans) out.resize(kMostSpans);
  return out;
}

/// The campaign in rows of equal length; a span that goes over the end of a row is drawn in both.
void add_campaign(Page& page, const CampaignTimeline& timeline) {
  if (timeline.spans.empty()) return;
  const double wall_s = seconds_of(timeline.spans.back().end);
  constexpr double kMostRows = 28;
  const double rows = std::clamp(std::ceil(wall_s / kSecondsPerDay), 1.0, kMostRows);
  const double row_s = wall_s / rows;
  std::vector<std::string> names;
  for (double row = 0; row < rows; ++row) {
    names.push_back("day " + fixed(row * row_s / kSecondsPerDay, 1));
  }
  const std::vector<CampaignSpan> spans = drawn_spans(timeline);
  std::vector<Box> boxes;
  for (const CampaignSpan& span : spans) {
    double begin = seconds_of(span.start);
    const double end = seconds_of(span.end);
    for (auto row = static_cast<std::size_t>(begin / row_s); begin < end && row < names.size();
         ++row) {
      const double offset = static_cast<double>(row) * row_s;
      const double until = std::min(end, offset + row_s);
      boxes.push_back({row, begin - offset, until - offset, colour_of(span.part), "",
                       std::string(name_of(span.part)) + " from day " +
                           fixed(seconds_of(span.start) / kSecondsPerDay, 3) + ", " +
                           fixed((end - seconds_of(span.start)) / 3600, 3) + " h"});
      begin = until;
    }
  }
  page.heading("One campaign");
  page.paragraph(
      "The first of those that were simulated. Blue is training, orange work that is done again or "
      "slowly, violet a checkpoint; recovery, waiting and evaluation are grey." +
      std::string(
          spans.size() == timeline.spans.size() ? "" : " Checkpoints are too many to be drawn.") +
      std::string(spans.size() == kMostSpans ? " Only the first spans are drawn." : ""));
  page.lanes(names, boxes, row_s);
}

}  // namespace

std::string goodput_table_page(const Json& result) {
  Page page("Campaigns beside each other");
  std::vector<std::vector<Cell>> rows;
  std::vector<Dot> points;
  const Json* list = value_at(result, "/clusters");
  if (list != nullptr && list->array() != nullptr) {
    for (const Json& row : *list->array()) {
      const std::string cluster = text_at(row, "/cluster");
      const std::string policy = text_at(row, "/policy/name");
      const double days = number_of(row, "/days/mean");
      const double cost = number_of(row, "/cost");
      const double hours = number_of(row, "/gpu_hours");
      rows.push_back({cluster, policy, seconds(number_of(row, "/step_time_s")), plain(days, 2),
                      plain(number_of(row, "/days/p90"), 2),
                      percent_of(number_of(row, "/ettr/mean")), plain(hours, 0),
                      cost > 0 ? Cell(plain(cost, 0)) : Cell(std::string()),
                      plain(number_of(row, "/energy_mwh"), 1)});
      points.push_back({cost > 0 ? cost : hours, days, cluster + ", " + policy, false});
    }
  }
  page.table(
      {"cluster", "policy", "step", "days", "90 % below", "ETTR", "GPU-hours", "cost", "MWh"},
      rows);
  page.heading("Days over cost");
  page.paragraph("Over GPU-hours where the RUN gives no price.");
  page.scatter("cost", "days", points);
  const Json* refused = value_at(result, "/refused");
  if (refused != nullptr && refused->array() != nullptr && !refused->array()->empty()) {
    page.heading("Refused");
    std::vector<std::vector<Cell>> why;
    for (const Json& one : *refused->array()) {
      why.push_back({text_at(one, "/cluster"), text_at(one, "/policy"), text_at(one, "/why")});
    }
    page.table({"cluster", "policy", "why"}, why);
  }
  return page.html(result);
}

std::string goodput_page(const Json& result, const CampaignTimeline& timeline) {
  Page page("The campaign");
  std::vector<Bar> figures = {
      {"days, mean", plain(number_of(result, "/days/mean"), 2)},
      {"days, nine of ten below", plain(number_of(result, "/days/p90"), 2)},
      {"effective training time", percent_of(number_of(result, "/ettr/mean"))},
      {"step", seconds(number_of(result, "/step_time_s"))},
      {"GPU-hours", plain(number_of(result, "/gpu_hours"), 0)},
      {"energy, MWh", plain(number_of(result, "/energy_mwh"), 1)}};
  if (!text_at(result, "/cost").empty()) {
    figures.push_back({"cost", plain(number_of(result, "/cost"), 0)});
  }
  if (!text_at(result, "/mttf_hours").empty()) {
    figures.push_back({"mean hours to a failure", plain(number_of(result, "/mttf_hours"), 2)});
  }
  page.figures(figures);
  page.heading("Where the time goes");
  page.bars(bars_of(result, "/parts", percent_of));
  add_campaign(page, timeline);
  page.heading("Failures of a campaign, by component");
  page.bars(bars_of(result, "/failures", [](double value) { return plain(value, 1); }));
  page.heading("Checkpoints");
  page.figures({{"bytes", gibibytes(number_of(result, "/checkpoint/bytes_gib"))},
                {"stall", seconds(number_of(result, "/checkpoint/stall_s"))},
                {"load", seconds(number_of(result, "/checkpoint/load_s"))},
                {"interval", seconds(number_of(result, "/checkpoint/interval_s"))},
                {"best interval", seconds(number_of(result, "/checkpoint/best_interval_s"))}});
  page.heading("What each cause costs");
  page.bars(bars_of(result, "/sensitivity", [](double value) { return plain(value, 3); }));
  add_notes(page, result);
  return page.html(result);
}

std::string comparison_page(const Json& result) {
  const bool two = value_at(result, "/b") != nullptr && value_at(result, "/b")->object() != nullptr;
  Page page(two ? "Two steps beside each other" : "A step taken apart");
  std::vector<Bar> figures = {
      {"A: " + text_at(result, "/a/source"), seconds(number_of(result, "/a/step_s"))}};
  if (two)
    figures.push_back(
        {"B: " + text_at(result, "/b/source"), seconds(number_of(result, "/b/step_s"))});
  figures.push_back({"idle", seconds(number_of(result, "/idle_s"))});
  figures.push_back({"not classified", percent_of(number_of(result, "/unclassified_share"))});
  page.figures(figures);
  for (const auto& [key, of, title] :
       {std::tuple("/families", "family", "Families"), std::tuple("/phases", "phase", "Phases")}) {
    const Json* list = value_at(result, key);
    if (list == nullptr || list->array() == nullptr || list->array()->empty()) continue;
    std::vector<std::vector<Cell>> rows;
    for (const Json& one : *list->array()) {
      std::vector<Cell> row = {words(text_at(one, std::string("/") + of)),
                               seconds(number_of(one, "/a_s")),
                               seconds(number_of(one, "/a_exposed_s"))};
      if (two) {
        row.emplace_back(seconds(number_of(one, "/b_s")));
        row.emplace_back(seconds(number_of(one, "/b_exposed_s")));
        row.emplace_back(seconds(number_of(one, "/difference_s")));
      }
      rows.push_back(std::move(row));
    }
    std::vector<std::string> header = {of, "A", "A exposed"};
    if (two) header.insert(header.end(), {"B", "B exposed", "B - A"});
    page.heading(title);
    page.table(header, rows);
  }
  add_notes(page, result);
  return page.html(result);
}

std::string score_page(const Json& result) {
  Page page("Predicted beside published runs");
  page.figures(
      {{"rows", plain(number_of(result, "/summary/plain/rows"), 0)},
       {"median error", percent_of(number_of(result, "/summary/plain/step_time_s/median"))},
       {"90th percentile", percent_of(number_of(result, "/summary/plain/step_time_s/p90"))},
       {"bias", percent_of(number_of(result, "/summary/plain/step_time_s/bias"))},
       {"in their intervals", plain(number_of(result, "/summary/coverage/inside"), 0)}});
  const Json* list = value_at(result, "/rows");
  std::vector<Dot> points;
  std::vector<std::vector<Cell>> rows;
  if (list != nullptr && list->array() != nullptr) {
    for (const Json& row : *list->array()) {
      const double measured = number_of(row, "/measured/step_time_s");
      const double predicted = number_of(row, "/predicted/step_time_s");
      const bool both = measured > 0 && predicted > 0;
      if (both) {
        points.push_back({std::log10(measured), predicted / measured, text_at(row, "/id"), false});
      }
      const double error = number_of(row, "/error/step_time_s");
      const Cell none{std::string()};
      rows.push_back(
          {text_at(row, "/id"), text_at(row, "/group"), text_at(row, "/status"),
           both ? Cell(seconds(measured)) : none, both ? Cell(seconds(predicted)) : none,
           both ? Cell(Shown{error, fixed(100 * error, 1)}) : Cell(text_at(row, "/reason"))});
    }
  }
  page.heading("Predicted over measured step time");
  page.scatter("log10 of the measured step in s", "predicted / measured", points);
  page.heading("Rows");
  page.table({"row", "group", "status", "measured", "predicted", "error %"}, rows);
  return page.html(result);
}

}  // namespace foretrain

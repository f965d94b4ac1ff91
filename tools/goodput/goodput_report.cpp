// What `goodput` prints, and what it writes as JSON.
#include <algorithm>
#include <array>
#include <cmath>

#include "tools/goodput/goodput.h"
#include "tools/report/report.h"
#include "tools/version.h"

namespace foretrain {
namespace {

Json spread_json(const Spread& spread) {
  Json out{Json::Object{}};
  out.set("mean", spread.mean);
  out.set("p10", spread.p10);
  out.set("p50", spread.p50);
  out.set("p90", spread.p90);
  return out;
}

Json maybe(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

/// Seconds as people say them.
std::string long_time(double seconds) {
  if (seconds < 120) return fixed(seconds, 1) + " s";
  if (seconds < 7200) return fixed(seconds / 60, 1) + " min";
  if (seconds < 2 * kSecondsPerDay) return fixed(seconds / 3600, 2) + " h";
  return fixed(seconds / kSecondsPerDay, 1) + " days";
}

std::string share_text(double share) { return fixed(100 * share, 2) + " %"; }

std::string row(const std::string& name, const std::string& value) {
  const std::size_t width = 34;
  return "  " + name + std::string(name.size() < width ? width - name.size() : 1, ' ') + value +
         "\n";
}

std::string parts_text(const CampaignStatistics& all) {
  constexpr std::array<const char*, kCampaignParts> kTexts = {
      "training",      "checkpoints",       "recovery",
      "repeated work", "waiting for nodes", "slow-downs, missing replicas",
      "evaluation"};
  std::string out = "Where the time goes\n";
  for (std::size_t part = 0; part < kCampaignParts; ++part) {
    if (all.parts[part] > 0) out += row(kTexts[part], share_text(all.parts[part]));
  }
  return out;
}

std::string failures_text(const Goodput& g) {
  const std::vector<std::string> names = component_names(g.plan.failures);
  if (names.empty()) return "Failures    none: the RUN names no reliability\n";
  double sum = 0;
  std::string rows;
  for (std::size_t i = 0; i < names.size(); ++i) {
    sum += g.statistics.failures[i];
    if (names.size() > 1) rows += row(names[i], fixed(g.statistics.failures[i], 1));
  }
  std::string out = "Failures    " + fixed(sum, 1) + " of a campaign";
  if (g.mttf_s) out += ", one every " + long_time(*g.mttf_s);
  out += "\n" + rows;
  const double pause_s = g.plan.fleet.pause_s;
  if (pause_s > 0) out += row("pause of one that is survived", long_time(pause_s));
  return out;
}

std::string checkpoint_text(const Goodput& g) {
  const SavingPlan& saving = g.plan.saving;
  const CheckpointReport& c = g.checkpoint;
  std::string out = "Checkpoint  " + fixed(c.bytes.total / kGiB, 1) + " GiB, " +
                    fixed(c.bytes.rank / kGiB, 2) + " of the rank with most; the job stalls " +
                    long_time(saving.stall_s) + ", loads in " + long_time(saving.load_s[1]) + "\n";
  const PolicyKind policy = g.plan.fleet.policy;
  const bool changes = policy > PolicyKind::kSpares && policy != PolicyKind::kRedundant;
  const double other_s = std::max(saving.reshard_s, saving.load_s[1]);
  if (changes) out += row("loaded by other nodes", long_time(other_s));
  if (c.interval_s <= 0) return out + row("interval", "none is written");
  out += row("interval",
             long_time(c.interval_s) + ", " + std::to_string(saving.every_steps) + " steps");
  if (c.best_s) out += row("best by simulation", long_time(*c.best_s));
  if (c.young_s) {
    out += row("Young's, Daly's", long_time(*c.young_s) + ", " + long_time(*c.daly_s));
  }
  return out;
}

/// `pace`: time of the work without 0, 1, ... replicas, or nodes where `pipelines` are told.
Json policy_json(const Fleet& fleet) {
  Json::Array pace;
  for (const double one : fleet.pace) pace.emplace_back(one);
  Json::Array pipelines;
  for (const std::int64_t one : fleet.pipelines) pipelines.emplace_back(one);
  Json out{Json::Object{}};
  out.set("name", policy_names()[static_cast<std::size_t>(fleet.policy)]);
  out.set("pace", std::move(pace));
  out.set("pipelines", std::move(pipelines));
  out.set("pause_s", fleet.pause_s);
  return out;
}

std::string helps_text(const Goodput& g) {
  if (g.sensitivity.empty()) return "";
  std::string out = "A campaign gains, if half as much\n";
  for (const Lever& lever : g.sensitivity) {
    if (std::fabs(lever.days) < 0.005) continue;
    out += row(lever.name, fixed(lever.days, 2) + " days");
  }
  return out;
}

}  // namespace

std::string text_report(const Run& run, const Goodput& g) {
  const Fleet& fleet = g.plan.fleet;
  const CampaignStatistics& all = g.statistics;
  std::string out = run.name + "\n  " + count_text(g.steps) + " steps of " +
                    seconds_text(g.step_time_s) + " on " + count_text(run.cluster.accelerators) +
                    " " + run.cluster.device.name + ", " + count_text(fleet.nodes) + " nodes and " +
                    count_text(fleet.spares) + " spares, policy " +
                    policy_names()[static_cast<std::size_t>(fleet.policy)] + "\n\n";
  out += "Days        " + fixed(all.days.mean, 2) + "   (10 % " + fixed(all.days.p10, 2) +
         ", 50 % " + fixed(all.days.p50, 2) + ", 90 % " + fixed(all.days.p90, 2) + ")\n";
  out += "            " + fixed(seconds_of(work_of(g.plan.work)) / kSecondsPerDay, 2) +
         " where nothing fails and nothing is saved\n";
  out += "ETTR        " + share_text(all.ettr.mean) + "   (10 % " + share_text(all.ettr.p10) +
         ", 90 % " + share_text(all.ettr.p90) + ")\n";
  out += "Bill        " + count_text(std::llround(g.bill.gpu_hours)) + " GPU-hours";
  if (g.bill.cost) out += ", costs " + count_text(std::llround(*g.bill.cost));
  out += ", at most " + fixed(g.bill.energy_mwh, 1) + " MWh\n\n";
  out +=
      parts_text(all) + "\n" + failures_text(g) + "\n" + checkpoint_text(g) + "\n" + helps_text(g);
  if (g.best_spares) {
    out += "Spares      " + std::to_string(*g.best_spares) +
           " of 0, 1, 2, 4, ... take the fewest GPU-hours\n";
  }
  for (const std::string& note : g.notes) out += "Note: " + note + "\n";
  out += "Simulated " + count_text(g.campaigns) + " campaigns of seed " + std::to_string(g.seed) +
         "\n";
  return out;
}

Json json_report(const Goodput& g) {
  const CampaignStatistics& all = g.statistics;
  Json out{Json::Object{}};
  out.set("schema", "foretrain/goodput/1");
  out.set("ettr", spread_json(all.ettr));
  out.set("days", spread_json(all.days));
  out.set("step_time_s", g.step_time_s);
  out.set("steps", g.steps);
  out.set("gpu_hours", g.bill.gpu_hours);
  out.set("cost", maybe(g.bill.cost));
  out.set("energy_mwh", g.bill.energy_mwh);
  Json parts{Json::Object{}};
  for (std::size_t part = 0; part < kCampaignParts; ++part) {
    parts.set(name_of(static_cast<CampaignPart>(part)), all.parts[part]);
  }
  out.set("parts", std::move(parts));
  Json failures{Json::Object{}};
  const std::vector<std::string> names = component_names(g.plan.failures);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Json* before = failures.find(names[i]);
    failures.set(names[i], all.failures[i] + (before == nullptr ? 0 : before->number()));
  }
  out.set("failures", std::move(failures));
  out.set("mttf_hours", g.mttf_s ? Json(*g.mttf_s / 3600) : Json());
  Json checkpoint{Json::Object{}};
  checkpoint.set("bytes_gib", g.checkpoint.bytes.total / kGiB);
  checkpoint.set("rank_gib", g.checkpoint.bytes.rank / kGiB);
  checkpoint.set("stall_s", g.plan.saving.stall_s);
  checkpoint.set("load_s", g.plan.saving.load_s[1]);
  checkpoint.set("reshard_s", std::max(g.plan.saving.reshard_s, g.plan.saving.load_s[1]));
  checkpoint.set("interval_s", g.checkpoint.interval_s);
  checkpoint.set("interval_steps", g.plan.saving.every_steps);
  checkpoint.set("best_interval_s", maybe(g.checkpoint.best_s));
  checkpoint.set("young_daly_interval_s", maybe(g.checkpoint.young_s));
  checkpoint.set("daly_interval_s", maybe(g.checkpoint.daly_s));
  out.set("checkpoint", std::move(checkpoint));
  Json spares{Json::Object{}};
  spares.set("nodes", g.plan.fleet.spares);
  spares.set("best", g.best_spares ? Json(*g.best_spares) : Json());
  out.set("spares", std::move(spares));
  out.set("policy", policy_json(g.plan.fleet));
  Json gains{Json::Object{}};
  for (const Lever& lever : g.sensitivity) gains.set(lever.name, lever.days);
  out.set("sensitivity", std::move(gains));
  Json simulation{Json::Object{}};
  simulation.set("campaigns", g.campaigns);
  simulation.set("seed", static_cast<std::int64_t>(g.seed));
  simulation.set("revision", kRevision);
  out.set("simulation", std::move(simulation));
  Json::Array notes;
  for (const std::string& note : g.notes) notes.emplace_back(note);
  out.set("notes", std::move(notes));
  return out;
}

CampaignTimeline campaign_timeline(const Goodput& g) {
  CampaignTimeline out;
  simulate_campaign(g.plan, g.seed, 0, &out);
  return out;
}

std::string campaign_trace(const Run& run, const Goodput& g) {
  const CampaignTimeline timeline = campaign_timeline(g);
  const auto us = [](Nanos at) { return static_cast<double>(at) / 1e3; };
  Json::Array events;
  const auto event = [&events](const char* phase, std::string_view name, double at) -> Json& {
    Json one{Json::Object{}};
    one.set("ph", phase);
    one.set("name", name);
    one.set("pid", 0);
    one.set("tid", 0);
    one.set("ts", at);
    events.push_back(std::move(one));
    return events.back();
  };
  Json job{Json::Object{}};
  job.set("name", run.name + ": campaign 0 of seed " + std::to_string(g.seed));
  event("M", "process_name", 0).set("args", std::move(job));
  for (const CampaignSpan& span : timeline.spans) {
    Json& one = event("X", name_of(span.part), us(span.start));
    one.set("cat", "campaign");
    one.set("dur", us(span.end - span.start));
  }
  const std::vector<std::string> names = component_names(g.plan.failures);
  for (const CampaignMark& mark : timeline.failures) {
    Json& one = event("i", names[static_cast<std::size_t>(mark.component)] + " fails", us(mark.at));
    one.set("cat", "failure");
    one.set("s", "p");
  }
  Json out{Json::Object{}};
  out.set("displayTimeUnit", "ms");
  out.set("traceEvents", std::move(events));
  return dump_json(out, -1) + "\n";
}

}  // namespace foretrain

#include "sim/campaign/request.h"

namespace foretrain {

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> names = {"wait",    "spares",    "shrink",   "drop-replica",
                                                 "reroute", "templates", "redundant"};
  return names;
}

const std::vector<std::string>& save_mode_names() {
  static const std::vector<std::string> names = {"sync", "async", "host-memory", "neighbour",
                                                 "nvme"};
  return names;
}

namespace {

constexpr double kLongestSeconds = 1e9;

/// A number of seconds, rates or money that may be left open.
CampaignKey open_number(const std::string& path, CampaignKey::Setter<double> set, double low,
                        double high) {
  return CampaignKey::number(path, std::move(set)).range(low, high);
}

/// [{"from_tokens": ..., `what`: ...}, ...], in order.
CampaignKey changes(const std::string& path, const char* what,
                    std::vector<PhaseChange> WorkRequest::*into) {
  const auto read = [what, into](const CampaignKey& key, JsonReader& reader, CampaignRequest& out) {
    const Json* json = reader.take(key.name);
    if (json == nullptr) return;
    if (json->array() == nullptr) {
      return reader.fail(key.name, "found " + describe(*json) +
                                       R"(, expected a list of {"from_tokens": N, ")" + what +
                                       "\": N}");
    }
    double before = -1;
    for (std::size_t i = 0; i < json->array()->size(); ++i) {
      JsonReader one((*json->array())[i], reader.source(),
                     reader.pointer(key.name) + "/" + std::to_string(i));
      PhaseChange change;
      one.require("from_tokens", "from how many tokens on it holds");
      one.read("from_tokens", change.from_tokens, JsonReader::Range{0, 1e18});
      one.require(what, "what holds from there on");
      one.read(what, change.value, JsonReader::IntRange{1, 1 << 30});
      if (!one.failed() && change.from_tokens <= before) {
        one.fail("from_tokens", "found a change that is not behind the one before it");
      }
      before = change.from_tokens;
      reader.adopt(one.finish());
      (out.work.*into).push_back(change);
    }
  };
  return CampaignKey(path, KeyType::kAny, read);
}

/// A RUN's changes with which its pipelines can have other depths.
Sets templates_base() {
  return {"campaign.policy=templates", "sharding.level=none", "parallel.tensor=8"};
}

CampaignKeys work_keys() {
  return {
      open_number(
          "campaign.tokens", [](auto& r, double v) { r.work.tokens = v; }, 1, 1e18)
          .else_("one of tokens and steps is required")
          .says("Tokens to train on.")
          .alias({"train_tokens", "total_tokens"})
          .probe("2e11"),
      CampaignKey::count("campaign.steps", [](auto& r, std::int64_t v) { r.work.steps = v; })
          .range(1, 1e12)
          .says("Steps to train for, in place of tokens.")
          .alias({"train_iters", "max_steps"})
          .probe("20000"),
      open_number(
          "campaign.step_time_s", [](auto& r, double v) { r.work.step_time_s = v; }, 1e-6, 1e6)
          .else_("simulated")
          .says("Seconds of a step, in place of the simulated one.")
          .probe("7"),
      CampaignKey::elsewhere("campaign.reliability")
          .else_("nothing fails")
          .says("What fails how often: a preset, a path, or an object with its keys.")
          .probe(R"({"failures_per_node_day":0.02})"),
      CampaignKey::elsewhere("campaign.checkpoint")
          .says("An object of the keys below, or \"best\": the best interval."),
      CampaignKey::elsewhere("campaign.recovery").says("An object of the keys below."),
      CampaignKey::count("campaign.spares", [](auto& r, std::int64_t v) { r.spares = v; })
          .range(0, 1e6)
          .fallback_to(0)
          .says("Nodes that stand by. They are paid for.")
          .probe("3"),
      CampaignKey::choice<PolicyKind>("campaign.policy", policy_names(),
                                      [](auto& r, PolicyKind v) { r.policy = v; })
          .else_("`spares` where there are some, else `wait`")
          .says("What a job does about nodes that it lost.")
          .probe("drop-replica"),
      CampaignKey::count("campaign.failures_at_once",
                         [](auto& r, std::int64_t v) { r.failures_at_once = v; })
          .range(1, 64)
          .else_("1")
          .says("With `templates`: nodes that may fail at once; one more pipeline is kept.")
          .probe("3", templates_base()),
  };
}

/// {"at_hour": ..., "hours": ..., "factor": ...}.
CampaignKey daily_key() {
  const auto read = [](const CampaignKey& key, JsonReader& reader, CampaignRequest& out) {
    const Json* json = reader.take(key.name);
    if (json == nullptr) return;
    JsonReader one(*json, reader.source(), reader.pointer(key.name));
    one.require("at_hour", "the hour from which steps are longer");
    one.read("at_hour", out.work.daily.at_hour, JsonReader::Range{0, 23.99});
    one.require("hours", "how many hours that lasts");
    one.read("hours", out.work.daily.hours, JsonReader::Range{0, 23.99});
    one.require("factor", "of a step's length then");
    one.read("factor", out.work.daily.factor, JsonReader::Range{1, 100});
    reader.adopt(one.finish());
  };
  return CampaignKey("campaign.daily_slow", KeyType::kAny, read)
      .else_("none")
      .says("Hours of every day in which steps are longer: at_hour, hours and factor.")
      .probe(R"({"at_hour":8,"hours":10,"factor":1.2})");
}

/// What changes with time.
CampaignKeys changing_keys() {
  return {
      daily_key(),
      changes("campaign.batch_ramp", "global", &WorkRequest::batch_ramp)
          .else_("the RUN's batch throughout")
          .says("Global batches from so many tokens on: a list of from_tokens and global.")
          .probe(R"([{"from_tokens":0,"global":32},{"from_tokens":5e10,"global":64}])"),
      changes("campaign.sequence_phases", "sequence", &WorkRequest::sequence_phases)
          .else_("the RUN's length throughout")
          .says("Sequence lengths from so many tokens on: a list of from_tokens and sequence.")
          .probe(R"([{"from_tokens":0,"sequence":1024}])"),
      CampaignKey(
          "campaign.evaluation", KeyType::kAny,
          [](const CampaignKey& key, JsonReader& reader, CampaignRequest& out) {
            const Json* json = reader.take(key.name);
            if (json == nullptr) return;
            JsonReader one(*json, reader.source(), reader.pointer(key.name));
            one.require("every_steps", "steps between two evaluations");
            one.read("every_steps", out.work.evaluate_every,
                     JsonReader::IntRange{1, 1'000'000'000'000});
            one.require("seconds", "how long one takes");
            one.read("seconds", out.work.evaluation_s, JsonReader::Range{0, kLongestSeconds});
            reader.adopt(one.finish());
          })
          .else_("none")
          .says("Pauses for evaluation: every_steps and seconds.")
          .probe(R"({"every_steps":1000,"seconds":720})"),
  };
}

CampaignKeys price_keys() {
  return {
      open_number(
          "campaign.price_per_gpu_hour", [](auto& r, double v) { r.price.per_gpu_hour = v; }, 0,
          1e6)
          .else_("no bill")
          .says("Money for an accelerator's hour.")
          .probe("2"),
      open_number(
          "campaign.pue", [](auto& r, double v) { r.price.pue = v; }, 1, 10)
          .fallback_to(1.0)
          .says("Energy of the site over that of its accelerators.")
          .probe("1.2"),
      open_number(
          "campaign.price_per_kwh", [](auto& r, double v) { r.price.per_kwh = v; }, 0, 1e4)
          .else_("energy is in the accelerator's price")
          .says("Money for a kilowatt-hour.")
          .probe("0.1"),
      CampaignKey::count("campaign.campaigns",
                         [](auto& r, std::int64_t v) { r.sampling.campaigns = v; })
          .range(1, 1e7)
          .fallback_to(1000)
          .says("Campaigns that are simulated, each with failures of its own.")
          .probe("10"),
      CampaignKey::count("campaign.seed", [](auto& r, std::int64_t v) { r.sampling.seed = v; })
          .range(0, 9e15)
          .fallback_to(1)
          .says("Of the random numbers.")
          .probe("2"),
  };
}

/// A number of seconds, or "best": left open.
CampaignKey interval_key() {
  const auto read = [](const CampaignKey& key, JsonReader& reader, CampaignRequest& out) {
    const Json* json = reader.take(key.name);
    if (json == nullptr || *json == Json("best")) return;
    if (!json->is_number()) {
      return reader.fail(key.name,
                         "found " + describe(*json) + ", expected seconds of work or \"best\"");
    }
    double value = 0;
    if (reader.read(key.name, value, JsonReader::Range{1e-3, kLongestSeconds})) {
      out.saving.interval_s = value;
    }
  };
  return CampaignKey("campaign.checkpoint.interval_s", KeyType::kNumber, read)
      .range(1e-3, kLongestSeconds)
      .else_("`\"best\"`: found by simulation")
      .says("Seconds of work between checkpoints, without the stall; whole steps.")
      .probe("1000");
}

CampaignKeys saving_keys() {
  return {
      interval_key(),
      CampaignKey::count("campaign.checkpoint.interval_steps",
                         [](auto& r, std::int64_t v) { r.saving.interval_steps = v; })
          .range(1, 1e12)
          .says("Steps between checkpoints, in place of interval_s.")
          .alias({"save_interval"})
          .probe("100"),
      CampaignKey::choice<SaveMode>("campaign.checkpoint.mode", save_mode_names(),
                                    [](auto& r, SaveMode v) { r.saving.mode = v; })
          .fallback_to("sync")
          .says("Where a checkpoint goes, and whether the job waits for it.")
          .probe("async"),
      open_number(
          "campaign.checkpoint.store_gb_per_s",
          [](auto& r, double v) { r.saving.store_gb_per_s = v; }, 1e-3, 1e7)
          .else_("1.28 for each node, as BLOOM's 48 had")
          .says("What the shared store takes from the job and gives back, 1e9 bytes a second.")
          .probe("5"),
      open_number(
          "campaign.checkpoint.stall_s", [](auto& r, double v) { r.saving.stall_s = v; }, 0,
          kLongestSeconds)
          .else_("from the bytes")
          .says("Seconds that the job stands still for a checkpoint.")
          .probe("60"),
      open_number(
          "campaign.checkpoint.load_s", [](auto& r, double v) { r.saving.load_s = v; }, 0,
          kLongestSeconds)
          .else_("from the bytes")
          .says("Seconds to read a checkpoint.")
          .probe("600"),
      open_number(
          "campaign.checkpoint.reshard_s", [](auto& r, double v) { r.saving.reshard_s = v; }, 0,
          kLongestSeconds)
          .else_("load_s where it is given, else from the bytes")
          .says("Seconds to read one after the job's nodes changed, no less than load_s.")
          .probe("3000", {"campaign.policy=shrink"}),
      open_number(
          "campaign.checkpoint.interference", [](auto& r, double v) { r.saving.interference = v; },
          0, 10)
          .fallback_to(0.0)
          .says("By how much longer a step takes while a checkpoint is written beside it.")
          .probe("0.5", {"campaign.checkpoint.mode=async"}),
  };
}

CampaignKeys recovery_keys() {
  return {
      open_number(
          "campaign.recovery.detect_s", [](auto& r, double v) { r.recovery.detect_s = v; }, 0,
          kLongestSeconds)
          .fallback_to(0.0)
          .says("From a failure until it is noticed.")
          .probe("600"),
      open_number(
          "campaign.recovery.diagnose_s", [](auto& r, double v) { r.recovery.diagnose_s = v; }, 0,
          kLongestSeconds)
          .fallback_to(0.0)
          .says("From there until the failed node is known.")
          .probe("600"),
      open_number(
          "campaign.recovery.queue_s", [](auto& r, double v) { r.recovery.queue_s = v; }, 0,
          kLongestSeconds)
          .else_("as long as the repair; where that is not known, none for `wait`, else a day")
          .says("From there until another node is given.")
          .probe("3600"),
      open_number(
          "campaign.recovery.start_s", [](auto& r, double v) { r.recovery.start_s = v; }, 0,
          kLongestSeconds)
          .fallback_to(300.0)
          .says("Processes, communicators and compilation, without loading the checkpoint.")
          .probe("900"),
      open_number(
          "campaign.recovery.start_ms_per_rank",
          [](auto& r, double v) { r.start_per_rank_s = 1e-3 * v; }, 0, 1e6)
          .fallback_to(0.0)
          .says("What start_s grows by with every rank: communicators are set up one by one.")
          .probe("500"),
      open_number(
          "campaign.recovery.regroup_s", [](auto& r, double v) { r.regroup_s = v; }, 0,
          kLongestSeconds)
          .else_("start_s for `templates`, which bounds it; none for `redundant`")
          .says("New communicators of a job that goes on, with `templates` and `redundant`.")
          .probe("2000", templates_base()),
      CampaignKey::count("campaign.recovery.warm_up_steps",
                         [](auto& r, std::int64_t v) { r.recovery.warm_up_steps = v; })
          .range(0, 1e6)
          .fallback_to(0)
          .says("Steps after a start that count for nothing.")
          .probe("20"),
  };
}

}  // namespace

const CampaignKeys& campaign_keys() {
  static const CampaignKeys all = [] {
    CampaignKeys out;
    for (CampaignKeys (*section)() :
         {work_keys, changing_keys, price_keys, saving_keys, recovery_keys}) {
      for (CampaignKey& key : section()) out.push_back(std::move(key));
    }
    return out;
  }();
  return all;
}

const std::vector<std::pair<std::string, std::string>>& campaign_sections() {
  static const std::vector<std::pair<std::string, std::string>> all = {
      {"campaign", "Weeks of the run, which `foretrain goodput` simulates."},
      {"campaign.checkpoint", "How checkpoints are written."},
      {"campaign.recovery", "What follows a failure."},
  };
  return all;
}

namespace {

/// The default of every key that has one.
Json default_campaign() {
  Json out{Json::Object{}};
  for (const CampaignKey& key : campaign_keys()) {
    if (!key.fallback) continue;
    Json* section = &out;
    if (const std::size_t dot = key.section.find('.'); dot != std::string::npos) {
      const std::string name = key.section.substr(dot + 1);
      section = out.find(name);
      if (section == nullptr) section = &out.set(name, Json(Json::Object{}));
    }
    section->set(key.name, *key.fallback);
  }
  return out;
}

/// Lays the section over `out`.
Status read_over(const Json& json, const std::string& source, const std::string& pointer,
                 CampaignRequest& out) {
  JsonReader reader(json, source, pointer);
  if (const Json* reliability = reader.take("reliability")) out.reliability = *reliability;
  for (const CampaignKey& key : campaign_keys()) {
    if (key.section == "campaign") key.read(reader, out);
  }
  for (const char* name : {"checkpoint", "recovery"}) {
    const Json* inner = reader.take(name);
    if (inner == nullptr || *inner == Json("best")) continue;
    JsonReader section(*inner, source, pointer + "/" + name);
    for (const CampaignKey& key : campaign_keys()) {
      if (key.section == std::string("campaign.") + name) key.read(section, out);
    }
    reader.adopt(section.finish());
  }
  return reader.finish();
}

}  // namespace

Result<CampaignRequest> read_campaign(const Json& json, const std::string& source,
                                      const std::string& pointer) {
  CampaignRequest out;
  FT_TRY(read_over(default_campaign(), source, pointer, out));
  FT_TRY(read_over(json, source, pointer, out));
  return out;
}

}  // namespace foretrain

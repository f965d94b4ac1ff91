// Does `goodput` keep its word: its JSON, its messages, its keys?
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sim/campaign/request.h"
#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

/// Eight A100 in pairs of tensor ranks: four replicas; failures enough that everything matters.
const char* const kCampaign = R"({
  "model": "gpt3-350m", "cluster": {"preset": "dgx-a100-80gb", "accelerators": 32},
  "parallel": {"tensor": 2}, "batch": {"global": 64, "micro": 1, "sequence": 1024},
  "campaign": {
    "tokens": 1e11, "step_time_s": 0.9, "campaigns": 20,
    "reliability": {"failures_per_node_day": 0.5, "repair_s": 20000},
    "checkpoint": {"interval_s": 600, "stall_s": 20},
    "recovery": {"detect_s": 100, "diagnose_s": 50, "warm_up_steps": 4},
    "price_per_gpu_hour": 1.5}})";

Workplace& campaign_place() {
  static Workplace place;
  if (!place.has("run.json")) place.write("run.json", kCampaign);
  return place;
}

CommandResult goodput(const std::vector<std::string>& sets) {
  return campaign_place().run(with_sets({"goodput", "run.json", "--json", "-"}, sets));
}

Json goodput_json(const std::vector<std::string>& sets) {
  const CommandResult result = goodput(sets);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return parse_json(result.out, "goodput").value();
}

double number_at(const Json& json, const std::string& first, const std::string& second = "") {
  const Json* found = json.find(first);
  if (found != nullptr && !second.empty()) found = found->find(second);
  EXPECT_NE(found, nullptr) << first << " " << second;
  return found == nullptr ? std::nan("") : found->number();
}

TEST(Goodput, HasTheNamesThatScriptsRelyOn) {
  const Json json = goodput_json({});
  for (const char* key : {"ettr", "days"}) {
    for (const char* of : {"mean", "p10", "p50", "p90"}) EXPECT_GT(number_at(json, key, of), 0);
  }
  double sum = 0;
  for (const char* part :
       {"productive", "checkpoint", "recovery", "repeated", "waiting", "slow", "evaluation"}) {
    sum += number_at(json, "parts", part);
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  for (const char* key : {"bytes_gib", "stall_s", "load_s", "interval_s", "best_interval_s",
                          "young_daly_interval_s"}) {
    EXPECT_GT(number_at(json, "checkpoint", key), 0) << key;
  }
  EXPECT_EQ(number_at(json, "step_time_s"), 0.9);
  EXPECT_EQ(number_at(json, "steps"), std::ceil(1e11 / (64 * 1024)));
  EXPECT_EQ(number_at(json, "mttf_hours"), 24 / (0.5 * 4));
  EXPECT_NEAR(number_at(json, "gpu_hours"), number_at(json, "days", "mean") * 24 * 32, 1e-6);
  EXPECT_NEAR(number_at(json, "cost"), 1.5 * number_at(json, "gpu_hours"), 1e-6);
  EXPECT_NEAR(number_at(json, "energy_mwh"), 400e-6 * number_at(json, "gpu_hours"), 1e-6);
  EXPECT_NEAR(number_at(json, "failures", "node") / number_at(json, "days", "mean"), 2, 0.3);
  EXPECT_NE(json.find("sensitivity")->find("failures"), nullptr);
}

TEST(Goodput, IsTheSameOnAnyNumberOfThreads) {
  const auto on = [](const char* threads) {
    return campaign_place()
        .run({"goodput", "run.json", "--json", "-", "--threads", threads, "--seed", "5"})
        .out;
  };
  EXPECT_EQ(on("1"), on("7"));
  EXPECT_NE(on("1"), goodput({}).out);
}

class CampaignProbes : public testing::TestWithParam<Probe> {};

TEST_P(CampaignProbes, MoveTheResult) {
  std::vector<std::string> sets = GetParam().base;
  const std::string& set = GetParam().set;
  if (set.starts_with("campaign.steps=") || set.starts_with("campaign.batch_ramp=") ||
      set.starts_with("campaign.sequence_phases=")) {
    sets.push_back(set.starts_with("campaign.steps=") ? "campaign.tokens=null"
                                                      : "campaign.step_time_s=null");
  }
  if (set.starts_with("campaign.checkpoint.interval_steps=")) {
    sets.emplace_back("campaign.checkpoint.interval_s=null");
  }
  if (set.find("store_gb_per_s") != std::string::npos) {
    sets.emplace_back("campaign.checkpoint.stall_s=null");
  }
  const std::string before = goodput(sets).out;
  sets.push_back(set);
  const CommandResult after = goodput(sets);
  ASSERT_EQ(after.exit_code, 0) << after.err;
  EXPECT_NE(before, after.out);
}

std::vector<Probe> campaign_probes() {
  std::vector<Probe> out;
  for (const CampaignKey& key : campaign_keys()) {
    out.insert(out.end(), key.probes.begin(), key.probes.end());
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Each, CampaignProbes, testing::ValuesIn(campaign_probes()));

struct BadCampaign {
  std::vector<std::string> sets;
  std::vector<std::string> parts;  ///< of the message
};
void PrintTo(const BadCampaign& bad, std::ostream* out) { *out << bad.sets.front(); }

class BadCampaigns : public testing::TestWithParam<BadCampaign> {};

TEST_P(BadCampaigns, AreToldInOneClearMessage) {
  const CommandResult result = goodput(GetParam().sets);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  for (const std::string& part : GetParam().parts) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << "\n" << result.err;
  }
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

const std::string kRates = "campaign.reliability=";
INSTANTIATE_TEST_SUITE_P(
    Each, BadCampaigns,
    testing::Values(
        BadCampaign{{kRates + R"({"failures_per_node_day":-1})"},
                    {"/campaign/reliability/failures_per_node_day", "-1"}},
        BadCampaign{{kRates + R"({"components":{"gpuu":{"per_unit_day":1}}})"},
                    {"/campaign/reliability/components/gpuu", "\"gpu\""}},
        BadCampaign{{kRates + R"({"slow":[{"per_unit_day":1,"factor":2,"lasts_s":9,
                                           "repair_s":3}]})"},
                    {"/campaign/reliability/slow/0/repair_s", "found_s"}},
        BadCampaign{{kRates + R"({"slow":[{"per_unit_day":1,"factor":2,"lasts_s":9,
                                           "found_s":-3}]})"},
                    {"/campaign/reliability/slow/0/found_s", "-3"}},
        BadCampaign{{kRates + R"({"components":{"gpu":{"per_unit_day":1,"scope":"pod"}}})"},
                    {"/components/gpu/scope", "rack"}},
        BadCampaign{{kRates + R"({"trace":[{"at_s":9,"component":"gpu"},
                                           {"at_s":3,"component":"gpu"}]})"},
                    {"/campaign/reliability/trace/1/at_s", "before the 9"}},
        BadCampaign{{kRates + "no-such-fleet"}, {"/campaign/reliability", "no-such-fleet"}},
        BadCampaign{{"campaign.checkpoint.interval_s=1e8"},
                    {"/campaign/checkpoint/interval_s", "not less than the campaign's"}},
        BadCampaign{{"campaign.checkpoint.interval_steps=9"}, {"beside interval_s"}},
        BadCampaign{{"campaign.checkpoint.interval_s=\"bst\""}, {"\"bst\"", "\"best\""}},
        BadCampaign{{"campaign.policy=spares", kRates + R"({"failures_per_node_day":0.5})"},
                    {"/campaign/spares", "no spares and no queue"}},
        BadCampaign{{"campaign.policy=templates"}, {"/campaign/policy", "sharding.level none"}},
        BadCampaign{{"campaign.policy=templates", "sharding.level=none"},
                    {"/campaign/policy", "whole nodes", "16 pipelines"}},
        BadCampaign{{"campaign.policy=templates", "sharding.level=none", "parallel.tensor=8",
                     "campaign.failures_at_once=4"},
                    {"/campaign/policy", "5 pipelines", "the run has 4", "failures_at_once"}},
        BadCampaign{{"campaign.failures_at_once=2"},
                    {"/campaign/failures_at_once", "templates, found wait"}},
        BadCampaign{{"campaign.recovery.regroup_s=5"},
                    {"/campaign/recovery/regroup_s", "redundant, found wait"}},
        BadCampaign{{R"(campaign.daily_slow={"at_hour":25,"hours":2,"factor":1.1})"},
                    {"/campaign/daily_slow/at_hour", "25"}},
        BadCampaign{{R"(campaign.daily_slow={"at_hour":5,"hours":2,"factor":0.5})"},
                    {"/campaign/daily_slow/factor", "0.5"}},
        BadCampaign{{R"(campaign.daily_slow={"at_hour":5,"hours":2})"},
                    {"/campaign/daily_slow", "factor"}},
        BadCampaign{{"campaign.policy=redundant"}, {"/campaign/policy", "parallel.pipeline of 2"}},
        BadCampaign{
            {"campaign.policy=redundant", "parallel.pipeline=2", "parallel.virtual_pipeline=2"},
            {"/campaign/policy", "one chunk", "has 2"}},
        BadCampaign{{"campaign.policy=redundant", "parallel.pipeline=8"},
                    {"/campaign/policy", "stages of whole nodes"}},
        BadCampaign{{"campaign.policy=redundant", "parallel.pipeline=3", "parallel.tensor=2",
                     R"(pipeline_stages=[{},{"tensor":4},{}])", "cluster.accelerators=16"},
                    {"/campaign/policy", "degrees of their own"}},
        BadCampaign{{"campaign.tokens=null"}, {"/campaign/tokens", "is missing"}},
        BadCampaign{{"campaign.steps=5"}, {"/campaign/steps", "beside tokens"}},
        BadCampaign{{"campaign.checkpoint.reshard_s=-1"}, {"/campaign/checkpoint/reshard_s", "-1"}},
        BadCampaign{{"campaign.recovery.start_s=-1"}, {"/campaign/recovery/start_s", "-1"}},
        BadCampaign{{"campaign.tokns=5"}, {"/campaign/tokns", "tokens"}},
        BadCampaign{{kRates + R"({"failures_per_node_day":500})"}, {"would not end", "failure"}},
        BadCampaign{{kRates + R"({"trace":[{"at_s":9,"component":"gpu","repair_s":9e8}]})"},
                    {"does not end"}}));

TEST(Goodput, WithoutACampaignSaysWhatIsMissing) {
  const CommandResult result = small_place().run({"goodput", "run.json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("run.json: /campaign: is missing"), std::string::npos) << result.err;
}

TEST(Goodput, ReadsATraceThatLiesBesideTheRun) {
  const Workplace place;
  place.write("failures.json", R"([{"at_s": 5000, "component": "hbm"},
                                   {"at_s": 90000, "component": "software"}])");
  Json run = parse_json(kCampaign, "test").value();
  run.find("campaign")
      ->set("reliability", parse_json(R"({"trace": "failures.json"})", "t").value());
  place.write("run.json", dump_json(run));
  const CommandResult result =
      place.run({"goodput", "run.json", "--json", "-", "--trace", "t.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = parse_json(result.out, "goodput").value();
  EXPECT_EQ(number_at(json, "failures", "hbm"), 1);
  EXPECT_EQ(number_at(json, "failures", "software"), 1);
  EXPECT_EQ(number_at(json, "days", "p10"), number_at(json, "days", "p90"));
  const Json trace = parse_json(place.read("t.json"), "trace").value();
  double wall_us = 0;
  for (const Json& event : *trace.find("traceEvents")->array()) {
    if (*event.find("ph") == Json("X")) wall_us += event.find("dur")->number();
  }
  EXPECT_NEAR(wall_us / 1e6 / 86400, number_at(json, "days", "mean"), 1e-6);
}

/// The result with a file of that content as the trace.
CommandResult with_trace(const std::string& content) {
  const Workplace place;
  place.write("failures.csv", content);
  Json run = parse_json(kCampaign, "test").value();
  run.find("campaign")->set("reliability", parse_json(R"({"trace": "failures.csv"})", "t").value());
  place.write("run.json", dump_json(run));
  return place.run({"goodput", "run.json", "--json", "-", "--no-advice"});
}

TEST(Goodput, ReadsATraceThatIsATable) {
  const CommandResult list = with_trace(
      R"([{"at_s": 5000, "component": "hbm", "repair_s": 3600}, {"at_s": 9e4, "component": "link",
           "nodes": 2}])");
  const CommandResult table = with_trace(
      "# of last May\r\n\r\nat_s, component ,repair_s,nodes\r\n5000,hbm,3600,\r\n"
      "9e4,\"link\",,2\r\n");
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_EQ(table.out, list.out);
  // Nodes that a cloud takes and gives back: two go at 3,600 s, the second is back at 9,000 s.
  const CommandResult live = with_trace("at_s,live\n0,4\n3600,2\n7200,3\n9000,4\n");
  ASSERT_EQ(live.exit_code, 0) << live.err;
  EXPECT_EQ(live.out, with_trace(R"([{"at_s": 3600, "component": "preemption", "repair_s": 3600},
      {"at_s": 3600, "component": "preemption", "repair_s": 5400}])")
                          .out);
  EXPECT_EQ(number_at(parse_json(live.out, "goodput").value(), "failures", "preemption"), 2);
}

TEST(Goodput, TellsWhatIsWrongInATable) {
  const std::pair<const char*, const char*> cases[] = {
      {"at_s,component\n5,gpuu\n", "failures.csv, line 2: /component: found \"gpuu\""},
      {"at_s,component\n9,gpu\n\n3,gpu\n",
       "failures.csv, line 4: /at_s: found 3.0, which is before"},
      {"at_s,component\nnoon,gpu\n", "failures.csv, line 2: /at_s: found \"noon\""},
      {"at_s,component\n-5,gpu\n", "failures.csv, line 2: /at_s: found -5"},
      {"at_s,component\n5,gpu,1\n", "failures.csv, line 2: found 3 cells, expected 2 as in line 1"},
      {"at_s,compnent\n5,gpu\n",
       "failures.csv, line 1: column 2: found \"compnent\", expected at_s, component, nodes and "
       "repair_s, or at_s and live; did you mean \"component\"?"},
      {"at_s,component,at_s\n", "failures.csv, line 1: column 3: found \"at_s\" a second time"},
      {"at_s,nodes\n5,1\n", "failures.csv, line 1: found columns without what a trace needs"},
      {"at_s,component,nodes\n5,gpu,99\n", "failures.csv, line 2: /nodes: found 99"},
      {"at_s,live\n0,4\n5,-1\n", "failures.csv, line 3: /live: found -1"},
      {"at_s,live\n0,4\n5,99999999999\n", "failures.csv, line 3: /live: found 99999999999"},
      {"at_s,component\nnan,gpu\n", "failures.csv, line 2: /at_s: found \"nan\""},
      {"at_s,component,repair_s\n1,gpu,99999999999999999999\n",
       "failures.csv, line 2: /repair_s: found 1e+20"},
      {"at_s,live\n9,4\n5,3\n", "failures.csv, line 3: /at_s: found 5.0, which is before the 9.0"},
      {"# nothing\n", "failures.csv: found no line of a table"}};
  for (const auto& [content, message] : cases) {
    const CommandResult result = with_trace(content);
    EXPECT_EQ(result.exit_code, 1) << content;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(Goodput, ComparesPoliciesInOneTable) {
  const Workplace place;
  place.write("run.json", kCampaign);
  const std::vector<std::string> arguments = {
      "goodput",     "run.json", "--campaigns",       "20",
      "--no-advice", "--set",    "campaign.spares=1", "--policies"};
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), more.begin(), more.end());
    return place.run(all);
  };
  const CommandResult result = run({"all", "--json", "t.json", "--report", "t.html"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = parse_json(place.read("t.json"), "table").value();
  const Json::Array& rows = *json.find("clusters")->array();
  ASSERT_EQ(rows.size(), 5U);
  double wait = 0;
  for (const Json& row : rows) {
    EXPECT_EQ(*row.find("cluster"), Json("dgx-a100-80gb"));
    const std::string& policy = *row.find("policy")->find("name")->string();
    EXPECT_NE(result.out.find("  dgx-a100-80gb         " + policy), std::string::npos)
        << result.out;
    EXPECT_NE(place.read("t.html").find("dgx-a100-80gb, " + policy), std::string::npos);
    if (policy == "wait") wait = number_at(row, "days", "mean");
    EXPECT_LE(number_at(row, "days", "mean"), wait) << policy;
    // A row is what the RUN alone gives.
    if (policy != "shrink") continue;
    const Json alone =
        parse_json(place
                       .run({"goodput", "run.json", "--campaigns", "20", "--no-advice", "--set",
                             "campaign.spares=1", "--set", "campaign.policy=shrink", "--json", "-"})
                       .out,
                   "alone")
            .value();
    EXPECT_EQ(without(row, {"cluster"}), alone);
  }
  const Json::Array& refused = *json.find("refused")->array();
  ASSERT_EQ(refused.size(), 2U);
  EXPECT_EQ(*refused[0].find("policy"), Json("templates"));
  EXPECT_NE(result.out.find("Refused: dgx-a100-80gb, templates: "), std::string::npos);
  // Clusters and policies together; keys of one policy alone do not stop the others.
  const CommandResult both = run({"wait,redundant", "--clusters", "dgx-a100-80gb,dgx-h100", "--set",
                                  "campaign.recovery.regroup_s=20", "--set",
                                  "parallel={\"tensor\":8,\"pipeline\":2}", "--json", "-"});
  ASSERT_EQ(both.exit_code, 0) << both.err;
  EXPECT_EQ(parse_json(both.out, "both").value().find("clusters")->array()->size(), 4U);
  // Where nobody says how long a node is away, it is as long with every policy.
  const CommandResult unknown =
      run({"wait,spares", "--set", kRates + R"({"failures_per_node_day":0.2})", "--json", "-"});
  const Json pair = parse_json(unknown.out, "pair").value();
  const Json::Array& two = *pair.find("clusters")->array();
  EXPECT_GT(number_at(two[0], "days", "mean"), number_at(two[1], "days", "mean"));
  const CommandResult none = run({"templates"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("sharding.level none"), std::string::npos) << none.err;
  EXPECT_EQ(run({"waits"}).exit_code, 2);
  EXPECT_NE(run({"wait", "--trace", "t.json"}).err.find("--policies of several"),
            std::string::npos);
}

TEST(Goodput, DrawsACampaign) {
  const Workplace place;
  place.write("run.json", kCampaign);
  const CommandResult result =
      place.run({"goodput", "run.json", "--campaigns", "3", "--no-advice", "--report", "p.html"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string page = place.read("p.html");
  for (const char* part : {"One campaign", "day 0.0", "recovery from day ", "repeated from day "}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

TEST(Goodput, SparesAndPoliciesDoWhatTheyAreFor) {
  const std::string rare = kRates + R"({"failures_per_node_day":0.1,"repair_s":80000})";
  const auto days = [&rare](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {rare, "campaign.campaigns=60"};
    sets.insert(sets.end(), more.begin(), more.end());
    return number_at(goodput_json(sets), "days", "mean");
  };
  const double wait = days({});
  EXPECT_LT(days({"campaign.spares=4"}), wait);
  EXPECT_LT(days({"campaign.policy=shrink"}), wait);
  EXPECT_LE(days({"campaign.spares=4"}), days({"campaign.spares=1"}));
}

std::vector<double> numbers_at(const Json& json, const std::string& first,
                               const std::string& second) {
  std::vector<double> out;
  for (const Json& one : *json.find(first)->find(second)->array()) out.push_back(one.number());
  return out;
}

TEST(Goodput, TemplatesShareTheNodesThatAreLeft) {
  const std::vector<std::string> nodes = {"sharding.level=none", "parallel.tensor=8"};
  const auto with = [&nodes](std::vector<std::string> more) {
    more.insert(more.end(), nodes.begin(), nodes.end());
    return goodput_json(more);
  };
  const Json json = with({"campaign.policy=templates"});
  EXPECT_EQ(*json.find("policy")->find("name"), Json("templates"));
  EXPECT_EQ(numbers_at(json, "policy", "pipelines"), (std::vector<double>{4, 3, 2}));
  // Each node is a replica. The replicas that are left share 64 whole microbatches.
  const std::vector<double> pace = numbers_at(json, "policy", "pace");
  ASSERT_EQ(pace.size(), 3U);
  EXPECT_EQ(pace[0], 1);
  EXPECT_NEAR(pace[1], 22 / 16.0, 1e-9);
  EXPECT_NEAR(pace[2], 2, 1e-9);
  // Nothing is loaded, and nodes are away for 20,000 s.
  const double days = number_at(json, "days", "mean");
  EXPECT_LT(days, number_at(with({}), "days", "mean"));
  EXPECT_LT(days, number_at(with({"campaign.policy=shrink"}), "days", "mean"));
  EXPECT_GT(number_at(json, "policy", "pause_s"), 300);
  std::vector<std::string> sets = nodes;
  sets.insert(sets.end(), {"campaign.policy=templates", "campaign.recovery.regroup_s=600"});
  const std::string text = campaign_place().run(with_sets({"goodput", "run.json"}, sets)).out;
  EXPECT_NE(text.find("pause of one that is survived     10.0 min"), std::string::npos) << text;
}

TEST(Goodput, RedundantStagesPayForTheirForwardPasses) {
  const std::vector<std::string> quiet = {"campaign.policy=redundant", "parallel.tensor=8",
                                          "parallel.pipeline=2", "campaign.reliability=null",
                                          "campaign.checkpoint.stall_s=0"};
  const Json json = goodput_json(quiet);
  const std::vector<double> pace = numbers_at(json, "policy", "pace");
  ASSERT_EQ(pace.size(), 2U);
  EXPECT_GT(pace[0], 1.1);
  EXPECT_LT(pace[0], 1.5);  // a forward pass is not longer than a backward pass
  // 32 microbatches of 2 stages: 64 passes in place of 33, less where the stages differ.
  EXPECT_NEAR(pace[1], 64 / 33.0, 0.2);
  EXPECT_LE(pace[1], 64 / 33.0 + 1e-9);
  EXPECT_NEAR(number_at(json, "days", "mean"), number_at(json, "steps") * 0.9 * pace[0] / 86400,
              1e-6);
  EXPECT_NEAR(number_at(json, "ettr", "mean"), 1 / pace[0], 1e-9);
  EXPECT_GT(number_at(json, "policy", "pause_s"), 0);
}

TEST(Goodput, ComparesClusters) {
  const std::vector<std::string> more = {"--clusters",  "dgx-a100-80gb,dgx-h100",
                                         "--set",       "campaign.step_time_s=null",
                                         "--campaigns", "5",
                                         "--no-advice"};
  std::vector<std::string> arguments = {"goodput", "run.json", "--json", "-"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const CommandResult result = campaign_place().run(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = parse_json(result.out, "goodput").value();
  const Json::Array& rows = *json.find("clusters")->array();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(*rows[1].find("cluster"), Json("dgx-h100"));
  EXPECT_LT(number_at(rows[1], "step_time_s"), number_at(rows[0], "step_time_s"));
  EXPECT_LT(number_at(rows[1], "days", "mean"), number_at(rows[0], "days", "mean"));
  EXPECT_NEAR(number_at(rows[0], "energy_mwh"), 400e-6 * number_at(rows[0], "gpu_hours"), 1e-6);
  arguments[2] = "--quiet";
  arguments.erase(arguments.begin() + 3);
  EXPECT_EQ(campaign_place().run(arguments).out, "");
}

TEST(Goodput, SaysHowManySparesAreBest) {
  const Json json = goodput_json(
      {kRates + R"({"failures_per_node_day":0.2,"repair_s":80000})", "campaign.spares=1"});
  EXPECT_GT(number_at(json, "spares", "best"), 0);
  EXPECT_EQ(number_at(json, "spares", "nodes"), 1);
}

TEST(Simulate, PrintsTheSimpleBill) {
  const CommandResult result = campaign_place().run(
      {"simulate", "run.json", "--no-advice", "--set", "campaign.step_time_s=null"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("Bill        "), std::string::npos) << result.out;
  const Json json =
      parse_json(campaign_place().run({"simulate", "run.json", "--no-advice", "--json", "-"}).out,
                 "simulate")
          .value();
  const double days = number_at(json, "bill", "steps") * 0.9 / 86400;
  EXPECT_NEAR(number_at(json, "bill", "days"), days, 1e-9);
  EXPECT_NEAR(number_at(json, "bill", "cost"), days * 24 * 32 * 1.5, 1e-6);
}

}  // namespace
}  // namespace foretrain

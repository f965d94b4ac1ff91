// `goodput`: weeks of a run, with failures, checkpoints, recovery and the bill.
#include <cstdio>

#include "sim/base/file.h"
#include "tools/cli/verbs.h"
#include "tools/goodput/goodput.h"
#include "tools/report/pages.h"
#include "traces/trace_page.h"

namespace foretrain {

namespace {

GoodputOptions options_of(const GoodputArgs& args) {
  GoodputOptions out;
  if (args.campaigns > 0) out.campaigns = args.campaigns;
  if (args.seed >= 0) out.seed = args.seed;
  out.threads = static_cast<std::size_t>(args.threads);
  out.advice = !args.no_advice;
  return out;
}

/// The same campaign on as many accelerators of each of the clusters.
Status compare_clusters(const GoodputArgs& args) {
  FT_ASSIGN(const Run own, load_run(args.run, args.sets));
  std::vector<ClusterGoodput> rows;
  for (const std::string& cluster : args.clusters) {
    std::vector<std::string> sets = args.sets;
    sets.push_back(R"(cluster={"preset":")" + cluster + R"(","accelerators":)" +
                   std::to_string(own.cluster.accelerators) + "}");
    FT_ASSIGN(const Run run, load_run(args.run, sets));
    FT_ASSIGN(Goodput result, goodput_of(run, options_of(args)));
    rows.push_back({cluster, std::move(result)});
  }
  const auto result = [&rows] {
    Json::Array list;
    for (const ClusterGoodput& row : rows) {
      Json one = json_report(row.goodput);
      one.set("cluster", row.cluster);
      list.push_back(std::move(one));
    }
    Json json{Json::Object{}};
    json.set("schema", "foretrain/goodput-clusters/1");
    json.set("clusters", std::move(list));
    return json;
  };
  FT_TRY(give_json(args.json, args.caller, result));
  return print(args.quiet || args.json == "-", cluster_table(own, rows));
}

}  // namespace

Status goodput(const GoodputArgs& args) {
  const std::vector<Output> outputs = {
      {"--json", args.json}, {"--trace", args.trace}, {"--report", args.report}};
  FT_TRY(check_outputs(outputs, read_with(outputs, args.run, args.sets)));
  if (!args.clusters.empty()) {
    if (args.trace.empty()) return compare_clusters(args);
    return input_error("--trace is of one campaign, --clusters of several; give one of them");
  }
  if (asks_for_page(args.trace)) {
    return input_error("--trace: " + args.trace +
                       " is a page, which is of one step; a campaign goes to .json or .json.gz");
  }
  FT_ASSIGN(const Run run, load_run(args.run, args.sets));
  warn_of_idle_keys(args.quiet, run, args.caller);
  FT_ASSIGN(const Goodput result, goodput_of(run, options_of(args)));
  if (!args.trace.empty()) {
    FT_ASSIGN(AtomicFile file, AtomicFile::create(args.trace));
    FT_TRY(file.append(campaign_trace(run, result)));
    FT_TRY(file.commit());
  }
  FT_TRY(give_json(args.json, args.caller, [&result] { return json_report(result); }));
  if (!args.report.empty()) FT_TRY(write_output(args.report, goodput_page(json_report(result))));
  const bool stdout_taken = args.json == "-" || args.trace == "-" || args.report == "-";
  return print(args.quiet || stdout_taken, text_report(run, result));
}

}  // namespace foretrain

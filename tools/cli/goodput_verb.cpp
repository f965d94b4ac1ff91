// `goodput`: weeks of a run, with failures, checkpoints, recovery and the bill.
#include <algorithm>
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

/// The same campaign on as many accelerators of each of the clusters, and with each policy.
Status compare_campaigns(const GoodputArgs& args) {
  const std::vector<std::string> own = {""};
  std::vector<std::string> policies = args.beside.policies.empty() ? own : args.beside.policies;
  if (std::count(policies.begin(), policies.end(), "all") > 0) policies = policy_names();
  FT_ASSIGN(const Run run, load_run(args.run, args.sets));
  warn_of_idle_keys(args.quiet, run, args.caller);
  FT_ASSIGN(
      const GoodputTable table,
      goodput_table(args.run, args.sets, args.beside.clusters.empty() ? own : args.beside.clusters,
                    policies, options_of(args)));
  FT_TRY(give_json(args.json, args.caller, [&table] { return json_of(table); }));
  if (!args.report.empty()) {
    FT_TRY(write_output(args.report, goodput_table_page(json_of(table))));
  }
  return print(args.quiet || args.json == "-" || args.report == "-", text_of(run, table));
}

}  // namespace

Status goodput(const GoodputArgs& args) {
  const std::vector<Output> outputs = {
      {"--json", args.json}, {"--trace", args.trace}, {"--report", args.report}};
  FT_TRY(check_outputs(outputs, read_with(outputs, args.run, args.sets)));
  if (args.beside.any()) {
    if (args.trace.empty()) return compare_campaigns(args);
    return input_error("--trace is of one campaign, " +
                       std::string(args.beside.clusters.empty() ? "--policies" : "--clusters") +
                       " of several; give one of them");
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
  if (!args.report.empty()) {
    FT_TRY(write_output(args.report, goodput_page(json_report(result), campaign_timeline(result))));
  }
  const bool stdout_taken = args.json == "-" || args.trace == "-" || args.report == "-";
  return print(args.quiet || stdout_taken, text_report(run, result));
}

}  // namespace foretrain

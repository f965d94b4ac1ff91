// `goodput`: weeks of a run, with failures, checkpoints, recovery and the bill.
#include <cstdio>

#include "sim/base/file.h"
#include "tools/cli/verbs.h"
#include "tools/goodput/goodput.h"

namespace foretrain {

Status goodput(const GoodputArgs& args) {
  const std::vector<Output> outputs = {{"--json", args.json}, {"--trace", args.trace}};
  FT_TRY(check_outputs(outputs, read_with(outputs, args.run, args.sets)));
  FT_ASSIGN(const Run run, load_run(args.run, args.sets));
  warn_of_idle_keys(args.quiet, run);
  GoodputOptions options;
  if (args.campaigns > 0) options.campaigns = args.campaigns;
  if (args.seed >= 0) options.seed = args.seed;
  options.threads = static_cast<std::size_t>(args.threads);
  options.advice = !args.no_advice;
  FT_ASSIGN(const Goodput result, goodput_of(run, options));
  if (!args.trace.empty()) {
    FT_ASSIGN(AtomicFile file, AtomicFile::create(args.trace));
    FT_TRY(file.append(campaign_trace(run, result)));
    FT_TRY(file.commit());
  }
  if (!args.json.empty()) FT_TRY(write_output(args.json, dump_json(json_report(result)) + "\n"));
  const bool stdout_taken = args.json == "-" || args.trace == "-";
  return print(args.quiet || stdout_taken, text_report(run, result));
}

}  // namespace foretrain

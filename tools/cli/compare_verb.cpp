// `compare`: two steps, predicted or measured, family by family; or one alone.
#include <unistd.h>

#include <cstdio>

#include "sim/base/file.h"
#include "sim/base/printable.h"
#include "tools/cli/verbs.h"
#include "tools/compare/comparison.h"
#include "tools/report/pages.h"

namespace foretrain {
namespace {

SideOptions side_options(const CompareArgs& args) {
  SideOptions out;
  out.sets = args.sets;
  out.step_name = args.step_name;
  out.steps = args.steps;
  out.gpu_steps = args.gpu_steps;
  out.shapes = !args.profile.empty();
  out.timeline = !args.trace.empty();
  if (!args.quiet && isatty(STDERR_FILENO) != 0) {
    out.progress = [](std::int64_t done, std::int64_t all) {
      constexpr std::int64_t kMiBytes = 1 << 20;
      std::fprintf(stderr, "\r\033[K%3d %% of %lld MiB read",
                   static_cast<int>(all > 0 ? 100 * done / all : 0),
                   static_cast<long long>(all / kMiBytes));
    };
  }
  return out;
}

/// Flags that mean something for traces alone, where neither is one.
Status check_flags(const CompareArgs& args, const Comparison& found) {
  const bool runs = found.a.run || (found.b && found.b->run);
  if (!args.sets.empty() && !runs) {
    return input_error("--set overrides fields of RUNs; neither of these is one");
  }
  if (found.a.measured() || (found.b && found.b->measured())) return ok_status();
  const char* const flag = args.steps > 0            ? "--steps"
                           : args.gpu_steps          ? "--gpu-steps"
                           : !args.step_name.empty() ? "--step-name"
                           : !args.profile.empty()   ? "--profile"
                                                     : nullptr;
  if (flag == nullptr) return ok_status();
  return input_error(std::string(flag) +
                     " is of traces that a profiler wrote; neither of these is one");
}

Status write_trace(const CompareArgs& args, const Comparison& found) {
  for (const Side* side : {&found.a, found.b ? &*found.b : nullptr}) {
    if (side == nullptr || side->timeline) continue;
    return input_error("--trace: " + side->source +
                       " is a result, which has no times of operations to draw; give its RUN");
  }
  const Timeline merged = merged_timeline(found);
  return write_trace(args.trace, HeldTimeline(merged), "");
}

/// Of the side that was measured; of both, B's.
Status write_profile(const CompareArgs& args, const Comparison& found) {
  const bool of_b = found.b && found.b->measured();
  const Side& side = of_b ? *found.b : found.a;
  const Side& other = of_b ? found.a : (found.b ? *found.b : found.a);
  FT_ASSIGN(const MeasuredProfile measured,
            profile_of(side, other.run ? other.device : "", "foretrain compare " + side.source));
  FT_TRY(write_output(args.profile, dump_json(to_json(measured.profile)) + "\n"));
  if (args.quiet) return ok_status();
  warn(args.profile + ": " + std::to_string(measured.profile.samples.size()) + " shapes of " +
       std::to_string(measured.taken) + " calls; " + std::to_string(measured.left_out) +
       " calls of products and attention were left out: their shapes, layouts or masks are not "
       "known");
  return ok_status();
}

}  // namespace

Status compare(const CompareArgs& args) {
  const std::vector<Output> outputs = {{"--json", args.json},
                                       {"--trace", args.trace},
                                       {"--profile", args.profile},
                                       {"--report", args.report}};
  std::vector<std::string> inputs = read_with(outputs, args.a, args.sets);
  for (std::string& input : read_with(outputs, args.b, {})) inputs.push_back(std::move(input));
  for (const std::string& what : {args.a, args.b}) {
    const Result<std::vector<std::string>> files = files_of_side(what);
    if (files.ok()) inputs.insert(inputs.end(), files.value().begin(), files.value().end());
  }
  FT_TRY(check_outputs(outputs, inputs));
  const SideOptions options = side_options(args);
  FT_ASSIGN(Side a, load_side(args.a, options));
  std::optional<Side> b;
  if (!args.b.empty()) {
    FT_ASSIGN(b, load_side(args.b, options));
  }
  if (options.progress) std::fprintf(stderr, "\r\033[K");
  const Comparison found = compare_sides(std::move(a), std::move(b));
  FT_TRY(check_flags(args, found));
  if (!args.trace.empty()) FT_TRY(write_trace(args, found));
  if (!args.profile.empty()) FT_TRY(write_profile(args, found));
  FT_TRY(give_json(args.json, args.caller, [&found] { return comparison_json(found); }));
  if (!args.report.empty()) {
    FT_TRY(write_output(args.report, comparison_page(comparison_json(found))));
  }
  const bool taken =
      args.json == "-" || args.trace == "-" || args.profile == "-" || args.report == "-";
  return print(args.quiet || taken, comparison_text(found));
}

}  // namespace foretrain

#include <unistd.h>

#include <cstdio>
#include <memory>

#include "sim/base/printable.h"
#include "sim/base/stop.h"
#include "tools/calibrate/calibration.h"
#include "tools/cli/verbs.h"
#include "tools/report/pages.h"
#include "tools/report/report.h"
#include "tools/search/search_report.h"
#include "tools/search/team/search_team.h"

namespace foretrain {
namespace {

constexpr std::size_t kShown = 10;

/// Tells how far the search is, a few times a second, and stops it when a signal has asked to.
SearchWatch watch_of(bool progress) {
  return [progress, told = -1.0](const SearchProgress& now) mutable {
    constexpr double kEvery = 0.25;
    if (progress && now.seconds - told > kEvery) {
      std::fprintf(stderr, "\r\033[K%s", printable_line(progress_text(now)).c_str());
      told = now.seconds;
    }
    return !interrupted() && !stop_asked();
  };
}

/// The values of what a search of other values is compared with.
std::string explanation(const SearchResult& mine, const SearchResult& asked,
                        const std::string& text) {
  std::string out = "\nWith " + text + "\n";
  if (asked.plans.empty()) {
    out += "  no plan fits";
    if (asked.nearest) {
      out += "; the nearest takes " + fixed(asked.nearest->memory.peak_gib, 1) + " of " +
             fixed(asked.nearest->memory.capacity_gib, 1) +
             " GiB: " + sets_text(sets_of(*asked.nearest));
    }
    out += "\n";
    for (const std::string& reason : asked.reasons) out += "  " + reason + "\n";
    return out;
  }
  const FoundPlan& best = asked.plans.front();
  out += "  " + seconds_text(best.iteration_time_s) + " at best, " +
         fixed(best.memory.peak_gib, 1) + " GiB: " + sets_text(sets_of(best)) + "\n";
  if (!mine.plans.empty()) {
    const double worse = best.iteration_time_s / mine.plans.front().iteration_time_s - 1;
    out += "  " + fixed(100 * worse, 1) + " % slower than the best of all\n";
  }
  return out;
}

/// The search of the RUN, and of those that --explain asks about; nothing of who only helps.
struct Searched {
  SearchResult result;
  std::string explained;
};

Result<Searched> search_all(const SearchArgs& args, const SearchWatch& watch,
                            SearchOptions& options) {
  const std::string source = source_of_run(args.run);
  FT_ASSIGN(Json run, read_run(args.run, args.sets));
  FT_ASSIGN(SearchRequest section, take_section(run, source));
  SearchTeam* const team = options.team;
  FT_ASSIGN(options, options_of(merged(std::move(section), args.request)));
  options.team = team;
  options.threads = static_cast<std::size_t>(args.threads);
  if (!args.profile.empty()) {
    options.profile = [&args](Run& of) { return use_profile(of, args.profile, "--profile"); };
  }
  Searched out;
  FT_ASSIGN(out.result, search_plans(run, source, options, watch));
  for (const std::string& set : args.explain) {
    std::vector<std::string> sets = args.sets;
    sets.push_back(set);
    FT_ASSIGN(Json asked, read_run(args.run, sets));
    asked.erase("search");
    SearchOptions narrowed = options;
    narrowed.state.clear();
    if (!out.result.team_fault.empty()) narrowed.team = nullptr;  // there is nobody to ask
    narrowed.space.fixed.push_back(set.substr(0, set.find('=')));
    FT_ASSIGN(const SearchResult other, search_plans(asked, source, narrowed, watch));
    out.explained += explanation(out.result, other, set);
  }
  return out;
}

}  // namespace

Status search(const SearchArgs& args) {
  SearchOptions options;
  std::unique_ptr<SearchTeam> team;
  if (args.caller == nullptr) {
    FT_ASSIGN(team, SearchTeam::join(static_cast<std::size_t>(args.threads)));
    options.team = team.get();
    note_interrupts();
  }
  if (team != nullptr && !team->leads()) {
    (void)search_all(args, {}, options);  // the leader tells the error
    return ok_status();
  }
  const std::vector<Output> outputs = {{"--json", args.json},
                                       {"--csv", args.csv},
                                       {"--out", args.out},
                                       {"--report", args.report},
                                       {"--resume", args.request.resume}};
  FT_TRY(check_outputs(outputs, read_with(outputs, args.run, args.sets)));
  if (args.request.resume == "-") {
    return input_error("--resume -: a search is kept in a file; name one");
  }
  const bool progress = !args.quiet && isatty(STDERR_FILENO) != 0;
  FT_ASSIGN(const Searched searched, search_all(args, watch_of(progress), options));
  const auto& [result, explained] = searched;
  if (progress) std::fprintf(stderr, "\r\033[K");
  if (!result.state_fault.empty()) warn("--resume: " + result.state_fault);
  if (!result.team_fault.empty()) {
    warn("other ranks help no more: " + result.team_fault + "; this one searched on");
  }
  if (!args.report.empty()) {
    FT_TRY(write_output(args.report, search_page(search_json(result, options))));
  }
  FT_TRY(give_json(args.json, args.caller,
                   [&found = result, &options] { return search_json(found, options); }));
  if (!args.csv.empty()) FT_TRY(write_output(args.csv, search_csv(result)));
  if (!args.out.empty() && !result.plans.empty()) {
    FT_TRY(write_output(args.out, dump_json(result.plans.front().run) + "\n"));
  }
  const bool stdout_taken =
      args.json == "-" || args.csv == "-" || args.out == "-" || args.report == "-";
  if (!args.quiet && !stdout_taken) {
    FT_TRY(print(false, search_text(result, options, kShown) + explained));
  }
  if (!result.plans.empty() || result.interrupted) return ok_status();
  return Error{source_of_run(args.run) + ": no plan was found that fits" +
                   (result.certificate.complete ? "" : " in --budget seconds"),
               ErrorKind::kCondition};
}

}  // namespace foretrain

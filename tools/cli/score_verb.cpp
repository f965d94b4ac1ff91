#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <new>

#include "sim/base/threads.h"
#include "tools/cli/verbs.h"
#include "tools/report/pages.h"
#include "tools/score/explanation.h"
#include "tools/score/fit_intervals.h"
#include "tools/score/published_errors.h"
#include "tools/score/score.h"

namespace foretrain {
namespace {

/// "2026-11".
std::string this_month() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m", &parts);
  return text.data();
}

std::vector<RowResult> score_all(const std::vector<Row>& rows, int threads, bool progress) {
  std::vector<RowResult> results(rows.size());
  std::atomic<std::size_t> done{0};
  std::vector<std::size_t> again;  // what found no memory beside others
  std::mutex mutex;
  const auto work = [&](std::size_t i) {
    try {
      results[i] = score_row(rows[i]);
    } catch (const std::bad_alloc&) {
      const std::lock_guard lock(mutex);
      again.push_back(i);
    }
    const std::size_t count = ++done;
    if (progress) std::fprintf(stderr, "\r%zu of %zu rows", count, rows.size());
  };
  in_parallel(rows.size(), work, static_cast<std::size_t>(threads));
  for (const std::size_t i : again) results[i] = score_row(rows[i]);
  if (progress) std::fprintf(stderr, "\r%*s\r", 40, "");
  return results;
}

}  // namespace

Status score(const ScoreArgs& args) {
  const std::vector<Output> outputs = {{"--json", args.json},
                                       {"--csv", args.csv},
                                       {"--fit-intervals", args.fit_intervals},
                                       {"--errors", args.errors},
                                       {"--report", args.report}};
  FT_TRY(check_outputs(outputs, read_with_rows(outputs, args.rows)));
  FT_ASSIGN(std::vector<Row> rows, read_rows(args.rows));
  if (rows.empty()) return input_error(args.rows.front() + ": there is no row in it");
  if (!args.only.empty()) {
    std::erase_if(rows, [&args](const Row& row) {
      return row.id.find(args.only) == std::string::npos &&
             row.group.find(args.only) == std::string::npos;
    });
    if (rows.empty()) return input_error("--only " + args.only + ": no row has it in id or group");
  }
  const bool progress = !args.quiet && isatty(STDERR_FILENO) != 0;
  const std::vector<RowResult> results = score_all(rows, args.threads, progress);
  std::vector<Explanation> explained;
  if (args.explain) explained = explanations(rows, results);
  if (!args.json.empty()) {
    Json json = score_json(rows, results);
    if (args.explain) json.set("explanations", explanations_json(explained));
    FT_TRY(write_output(args.json, dump_json(json) + "\n"));
  }
  if (!args.csv.empty()) FT_TRY(write_output(args.csv, score_csv(rows, results)));
  if (!args.report.empty()) {
    FT_TRY(write_output(args.report, score_page(score_json(rows, results))));
  }
  if (!args.fit_intervals.empty()) {
    const FittedIntervals fitted = fit_intervals(rows, results);
    constexpr std::size_t kFewest = 20;
    if (std::min({fitted.dense, fitted.experts, fitted.memory}) < kFewest) {
      return input_error("--fit-intervals: found " + std::to_string(fitted.dense) +
                         " step times of dense models, " + std::to_string(fitted.experts) +
                         " of models with experts and " + std::to_string(fitted.memory) +
                         " memories that were read and predicted; expected at least 20 of each");
    }
    const Json widths = intervals_json(fitted, this_month());
    FT_TRY(write_output(args.fit_intervals, dump_json(widths) + "\n"));
  }
  if (!args.errors.empty()) {
    const std::vector<PublishedRun> runs = published_errors(rows, results);
    FT_TRY(write_output(args.errors, published_errors_text(runs, this_month())));
  }
  const bool taken = args.json == "-" || args.csv == "-" || args.fit_intervals == "-" ||
                     args.errors == "-" || args.report == "-";
  if (args.quiet || taken) return ok_status();
  const std::string table = score_table(rows, results, static_cast<std::size_t>(args.worst));
  return print(false, table + (args.explain ? explanation_lines(explained) : ""));
}

}  // namespace foretrain

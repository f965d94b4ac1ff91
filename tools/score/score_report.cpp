#include <algorithm>
#include <cmath>
#include <map>

#include "sim/base/printable.h"
#include "tools/report/report.h"
#include "tools/score/fit_intervals.h"
#include "tools/score/ranking.h"
#include "tools/score/score.h"

namespace foretrain {
namespace {

/// "dgxc" of "dgxc|GPT3-175B|H100": the family of rows that tables are cut by.
std::string family_of(const Row& row) { return row.group.substr(0, row.group.find('|')); }

struct Errors {
  std::vector<double> values, weights;
  void add(double error, double weight) {
    values.push_back(error);
    weights.push_back(weight);
  }
};

/// A group of n rows weighs as sqrt(n): each row 1 / sqrt(n).
std::vector<double> row_weights(const std::vector<Row>& rows) {
  std::map<std::string, double> sizes;
  for (const Row& row : rows) sizes[row.group] += 1;
  std::vector<double> out;
  for (const Row& row : rows) out.push_back(1 / std::sqrt(sizes[row.group]));
  return out;
}

std::string signed_percent(double value) { return (value >= 0 ? "+" : "") + fixed(100 * value, 1); }

std::string cell(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string statistics_line(const std::string& name, std::size_t rows, std::size_t predicted,
                            const Errors& time, const Errors& memory) {
  const ErrorStatistics t = statistics(time.values, time.weights);
  const ErrorStatistics m = statistics(memory.values, memory.weights);
  std::string out = name;
  if (out.size() < 22) out.append(22 - out.size(), ' ');
  out += cell(std::to_string(rows), 6) + cell(std::to_string(predicted), 11);
  if (t.count > 0) {
    out += cell(fixed(100 * t.median, 1), 9) + cell(fixed(100 * t.mean, 1), 8) +
           cell(fixed(100 * t.p90, 1), 8) + cell(signed_percent(t.bias), 8);
  } else {
    out += cell("-", 9) + cell("-", 8) + cell("-", 8) + cell("-", 8);
  }
  if (m.count > 0) {
    out += cell(fixed(100 * m.median, 1), 10) + cell(signed_percent(m.bias), 8) +
           cell(std::to_string(m.count), 6);
  }
  return out + "\n";
}

struct Table {
  std::map<std::string, std::size_t> rows, predicted;
  std::map<std::string, Errors> time, memory;
};

Table collect(const std::vector<Row>& rows, const std::vector<RowResult>& results, bool weighted) {
  const std::vector<double> weights = row_weights(rows);
  Table out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowResult& r = results[i];
    for (const std::string& name : {family_of(rows[i]), std::string("all")}) {
      ++out.rows[name];
      if (r.state != RowResult::State::kOk) continue;
      ++out.predicted[name];
      const double weight = weighted ? weights[i] : 1;
      if (rows[i].step_time_s > 0) out.time[name].add(r.time_error, weight);
      if (rows[i].peak_memory_gib > 0) out.memory[name].add(r.memory_error, weight);
    }
  }
  return out;
}

std::map<std::string, std::size_t> reasons(const std::vector<RowResult>& results) {
  std::map<std::string, std::size_t> out;
  for (const RowResult& r : results) {
    if (r.state == RowResult::State::kOk) continue;
    // Without the row's own name: "vtr-1: /sharding/level: is not modelled yet".
    const std::size_t colon = r.reason.find(": ");
    ++out[colon == std::string::npos ? r.reason : r.reason.substr(colon + 2)];
  }
  return out;
}

const char* name_of(RowResult::State state) {
  switch (state) {
    case RowResult::State::kOk:
      return "ok";
    case RowResult::State::kUnsupported:
      return "unsupported";
    case RowResult::State::kError:
      return "error";
  }
  return "";
}

Json statistics_json(const Errors& errors) {
  const ErrorStatistics s = statistics(errors.values, errors.weights);
  Json out{Json::Object{}};
  out.set("count", static_cast<std::int64_t>(s.count));
  out.set("median", s.median);
  out.set("mean", s.mean);
  out.set("p90", s.p90);
  out.set("bias", s.bias);
  return out;
}

/// How many rows got something that their sources do not say, by what it is.
std::string assumed_lines(const std::vector<RowResult>& results) {
  std::map<std::string, std::size_t> counts;
  for (const RowResult& r : results) {
    if (!r.assumed.empty()) ++counts[r.assumed.front().substr(0, r.assumed.front().find('='))];
  }
  std::string out;
  for (const auto& [key, count] : counts) {
    out += cell(std::to_string(count), 6) + "  with " + key + "\n";
  }
  return out.empty() ? out
                     : "\nMeasured, but not as the row has it, for its memory or its release: "
                       "predicted with\n" +
                           out;
}

std::string of_rows(const Coverage& of) {
  return std::to_string(of.inside) + " of " + std::to_string(of.rows) + " (" +
         fixed(100.0 * static_cast<double>(of.inside) / static_cast<double>(of.rows), 0) + " %)";
}

/// How many measured times lie in the intervals that were predicted.
std::string interval_lines(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  const Coverage all = coverage(rows, results);
  if (all.rows == 0) return "";
  std::string out = "\n" + of_rows(all) + " step times lie in their 90 % intervals\n";
  const FittedIntervals fitted = fit_intervals(rows, results);
  if (fitted.sources < 2) return out;
  out += of_rows(fitted.left_out) +
         " do with widths from these rows without the source that published them\n";
  constexpr std::size_t kFew = 20;
  for (const auto& [stratum, of] : fitted.strata) {
    if (of.rows >= kFew) out += "  " + stratum + ": " + of_rows(of) + "\n";
  }
  return out;
}

/// How well predictions choose among plans.
std::string ranking_lines(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  const PairsInOrder pairs = pairs_in_order(rows, results);
  if (pairs.pairs == 0) return "";
  std::string out = "\n" + std::to_string(pairs.ordered) + " of " + std::to_string(pairs.pairs) +
                    " pairs of plans of one group are in the order of their measurements\n";
  std::vector<Ranking> all = rankings(rows, results);
  if (all.empty()) return out;
  const auto mean = [&all](double Ranking::*of) {
    double sum = 0;
    for (const Ranking& one : all) sum += one.*of;
    return sum / static_cast<double>(all.size());
  };
  out += "Plans of one model (" + std::to_string(all.size()) +
         " groups of three rows or more): the plan predicted fastest takes " +
         fixed(100 * mean(&Ranking::regret), 1) + " % more than the fastest, " +
         fixed(100 * mean(&Ranking::ordered), 0) +
         " % of pairs are in their order, Kendall's tau " + fixed(mean(&Ranking::tau), 2) +
         ", means of groups\n";
  std::stable_sort(all.begin(), all.end(),
                   [](const Ranking& a, const Ranking& b) { return a.regret > b.regret; });
  constexpr double kMuch = 0.02;
  for (const Ranking& one : all) {
    if (one.regret < kMuch) break;
    out += "  " + one.group + ": " + std::to_string(one.plans) + " plans, " +
           fixed(100 * one.regret, 1) + " % more, tau " + fixed(one.tau, 2) + "\n";
  }
  return out;
}

Json coverage_json(const Coverage& of) {
  Json out{Json::Object{}};
  out.set("rows", static_cast<std::int64_t>(of.rows));
  out.set("inside", static_cast<std::int64_t>(of.inside));
  return out;
}

Json coverage_json(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  const FittedIntervals fitted = fit_intervals(rows, results);
  Json out = coverage_json(coverage(rows, results));
  out.set("source_left_out", coverage_json(fitted.left_out));
  Json strata{Json::Object{}};
  for (const auto& [stratum, of] : fitted.strata) strata.set(stratum, coverage_json(of));
  out.set("strata_left_out", std::move(strata));
  return out;
}

Json ranking_json(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  Json::Array out;
  for (const Ranking& one : rankings(rows, results)) {
    Json group{Json::Object{}};
    group.set("group", one.group);
    group.set("plans", static_cast<std::int64_t>(one.plans));
    group.set("regret", one.regret);
    group.set("kendall_tau", one.tau);
    group.set("pairs_in_order", one.ordered);
    out.push_back(std::move(group));
  }
  return Json(std::move(out));
}

}  // namespace

std::string score_table(const std::vector<Row>& rows, const std::vector<RowResult>& results,
                        std::size_t worst) {
  std::string out =
      "                        rows  predicted   |step time error| %           memory error %\n"
      "                                            median    mean     p90    bias    median    bias"
      "  rows\n";
  const Table plain = collect(rows, results, false);
  for (const auto& [name, count] : plain.rows) {
    if (name == "all") continue;
    const auto predicted = plain.predicted.find(name);
    const auto get = [](const std::map<std::string, Errors>& map, const std::string& key) {
      const auto it = map.find(key);
      return it == map.end() ? Errors{} : it->second;
    };
    out += statistics_line(name, count, predicted == plain.predicted.end() ? 0 : predicted->second,
                           get(plain.time, name), get(plain.memory, name));
  }
  for (const bool weighted : {false, true}) {
    Table table = collect(rows, results, weighted);
    out += statistics_line(weighted ? "all, weighted" : "all", table.rows["all"],
                           table.predicted["all"], table.time["all"], table.memory["all"]);
  }
  out += interval_lines(rows, results);
  out += ranking_lines(rows, results);
  const auto why = reasons(results);
  if (!why.empty()) {
    out += "\nNot predicted\n";
    std::vector<std::pair<std::size_t, std::string>> sorted;
    for (const auto& [reason, count] : why) sorted.emplace_back(count, reason);
    std::sort(sorted.rbegin(), sorted.rend());
    for (const auto& [count, reason] : sorted) {
      out += cell(std::to_string(count), 6) + "  " + printable_line(reason) + "\n";
    }
  }
  out += assumed_lines(results);
  if (worst == 0) return out;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (results[i].state == RowResult::State::kOk && rows[i].step_time_s > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::fabs(results[a].time_error) > std::fabs(results[b].time_error);
  });
  out += "\nWorst step times\n";
  for (std::size_t k = 0; k < std::min(worst, order.size()); ++k) {
    const std::size_t i = order[k];
    out += cell(signed_percent(results[i].time_error), 8) + " %  " + rows[i].id + "  " +
           rows[i].group + "  predicted " + seconds_text(results[i].step_time_s) + ", measured " +
           seconds_text(rows[i].step_time_s) + "\n";
  }
  return out;
}

Json score_json(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  Json::Array list;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowResult& r = results[i];
    Json one{Json::Object{}};
    one.set("id", rows[i].id);
    one.set("group", rows[i].group);
    one.set("status", name_of(r.state));
    one.set("reason", r.reason);
    if (!r.assumed.empty()) one.set("assumed", sets_json(r.assumed));
    const auto pair = [](double time, double memory) {
      Json out{Json::Object{}};
      if (time != 0) out.set("step_time_s", time);
      if (memory != 0) out.set("peak_memory_gib", memory);
      return out;
    };
    one.set("measured", pair(rows[i].step_time_s, rows[i].peak_memory_gib));
    if (r.state == RowResult::State::kOk) {
      one.set("predicted", pair(r.step_time_s, r.peak_memory_gib));
      Json error{Json::Object{}};
      if (rows[i].step_time_s > 0) error.set("step_time_s", r.time_error);
      if (rows[i].peak_memory_gib > 0) error.set("peak_memory_gib", r.memory_error);
      one.set("error", std::move(error));
      one.set("interval_s", Json::Array{r.interval_s[0], r.interval_s[1]});
    }
    list.push_back(std::move(one));
  }
  Json summary{Json::Object{}};
  for (const bool weighted : {false, true}) {
    Table table = collect(rows, results, weighted);
    Json one{Json::Object{}};
    one.set("rows", static_cast<std::int64_t>(table.rows["all"]));
    one.set("predicted", static_cast<std::int64_t>(table.predicted["all"]));
    one.set("step_time_s", statistics_json(table.time["all"]));
    one.set("peak_memory_gib", statistics_json(table.memory["all"]));
    summary.set(weighted ? "weighted" : "plain", std::move(one));
  }
  summary.set("coverage", coverage_json(rows, results));
  summary.set("ranking", ranking_json(rows, results));
  const PairsInOrder pairs = pairs_in_order(rows, results);
  Json counts{Json::Object{}};
  counts.set("count", static_cast<std::int64_t>(pairs.pairs));
  counts.set("in_order", static_cast<std::int64_t>(pairs.ordered));
  summary.set("pairs", std::move(counts));
  Json out{Json::Object{}};
  out.set("schema", "foretrain/score/1");
  out.set("rows", std::move(list));
  out.set("summary", std::move(summary));
  return out;
}

std::string score_csv(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  std::string out =
      "id,group,status,predicted_step_time_s,measured_step_time_s,step_time_error,"
      "predicted_peak_memory_gib,measured_peak_memory_gib,peak_memory_error,reason,assumed\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowResult& r = results[i];
    const bool ok = r.state == RowResult::State::kOk;
    const auto number = [](bool present, double value) {
      return present ? dump_json(Json(value), -1) : std::string();
    };
    const bool time = rows[i].step_time_s > 0;
    const bool memory = rows[i].peak_memory_gib > 0;
    out += csv_cell(rows[i].id) + "," + csv_cell(rows[i].group) + "," + name_of(r.state) + "," +
           number(ok, r.step_time_s) + "," + number(time, rows[i].step_time_s) + "," +
           number(ok && time, r.time_error) + "," + number(ok, r.peak_memory_gib) + "," +
           number(memory, rows[i].peak_memory_gib) + "," + number(ok && memory, r.memory_error) +
           "," + csv_cell(r.reason) + "," + csv_cell(sets_text(r.assumed)) + "\n";
  }
  return out;
}

}  // namespace foretrain

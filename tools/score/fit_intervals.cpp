#include "tools/score/fit_intervals.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace foretrain {
namespace {

/// A measured value beside the predicted one.
struct Miss {
  std::string source, stratum;
  bool experts = false;
  double weight = 1;
  double error = 0;   ///< log(measured / predicted)
  double prices = 0;  ///< what the prices alone allow
  const Row* row = nullptr;
};
using Misses = std::vector<Miss>;
using Chosen = std::function<bool(const Miss&)>;

/// "NVIDIA/Megatron-LM" of "NVIDIA/Megatron-LM:tests/golden.json@1a2b".
std::string source_of(const Row& row) {
  return row.source.substr(0, row.source.find_first_of(":@ "));
}

std::string stratum_of(const Row& row, const RowResult& result) {
  const char* const size = result.facts.accelerators <= 8     ? "up to 8"
                           : result.facts.accelerators <= 64  ? "up to 64"
                           : result.facts.accelerators <= 512 ? "up to 512"
                                                              : "more than 512";
  return std::string(result.facts.experts ? "experts, " : "dense, ") +
         (result.facts.narrow ? "8 bits or fewer, " : "16 bits, ") + size +
         (row.bulk ? ", bulk" : "");
}

std::map<std::string, double> group_sizes(const std::vector<Row>& rows) {
  std::map<std::string, double> out;
  for (const Row& row : rows) out[row.group] += 1;
  return out;
}

Misses residuals_of_times(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  const std::map<std::string, double> sizes = group_sizes(rows);
  Misses out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowResult& r = results[i];
    if (r.state != RowResult::State::kOk || rows[i].step_time_s <= 0) continue;
    out.push_back({source_of(rows[i]), stratum_of(rows[i], r), r.facts.experts,
                   1 / std::sqrt(sizes.at(rows[i].group)),
                   std::log(rows[i].step_time_s / r.step_time_s), r.facts.price_deviation,
                   &rows[i]});
  }
  return out;
}

Misses residuals_of_memory(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  const std::map<std::string, double> sizes = group_sizes(rows);
  Misses out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowResult& r = results[i];
    const bool read = rows[i].memory_metric != "theoretical" && rows[i].memory_metric != "logged";
    if (r.state != RowResult::State::kOk || rows[i].peak_memory_gib <= 0 || !read) continue;
    Miss one;
    one.weight = 1 / std::sqrt(sizes.at(rows[i].group));
    one.error = std::log(rows[i].peak_memory_gib / r.peak_memory_gib);
    out.push_back(one);
  }
  return out;
}

/// The smallest error at which the weights reach the share.
double quantile(const std::vector<std::pair<double, double>>& sorted, double total, double share) {
  double reached = 0;
  for (const auto& [error, weight] : sorted) {
    reached += weight;
    if (reached >= share * total) return error;
  }
  return sorted.empty() ? 0 : sorted.back().first;
}

Deviation fitted(const Misses& all, const Chosen& chosen) {
  std::vector<std::pair<double, double>> sorted;
  double total = 0;
  for (const Miss& one : all) {
    if (!chosen(one)) continue;
    sorted.emplace_back(one.error, one.weight);
    total += one.weight;
  }
  std::sort(sorted.begin(), sorted.end());
  return {std::min(0.0, quantile(sorted, total, 0.05)),
          std::max(0.0, quantile(sorted, total, 0.95))};
}

/// Standard deviations of log(measured / predicted) within groups of three rows or more, sorted.
std::vector<double> within_groups(const std::vector<Row>& rows, const Misses& times) {
  std::map<std::string, std::vector<double>> groups;
  std::size_t next = 0;
  for (const Row& row : rows) {
    if (next < times.size() && times[next].row == &row)
      groups[row.group].push_back(times[next++].error);
  }
  std::vector<double> out;
  for (const auto& [group, errors] : groups) {
    if (errors.size() < 3) continue;
    const auto count = static_cast<double>(errors.size());
    double mean = 0;
    for (const double error : errors) mean += error / count;
    double squares = 0;
    for (const double error : errors) squares += (error - mean) * (error - mean);
    out.push_back(std::sqrt(squares / (count - 1)));
  }
  std::sort(out.begin(), out.end());
  return out;
}

Coverage& operator+=(Coverage& sum, bool inside) {
  ++sum.rows;
  sum.inside += inside ? 1 : 0;
  return sum;
}

void leave_out(const Misses& times, FittedIntervals& out) {
  std::set<std::string> sources;
  for (const Miss& one : times) sources.insert(one.source);
  out.sources = sources.size();
  for (const std::string& source : sources) {
    Deviation by_kind[2];
    for (const bool experts : {false, true}) {
      by_kind[experts ? 1 : 0] = fitted(
          times, [&](const Miss& one) { return one.source != source && one.experts == experts; });
    }
    for (const Miss& one : times) {
      if (one.source != source) continue;
      const Interval interval = interval_around(1, one.prices, by_kind[one.experts ? 1 : 0]);
      const double measured = std::exp(one.error);
      const bool inside = interval.low <= measured && measured <= interval.high;
      out.left_out += inside;
      out.strata[one.stratum] += inside;
    }
  }
}

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

Json pair_json(const Deviation& deviation) {
  return Json::Array{rounded(deviation.low), rounded(deviation.high)};
}

}  // namespace

FittedIntervals fit_intervals(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  const Misses times = residuals_of_times(rows, results);
  const Misses memory = residuals_of_memory(rows, results);
  FittedIntervals out;
  out.widths.dense = fitted(times, [](const Miss& one) { return !one.experts; });
  out.widths.experts = fitted(times, [](const Miss& one) { return one.experts; });
  out.widths.memory = fitted(memory, [](const Miss&) { return true; });
  for (const Miss& one : times) ++(one.experts ? out.experts : out.dense);
  out.memory = memory.size();
  const std::vector<double> groups = within_groups(rows, times);
  out.groups = groups.size();
  if (!groups.empty()) out.widths.plans = groups[groups.size() / 2];
  leave_out(times, out);
  return out;
}

Json intervals_json(const FittedIntervals& fitted, const std::string& month) {
  Json out{Json::Object{}};
  out.set("schema", "foretrain/intervals/1");
  out.set("dense", pair_json(fitted.widths.dense));
  out.set("experts", pair_json(fitted.widths.experts));
  out.set("memory", pair_json(fitted.widths.memory));
  out.set("plans", Json::Array{rounded(fitted.widths.plans)});
  const auto from = [](std::size_t rows) {
    return std::to_string(rows) +
           " published runs: 5th and 95th percentile of log(measured / predicted), written by "
           "`foretrain score ROWS --fit-intervals FILE`";
  };
  out.set("figures_changed", month);
  Json sources{Json::Object{}};
  sources.set("dense", from(fitted.dense));
  sources.set("experts", from(fitted.experts));
  sources.set("memory", from(fitted.memory));
  sources.set("plans", std::to_string(fitted.groups) +
                           " groups of three published runs or more: median of the standard "
                           "deviations of log(measured / predicted) within them, written likewise");
  out.set("sources", std::move(sources));
  return out;
}

Coverage coverage(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  Coverage out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (results[i].state != RowResult::State::kOk || rows[i].step_time_s <= 0) continue;
    const double* bounds = results[i].interval_s;
    out += bounds[0] <= rows[i].step_time_s && rows[i].step_time_s <= bounds[1];
  }
  return out;
}

}  // namespace foretrain

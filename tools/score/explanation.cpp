#include "tools/score/explanation.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/report/report.h"

namespace foretrain {
namespace {

constexpr double kPrior = 0.3;   // deviation of a factor before there are rows
constexpr double kNoise = 0.03;  // of a measured step, relative
constexpr double kTold = 0.5;    // of the prior's deviation: what is left where rows tell
constexpr double kLeast = 0.01;  // mean share of a part that is looked at
constexpr std::size_t kFewest = 4;

using Shares = std::vector<double>;

struct Group {
  std::vector<Shares> shares;  ///< by row, of the parts
  std::vector<double> excess;  ///< measured / predicted - 1
};

/// The inverse of a symmetric positive definite matrix, by Gauss and Jordan.
std::vector<std::vector<double>> inverse(std::vector<std::vector<double>> a) {
  const std::size_t n = a.size();
  std::vector<std::vector<double>> out(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) out[i][i] = 1;
  for (std::size_t i = 0; i < n; ++i) {
    const double pivot = a[i][i];
    for (std::size_t j = 0; j < n; ++j) {
      a[i][j] /= pivot;
      out[i][j] /= pivot;
    }
    for (std::size_t r = 0; r < n; ++r) {
      const double factor = r == i ? 0 : a[r][i];
      if (factor == 0) continue;
      for (std::size_t j = 0; j < n; ++j) {
        a[r][j] -= factor * a[i][j];
        out[r][j] -= factor * out[i][j];
      }
    }
  }
  return out;
}

/// Parts with a share worth a look.
std::vector<std::size_t> parts_of(const Group& group, Shares& mean) {
  mean.assign(static_cast<std::size_t>(Part::kCount), 0);
  for (const Shares& row : group.shares) {
    for (std::size_t p = 0; p < mean.size(); ++p) {
      mean[p] += row[p] / static_cast<double>(group.shares.size());
    }
  }
  std::vector<std::size_t> out;
  for (std::size_t p = 0; p < mean.size(); ++p) {
    if (mean[p] >= kLeast) out.push_back(p);
  }
  return out;
}

/// With so much noise in measured steps.
Explanation explain(const std::string& name, const Group& group, double noise) {
  Explanation out;
  out.group = name;
  out.rows = group.shares.size();
  Shares mean;
  const std::vector<std::size_t> parts = parts_of(group, mean);
  const std::size_t n = parts.size();
  std::vector<std::vector<double>> precision(n, std::vector<double>(n));
  std::vector<double> seen(n);
  for (std::size_t i = 0; i < n; ++i) precision[i][i] = 1 / (kPrior * kPrior);
  for (std::size_t r = 0; r < group.shares.size(); ++r) {
    for (std::size_t i = 0; i < n; ++i) {
      const double own = group.shares[r][parts[i]] / (noise * noise);
      seen[i] += own * group.excess[r];
      for (std::size_t j = 0; j < n; ++j) precision[i][j] += own * group.shares[r][parts[j]];
    }
  }
  const std::vector<std::vector<double>> covariance = inverse(std::move(precision));
  for (std::size_t i = 0; i < n; ++i) {
    PartFactor one;
    one.part = static_cast<Part>(parts[i]);
    one.share = mean[parts[i]];
    for (std::size_t j = 0; j < n; ++j) one.factor += covariance[i][j] * seen[j];
    one.deviation = std::sqrt(covariance[i][i]);
    (one.deviation <= kTold * kPrior ? out.told : out.untold).push_back(one);
  }
  const auto effect = [](const PartFactor& of) { return std::fabs(of.factor - 1) * of.share; };
  std::stable_sort(out.told.begin(), out.told.end(),
                   [&](const auto& a, const auto& b) { return effect(a) > effect(b); });
  std::stable_sort(out.untold.begin(), out.untold.end(),
                   [](const auto& a, const auto& b) { return a.share > b.share; });
  return out;
}

/// The root of the mean square of what factors leave of the rows' errors.
double left_of(const Group& group, const Explanation& factors) {
  double sum = 0;
  for (std::size_t r = 0; r < group.shares.size(); ++r) {
    double left = group.excess[r];
    for (const auto* parts : {&factors.told, &factors.untold}) {
      for (const PartFactor& one : *parts) {
        left -= (one.factor - 1) * group.shares[r][static_cast<std::size_t>(one.part)];
      }
    }
    sum += left * left;
  }
  return std::sqrt(sum / static_cast<double>(group.shares.size()));
}

std::string percent(double share) { return fixed(100 * share, 0) + " %"; }

std::string text_of(const PartFactor& of, bool told) {
  std::string name(name_of(of.part));
  std::replace(name.begin(), name.end(), '_', ' ');
  if (!told) return name + " (" + percent(of.share) + ")";
  return name + " (" + percent(of.share) + ") x " + fixed(of.factor, 2) + " +- " +
         fixed(of.deviation, 2);
}

std::string list_of(const std::vector<PartFactor>& parts, bool told) {
  std::string out;
  for (const PartFactor& one : parts) out += (out.empty() ? "" : ", ") + text_of(one, told);
  return out;
}

Json parts_json(const std::vector<PartFactor>& parts) {
  Json::Array out;
  for (const PartFactor& one : parts) {
    Json json{Json::Object{}};
    json.set("part", name_of(one.part));
    json.set("share", one.share);
    json.set("factor", one.factor);
    json.set("deviation", one.deviation);
    out.push_back(std::move(json));
  }
  return Json(std::move(out));
}

}  // namespace

std::vector<Explanation> explanations(const std::vector<Row>& rows,
                                      const std::vector<RowResult>& results) {
  std::map<std::string, Group> groups;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowResult& r = results[i];
    if (r.state != RowResult::State::kOk || rows[i].step_time_s <= 0) continue;
    Group& group = groups[rows[i].group];
    Shares shares;
    for (const double seconds : r.facts.parts_s) shares.push_back(seconds / r.step_time_s);
    group.shares.push_back(std::move(shares));
    group.excess.push_back(rows[i].step_time_s / r.step_time_s - 1);
  }
  std::vector<Explanation> out;
  for (const auto& [name, group] : groups) {
    if (group.shares.size() < kFewest) continue;
    const Explanation first = explain(name, group, kNoise);
    out.push_back(explain(name, group, std::max(kNoise, left_of(group, first))));
  }
  return out;
}

std::string explanation_lines(const std::vector<Explanation>& all) {
  if (all.empty()) {
    return "\nNo group has four rows with a step time: their errors cannot be split\n";
  }
  std::string out =
      "\nErrors by family of time: what a family's predicted time would have to be multiplied by\n";
  for (const Explanation& one : all) {
    out += "  " + one.group + ", " + std::to_string(one.rows) + " rows: " +
           (one.told.empty() ? "its plans differ too little to tell" : list_of(one.told, true)) +
           "\n";
    if (!one.told.empty() && !one.untold.empty()) {
      out += "    little is told of " + list_of(one.untold, false) + "\n";
    }
  }
  return out;
}

Json explanations_json(const std::vector<Explanation>& all) {
  Json::Array out;
  for (const Explanation& one : all) {
    Json group{Json::Object{}};
    group.set("group", one.group);
    group.set("rows", static_cast<std::int64_t>(one.rows));
    group.set("told", parts_json(one.told));
    group.set("untold", parts_json(one.untold));
    out.push_back(std::move(group));
  }
  return Json(std::move(out));
}

}  // namespace foretrain

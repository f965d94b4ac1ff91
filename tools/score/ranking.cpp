#include "tools/score/ranking.h"

#include <algorithm>
#include <map>

namespace foretrain {
namespace {

struct Costs {
  double predicted = 0, measured = 0;
};

/// Plans by their group.
using Groups = std::map<std::string, std::vector<Costs>>;

Groups groups_of(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  Groups out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowResult& r = results[i];
    if (r.state != RowResult::State::kOk || rows[i].step_time_s <= 0 || r.facts.tokens <= 0)
      continue;
    const double scale = static_cast<double>(r.facts.accelerators) / r.facts.tokens;
    out[rows[i].group].push_back({r.step_time_s * scale, rows[i].step_time_s * scale});
  }
  return out;
}

/// Pairs that are predicted in their order, in the other, and all.
struct Pairs {
  std::size_t same = 0, other = 0, all = 0;
};

Pairs pairs_of(const std::vector<Costs>& plans) {
  Pairs out;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    for (std::size_t j = i + 1; j < plans.size(); ++j) {
      const double order =
          (plans[i].predicted - plans[j].predicted) * (plans[i].measured - plans[j].measured);
      out.same += order > 0 ? 1 : 0;
      out.other += order < 0 ? 1 : 0;
      ++out.all;
    }
  }
  return out;
}

Ranking ranked(const std::string& group, const std::vector<Costs>& plans) {
  Ranking out;
  out.group = group;
  out.plans = plans.size();
  const auto by = [](double Costs::*of) {
    return [of](const Costs& a, const Costs& b) { return a.*of < b.*of; };
  };
  const Costs& chosen = *std::min_element(plans.begin(), plans.end(), by(&Costs::predicted));
  const Costs& best = *std::min_element(plans.begin(), plans.end(), by(&Costs::measured));
  out.regret = chosen.measured / best.measured - 1;
  const Pairs pairs = pairs_of(plans);
  const auto all = static_cast<double>(pairs.all);
  out.tau = (static_cast<double>(pairs.same) - static_cast<double>(pairs.other)) / all;
  out.ordered = static_cast<double>(pairs.same) / all;
  return out;
}

}  // namespace

PairsInOrder pairs_in_order(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  PairsInOrder out;
  for (const auto& [group, plans] : groups_of(rows, results)) {
    const Pairs pairs = pairs_of(plans);
    out.pairs += pairs.all;
    out.ordered += pairs.same;
  }
  return out;
}

std::vector<Ranking> rankings(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  std::vector<Ranking> out;
  for (const auto& [group, plans] : groups_of(rows, results)) {
    if (plans.size() >= 3) out.push_back(ranked(group, plans));
  }
  return out;
}

}  // namespace foretrain

#include "tools/score/ranking.h"

#include <algorithm>
#include <map>

namespace foretrain {
namespace {

struct Costs {
  double predicted = 0, measured = 0;
};

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
  double same = 0;
  double other = 0;
  double pairs = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    for (std::size_t j = i + 1; j < plans.size(); ++j) {
      const double order =
          (plans[i].predicted - plans[j].predicted) * (plans[i].measured - plans[j].measured);
      same += order > 0 ? 1 : 0;
      other += order < 0 ? 1 : 0;
      ++pairs;
    }
  }
  out.tau = (same - other) / pairs;
  out.ordered = same / pairs;
  return out;
}

}  // namespace

std::vector<Ranking> rankings(const std::vector<Row>& rows, const std::vector<RowResult>& results) {
  std::map<std::string, std::vector<Costs>> groups;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowResult& r = results[i];
    if (r.state != RowResult::State::kOk || rows[i].step_time_s <= 0 || r.facts.tokens <= 0)
      continue;
    const double scale = static_cast<double>(r.facts.accelerators) / r.facts.tokens;
    groups[rows[i].group].push_back({r.step_time_s * scale, rows[i].step_time_s * scale});
  }
  std::vector<Ranking> out;
  for (const auto& [group, plans] : groups) {
    if (plans.size() >= 3) out.push_back(ranked(group, plans));
  }
  return out;
}

}  // namespace foretrain

// One question, one table: the campaign on several clusters and with several policies.
#include <algorithm>
#include <cmath>

#include "tools/goodput/goodput.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

/// Keys that only some policies read, taken back for the others.
Sets policy_sets(const std::string& policy) {
  if (policy.empty()) return {};
  Sets out = {"campaign.policy=" + policy};
  const bool templates = policy == "templates";
  if (!templates) out.emplace_back("campaign.failures_at_once=null");
  if (!templates && policy != "redundant") {
    out.emplace_back("campaign.recovery.regroup_s=null");
  }
  return out;
}

Sets cluster_sets(const std::string& cluster, const Run& own) {
  if (cluster.empty()) return {};
  return {R"(cluster={"preset":")" + cluster + R"(","accelerators":)" +
          std::to_string(own.cluster.accelerators) + "}"};
}

/// The preset of the RUN, or what its device is called.
std::string own_cluster(const Run& run) {
  const Json* preset = value_at(run.resolved, "/cluster/preset");
  if (preset != nullptr && preset->string() != nullptr) return *preset->string();
  return run.cluster.device.name;
}

std::string row_text(const std::vector<std::string>& cells) {
  constexpr std::size_t kWidths[] = {22, 13, 10, 9, 9, 9, 13, 13, 10};
  std::string out = " ";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::size_t room = kWidths[i] - std::min(kWidths[i] - 1, cells[i].size());
    out += i < 2 ? " " + cells[i] + std::string(room - 1, ' ') : std::string(room, ' ') + cells[i];
  }
  return out + "\n";
}

const std::string& policy_of(const Goodput& g) {
  return policy_names()[static_cast<std::size_t>(g.plan.fleet.policy)];
}

}  // namespace

Result<GoodputTable> goodput_table(const std::string& run, const Sets& sets,
                                   const std::vector<std::string>& clusters,
                                   const std::vector<std::string>& policies,
                                   const GoodputOptions& options) {
  FT_ASSIGN(const Run own, load_run(run, sets));
  GoodputOptions of_rows = options;
  of_rows.same_repair = policies.size() > 1;
  GoodputTable out;
  std::optional<Error> first;
  for (const std::string& cluster : clusters) {
    for (const std::string& policy : policies) {
      const Sets of_cluster = cluster_sets(cluster, own);
      Sets all = sets;
      all.insert(all.end(), of_cluster.begin(), of_cluster.end());
      const Sets of_policy = policy_sets(policy);
      all.insert(all.end(), of_policy.begin(), of_policy.end());
      FT_ASSIGN(const Run row, load_run(run, all));
      const std::string name = cluster.empty() ? own_cluster(own) : cluster;
      Result<Goodput> result = goodput_of(row, of_rows);
      if (result.ok()) {
        out.rows.push_back({name, std::move(result.value())});
        continue;
      }
      if (!first) first = result.error();
      out.refused.push_back({name, policy, result.error().message});
    }
  }
  if (out.rows.empty() && first) return *first;
  return out;
}

std::string text_of(const Run& run, const GoodputTable& table) {
  std::string out =
      run.name + " on " + count_text(run.cluster.accelerators) + " accelerators\n" +
      row_text({"cluster", "policy", "step", "days", "90 %", "ETTR", "GPU-hours", "cost", "MWh"});
  for (const ClusterGoodput& row : table.rows) {
    const Goodput& g = row.goodput;
    out += row_text({row.cluster, policy_of(g), seconds_text(g.step_time_s),
                     fixed(g.statistics.days.mean, 2), fixed(g.statistics.days.p90, 2),
                     fixed(100 * g.statistics.ettr.mean, 2) + " %",
                     count_text(std::llround(g.bill.gpu_hours)),
                     g.bill.cost ? count_text(std::llround(*g.bill.cost)) : std::string("-"),
                     fixed(g.bill.energy_mwh, 1)});
  }
  for (const RefusedGoodput& one : table.refused) {
    out += "Refused: " + one.cluster + (one.policy.empty() ? "" : ", " + one.policy) + ": " +
           one.why + "\n";
  }
  return out;
}

Json json_of(const GoodputTable& table) {
  Json::Array rows;
  for (const ClusterGoodput& row : table.rows) {
    Json one = json_report(row.goodput);
    one.set("cluster", row.cluster);
    rows.push_back(std::move(one));
  }
  Json::Array refused;
  for (const RefusedGoodput& row : table.refused) {
    Json one{Json::Object{}};
    one.set("cluster", row.cluster);
    one.set("policy", row.policy.empty() ? Json() : Json(row.policy));
    one.set("why", row.why);
    refused.push_back(std::move(one));
  }
  Json out{Json::Object{}};
  out.set("schema", "foretrain/goodput-clusters/1");
  out.set("clusters", std::move(rows));
  out.set("refused", std::move(refused));
  return out;
}

}  // namespace foretrain

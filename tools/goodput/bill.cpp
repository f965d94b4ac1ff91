#include "tools/goodput/bill.h"

#include <cmath>

#include "tools/report/report.h"

namespace foretrain {

Result<std::optional<CampaignRequest>> campaign_of(const Run& run) {
  const Json* section = run.resolved.find("campaign");
  if (section == nullptr || section->is_null()) return std::optional<CampaignRequest>();
  FT_ASSIGN(CampaignRequest request, read_campaign(*section, run.source, "/campaign"));
  return std::optional<CampaignRequest>(std::move(request));
}

Result<std::int64_t> steps_of(const Run& run, const WorkRequest& work) {
  const std::string where = run.source + ": /campaign/";
  if (work.steps && work.tokens) {
    return input_error(where + "steps: stands beside tokens; give one of them");
  }
  if (work.steps) return *work.steps;
  if (!work.tokens) {
    return input_error(where + "tokens: is missing, expected the tokens to train on, or steps");
  }
  if (run.model.is_network()) {
    return input_error(where + "tokens: " + run.model.name + " takes images; give steps");
  }
  const double of_step =
      static_cast<double>(run.plan.global_batch) * static_cast<double>(run.plan.sequence_length);
  return static_cast<std::int64_t>(std::ceil(*work.tokens / of_step));
}

Bill bill_of(const Run& run, const PriceRequest& price, double days, std::int64_t spares) {
  Bill out;
  const double hours = 24 * days;
  const auto own = static_cast<double>(run.cluster.accelerators);
  const auto idle = static_cast<double>(spares * run.cluster.accelerators_per_node);
  const auto watts_of = [](const Cluster& nodes) {
    const DeviceSpec& device = nodes.device;
    return (device.power_limit_w > 0 ? device.power_limit_w : device.power_w) *
           static_cast<double>(nodes.accelerators);
  };
  double watts = 0;
  for (const Cluster& pool : run.cluster.pools) watts += watts_of(pool);
  if (run.cluster.pools.empty()) watts = watts_of(run.cluster);
  out.days = days;
  out.gpu_hours = hours * (own + idle);
  out.energy_mwh = watts * hours * price.pue / 1e6;
  if (price.per_gpu_hour || price.per_kwh) {
    out.cost = out.gpu_hours * price.per_gpu_hour.value_or(0) +
               out.energy_mwh * 1000 * price.per_kwh.value_or(0);
  }
  return out;
}

Result<std::optional<Bill>> simple_bill(const Run& run, double step_s) {
  FT_ASSIGN(const std::optional<CampaignRequest> request, campaign_of(run));
  if (!request || (!request->work.tokens && !request->work.steps)) return std::optional<Bill>();
  FT_ASSIGN(const std::int64_t steps, steps_of(run, request->work));
  const double seconds = request->work.step_time_s.value_or(step_s);
  Bill out = bill_of(run, request->price, static_cast<double>(steps) * seconds / kSecondsPerDay,
                     request->spares);
  out.steps = steps;
  return std::optional<Bill>(out);
}

std::string text_of(const Bill& bill) {
  std::string out = "Bill        " + count_text(bill.steps) + " steps, " + fixed(bill.days, 1) +
                    " days where nothing fails, " + count_text(std::llround(bill.gpu_hours)) +
                    " GPU-hours";
  if (bill.cost) out += ", costs " + count_text(std::llround(*bill.cost));
  return out + "\n";
}

Json json_of(const Bill& bill) {
  Json out{Json::Object{}};
  out.set("steps", bill.steps);
  out.set("days", bill.days);
  out.set("gpu_hours", bill.gpu_hours);
  if (bill.cost) out.set("cost", *bill.cost);
  out.set("energy_mwh", bill.energy_mwh);
  return out;
}

}  // namespace foretrain

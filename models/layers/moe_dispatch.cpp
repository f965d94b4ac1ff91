// The ways of tokens to the experts and back: exchanges, and what runs beside them.
#include <algorithm>
#include <utility>

#include "models/layers/moe_block.h"
#include "models/plan/expert_plan.h"
#include "models/slots.h"
#include "sim/base/check.h"

namespace foretrain {

MoeBlock::Way MoeBlock::way() const {
  Way out;
  out.rows.push_back(exchanges() || direct() ? x_sizes.sent : x_sizes.received);
  if (exchanges() || (gathers() && group_size() > 1)) {
    out.steps.push_back(Step::kExchange);
    out.rows.push_back(x_sizes.received);
  }
  if (!gathers() && x_plan.experts.tensor > 1) {
    out.steps.push_back(Step::kExpertTensor);
    out.rows.push_back(out.rows.back() * x_plan.experts.tensor);
  }
  if (sorts()) {
    out.steps.push_back(Step::kSort);
    out.rows.push_back(x_sizes.worked());
  }
  return out;
}

void MoeBlock::sort(SegmentWriter& w, const std::string& name, const Payload& payload, bool back) {
  std::vector<View> reads;
  std::vector<View> writes;
  for (const Rows& rows : payload) {
    reads.push_back(rows.from.view());
    writes.push_back(rows.to.view());
  }
  Kernel sort = of_experts(back ? KernelKind::kUnpermute : KernelKind::kPermute, x_sizes.worked(),
                           x_more.width);
  sort.rows_of.experts = x_sizes.local;
  sort.rows_of.sources = group_size();
  if (gathers()) {
    // Scores come forward only, and with them which rows are taken.
    const bool picks = !back && payload.size() > 1;
    (picks ? writes : reads).push_back(x_places.view());
    if (exchanges()) sort.split_over = x_builder.group(kExpertGroup);
  }
  w.compute(name + (back ? ".unsort" : ".sort"), sort, std::move(reads), std::move(writes));
}

void MoeBlock::swap(SegmentWriter& w, const std::string& name, const Payload& payload) {
  const std::int64_t most = std::max(x_sizes.sent, x_sizes.received);
  std::vector<EventRef> arrived;
  for (std::size_t i = 0; i < payload.size(); ++i) {
    const Rows& rows = payload[i];
    Collective work{CollectiveKind::kAllToAll, x_builder.group(kExpertGroup), most * rows.width,
                    rows.from.dtype, false};
    std::vector<View> reads = {rows.from.view()};
    std::vector<View> writes = {rows.to.view()};
    if (fused()) {
      work.fan_out = fan_out(x_model.experts);
      work.fan_out.sms = x_plan.experts.sms;
      work.fan_out.enough = enough_sms(x_plan.experts.dispatcher);
      // The kernels of DeepEP carry the probabilities beside their tokens.
      for (std::size_t beside = 1; beside < payload.size(); ++beside) {
        reads.push_back(payload[beside].from.view());
        writes.push_back(payload[beside].to.view());
      }
    }
    arrived.push_back(w.on_stream("expert", name + ".exchange" + (i > 0 ? ".probabilities" : ""),
                                  Category::kExpert, work, std::move(reads), std::move(writes)));
    if (fused()) break;
  }
  await(w, arrived);
}

void MoeBlock::await(SegmentWriter& w, const std::vector<EventRef>& arrived) {
  run_waiting();
  for (const EventRef& event : arrived) w.wait(event);
}

void MoeBlock::run_waiting() {
  if (!x_beside) return;
  const std::function<void()> work = std::move(x_beside);
  x_beside = nullptr;
  work();
}

void MoeBlock::take_step(SegmentWriter& w, const std::string& name, Step step,
                         const Payload& payload, bool back) {
  if (step == Step::kSort) return sort(w, name, payload, back);
  if (step == Step::kExchange && !gathers()) return swap(w, name, payload);
  const CollectiveKind kind = back ? CollectiveKind::kReduceScatter : CollectiveKind::kAllGather;
  const bool tensor = step == Step::kExpertTensor;
  const GroupSlot group = x_builder.group(tensor ? kExpertTensorGroup : kExpertModelGroup);
  std::vector<EventRef> arrived;
  for (std::size_t i = 0; i < payload.size(); ++i) {
    const Rows& rows = payload[i];
    const Collective work{kind, group, std::max(rows.from.count, rows.to.count), rows.from.dtype,
                          false};
    const char* what = tensor ? ".expert_tensor" : ".exchange";
    arrived.push_back(w.on_stream("expert", name + what + (i > 0 ? ".probabilities" : ""),
                                  Category::kExpert, work, {rows.from.view()}, {rows.to.view()}));
  }
  await(w, arrived);
}

void MoeBlock::walk(SegmentWriter& w, const std::string& name, const Payload& payload, bool back) {
  const Way all = way();
  const std::size_t n = all.steps.size();
  FT_CHECK(n > 0, "a way without steps");
  Payload now = payload;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t rows = back ? all.rows[n - 1 - i] : all.rows[i + 1];
    for (std::size_t p = 0; p < payload.size(); ++p) {
      if (i > 0) now[p].from = now[p].to;
      const bool last = i + 1 == n;
      now[p].to = last
                      ? payload[p].to
                      : temporary(name + (p > 0 ? " probabilities " : " rows ") + std::to_string(i),
                                  rows * now[p].width, payload[p].from.dtype);
    }
    take_step(w, name, back ? all.steps[n - 1 - i] : all.steps[i], now, back);
  }
}

void MoeBlock::to_experts(SegmentWriter& w, const std::string& name, const Payload& payload) {
  walk(w, name, payload, false);
}

void MoeBlock::from_experts(SegmentWriter& w, const std::string& name, const Payload& payload) {
  walk(w, name, payload, true);
}

}  // namespace foretrain

#include "tests/support/test_prices.h"

#include <algorithm>

namespace foretrain {

Result<PlacementId> TestPrices::place(std::span<const RankId> ranks) {
  std::map<std::int32_t, std::int32_t> by_node;
  for (const RankId rank : ranks) ++by_node[rank.value / x_rates.node];
  Shape shape;
  for (const auto& [node, count] : by_node) shape.push_back(count);
  std::sort(shape.begin(), shape.end());
  const auto [it, fresh] = x_known.try_emplace(shape, PlacementId(x_shapes.size()));
  if (fresh) x_shapes.push_back(std::move(shape));
  return it->second;
}

void TestPrices::price_transfer(Cost& cost, PlacementId place, std::int64_t moved) const {
  const bool inside = x_shapes[place.index()].size() == 1;
  cost.latency = x_rates.latency;
  const std::int64_t rate = inside ? x_rates.link_kilobyte : x_rates.nic_kilobyte;
  cost.duration = cost.latency + Time{moved * rate / 1000};
  cost.sms_held = x_rates.sms_held;
  cost.memory_share = x_rates.memory_share;
  const auto out = static_cast<std::size_t>(inside ? Port::kScaleUpOut : Port::kNicOut);
  const auto in = static_cast<std::size_t>(inside ? Port::kScaleUpIn : Port::kNicIn);
  cost.port_share[out] = cost.port_share[in] = x_rates.port_share;
}

Result<Cost> TestPrices::price(const Work& work, std::span<const PlacementId> placements) const {
  Cost cost;
  cost.launch = x_rates.launch;
  if (const auto* delay = std::get_if<HostDelay>(&work)) {
    cost.launch = delay->time;
  } else if (const auto* pause = std::get_if<Pause>(&work)) {
    cost.duration = pause->time;
  } else if (const auto* attention = std::get_if<Attention>(&work)) {
    const Time fixed = attention->backward ? x_rates.attention_backward : x_rates.attention_forward;
    cost.latency = x_rates.latency;
    cost.compute = Time{static_cast<std::int64_t>(flops_of(work)) * x_rates.kiloflop / 1000};
    if (fixed.ps > 0) {
      cost.latency = Time{};
      cost.compute = fixed;
    }
    cost.duration = cost.latency + cost.compute;
  } else if (const auto* gemm = std::get_if<Gemm>(&work)) {
    cost.latency = x_rates.latency;
    if (x_rates.tiles) {
      cost.tiles = (gemm->m + 63) / 64 * ((gemm->n + 63) / 64) * gemm->batch;
      cost.tile = Time{2 * 64 * 64 * gemm->k * x_rates.kiloflop * sm_count() / 1000};
      cost.duration = Time{(cost.tiles + sm_count() - 1) / sm_count() * cost.tile.ps};
    } else {
      cost.compute = Time{static_cast<std::int64_t>(flops_of(work)) * x_rates.kiloflop / 1000};
      cost.duration = cost.compute;
    }
    cost.duration += cost.latency;
  } else if (const auto* kernel = std::get_if<Kernel>(&work)) {
    cost.latency = x_rates.latency;
    cost.memory = Time{kernel->bytes * x_rates.kilobyte / 1000};
    cost.duration = cost.latency + cost.memory;
  } else if (const auto* opaque = std::get_if<Opaque>(&work)) {
    cost.latency = x_rates.latency;
    cost.memory = Time{opaque->bytes * x_rates.kilobyte / 1000};
    cost.duration = cost.latency + cost.memory;
  } else if (const auto* copy = std::get_if<Copy>(&work)) {
    const bool storage = copy->from == Memory::kStorage || copy->to == Memory::kStorage;
    const std::int64_t slower = x_rates.copies * (storage ? x_rates.storage : 1);
    cost.duration = x_rates.latency + Time{copy->bytes * x_rates.kilobyte * slower / 1000};
  } else if (const auto* collective = std::get_if<Collective>(&work)) {
    const Shape& shape = x_shapes[placements[0].index()];
    std::int64_t ranks = 0;
    for (const std::int32_t count : shape) ranks += count;
    const std::int64_t rounds = collective->kind == CollectiveKind::kAllReduce ? 2 : 1;
    const Bytes bytes = bytes_of(collective->dtype, collective->count);
    price_transfer(cost, placements[0], rounds * bytes * (ranks - 1) / ranks);
  } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    price_transfer(cost, placements[0], batch->messages[0].bytes);
  } else if (!std::holds_alternative<HostSync>(work)) {
    return unsupported("the test prices do not know " + text_of(work));
  }
  return cost;
}

std::int32_t TestPrices::port_of(RankId rank, Port port) const {
  const bool nic = port == Port::kNicOut || port == Port::kNicIn;
  const std::int32_t shared = nic ? rank.value / x_rates.ranks_per_nic : rank.value;
  return shared * kPortCount + static_cast<std::int32_t>(port);
}

Result<PlacementId> DerivedPrices::place(std::span<const RankId> ranks) {
  std::vector<RankId> there;
  for (const RankId rank : ranks) there.push_back(x_original[rank.index()]);
  return x_base.place(there);
}

Result<Cost> DerivedPrices::price(const Work& work, std::span<const PlacementId> placements) const {
  FT_ASSIGN(Cost cost, x_base.price(work, placements));
  for (Time* time :
       {&cost.launch, &cost.latency, &cost.duration, &cost.tile, &cost.compute, &cost.memory}) {
    time->ps *= x_factor;
  }
  return cost;
}

Rates plain_rates() {
  Rates r;
  r.launch = Time{700'000};
  r.latency = Time{2'000'000};
  r.kiloflop = 11;
  r.kilobyte = 501;
  r.link_kilobyte = 3'333;
  r.nic_kilobyte = 20'011;
  r.node = 4;
  return r;
}

Rates holding_rates() {
  Rates r = plain_rates();
  r.tiles = true;
  r.sms_held = 3;
  r.memory_share = 9'999;
  return r;
}

Rates sharing_rates() {
  Rates r = plain_rates();
  r.port_share = 40'001;
  r.ranks_per_nic = 2;
  return r;
}

Rates draw_rates(Rng& rng, bool holds, bool ports) {
  Rates r = plain_rates();
  r.launch = Time{rng.below(3) * 1'300'001};
  r.latency = Time{1 + rng.below(5'000'000)};
  r.kiloflop = 1 + rng.below(40);
  r.kilobyte = 1 + rng.below(3'000);
  r.link_kilobyte = 1 + rng.below(20'000);
  r.nic_kilobyte = 1 + rng.below(100'000);
  r.node = 1 << rng.below(4);
  r.tiles = rng.below(2) == 0;
  if (holds) {
    r.sms_held = static_cast<std::int32_t>(1 + rng.below(6));
    r.memory_share = static_cast<std::int32_t>(rng.below(20'000));
  }
  if (ports) {
    r.port_share = static_cast<std::int32_t>(1 + rng.below(kWhole));
    r.ranks_per_nic = 1 << rng.below(3);
  }
  return r;
}

}  // namespace foretrain

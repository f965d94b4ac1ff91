#include <algorithm>
#include <array>

#include "sim/base/int128.h"
#include "sim/cost/cost_model.h"

namespace foretrain {
namespace {

/// ceil(a * b / c) without overflow, for non-negative values and c > 0.
std::int64_t scaled(std::int64_t a, std::int64_t b, std::int64_t c) {
  return quotient(static_cast<Int128>(a) * b + c - 1, c);
}

/// Beside SMs that copy so much: between what was measured beside spinning and copying ones.
std::int32_t factor_at(const Slowdown& measured, std::int32_t memory_share) {
  if (measured.spin == 0 || measured.memory_share == 0) return measured.factor;
  const std::int64_t rise = std::max(0, measured.factor - measured.spin);
  const std::int64_t copied = std::min(memory_share, measured.memory_share);
  return static_cast<std::int32_t>(measured.spin + scaled(rise, copied, measured.memory_share));
}

/// In 1/65536, beside so many SMs; 0 where nothing was measured.
std::int64_t measured_factor(const Cost& cost, std::int32_t sms_held, std::int32_t memory_share) {
  Slowdown below{0, kWhole, 0, 0};
  Slowdown before = below;
  for (const Slowdown& above : cost.slowdowns) {
    if (above.sms == 0) break;
    before = below;
    below = {above.sms, factor_at(above, memory_share), 0, 0};
    if (above.sms >= sms_held) break;
  }
  if (below.sms == 0) return 0;
  const std::int64_t rise = std::max(0, below.factor - before.factor);
  const std::int64_t width = below.sms - before.sms;
  // On the line through the two: between them or beyond.
  const std::int64_t off = std::int64_t{sms_held} - before.sms;
  return std::max<std::int64_t>(kWhole, before.factor + scaled(rise, off, width));
}

}  // namespace

std::string_view name_of(Provenance provenance) {
  constexpr std::array<std::string_view, 3> kNames = {"measured", "interpolated", "analytic"};
  return kNames.at(static_cast<std::size_t>(provenance));
}

Time duration_beside(const Cost& cost, int sm_count, std::int32_t sms_held,
                     std::int32_t memory_share) {
  if (sms_held == 0 && memory_share == 0) return cost.duration;
  if (const std::int64_t factor = measured_factor(cost, sms_held, memory_share);
      sms_held > 0 && factor > 0) {
    return max(cost.duration, Time{scaled(cost.duration.ps, factor, kWhole)});
  }
  const std::int64_t free_sms = std::max(1, sm_count - sms_held);
  const std::int64_t free_memory = std::max(kWhole / 16, kWhole - memory_share);
  const std::int64_t clock = kWhole - (sms_held > 0 ? cost.clock_loss : 0);
  std::int64_t arithmetic = scaled(cost.compute.ps, sm_count, free_sms);
  if (cost.tiles > 0) {
    const std::int64_t waves = (cost.tiles + free_sms - 1) / free_sms * cost.rounds;
    arithmetic = std::max(arithmetic, scaled(waves, cost.tile.ps, 1));
  }
  const std::int64_t busy =
      std::max(scaled(arithmetic, kWhole, clock), scaled(cost.memory.ps, kWhole, free_memory));
  return max(cost.duration, cost.latency + Time{busy});
}

}  // namespace foretrain

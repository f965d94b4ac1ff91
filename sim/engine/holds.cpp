#include "sim/engine/holds.h"

#include <algorithm>

#include "sim/engine/fluid.h"

namespace foretrain {

void Holds::open(std::int32_t stream, Time begin, const Cost& cost) {
  const auto at = std::upper_bound(x_all.begin(), x_all.end(), begin,
                                   [](Time time, const Hold& hold) { return time < hold.begin; });
  x_all.insert(at, Hold{stream, begin, kNever, cost.sms_held, cost.memory_share});
  x_open.add(stream);
  ++x_changes;
}

void Holds::close(std::int32_t stream, Time end) {
  if (!x_open.contains(stream)) return;
  x_open.remove(stream);
  ++x_changes;
  x_last_end = max(x_last_end, end);
  const auto open = std::find_if(x_all.rbegin(), x_all.rend(), [stream](const Hold& hold) {
    return hold.stream == stream && hold.end == kNever;
  });
  if (open != x_all.rend()) open->end = end;
}

void Holds::forget(Time now) {
  constexpr std::ptrdiff_t kWorthwhile = 32;
  const auto begun = std::partition_point(x_all.begin(), x_all.end(),
                                          [now](const Hold& hold) { return hold.begin < now; });
  const bool few = x_all.end() - begun < kWorthwhile;  // to move
  if (!few && begun - x_all.begin() < kWorthwhile) return;
  x_all.erase(
      std::remove_if(x_all.begin(), begun, [now](const Hold& hold) { return hold.end <= now; }),
      begun);
}

Holds::Beside Holds::beside(std::int32_t stream, Time now) const {
  Beside out{0, 0, kNever};
  for (const Hold& hold : x_all) {
    if (hold.stream == stream || hold.end <= now) continue;
    if (hold.begin > now) {
      out.change = min(out.change, hold.begin);
      break;  // the others begin later
    }
    out.sms += hold.sms;
    out.memory += hold.memory_share;
    out.change = min(out.change, hold.end);
  }
  return out;
}

std::int64_t RatesBeside::rate(const Cost& cost, int sm_count, std::int32_t sms,
                               std::int32_t memory) {
  const auto place = reinterpret_cast<std::uintptr_t>(&cost) / sizeof(Cost) +
                     static_cast<std::uintptr_t>(sms) * 31 + static_cast<std::uintptr_t>(memory);
  Known& known = x_known[place % x_known.size()];
  const bool same = known.cost == &cost && known.sm_count == sm_count && known.sms == sms &&
                    known.memory == memory;
  if (same) return known.rate;
  const Time slowed = duration_beside(cost, sm_count, sms, memory);
  known = {&cost, sm_count, sms, memory, rate_of(cost.duration, slowed)};
  return known.rate;
}

Holds::Answer Holds::end_among(const Cost& cost, int sm_count, std::int32_t stream, Time ready,
                               RatesBeside& rates) const {
  Answer out;
  Progress progress(cost.duration);
  Time now = ready;
  while (true) {
    const auto [sms, memory, change] = beside(stream, now);
    if (sms == 0 && memory == 0) {
      out.end = progress.end_at(now, kOneRate);
      if (out.end <= change) break;
      progress.advance(change - now, kOneRate);
    } else {
      const std::int64_t rate = rates.rate(cost, sm_count, sms, memory);
      out.end = progress.end_at(now, rate);
      if (out.end <= change) break;
      progress.advance(change - now, rate);
    }
    now = change;
  }
  if (x_open.empty()) return out;
  for (const Hold& hold : x_all) {
    if (!(hold.begin < out.end)) break;
    if (hold.stream != stream && hold.end == kNever) out.certain = false;
  }
  return out;
}

}  // namespace foretrain

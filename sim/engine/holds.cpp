#include "sim/engine/holds.h"

#include <algorithm>

#include "sim/engine/fluid.h"

namespace foretrain {

bool Holds::is_open(std::int32_t stream) const {
  return std::any_of(x_all.begin(), x_all.end(), [stream](const Hold& hold) {
    return hold.stream == stream && hold.end == kNever;
  });
}

Holds::Answer Holds::end_beside(const Cost& cost, int sm_count, std::int32_t stream,
                                Time ready) const {
  Answer out;
  Progress progress(cost.duration);
  Time now = ready;
  while (true) {
    std::int32_t sms = 0;
    std::int32_t memory = 0;
    Time change = kNever;
    for (const Hold& hold : x_all) {
      if (hold.stream == stream || hold.end <= now) continue;
      if (hold.begin > now) {
        change = min(change, hold.begin);
      } else {
        sms += hold.sms;
        memory += hold.memory_share;
        change = min(change, hold.end);
      }
    }
    if (sms == 0 && memory == 0) {
      out.end = progress.end_at(now, kOneRate);
      if (out.end <= change) break;
      progress.advance(change - now, kOneRate);
    } else {
      const Time slowed = duration_beside(cost, sm_count, sms, memory);
      const std::int64_t rate = rate_of(cost.duration, slowed);
      out.end = progress.end_at(now, rate);
      if (out.end <= change) break;
      progress.advance(change - now, rate);
    }
    now = change;
  }
  for (const Hold& hold : x_all) {
    if (hold.stream != stream && hold.end == kNever && hold.begin < out.end) out.certain = false;
  }
  return out;
}

}  // namespace foretrain

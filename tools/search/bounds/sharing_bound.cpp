#include "tools/search/bounds/sharing_bound.h"

#include <algorithm>
#include <map>
#include <utility>

namespace foretrain {
namespace {

/// By op of a segment: the last op of the compute stream that must have ended before it begins, -1
/// none, and the first one that cannot begin before it has ended, `none()` where there is none.
class Between {
 public:
  explicit Between(const Segment& segment)
      : x_after(segment.ops.size(), -1), x_before(segment.ops.size(), none(segment)) {
    std::map<std::pair<std::int16_t, std::int16_t>, std::size_t> recorders;
    std::map<std::int32_t, std::size_t> last_of_stream;
    std::vector<std::pair<std::size_t, std::size_t>> edges;  // an op, one that follows it
    for (std::size_t o = 0; o < segment.ops.size(); ++o) {
      const Op& op = segment.ops[o];
      for (const EventRef& wait : op.waits) {
        const auto known = recorders.find({wait.frame, wait.event});
        if (known != recorders.end()) edges.emplace_back(known->second, o);
      }
      const auto [last, fresh] = last_of_stream.try_emplace(op.stream.value, o);
      if (!fresh) edges.emplace_back(std::exchange(last->second, o), o);
      if (op.records.valid()) recorders[{op.records.frame, op.records.event}] = o;
    }
    // Ops stand in the order in which they are issued: edges lead from earlier to later ones.
    const auto computes = [&](std::size_t o) { return segment.ops[o].stream.index() == 0; };
    for (const auto& [from, to] : edges) {
      const auto place = computes(from) ? static_cast<std::ptrdiff_t>(from) : x_after[from];
      x_after[to] = std::max(x_after[to], place);
    }
    for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge) {
      const auto [from, to] = *edge;
      const auto place = computes(to) ? static_cast<std::ptrdiff_t>(to) : x_before[to];
      x_before[from] = std::min(x_before[from], place);
    }
  }

  static std::ptrdiff_t none(const Segment& segment) { return std::ssize(segment.ops); }
  std::ptrdiff_t after(std::size_t op) const { return x_after[op]; }
  std::ptrdiff_t before(std::size_t op) const { return x_before[op]; }

 private:
  std::vector<std::ptrdiff_t> x_after, x_before;
};

}  // namespace

double lost_share(const Cost& kernel, const Cost& hold, int sm_count) {
  if (kernel.sms_held > 0 || kernel.memory_share > 0 || kernel.duration.ps == 0) return 0;
  Time slowed = duration_beside(kernel, sm_count, hold.sms_held, hold.memory_share);
  for (const Slowdown& measured : kernel.slowdowns) {
    if (measured.sms == 0) continue;
    if (hold.sms_held == 0) return 0;
    // Beyond one that was measured the next line begins, which may lie lower.
    const std::int32_t sms = std::max(measured.sms + 1, hold.sms_held);
    slowed = min(slowed, duration_beside(kernel, sm_count, sms, hold.memory_share));
  }
  return 1 - kernel.duration.seconds() / slowed.seconds();
}

void sort_by_loss(std::vector<KernelsBeside>& kernels) {
  std::sort(kernels.begin(), kernels.end(),
            [](const KernelsBeside& a, const KernelsBeside& b) { return a.loss < b.loss; });
}

double least_loss_s(const std::vector<KernelsBeside>& kernels, double held_s) {
  double lost = 0;
  for (const KernelsBeside& kernel : kernels) {
    const double room = kernel.alone_s / (1 - kernel.loss);
    const double beside = std::min(room, held_s);
    lost += beside * kernel.loss;
    held_s -= beside;
    if (held_s <= 0) return lost;
  }
  return lost + held_s;
}

Lost least_loss(const Segment& segment, const std::vector<Cost>& alone,
                const std::vector<bool>& takes, int sm_count) {
  const Between between(segment);
  constexpr double kPicoseconds = 1e12;
  std::map<std::int32_t, Lost> by_stream;
  std::vector<KernelsBeside> kernels;
  for (std::size_t o = 0; o < segment.ops.size(); ++o) {
    const Op& op = segment.ops[o];
    const Cost& hold = alone[op.work.index()];
    const bool holds = hold.sms_held > 0 || hold.memory_share > 0;
    const bool inside = between.after(o) >= 0 && between.before(o) < Between::none(segment);
    if (op.stream.index() == 0 || !takes[o] || !holds || !inside) continue;
    kernels.clear();
    bool known = true;
    for (auto k = static_cast<std::size_t>(between.after(o)) + 1;
         k < static_cast<std::size_t>(between.before(o)); ++k) {
      const Op& beside = segment.ops[k];
      if (beside.stream.index() != 0) continue;
      known = known && takes[k];
      const Cost& kernel = alone[beside.work.index()];
      kernels.push_back({kernel.duration.seconds(), lost_share(kernel, hold, sm_count)});
    }
    sort_by_loss(kernels);
    if (!known) continue;
    const double lost = least_loss_s(kernels, hold.duration.seconds());
    Lost& of = by_stream[op.stream.value];
    of.lost += Time{static_cast<std::int64_t>(lost * kPicoseconds)};
    of.held += hold.duration;
  }
  Lost most;
  for (const auto& [stream, lost] : by_stream) {
    if (most.lost < lost.lost) most = lost;
  }
  return most;
}

}  // namespace foretrain

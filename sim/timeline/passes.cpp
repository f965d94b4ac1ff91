#include "sim/timeline/passes.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <utility>

namespace foretrain {
namespace {

/// A run of kernels of one microbatch and direction.
struct Fragment {
  bool forward = false, update = false;
  std::int32_t microbatch = -1;
  std::int32_t first_layer = -1, last_layer = -1;
  bool weights = false;  ///< some kernel computes gradients of weights
  bool others = false;   ///< some kernel of a layer computes something else
  Time begin, end;

  PassDirection direction() const {
    if (update) return PassDirection::kUpdate;
    if (forward) return PassDirection::kForward;
    return weights && !others ? PassDirection::kWeights : PassDirection::kBackward;
  }
  SchedulePass::Of of() const { return {direction(), microbatch}; }
  /// A pass goes through neighbouring layers, one way.
  bool may_go_on_at(std::int32_t layer) const {
    if (layer < 0 || last_layer < 0 || layer == last_layer) return true;
    return layer - last_layer == (forward ? 1 : -1);
  }
  bool of_one_layer() const { return first_layer == last_layer; }
  bool goes_on_with(const Fragment& next) const {
    return forward == next.forward && update == next.update && microbatch == next.microbatch &&
           may_go_on_at(next.first_layer);
  }
  void take(const Fragment& next) {
    if (first_layer < 0) first_layer = next.first_layer;
    if (next.last_layer >= 0) last_layer = next.last_layer;
    weights = weights || next.weights;
    others = others || next.others;
    end = next.end;
  }
};

/// Whether a span belongs to a pass at all, and the pass of it alone.
std::optional<Fragment> fragment_of(const Span& span, const SpanInfo& info) {
  if (info.category != Category::kCompute || span.end == span.begin) return std::nullopt;
  Fragment out;
  out.forward = info.phase == Phase::kForward;
  out.update = info.phase == Phase::kOptimizer;
  const bool again = info.phase == Phase::kRecompute;
  if (!out.forward && !out.update && !again && info.phase != Phase::kBackward) return std::nullopt;
  if (span.microbatch < 0 && !out.update) return std::nullopt;
  out.microbatch = out.update ? -1 : span.microbatch;
  // A block that is computed again goes forward through its layers: no order can be asked of it.
  if (!again && !out.update) out.first_layer = out.last_layer = span.layer;
  out.weights = info.name.ends_with("weight_gradient");
  out.others = !out.weights && span.layer >= 0;
  out.begin = span.begin;
  out.end = span.end;
  return out;
}

/// Makes passes of the fragments of one track, in order of time.
void add_passes(const std::vector<Fragment>& fragments, std::int32_t track,
                std::vector<SchedulePass>& out) {
  for (std::size_t i = 0; i < fragments.size();) {
    Fragment one = fragments[i];
    SchedulePass pass;
    pass.track = track;
    const bool turns = i + 2 < fragments.size() && !fragments[i + 1].update &&
                       one.forward != fragments[i + 1].forward && one.of_one_layer() &&
                       fragments[i + 1].of_one_layer() && one.goes_on_with(fragments[i + 2]);
    if (turns) {
      Fragment other = fragments[i + 1];
      for (i += 2; i < fragments.size(); ++i) {
        Fragment* const goes_on = one.goes_on_with(fragments[i])     ? &one
                                  : other.goes_on_with(fragments[i]) ? &other
                                                                     : nullptr;
        if (goes_on == nullptr) break;
        goes_on->take(fragments[i]);
      }
      pass.of = {one.of(), other.of()};
      pass.end = max(one.end, other.end);
    } else {
      ++i;
      pass.of = {one.of()};
      pass.end = one.end;
    }
    pass.first_layer = one.first_layer;
    pass.last_layer = one.last_layer;
    pass.begin = one.begin;
    out.push_back(std::move(pass));
  }
}

}  // namespace

std::string_view letter_of(PassDirection direction) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(PassDirection::kCount)> kLetters =
      {"F", "B", "W", "U"};
  return kLetters.at(static_cast<std::size_t>(direction));
}

std::string label_of(const SchedulePass& pass) {
  std::string out;
  for (const SchedulePass::Of& of : pass.of) {
    if (!out.empty()) out += '+';
    out += letter_of(of.direction);
    if (of.microbatch >= 0) out += std::to_string(of.microbatch);
  }
  return out;
}

std::vector<SchedulePass> schedule_passes(const TimelineSource& source, std::size_t track) {
  const Timeline& head = source.head();
  std::vector<SchedulePass> out;
  for (std::size_t s = 0; s < head.tracks[track].streams.size(); ++s) {
    bool any = false;
    std::vector<Fragment> fragments;
    const auto take = [&](const Span& span) {
      const auto fragment = fragment_of(span, head.infos[static_cast<std::size_t>(span.info)]);
      if (!fragment) return ok_status();
      any = any || !fragment->update;
      if (!fragments.empty() && fragments.back().goes_on_with(*fragment)) {
        fragments.back().take(*fragment);
      } else {
        fragments.push_back(*fragment);
      }
      return ok_status();
    };
    const Status all =
        source.each_span(source.first_span(track, s), source.first_span(track, s + 1), take);
    FT_CHECK(all.ok(), "no visit has an error");
    if (any) add_passes(fragments, static_cast<std::int32_t>(track), out);
    if (!fragments.empty()) break;  // the first stream that has passes
  }
  return out;
}

std::vector<SchedulePass> schedule_passes(const Timeline& timeline) {
  std::vector<SchedulePass> out;
  for (std::size_t track = 0; track < timeline.tracks.size(); ++track) {
    for (SchedulePass& pass : schedule_passes(HeldTimeline(timeline), track)) {
      out.push_back(std::move(pass));
    }
  }
  return out;
}

}  // namespace foretrain

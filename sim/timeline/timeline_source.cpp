#include "sim/timeline/timeline_source.h"

#include <algorithm>
#include <span>
#include <tuple>

namespace foretrain {
namespace {

/// Of a list that is sorted by track, what one of them has.
template <typename T>
std::span<const T> of_track(const std::vector<T>& all, std::size_t track) {
  const auto before = [](std::size_t end) {
    return [end](const T& one) { return static_cast<std::size_t>(one.track) < end; };
  };
  const auto begin = std::partition_point(all.begin(), all.end(), before(track));
  return {begin, std::partition_point(begin, all.end(), before(track + 1))};
}

template <typename T>
void add_to(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

std::size_t HeldTimeline::first_span(std::size_t track, std::size_t stream) const {
  const std::vector<Span>& spans = x_timeline->spans;
  const auto before = [&](const Span& span) {
    return std::tuple(static_cast<std::size_t>(span.track), span.stream.index()) <
           std::tuple(track, stream);
  };
  return static_cast<std::size_t>(std::partition_point(spans.begin(), spans.end(), before) -
                                  spans.begin());
}

Status HeldTimeline::each_span(std::size_t first, std::size_t last, const VisitSpan& visit) const {
  for (std::size_t i = first; i < last; ++i) FT_TRY(visit(x_timeline->spans[i]));
  return ok_status();
}

std::vector<MemorySample> HeldTimeline::memory(std::size_t track) const {
  const auto found = of_track(x_timeline->memory, track);
  return {found.begin(), found.end()};
}

std::vector<IssueSpan> HeldTimeline::host(std::size_t track) const {
  const auto found = of_track(x_timeline->host, track);
  return {found.begin(), found.end()};
}

bool HeldTimeline::has_host(std::size_t track) const {
  return !of_track(x_timeline->host, track).empty();
}

Timeline whole_timeline(const TimelineSource& source) {
  const Timeline& head = source.head();
  Timeline out;
  out.name = head.name;
  out.infos = head.infos;
  out.tracks = head.tracks;
  out.flows = head.flows;
  out.end = head.end;
  out.spans.reserve(source.span_count());
  const Status all = source.each_span(0, source.span_count(), [&](const Span& span) {
    out.spans.push_back(span);
    return ok_status();
  });
  FT_CHECK(all.ok(), "no visit has an error");
  for (std::size_t track = 0; track < out.tracks.size(); ++track) {
    add_to(out.memory, source.memory(track));
    add_to(out.host, source.host(track));
  }
  return out;
}

}  // namespace foretrain

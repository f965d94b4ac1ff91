// A Timeline whose parts are made when they are asked for: to write the step of many ranks, no one
// need hold all of it.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "sim/base/result.h"
#include "sim/timeline/timeline.h"

namespace foretrain {

class TimelineSource {
 public:
  using VisitSpan = std::function<Status(const Span&)>;

  TimelineSource() = default;
  TimelineSource(const TimelineSource&) = default;
  TimelineSource(TimelineSource&&) = default;
  TimelineSource& operator=(const TimelineSource&) = default;
  TimelineSource& operator=(TimelineSource&&) = default;
  virtual ~TimelineSource() = default;

  /// A Timeline's name, infos, tracks, flows and end; its spans, memory and host are not to be
  /// read.
  virtual const Timeline& head() const = 0;
  virtual std::size_t span_count() const = 0;
  /// The number of the first span of a stream, or of what follows where it has none; of the track
  /// behind for a stream behind the last.
  virtual std::size_t first_span(std::size_t track, std::size_t stream) const = 0;
  /// Visits spans `first` to `last` - 1 in order. The error of a visit ends it and is returned.
  virtual Status each_span(std::size_t first, std::size_t last, const VisitSpan& visit) const = 0;
  /// Those of a track, in order.
  virtual std::vector<MemorySample> memory(std::size_t track) const = 0;
  virtual std::vector<IssueSpan> host(std::size_t track) const = 0;
  /// Whether there are any of the host, found without making them.
  virtual bool has_host(std::size_t track) const = 0;
};

/// A Timeline that outlives it, as one.
class HeldTimeline : public TimelineSource {
 public:
  explicit HeldTimeline(const Timeline& timeline) : x_timeline(&timeline) {}

  const Timeline& head() const override { return *x_timeline; }
  std::size_t span_count() const override { return x_timeline->spans.size(); }
  std::size_t first_span(std::size_t track, std::size_t stream) const override;
  Status each_span(std::size_t first, std::size_t last, const VisitSpan& visit) const override;
  std::vector<MemorySample> memory(std::size_t track) const override;
  std::vector<IssueSpan> host(std::size_t track) const override;
  bool has_host(std::size_t track) const override;

 private:
  const Timeline* x_timeline;
};

/// All of it.
Timeline whole_timeline(const TimelineSource& source);

}  // namespace foretrain

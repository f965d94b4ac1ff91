// Is a recorded step the one that was replayed, whole and in parts?
#include "sim/engine/recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "models/lower.h"
#include "sim/program/memory.h"
#include "tests/sample_timeline.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

TEST(OpLog, GivesBackWhatItTook) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;
  std::vector<OpTimes> all = {{0, 0, 0, 0, Time{}, Time{}, Time{}},
                              {0, 0, 1, 0, Time{5}, Time{5}, Time{132}},
                              {0, 7, 300, 0, Time{132}, Time{260}, Time{1 << 20}},
                              {0, 7, 301, 0, Time{1 << 20}, Time{kMost}, Time{kMost}},
                              {0, 9, 0, 0, Time{3}, Time{4}, Time{5}}};  // its clock went back
  OpLog log;
  for (const OpTimes& times : all) log.push(times);
  EXPECT_EQ(log.count(), all.size());
  OpLog::Reader reader(log);
  for (const OpTimes& times : all) {
    const OpLog::Entry* const entry = reader.get();
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(std::tie(entry->call, entry->op), std::tie(times.call, times.op));
    EXPECT_EQ(std::tie(entry->begin, entry->start, entry->end),
              std::tie(times.begin, times.start, times.end));
    reader.next();
  }
  EXPECT_EQ(reader.get(), nullptr);
  OpLog::Reader found(log);
  EXPECT_EQ(found.find(0, 1)->end, Time{132});
  EXPECT_EQ(found.find(5, 0), nullptr);
  EXPECT_EQ(found.find(7, 301)->end, Time{kMost});
  EXPECT_EQ(found.find(10, 0), nullptr);
  EXPECT_EQ(OpLog::Reader(OpLog()).get(), nullptr);
}

/// Hands every op to both.
class Both : public SpanSink {
 public:
  Both(SpanSink& a, SpanSink& b) : x_a(a), x_b(b) {}
  void span(const OpTimes& times) override {
    x_a.span(times);
    x_b.span(times);
  }

 private:
  SpanSink& x_a;
  SpanSink& x_b;
};

struct Recorded {
  Recording recording;
  std::vector<OpTimes> ops;  ///< in the order of a Timeline
};

/// A pipeline of four stages with tensor and data ranks, every rank a track.
Recorded recorded() {
  const Model model = small_llama();
  Plan plan = small_plan(model, {2, 2, 1, 4}, 8);
  Workload workload = lower(model, plan);
  TestPrices prices(plain_rates());
  Prepared prepared = prepare(workload, prices, true).value();
  Recorder recorder(std::vector<std::uint8_t>(prepared.quotient.actors.size(), 1));
  RecordingSink sink;
  Both both(recorder, sink);
  const Time end = replay(workload, prepared, &both).value().end;
  std::sort(sink.spans.begin(), sink.spans.end(), [](const OpTimes& a, const OpTimes& b) {
    return std::tie(a.actor, a.stream, a.begin, a.call, a.op) <
           std::tie(b.actor, b.stream, b.begin, b.call, b.op);
  });
  return {recorder.take(std::move(workload), std::move(prepared), end,
                        [](RankId rank) { return std::to_string(rank.value); }),
          std::move(sink.spans)};
}

std::vector<Span> spans_of(const TimelineSource& source, std::size_t first, std::size_t last) {
  std::vector<Span> out;
  const Status all = source.each_span(first, last, [&out](const Span& span) {
    out.push_back(span);
    return ok_status();
  });
  EXPECT_TRUE(all.ok());
  return out;
}

TEST(Recorder, KeepsEveryOp) {
  const Recorded step = recorded();
  const Timeline whole = whole_timeline(step.recording);
  ASSERT_EQ(whole.spans.size(), step.ops.size());
  ASSERT_GT(whole.spans.size(), 1000U);
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Span& span = whole.spans[i];
    const OpTimes& op = step.ops[i];
    ASSERT_EQ(std::tie(span.track, span.stream.value, span.call, span.op),
              std::tie(op.actor, op.stream, op.call, op.op));
    ASSERT_EQ(std::tie(span.begin, span.start, span.end), std::tie(op.begin, op.start, op.end));
    ASSERT_LT(static_cast<std::size_t>(span.info), whole.infos.size());
  }
  EXPECT_GT(whole.flows.size(), 100U);
  for (const Flow& flow : whole.flows) {
    const Span& from = whole.spans[static_cast<std::size_t>(flow.from)];
    const Span& to = whole.spans[static_cast<std::size_t>(flow.to)];
    EXPECT_NE(from.track, to.track);
    EXPECT_LE(from.start, to.end);
    EXPECT_EQ(from.microbatch, to.microbatch);
  }
}

// The step frees all that it allocates. The last samples count the persistent buffers alone.
TEST(Recorder, MemoryComesBackToWhatLivesThroughout) {
  const Recorded step = recorded();
  const Workload workload = lower(small_llama(), small_plan(small_llama(), {2, 2, 1, 4}, 8));
  for (std::size_t track = 0; track < step.recording.head().tracks.size(); ++track) {
    const std::vector<MemorySample> samples = step.recording.memory(track);
    BytesByKind live{};
    BytesByKind most{};
    Time last;
    for (const MemorySample& sample : samples) {
      ASSERT_EQ(static_cast<std::size_t>(sample.track), track);
      ASSERT_LE(last, sample.at);
      last = sample.at;
      const auto kind = static_cast<std::size_t>(sample.kind);
      live[kind] = sample.bytes;
      most[kind] = std::max(most[kind], sample.bytes);
    }
    const Program& program = workload.programs[workload.ranks[track].program.index()];
    EXPECT_EQ(live, persistent_bytes(program));
    EXPECT_GT(most[static_cast<std::size_t>(BufferKind::kActivations)], 0);
    EXPECT_LE(last, step.recording.head().end);
  }
}

TEST(Recorder, HostDoesOneThingAfterTheOther) {
  const Recorded step = recorded();
  std::size_t count = 0;
  for (std::size_t track = 0; track < step.recording.head().tracks.size(); ++track) {
    Time last;
    for (const IssueSpan& span : step.recording.host(track)) {
      EXPECT_LE(last, span.begin);
      EXPECT_LT(span.begin, span.end);
      last = span.end;
      ++count;
    }
  }
  EXPECT_GT(count, 0U);
}

void expect_parts(const TimelineSource& source, const Timeline& whole) {
  EXPECT_TRUE(whole_timeline(source) == whole);
  ASSERT_EQ(source.span_count(), whole.spans.size());
  const std::size_t count = whole.spans.size();
  for (std::size_t first = 0; first <= count; first += count / 7) {
    for (std::size_t last = first; last <= count; last += count / 5) {
      const auto begin = whole.spans.begin();
      const std::vector<Span> part(begin + static_cast<std::ptrdiff_t>(first),
                                   begin + static_cast<std::ptrdiff_t>(last));
      EXPECT_TRUE(spans_of(source, first, last) == part) << first << " to " << last;
    }
  }
  std::size_t next = 0;
  for (std::size_t track = 0; track < whole.tracks.size(); ++track) {
    for (std::size_t s = 0; s < whole.tracks[track].streams.size(); ++s) {
      ASSERT_EQ(source.first_span(track, s), next);
      for (const Span& span : spans_of(source, next, source.first_span(track, s + 1))) {
        ASSERT_EQ(static_cast<std::size_t>(span.track), track);
        ASSERT_EQ(span.stream.index(), s);
        ++next;
      }
    }
  }
  EXPECT_EQ(next, count);
  std::size_t visits = 0;
  const Status stopped = source.each_span(0, count, [&visits](const Span&) -> Status {
    if (++visits == 3) return input_error("enough");
    return ok_status();
  });
  EXPECT_FALSE(stopped.ok());
  EXPECT_EQ(visits, 3U);
}

TEST(TimelineSource, GivesThePartsOfARecordedStep) {
  const Recorded step = recorded();
  expect_parts(step.recording, whole_timeline(step.recording));
  const Recording moved(step.recording);
  EXPECT_TRUE(whole_timeline(moved) == whole_timeline(step.recording));
}

TEST(TimelineSource, GivesThePartsOfATimeline) {
  const Timeline timeline = sample_timeline(4, 5, 70);
  expect_parts(HeldTimeline(timeline), timeline);
  const Timeline none;
  EXPECT_TRUE(whole_timeline(HeldTimeline(none)) == none);
}

}  // namespace
}  // namespace foretrain

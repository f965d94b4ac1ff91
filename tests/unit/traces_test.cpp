// What is written is what the timeline holds: valid, complete, without overlaps, and saved without
// loss.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "sim/base/json.h"
#include "sim/timeline/passes.h"
#include "tests/sample_timeline.h"
#include "tests/support/sanitized.h"
#include "traces/chrome_trace.h"
#include "traces/json_text.h"
#include "traces/timeline_json.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

class TracesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "foretrain-traces-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    x_folder = pattern;
  }
  void TearDown() override { fs::remove_all(x_folder); }
  std::string in_folder(const std::string& name) const { return (x_folder / name).string(); }

  /// The timeline as a Chrome trace, read back.
  Json traced(const Timeline& timeline, const TraceOptions& options = {}) {
    auto file = AtomicFile::create(in_folder("trace.json"));
    EXPECT_TRUE(write_chrome_trace(timeline, options, file.value()).ok());
    EXPECT_TRUE(file.value().commit().ok());
    auto json = read_json_file(in_folder("trace.json"));
    EXPECT_TRUE(json.ok()) << (json.ok() ? "" : json.error().message);
    return std::move(json).value();
  }
  Result<Timeline> saved_and_loaded(const TimelineSource& timeline, const std::string& name) {
    FT_ASSIGN(AtomicFile file, AtomicFile::create(in_folder(name)));
    FT_TRY(save_timeline(timeline, file));
    FT_TRY(file.commit());
    return load_timeline(in_folder(name));
  }

 private:
  fs::path x_folder;
};

std::string millionths(std::int64_t value) {
  std::string out;
  append_millionths(out, value);
  return out;
}

TEST_F(TracesTest, PicosecondsBecomeMicrosecondsExactly) {
  EXPECT_EQ(millionths(0), "0");
  EXPECT_EQ(millionths(1), "0.000001");
  EXPECT_EQ(millionths(1500000), "1.5");
  EXPECT_EQ(millionths(-1), "-0.000001");
  EXPECT_EQ(millionths(-2000000), "-2");
  EXPECT_EQ(millionths(std::numeric_limits<std::int64_t>::max()), "9223372036854.775807");
  EXPECT_EQ(millionths(std::numeric_limits<std::int64_t>::min()), "-9223372036854.775808");
}

TEST_F(TracesTest, StringsAreQuotedAndValid) {
  std::string out;
  append_string(out, "a\"b\\c\n\t\x01\xC3\xA9\xFF");
  EXPECT_EQ(out, "\"a\\\"b\\\\c\\n\\t\\u0001\xC3\xA9\\ufffd\"");
  for (const std::string bad : {"\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    out.clear();
    append_string(out, bad);
    EXPECT_TRUE(parse_json(out, "text").ok()) << out;
  }
}

/// A slice, or an instant where it ends as it begins.
struct Slice {
  Time begin, end;
};

/// What a trace draws, in order: passes, the host, and of each span what it waits and what it does.
std::vector<Slice> slices_of(const Timeline& timeline) {
  std::vector<Slice> out;
  for (const SchedulePass& pass : schedule_passes(timeline)) out.push_back({pass.begin, pass.end});
  for (const IssueSpan& span : timeline.host) out.push_back({span.begin, span.end});
  for (const Span& span : timeline.spans) {
    if (span.begin < span.start) out.push_back({span.begin, span.start});
    out.push_back({span.start, span.end});
  }
  return out;
}

TEST_F(TracesTest, EverySpanFlowAndCounterIsWritten) {
  const Timeline timeline = sample_timeline(7, 3, 200);
  const Json trace = traced(timeline, {true, true, {{"run", "sample \"7\""}}});
  EXPECT_EQ(*trace.find("otherData")->find("schema")->string(), "foretrain/trace/1");
  EXPECT_EQ(*trace.find("otherData")->find("run")->string(), "sample \"7\"");
  std::map<std::string, std::size_t> count;
  for (const Json& event : *trace.find("traceEvents")->array()) {
    ++count[*event.find("ph")->string()];
    EXPECT_GE(event.find("pid")->number(), 1);
    EXPECT_GE(event.find("tid")->number(), 1);
  }
  std::size_t instants = 0;
  const std::vector<Slice> slices = slices_of(timeline);
  for (const Slice& slice : slices) instants += slice.begin == slice.end ? 1 : 0;
  EXPECT_GT(instants, 0U);
  EXPECT_EQ(count["i"], instants);
  EXPECT_EQ(count["X"], slices.size() - instants);
  std::size_t arrows = 0;
  for (const Flow& flow : timeline.flows) {
    const auto length = [&](std::int32_t i) {
      const Span& span = timeline.spans.at(static_cast<std::size_t>(i));
      return (span.end - span.start).ps;
    };
    if (length(flow.from) >= 4000 && length(flow.to) >= 4000) ++arrows;
  }
  EXPECT_GT(arrows, 100U);
  EXPECT_EQ(count["s"], arrows);
  EXPECT_EQ(count["f"], arrows);
  EXPECT_EQ(count["C"], timeline.memory.size() / 2);  // two kinds change at once in the sample
  EXPECT_EQ(count["M"], 3U * 2 * (1 + 5));            // name and place of 3 ranks, 5 rows each
}

TEST_F(TracesTest, ArgumentsSayWhatTheSpanDid) {
  Timeline timeline;
  timeline.name = "one";
  timeline.infos.push_back(
      {"mlp.up", "gemm 1x2x3 nt bf16->bf16", Category::kTensor, Phase::kBackward, 96, 12});
  timeline.tracks.push_back({RankId(8), "rank 8", 4, {"compute"}});
  Span span;
  span.stream = StreamId(0);
  span.layer = 5;
  span.microbatch = 2;
  span.begin = Time{1'000'001};
  span.start = Time{1'500'001};
  span.end = Time{3'000'000};
  timeline.spans.push_back(span);
  timeline.memory.push_back({0, BufferKind::kParameters, Time{0}, Bytes{3} << 29});
  const Json trace = traced(timeline);
  const Json::Array& events = *trace.find("traceEvents")->array();
  const Json& wait = events.at(4);
  EXPECT_EQ(*wait.find("name")->string(), "wait: mlp.up");
  EXPECT_EQ(wait.find("ts")->number(), 1.000001);
  EXPECT_EQ(wait.find("dur")->number(), 0.5);
  const Json& event = events.at(5);
  EXPECT_EQ(*event.find("name")->string(), "mlp.up");
  EXPECT_EQ(*event.find("cat")->string(), "tensor");
  EXPECT_EQ(event.find("ts")->number(), 1.500001);
  EXPECT_EQ(event.find("dur")->number(), 1.499999);
  EXPECT_EQ(dump_json(*event.find("args"), -1),
            R"({"layer":5,"microbatch":2,"waited_us":0.5,"phase":"backward",)"
            R"("work":"gemm 1x2x3 nt bf16->bf16","bytes":96,"provenance":"measured"})");
  EXPECT_EQ(events.at(6).find("args")->find("parameters")->number(), 1.5);
  EXPECT_EQ(*events.at(0).find("args")->find("name")->string(), "rank 8 (one of 4 alike)");
}

// round(begin) + round(duration) <= round(next begin) in ns, for every pair on a stream, and no
// duration differs from the true one by 1 ns.
TEST_F(TracesTest, RoundedToNanosecondsNothingOverlaps) {
  const Timeline timeline = sample_timeline(3, 2, cases(5000, 500));
  const Json trace = traced(timeline);
  const std::vector<Slice> slices = slices_of(timeline);
  std::map<std::pair<double, double>, double> ends;
  std::size_t i = 0;
  for (const Json& event : *trace.find("traceEvents")->array()) {
    if (*event.find("ph")->string() != "X") continue;
    const double begin = std::round(event.find("ts")->number() * 1e3);
    const double duration = event.find("dur")->number();
    double& last = ends[{event.find("pid")->number(), event.find("tid")->number()}];
    ASSERT_LE(last, begin) << "event " << i;
    last = begin + std::round(duration * 1e3);
    while (slices.at(i).begin == slices[i].end) ++i;
    ASSERT_LT(std::abs(duration - (slices[i].end - slices[i].begin).us()), 1e-3);
    ++i;
  }
  EXPECT_GT(i, timeline.spans.size());
}

TEST_F(TracesTest, TimelinesSurviveSaving) {
  for (const std::string name : {"t.json", "t.json.gz"}) {
    for (const Timeline& timeline :
         {Timeline{}, sample_timeline(1, 1, 1), sample_timeline(2, 4, 300)}) {
      const auto loaded = saved_and_loaded(HeldTimeline(timeline), name);
      ASSERT_TRUE(loaded.ok()) << loaded.error().message;
      EXPECT_TRUE(loaded.value() == timeline);
    }
  }
}

/// A timeline that is saved as it lies there, in whatever order, of whatever tracks.
class AsItIs : public HeldTimeline {
 public:
  explicit AsItIs(const Timeline& timeline) : HeldTimeline(timeline), x_all(timeline) {}
  std::vector<MemorySample> memory(std::size_t track) const override {
    return track == 0 ? x_all.memory : std::vector<MemorySample>();
  }
  std::vector<IssueSpan> host(std::size_t track) const override {
    return track == 0 ? x_all.host : std::vector<IssueSpan>();
  }

 private:
  const Timeline& x_all;
};

TEST_F(TracesTest, DamagedTimelinesAreRefusedWithThePlace) {
  const Timeline good = sample_timeline(5, 2, 20);
  const auto refused = [&](auto damage, const std::string& words) {
    Timeline bad = good;
    damage(bad);
    const auto loaded = saved_and_loaded(AsItIs(bad), "bad.json");
    ASSERT_FALSE(loaded.ok()) << words;
    EXPECT_NE(loaded.error().message.find(words), std::string::npos) << loaded.error().message;
    EXPECT_NE(loaded.error().message.find("bad.json"), std::string::npos);
  };
  refused([](Timeline& t) { t.spans[3].track = 9; }, "/spans/3: there is no such track");
  refused([](Timeline& t) { t.spans[3].stream = StreamId(3); }, "the track has no such stream");
  refused([](Timeline& t) { t.spans[3].info = -1; }, "there is no such info");
  refused([](Timeline& t) { t.spans[3].end = Time{0}; }, "begin_ps <= start_ps <= end_ps");
  refused([](Timeline& t) { t.spans[3].begin.ps = std::numeric_limits<std::int64_t>::min(); },
          "times go up to 2^62 ps");
  refused([](Timeline& t) { std::swap(t.spans[3], t.spans[9]); }, "overlaps");
  refused([](Timeline& t) { t.flows[0].to = 1 << 20; }, "there is no such span");
  refused([](Timeline& t) { t.memory[0].track = 2; }, "/memory/0");
  refused([](Timeline& t) { std::swap(t.memory.front(), t.memory.back()); },
          "samples of memory are not sorted by track");
  refused([](Timeline& t) { t.tracks[0].ranks_alike = 0; }, "/tracks/0/ranks_alike");
  refused([](Timeline& t) { t.host[0].track = 2; }, "/host/0: there is no such track");
  refused([](Timeline& t) { std::swap(t.host[0], t.host[1]); }, "are not sorted");
  const auto other =
      read_timeline(parse_json(R"({"schema": "foretrain/profile/1"})", "x").value(), "x");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("foretrain/timeline/1"), std::string::npos);
  EXPECT_FALSE(read_timeline(Json(3), "x").ok());
}

TEST_F(TracesTest, FullDiskIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Timeline timeline = sample_timeline(2, 4, 3000);
  auto file = AtomicFile::create("/dev/full");
  const Status written = write_chrome_trace(timeline, {}, file.value());
  EXPECT_FALSE(written.ok() && file.value().commit().ok());
}

}  // namespace
}  // namespace foretrain

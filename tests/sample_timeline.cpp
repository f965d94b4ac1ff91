#include "tests/sample_timeline.h"

#include <array>
#include <string>

#include "sim/base/rng.h"
#include "sim/cost/cost_model.h"

namespace foretrain {
namespace {

constexpr std::int32_t kStreams = 3;

void add_infos(Timeline& timeline) {
  const auto add = [&](const char* name, const char* work, Category category, Phase phase,
                       Bytes bytes, double flops) {
    timeline.infos.push_back({name, work, category, phase, bytes, flops});
  };
  add("attention.qkv", "gemm 4096x6144x4096 nt bf16->bf16", Category::kCompute, Phase::kForward, 0,
      2.0 * 4096 * 6144 * 4096);
  add("mlp.norm", "rms-norm 4096x4096 bf16", Category::kCompute, Phase::kBackward, 67108864, 0.1);
  add("all-reduce \"grads\"\n", "all-reduce group 1 16777216 bf16", Category::kData,
      Phase::kGradients, 33554432, 0);
  add("send", "p2p send 33554432", Category::kPipeline, Phase::kForward, 33554432, 0);
  add("receive", "p2p receive 33554432", Category::kPipeline, Phase::kForward, 33554432, 0);
  add("launch layer", "launches of a call", Category::kHost, Phase::kForward, 0, 0);
}

void add_track(Timeline& timeline, Rng& rng, std::int32_t track, std::int32_t spans_per_stream) {
  timeline.tracks.push_back(
      {RankId(track),
       "rank " + std::to_string(track) + ": pipeline " + std::to_string(track),
       1 + rng.below(8),
       {"compute", "pipeline", "data"}});
  for (std::int32_t stream = 0; stream < kStreams; ++stream) {
    Time at{rng.below(5'000'000)};
    for (std::int32_t i = 0; i < spans_per_stream; ++i) {
      Span span;
      span.track = track;
      span.stream = StreamId(stream);
      span.info = stream == 0   ? static_cast<std::int32_t>(rng.below(2))
                  : stream == 1 ? 3 + i % 2
                                : 2;
      span.call = i / 10;
      span.op = i % 10;
      span.layer = static_cast<std::int32_t>(rng.below(33)) - 1;
      span.microbatch = i % 8;
      const std::int64_t gap = rng.below(2) * rng.below(3'000'000);
      const std::int64_t length = rng.below(40) == 0 ? rng.below(3) : rng.below(200'000'000);
      span.begin = at + Time{gap};
      span.start = span.begin + Time{stream == 0 ? 0 : rng.below(2) * (length / 3)};
      span.end = span.begin + Time{length};
      span.provenance = static_cast<Provenance>(rng.below(3));
      at = span.end;
      timeline.spans.push_back(span);
    }
    timeline.end = max(timeline.end, at);
  }
  Time issued;
  for (std::int32_t i = 0; i < spans_per_stream / 8; ++i) {
    const Time begin = issued + Time{rng.below(2) * rng.below(3'000'000)};
    issued = begin + Time{rng.below(200'000'000)};
    timeline.host.push_back({track, 5, i % 4 - 1, i % 8, begin, issued});
  }
  Bytes live = 0;
  for (std::int32_t i = 0; i < spans_per_stream / 4; ++i) {
    live += rng.below(1 << 30);
    const Time time{i * (timeline.end.ps / spans_per_stream)};
    timeline.memory.push_back({track, BufferKind::kActivations, time, live});
    timeline.memory.push_back({track, BufferKind::kWorkspace, time, rng.below(1 << 28)});
  }
}

/// The i-th span of the pipeline stream of one track to the next track's first that ends later.
void add_flows(Timeline& timeline, std::int32_t tracks, std::int32_t spans_per_stream) {
  for (std::int32_t track = 0; track + 1 < tracks; ++track) {
    const std::int32_t first = (track * kStreams + 1) * spans_per_stream;
    const std::int32_t other = first + kStreams * spans_per_stream;
    std::int32_t to = other;
    for (std::int32_t i = 0; i < spans_per_stream; i += 2) {
      const Span& from =
          timeline.spans.at(static_cast<std::size_t>(first) + static_cast<std::size_t>(i));
      while (to < other + spans_per_stream &&
             timeline.spans.at(static_cast<std::size_t>(to)).end < from.end) {
        ++to;
      }
      if (to == other + spans_per_stream) break;
      timeline.flows.push_back({first + i, to++});
    }
  }
}

}  // namespace

Timeline sample_timeline(std::uint64_t seed, std::int32_t tracks, std::int32_t spans_per_stream) {
  Rng rng(seed);
  Timeline timeline;
  timeline.name = "sample \xC3\xA9 " + std::to_string(seed);
  add_infos(timeline);
  for (std::int32_t track = 0; track < tracks; ++track) {
    add_track(timeline, rng, track, spans_per_stream);
  }
  add_flows(timeline, tracks, spans_per_stream);
  return timeline;
}

}  // namespace foretrain

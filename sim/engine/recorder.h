// What a replay did, kept in few bytes, and the Timeline that it makes: names, flows, memory and
// the host of the actors that are to be shown.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/engine/op_log.h"
#include "sim/engine/replay.h"
#include "sim/timeline/timeline_source.h"

namespace foretrain {

/// A recorded step. What its Programs say of an op is looked up when a part is asked for.
class Recording : public TimelineSource {
 public:
  /// The logs of an actor, by stream.
  struct TrackLogs {
    std::int32_t actor = 0;
    std::vector<OpLog> streams;
  };
  /// `tracks`: by rising actor. Of `prepared` only the actors and the prices need be there.
  Recording(Workload workload, Prepared prepared, std::vector<TrackLogs> tracks, Time end,
            const std::function<std::string(RankId)>& name_of);

  void set_name(std::string name) { x_head.name = std::move(name); }

  const Timeline& head() const override { return x_head; }
  std::size_t span_count() const override { return x_first_spans.back(); }
  std::size_t first_span(std::size_t track, std::size_t stream) const override {
    return x_first_spans[x_tracks[track].first_stream + stream];
  }
  Status each_span(std::size_t first, std::size_t last, const VisitSpan& visit) const override;
  std::vector<MemorySample> memory(std::size_t track) const override;
  bool has_host(std::size_t track) const override { return prices_of(track).host_total.ps > 0; }
  std::vector<IssueSpan> host(std::size_t track) const override;

 private:
  /// What a Program's ops are, the ops of its segments one behind the other.
  struct OpTable {
    std::vector<std::size_t> first;      ///< by segment
    std::vector<std::int32_t> infos;     ///< by op; -1: not met yet
    std::vector<std::int32_t> launches;  ///< by segment: the info of its launches; -1: not met yet
    bool launched = false;               ///< `launches` of all calls are known
  };
  struct TrackPlace {
    std::int32_t actor = 0;
    std::size_t first_stream = 0;  ///< into x_logs and x_first_spans
  };

  const Actor& actor_of(std::size_t track) const;
  const Program& program_of(std::size_t track) const;
  const PreparedPrices& prices_of(std::size_t track) const;
  std::vector<OpLog::Reader> readers(std::size_t track) const;
  void add_track(TrackLogs track, const std::function<std::string(RankId)>& name_of);
  void add_infos(std::size_t track);
  void add_flows();
  void add_launches(std::size_t track);
  Status each_of_stream(std::size_t log, std::size_t first, std::size_t last,
                        const VisitSpan& visit) const;

  Workload x_workload;
  Prepared x_prepared;
  Timeline x_head;
  std::vector<TrackPlace> x_tracks;
  std::vector<OpLog> x_logs;               ///< the streams of all tracks
  std::vector<std::int32_t> x_track_of;    ///< by log
  std::vector<std::size_t> x_first_spans;  ///< by log, and behind the last
  std::vector<OpTable> x_tables;           ///< by Program
};

/// Collects the ops of chosen actors.
class Recorder : public SpanSink {
 public:
  /// `wanted`: by actor, whether to keep its ops.
  explicit Recorder(std::vector<std::uint8_t> wanted)
      : x_wanted(std::move(wanted)), x_logs(x_wanted.size()) {}

  void span(const OpTimes& times) override {
    const auto actor = static_cast<std::size_t>(times.actor);
    if (x_wanted[actor] != 0) push_op(x_logs[actor], times);
  }

  /// What was kept of the replay of `workload`, which ended at `end`. `name_of` names a rank's
  /// track. Empties the recorder.
  Recording take(Workload workload, Prepared prepared, Time end,
                 const std::function<std::string(RankId)>& name_of);

 private:
  std::vector<std::uint8_t> x_wanted;
  std::vector<std::vector<OpLog>> x_logs;  ///< by actor, by stream
};

}  // namespace foretrain

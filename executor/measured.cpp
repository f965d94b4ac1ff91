#include "executor/measured.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "sim/engine/recorder.h"

namespace foretrain {
namespace {

const Op& op_of(const Program& program, const OpRecord& record) {
  const Call& call = program.calls[static_cast<std::size_t>(record.call)];
  return program.segments[call.segment.index()].ops[static_cast<std::size_t>(record.op)];
}

/// Names a rendezvous: (0, group, number of its collective) or (1, channel, number of its message).
using Meeting = std::tuple<int, std::int32_t, std::int64_t>;

/// Hands out the meetings of a rank's ops as they come in issue order of their streams.
class MeetingCounter {
 public:
  explicit MeetingCounter(const RankBinding& rank) : x_rank(rank) {}

  std::vector<Meeting> of(const Work& work) {
    std::vector<Meeting> out;
    if (const auto* collective = std::get_if<Collective>(&work)) {
      out.push_back(next(0, x_rank.groups[collective->group.index()].value));
    }
    if (const auto* batch = std::get_if<P2PBatch>(&work)) {
      for (const Message& message : batch->messages) {
        out.push_back(next(1, x_rank.channels[message.channel.index()].value));
      }
    }
    return out;
  }

 private:
  Meeting next(int kind, std::int32_t id) { return {kind, id, x_count[{kind, id}]++}; }

  const RankBinding& x_rank;
  std::map<std::pair<int, std::int32_t>, std::int64_t> x_count;
};

template <typename Visit>
void each_op(const Workload& workload, const std::vector<RankRecords>& ranks, Visit visit) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankBinding& binding = workload.ranks[r];
    const Program& program = workload.programs[binding.program.index()];
    MeetingCounter counter(binding);
    for (std::size_t s = 0; s < ranks[r].size(); ++s) {
      for (const OpRecord& record : ranks[r][s]) {
        const Op& op = op_of(program, record);
        visit(r, s, record, counter.of(program.works[op.work.index()]));
      }
    }
  }
}

/// Every rank an actor of its own, everything measured.
Prepared identity(const Workload& workload) {
  Prepared out;
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    Actor actor;
    actor.program = workload.ranks[r].program;
    actor.rank = RankId(r);
    for (const ChannelId channel : workload.ranks[r].channels) {
      actor.channels.push_back(channel.value);
    }
    out.quotient.actors.push_back(std::move(actor));
    out.prices_of.push_back(workload.ranks[r].program.value);
  }
  for (const Program& program : workload.programs) {
    Cost measured;
    measured.provenance = Provenance::kMeasured;
    PreparedPrices prices;
    prices.costs.assign(program.works.size(), measured);
    out.prices.push_back(std::move(prices));
  }
  return out;
}

}  // namespace

Timeline measured_timeline(const Workload& workload, const std::vector<RankRecords>& ranks,
                           const std::function<std::string(RankId)>& name_of) {
  std::map<Meeting, Time> all_there;
  Time end;
  each_op(
      workload, ranks,
      [&](std::size_t, std::size_t, const OpRecord& record, const std::vector<Meeting>& meetings) {
        for (const Meeting& meeting : meetings) {
          Time& last = all_there[meeting];
          last = max(last, record.begin);
        }
        end = max(end, record.end);
      });
  Recorder recorder(std::vector<std::uint8_t>(ranks.size(), 1));
  each_op(workload, ranks,
          [&](std::size_t r, std::size_t s, const OpRecord& record,
              const std::vector<Meeting>& meetings) {
            OpTimes times;
            times.actor = static_cast<std::int32_t>(r);
            times.call = record.call;
            times.op = record.op;
            times.stream = static_cast<std::int32_t>(s);
            times.begin = times.start = record.begin;
            times.end = record.end;
            for (const Meeting& meeting : meetings) {
              times.start = max(times.start, min(all_there[meeting], record.end));
            }
            recorder.span(times);
          });
  return whole_timeline(recorder.take(workload, identity(workload), end, name_of));
}

}  // namespace foretrain

// Prepared programs: a Program with its prices, flattened for the replay loop. Everything is priced
// here, before time starts, so an unsupported operation is an input error and never a silent zero.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/base/result.h"
#include "sim/engine/quotient.h"
#include "sim/engine/stream_set.h"

namespace foretrain {

/// How the replay treats an op.
enum class OpClass : std::uint8_t { kLocal, kYielding, kCollective, kMessages, kSync };

struct PreparedOp {
  OpClass kind = OpClass::kLocal;
  std::int32_t cost = 0;                        ///< index into PreparedPrices::costs
  std::int32_t work = 0;                        ///< index into Program::works
  std::int32_t index = 0;                       ///< in its segment
  std::int32_t waits_begin = 0, waits_end = 0;  ///< into PreparedProgram::wait_refs
  EventRef records;
  std::int32_t group = -1;  ///< slot of a collective
};

/// The part of a call that runs on one stream: its ops there, and the waits before them.
struct StreamEntry {
  std::int32_t call = 0;
  std::int32_t ops_begin = 0, ops_end = 0;      ///< into PreparedProgram::ops
  std::int32_t waits_begin = 0, waits_end = 0;  ///< into PreparedProgram::call_waits (event ids)
  std::int32_t frames = 0;                      ///< its first one in PreparedProgram::call_frames
};

/// The op that records an event, of the stream that does.
struct EventSource {
  std::int32_t entry = -1, op = -1;  ///< into PreparedProgram::entries of that stream, and ::ops
};

/// The one stream that posts the messages of a channel's end.
struct ChannelEnd {
  std::int16_t stream = -1;  ///< below 0: none, or several
  std::int8_t side = 0;      ///< 0 sends, 1 receives
};

/// What depends on the Program alone.
struct PreparedProgram {
  std::vector<PreparedOp> ops;  ///< grouped by (segment, stream)
  std::vector<EventRef> wait_refs;
  std::vector<std::int32_t> call_waits;
  std::vector<std::vector<StreamEntry>> entries;  ///< by stream, in issue order
  std::vector<std::int32_t> event_base;           ///< by frame
  std::vector<std::int32_t> call_frames;  ///< event_base of the frames of every call; -1 unbound
  std::int32_t events = 0;
  std::vector<std::int16_t> event_stream;  ///< by event id: the stream that records it, -1 none
  std::vector<EventSource> event_source;   ///< by event id
  std::vector<ChannelEnd> channel_ends;    ///< by ChannelSlot
  std::vector<std::int32_t> call_epoch;    ///< by call: HostSyncs issued before it
  std::int32_t epochs = 1;

  /// The id of an event that an op of the entry's call names.
  std::int32_t event_id(const StreamEntry& entry, EventRef ref) const {
    const std::int32_t at = entry.frames + ref.frame;
    return call_frames[static_cast<std::size_t>(at)] + ref.event;
  }
};

/// What depends on prices: one for each (Program, placements of its slots, kind of device).
struct PreparedPrices {
  std::vector<Cost> costs;                       ///< by work
  std::vector<std::vector<Cost>> message_costs;  ///< by work, by message
  std::vector<Time> op_issue;  ///< by position in PreparedProgram::ops; since the call or sync
  std::vector<std::uint8_t> op_epoch;  ///< HostSyncs before it in its segment
  std::vector<Time> call_issue;        ///< by call, since its epoch began
  Time host_total;                     ///< of all launches
  int sm_count = 1;                    ///< of the device
  StreamSet records_holds;             ///< whose holds slow kernels of another stream
  StreamSet heeds_holds;               ///< whose kernels are slowed by others' holds
  /// Where there are holds: how long a stream's ops take alone, of those before an op in
  /// PreparedProgram::ops, and of all entries before one, by stream and entry.
  std::vector<Time> op_alone;
  std::vector<std::vector<Time>> entry_alone;

  /// Time that the stream's ops before `op` of its entry take at least; `op` -1: before the entry.
  Time alone_before(const PreparedProgram& program, std::int32_t stream, std::int32_t entry,
                    std::int32_t op) const {
    const auto s = static_cast<std::size_t>(stream);
    const auto e = static_cast<std::size_t>(entry);
    if (op < 0) return entry_alone[s][e];
    const auto first = static_cast<std::size_t>(program.entries[s][e].ops_begin);
    return entry_alone[s][e] + op_alone[static_cast<std::size_t>(op)] - op_alone[first];
  }
};

/// The whole workload, ready to replay.
struct Prepared {
  Quotient quotient;
  std::vector<PreparedProgram> programs;  ///< by ProgramId
  std::vector<PreparedPrices> prices;
  std::vector<std::int32_t> prices_of;                     ///< by actor
  std::vector<std::uint8_t> group_shares, channel_shares;  ///< may meet others on a port
  std::vector<std::uint8_t> copy_shares;                   ///< by actor, of its copies
};

/// Folds (unless `full`), flattens and prices. The workload must have passed `verify`.
Result<Prepared> prepare(const Workload& workload, CostModel& model, bool full);
/// The same of a workload that `model` has folded.
Result<Prepared> prepare(const Workload& workload, const CostModel& model, Quotient quotient);
/// The same by what was prepared at other prices of the same machine. `model` has placed nothing.
Result<Prepared> price_again(const Workload& workload, CostModel& model, const Prepared& prepared);

}  // namespace foretrain

// How the parameters of a unit are cut into runs, of each of which every rank that shares the unit
// has its part, and which runs travel together.
//
// Gemini (Colossal-AI) lays parameters one after the other into chunks of equal size, which it
// looks for between a least size and twice that, so that little is left empty: here a unit is cut
// into as many equal runs as are at least so large, and each travels alone. Left out: chunks that
// end within the next layer, and parameters that no chunk splits.
//
// DeepSpeed shards parameter by parameter (runtime/zero/partition_parameters.py), gathers ahead
// until stage3_prefetch_bucket_size elements are on their way, the last parameter whole, in one
// all-gather (runtime/zero/partitioned_param_coordinator.py, fetch_sub_module;
// all_gather_coalesced) and reduces what fits into a bucket of reduce_bucket_size elements, in one
// reduce-scatter (runtime/zero/stage3.py; runtime/comm/coalesced_collectives.py). What stays
// gathered it gathers one by one after the update (_allgather_params_coalesced). Left out: the
// copies that lay several parameters out by ranks and back; that a bucket may span layers; that
// small gradients travel between those of a layer's matrices where these fill buckets of their own.
// Runs end at whole parts, so that one may hold the first elements of the next parameter.
#include <algorithm>
#include <numeric>

#include "models/units/units.h"

namespace foretrain {

/// What of a unit's parameters tensor ranks hold alike, and of it what they compute in parts: with
/// sequence parallelism everything, from their own tokens; without it the norms of queries and
/// keys, from their own heads.
void append_layout(Stage& stage, UnitContent& out, const FrameLayout& layout, std::int64_t layer) {
  const auto extend = [&out](std::vector<ElementRange>& ranges, std::int64_t count) {
    if (!ranges.empty() && ranges.back().second == out.elements) {
      ranges.back().second += count;
    } else {
      ranges.emplace_back(out.elements, out.elements + count);
    }
  };
  for (const Buffer& buffer : layout.buffers) {
    const bool cut = std::any_of(buffer.pieces.begin(), buffer.pieces.end(), [](const Piece& p) {
      return p.rows_split_over.valid() || p.cols_split_over.valid();
    });
    const bool of_heads = is_head_norm(buffer.name);
    if (!cut && stage.plan.tensor > 1) {
      extend(out.alike, buffer.count);
      if (stage.plan.sequence || of_heads) extend(out.partial, buffer.count);
    }
    for (Piece piece : buffer.pieces) {
      piece.offset += out.elements;
      piece.layer = static_cast<std::int32_t>(layer);
      out.pieces.push_back(piece);
    }
    // Of several experts each is a parameter.
    for (std::int64_t e = 1; e <= out.experts; ++e) {
      out.ends.push_back(out.elements + buffer.count * e / out.experts);
    }
    out.elements += buffer.count;
  }
}

/// `back` behind it.
void UnitContent::append(const UnitContent& back) {
  const auto move = [this](const std::vector<ElementRange>& from, std::vector<ElementRange>& to) {
    for (const auto& [begin, end] : from) to.emplace_back(begin + elements, end + elements);
  };
  move(back.alike, alike);
  move(back.partial, partial);
  for (Piece piece : back.pieces) {
    piece.offset += elements;
    pieces.push_back(piece);
  }
  for (const std::int64_t end : back.ends) ends.push_back(end + elements);
  elements += back.elements;
}

/// Empty: one run.
std::vector<std::int64_t> unit_runs(Stage& stage, const ShardLayout& shape,
                                    const UnitContent& content) {
  const Units& u = stage.plan.units;
  const std::int64_t shards = shape.holders.shards;
  if (!sharded_parameters(stage) || shards == 1) return {};
  std::vector<std::int64_t> out;
  if (u.chunk_elements > 0) {
    const std::int64_t runs = std::max<std::int64_t>(1, shape.filled / u.chunk_elements);
    const std::int64_t run = round_up(shape.filled, runs * shards) / runs;
    out.assign(static_cast<std::size_t>(runs), run);
  } else if (stage.plan.shards_by_parameter() && shape.tied.first == shape.tied.second) {
    std::int64_t begin = 0;
    for (const std::int64_t end : content.ends) {
      const std::int64_t whole = round_up(end, shards);
      if (whole > begin) out.push_back(whole - begin);
      begin = whole;
    }
  }
  if (out.size() == 1) out.clear();
  return out;
}

/// Of equal shards of each run, each of whole bytes in what travels.
std::int64_t unit_elements(Stage& stage, const ShardLayout& shape) {
  if (!shape.runs.empty()) {
    return std::accumulate(shape.runs.begin(), shape.runs.end(), std::int64_t{0});
  }
  const std::int64_t shards = shape.holders.shards;
  return round_up(shape.filled, stage.plan.units.quantized_reduction ? 2 * shards : shards);
}

/// Runs of a unit, first to last.
std::vector<UnitRuns> gathered_together(Stage& stage, const ShardLayout& shape) {
  if (shape.runs.empty()) return {{0, shape.elements, {}}};
  const std::int64_t least = shape.whole ? 0 : stage.plan.units.gather_elements;
  std::vector<UnitRuns> out;
  std::int64_t begin = 0;
  for (const std::int64_t run : shape.runs) {
    if (out.empty() || out.back().count >= least) out.push_back({begin, 0, {}});
    out.back().count += run;
    out.back().runs.push_back(run);
    begin += run;
  }
  return out;
}

/// The same, last to first: so the backward pass writes their gradients.
std::vector<UnitRuns> reduced_together(Stage& stage, const ShardLayout& shape) {
  if (shape.runs.empty()) return {{0, shape.elements, {}}};
  const bool alone = stage.plan.units.chunk_elements > 0;
  const std::int64_t most = stage.plan.bucket_elements;
  std::vector<UnitRuns> out;
  std::int64_t end = shape.elements;
  for (auto run = shape.runs.rbegin(); run != shape.runs.rend(); ++run) {
    const bool full = !out.empty() && (alone || (most > 0 && out.back().count + *run > most));
    if (out.empty() || full) out.push_back({end, 0, {}});
    UnitRuns& last = out.back();
    end -= *run;
    last.begin = end;
    last.count += *run;
    last.runs.push_back(*run);
  }
  for (UnitRuns& together : out) std::reverse(together.runs.begin(), together.runs.end());
  return out;
}

}  // namespace foretrain

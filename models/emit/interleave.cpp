// Passes that run as one, and how they hide each other's exchanges of tokens.
//
// A forward pass and the backward pass of another microbatch go in blocks: a layer with experts is
// cut wherever compute would wait for an exchange of tokens, and the other pass's block goes in
// between. With one exchange to the experts and one back in each direction the turn of a layer is
//
//   compute    B: head of it | F: attention, router | B: experts | F: experts | B: attention | F:
//   end exchanges  B: to experts | F: to experts        | B: back    | F: back    |
//
// (Megatron-LM's combined 1F1B; DeepSeek-AI's DualPipe, which cuts the SMs between the two as well:
// left out). Gradients of weights with a pass of their own follow at the end. Layers and blocks
// pair by their numbers alone, so a backward pass that repeats the exchanges of its forward pass
// hides only as many as that has blocks. Exchanges of counts, for which the host waits, cut
// nothing.
#include <algorithm>
#include <array>

#include "models/emit/tasks.h"

namespace foretrain {

/// The calls of a layer in blocks.
using Blocks = std::vector<std::vector<Call>>;

static bool waits_for_others(Stage& stage, const Segment& segment, const Op& op);
static std::vector<Blocks> in_blocks(Stage& stage, const std::vector<Call>& calls);

/// Whether the op waits for tokens that other ranks send; with slices, for tensor ranks.
bool waits_for_others(Stage& stage, const Segment& segment, const Op& op) {
  const Program& program = stage.builder.program();
  const Category category = sliced(stage) ? Category::kTensor : Category::kExpert;
  return std::any_of(op.waits.begin(), op.waits.end(), [&](const EventRef& event) {
    return std::any_of(segment.ops.begin(), segment.ops.end(), [&](const Op& other) {
      const auto* work = std::get_if<Collective>(&program.works[other.work.index()]);
      return other.records == event && other.category == category && work != nullptr &&
             work->dtype != DType::kInt64;
    });
  });
}

/// The segment in parts, cut before every op of compute that waits for other ranks.
const std::vector<SegmentId>& blocks_of(Stage& stage, SegmentId id) {
  const auto [it, fresh] = stage.segments.blocks_of.try_emplace(id);
  if (!fresh) return it->second;
  const Segment whole = stage.builder.program().segments[id.index()];
  std::vector<Segment> parts(1, Segment{whole.name, whole.frames, {}});
  for (const Op& op : whole.ops) {
    const bool compute = op.stream == StreamId(std::size_t{0});
    if (compute && !parts.back().ops.empty() && waits_for_others(stage, whole, op)) {
      parts.push_back(Segment{whole.name, whole.frames, {}});
    }
    parts.back().ops.push_back(op);
  }
  if (parts.size() == 1) {
    it->second = {id};
    return it->second;
  }
  for (Segment& part : parts) it->second.push_back(stage.builder.segment(std::move(part)));
  return it->second;
}

/// The calls of a pass, by layer with exchanges, in blocks. What stands between two such layers
/// goes with the first block of the second.
std::vector<Blocks> in_blocks(Stage& stage, const std::vector<Call>& calls) {
  std::vector<Blocks> out(1, Blocks(1));
  for (const Call& call : calls) {
    const std::vector<SegmentId>& parts = blocks_of(stage, call.segment);
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (k > 0) out.back().emplace_back();
      Call part = call;
      part.segment = parts[k];
      if (k > 0) part.waits.clear();
      out.back().back().push_back(std::move(part));
    }
    if (parts.size() > 1) out.emplace_back(1);
  }
  return out;
}

/// The calls of the joined passes in turn, where both kinds of passes have exchanges.
void interleave_paired_passes(Stage& stage) {
  const std::vector<std::pair<std::size_t, bool>> begins = std::move(stage.values.joined_begins);
  stage.values.joined_begins.clear();
  if (begins.size() < 2 || !stage.plan.interleaves_pairs() || !stage.model.has_experts()) return;
  const std::size_t first = begins.front().first;
  std::vector<Call> calls = stage.builder.take_calls(first);
  std::array<std::vector<Call>, 2> passes;  // backward, forward
  for (std::size_t p = 0; p < begins.size(); ++p) {
    const std::size_t end = p + 1 < begins.size() ? begins[p + 1].first - first : calls.size();
    for (std::size_t c = begins[p].first - first; c < end; ++c) {
      passes[begins[p].second ? 1 : 0].push_back(std::move(calls[c]));
    }
  }
  const std::array<std::vector<Blocks>, 2> layers = {in_blocks(stage, passes[0]),
                                                     in_blocks(stage, passes[1])};
  const std::size_t most = std::max(layers[0].size(), layers[1].size());
  for (std::size_t l = 0; l < most; ++l) {
    bool any = true;
    for (std::size_t k = 0; any; ++k) {
      any = false;
      for (const std::vector<Blocks>& pass : layers) {
        if (l >= pass.size() || k >= pass[l].size()) continue;
        any = true;
        for (const Call& call : pass[l][k]) stage.builder.call(call);
      }
    }
  }
}

}  // namespace foretrain

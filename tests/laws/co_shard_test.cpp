// Do parts of a layer keep, compute and send what the cut by heads and by the MLP's width says?
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Workload parts_workload(const Model& model, const Plan& plan) {
  Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return workload;
}

/// Bytes of what a layer keeps for one microbatch beside its input.
Bytes kept_by_layer(const Model& model, const Plan& plan) {
  const Workload workload = parts_workload(model, plan);
  for (const FrameLayout& layout : workload.programs[0].layouts) {
    if (!layout.name.starts_with("saved")) continue;
    Bytes sum = 0;
    for (const Buffer& buffer : layout.buffers) sum += buffer.bytes();
    return sum;
  }
  return -1;
}

Plan in_parts(const Model& model, std::int64_t tensor, std::int64_t parts) {
  Plan plan = small_plan(model, {tensor, 1, 1, 1}, 1);
  plan.recompute.parts = parts;
  return plan;
}

// Both normed inputs and the stream between the blocks, 2 bytes each, and the norms' statistics;
// with `layernorm` only the stream, with `layer` nothing: in 2, 4 or 8 parts.
TEST(CoShardMemory, Kept) {
  Model model = small_llama();
  model.heads = model.kv_heads = 8;
  model.head_dim = 32;
  for (const std::int64_t parts : {2, 4, 8}) {
    Plan plan = in_parts(model, 1, parts);
    const Bytes stream = 2 * plan.tokens() * model.hidden;
    const Bytes statistics = 2 * 4 * plan.tokens();
    EXPECT_EQ(kept_by_layer(model, plan), 3 * stream + statistics);
    plan.recompute.norm = true;
    EXPECT_EQ(kept_by_layer(model, plan), stream);
    plan.recompute.layer = true;
    EXPECT_EQ(kept_by_layer(model, plan), 0);
  }
}

// At the peak, in the backward pass of a wide MLP, a part's two halves of the way up, their
// product, and the gradients of both live: 6 f / n values of 2 bytes a token. Twice the parts save
// half of that.
TEST(CoShardMemory, Peak) {
  Model model = small_llama();
  model.heads = model.kv_heads = 8;
  model.head_dim = 32;
  model.intermediate = 64 * model.hidden;
  model.vocabulary = 128;
  const auto peak = [&](std::int64_t parts) {
    return memory_peak(parts_workload(model, in_parts(model, 1, parts)).programs[0]).bytes;
  };
  const Bytes of_whole = 2 * in_parts(model, 1, 1).tokens() * 6 * model.intermediate;
  EXPECT_EQ(peak(2) - peak(4), of_whole / 4);
  EXPECT_EQ(peak(4) - peak(8), of_whole / 8);
  Plan full = in_parts(model, 1, 1);
  full.recompute.layer = true;
  EXPECT_GT(memory_peak(parts_workload(model, full).programs[0]).bytes, peak(2));
}

/// FLOPs by phase and name, of all calls.
std::map<std::pair<Phase, std::string>, double> flops_by_phase(const Workload& workload) {
  std::map<std::pair<Phase, std::string>, double> out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const double each = flops_of(program.works[op.work.index()]);
      if (each > 0) out[{op.phase, op.name}] += each;
    }
  }
  return out;
}

// Each product and each core of attention takes as many FLOPs in all parts together as whole.
// Computed again are queries, keys and values, the core and the way up; what leads back to the
// stream is not.
TEST(CoShardWork, Flops) {
  for (const Model& model : {small_gpt(), small_llama()}) {
    for (const std::int64_t tensor : {1, 2}) {
      auto expected = flops_by_phase(parts_workload(model, in_parts(model, tensor, 1)));
      for (const char* name : {"attention.qkv", "attention.core", "mlp.up"}) {
        expected[{Phase::kRecompute, name}] = expected.at({Phase::kForward, name});
      }
      for (const std::int64_t parts : {2, 4}) {
        if (parts * tensor > model.heads) continue;
        EXPECT_EQ(flops_by_phase(parts_workload(model, in_parts(model, tensor, parts))), expected);
      }
    }
  }
}

// Parts share their rank's collectives: as many of the same sizes as of a layer that is whole, and
// forward none of them again but the gathers of scattered tokens.
TEST(CoShardWork, Collectives) {
  const Model model = small_llama();
  for (const bool sequence : {false, true}) {
    Plan plan = in_parts(model, 2, 1);
    plan.sequence = sequence;
    const Workload whole = parts_workload(model, plan);
    plan.recompute.parts = 2;
    const Workload parts = parts_workload(model, plan);
    for (const char* name : {"attention.reduce", "mlp.reduce", "attention.qkv.reduce",
                             "mlp.up.reduce", "mlp.down.gather"}) {
      EXPECT_EQ(collective_sizes(parts, name), collective_sizes(whole, name)) << name;
    }
  }
}

// A matrix that parts cut by columns lies part after part, each with all rows; the gate and the way
// up beside each other.
TEST(CoShardLayout, Pieces) {
  const Model model = small_llama();
  const Workload workload = parts_workload(model, in_parts(model, 2, 2));
  const Program& program = workload.programs[0];
  std::map<std::string, std::vector<Piece>> pieces;
  for (const FrameLayout& layout : program.layouts) {
    for (const Buffer& buffer : layout.buffers) {
      if (!buffer.pieces.empty()) pieces[buffer.name] = buffer.pieces;
    }
  }
  const std::int64_t f = model.intermediate / 4;  // two tensor ranks, two parts
  const std::vector<Piece>& down = pieces.at("mlp.down.weight");
  ASSERT_EQ(down.size(), 2U);
  EXPECT_EQ(down[1].col_part, (PartOf{1, 2}));
  EXPECT_EQ(down[1].offset, model.hidden * f);
  EXPECT_EQ(down[1].col_count, f);
  const std::vector<Piece>& up = pieces.at("mlp.up.weight");
  ASSERT_EQ(up.size(), 4U);
  EXPECT_NE(up[0].tensor, up[1].tensor);
  EXPECT_EQ(up[0].tensor, up[2].tensor);
  EXPECT_EQ(up[3].row_part, (PartOf{1, 2}));
  EXPECT_EQ(up[3].offset, 3 * f * model.hidden);
  EXPECT_EQ(pieces.at("attention.qkv.weight").size(), 1U);
}

}  // namespace
}  // namespace foretrain

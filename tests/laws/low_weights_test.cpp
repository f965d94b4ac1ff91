// Weights that are kept in fp8 alone: what they take, what travels, what is still cast.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "models/holdings/byte_map.h"
#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Plan plan_in_fp8(const Model& model, PlanDegrees degrees, bool fp8_primary_weights, bool one_copy) {
  Plan plan = small_plan(model, degrees, 2);
  if (degrees.data > 1) plan.sharding = Sharding::kOptimizer;
  plan.precision.linear = DType::kFp8;
  plan.precision.fp8_primary_weights = fp8_primary_weights;
  plan.precision.one_copy = one_copy;
  return plan;
}

Workload verified(const Model& model, const Plan& plan) {
  Workload workload = lower(model, plan);
  EXPECT_TRUE(verify(workload).ok())
      << describe(model, plan) << ": " << verify(workload).error().message;
  return workload;
}

Bytes kept_parameters(const Program& program) {
  return persistent_bytes(program)[static_cast<std::size_t>(BufferKind::kParameters)];
}

struct Named {
  std::int64_t ops = 0;
  Bytes written = 0;
};
/// The operations whose name ends so, in one Program as it runs.
Named of_name(const Program& program, const std::string& end) {
  Named out;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (!op.name.ends_with(end)) continue;
      ++out.ops;
      for (const View& view : op.writes) out.written += view.bytes;
    }
  }
  return out;
}

/// What the update writes of parameters.
Bytes updated_parameters(const Program& program) {
  Bytes out = 0;
  for (const Call& call : program.calls) {
    const Segment& segment = program.segments[call.segment.index()];
    if (segment.name != "update") continue;
    for (const Op& op : segment.ops) {
      for (const View& view : op.writes) {
        const LayoutId id = segment.frames[static_cast<std::size_t>(view.frame)];
        if (program.layouts[id.index()].name == "parameters") out += view.bytes;
      }
    }
  }
  return out;
}

/// Parameters of a rank's layers that linears read: h (h + 2 kv) + h h + 3 h f each.
std::int64_t matrices(const Model& m, std::int64_t layers) {
  const std::int64_t kv = m.kv_heads * m.head_dim;
  const std::int64_t up = (m.gated() ? 2 : 1) * m.hidden * m.intermediate;
  return layers *
         (m.hidden * (m.hidden + 2 * kv) + m.hidden * m.hidden + up + m.hidden * m.intermediate);
}

// 2 bytes and two copies of 1 become 1 and one copy, or 1.
TEST(LowWeights, HaveNo16BitValues) {
  const Model model = small_llama();
  const auto kept = [&](bool low, bool one) {
    return kept_parameters(verified(model, plan_in_fp8(model, {1, 1, 1, 1}, low, one)).programs[0]);
  };
  const std::int64_t count = matrices(model, model.layers);
  const Bytes wide = kept(false, false);
  EXPECT_EQ(wide - kept(false, true), count);
  EXPECT_EQ(wide - kept(true, false), 2 * count);
  EXPECT_EQ(wide - kept(true, true), 3 * count);
}

// Shared over four ranks by tensors of two: what is gathered in a step is what a rank has.
TEST(LowWeights, TravelAsTheyAreKept) {
  const Model model = small_llama();
  for (const bool overlap : {false, true}) {
    Plan plan = plan_in_fp8(model, {2, 1, 1, 4}, false, true);
    plan.overlap.parameter_gather = plan.overlap.gradient_reduce = overlap;
    plan.bucket_elements = 100'000;
    const Named wide = of_name(verified(model, plan).programs[0], "parameters.gather");
    plan.precision.fp8_primary_weights = true;
    const Workload workload = verified(model, plan);
    const Named low = of_name(workload.programs[0], "parameters.gather");
    EXPECT_EQ(low.ops, wide.ops);
    EXPECT_GE(low.ops, overlap ? 10 : 1);
    EXPECT_EQ(low.written, kept_parameters(workload.programs[0]));
    // But for what makes the array divide among the ranks.
    EXPECT_LT(std::abs(wide.written - low.written - matrices(model, model.layers) / 2), 4);
  }
}

// Weights are cast no more; they are turned once a step where products need the other order.
TEST(LowWeights, AreTurnedOnceAStep) {
  const Model model = small_llama();
  const auto count = [&](bool low, bool one, const char* name) {
    return of_name(verified(model, plan_in_fp8(model, {1, 1, 1, 2}, low, one)).programs[0], name)
        .ops;
  };
  EXPECT_EQ(count(false, false, ".quantize_weights"), 4 * model.layers);
  EXPECT_EQ(count(false, true, ".quantize_weights"), 4 * model.layers);
  EXPECT_EQ(count(true, false, ".quantize_weights"), 0);
  EXPECT_EQ(count(true, false, ".turn_weights"), 4 * model.layers);
  EXPECT_EQ(count(true, true, ".turn_weights"), 0);
}

// One copy of what two products read is written half as often, and nothing is turned; as many
// activations are kept.
TEST(LowWeights, OneCopyIsWrittenOnce) {
  for (const Model& model : {small_llama(), small_moe(), small_latent()}) {
    const Workload two = verified(model, plan_in_fp8(model, {2, 1, 1, 2}, true, false));
    const Workload one = verified(model, plan_in_fp8(model, {2, 1, 1, 2}, true, true));
    for (const char* name : {"norm.quantize", "down.quantize"}) {
      const Named of_two = of_name(two.programs[0], name);
      const Named of_one = of_name(one.programs[0], name);
      EXPECT_GT(of_two.ops, 0) << name;
      EXPECT_EQ(of_one.ops, of_two.ops) << name;
      EXPECT_LT(of_one.written, of_two.written) << name;
    }
    const Named down = of_name(one.programs[0], "mlp.down.quantize");
    EXPECT_GT(down.ops, 0);
    EXPECT_EQ(2 * down.written, of_name(two.programs[0], "mlp.down.quantize").written);
    EXPECT_EQ(of_name(one.programs[0], ".turn_gradient").ops, 0);
    const auto gradients = [&model](bool one_copy) {
      const Workload workload = verified(model, plan_in_fp8(model, {1, 1, 1, 2}, true, one_copy));
      return of_name(workload.programs[0], "projection.quantize_gradient").written;
    };
    EXPECT_GT(gradients(true), 0);
    EXPECT_EQ(2 * gradients(true), gradients(false));
    EXPECT_EQ(memory_peak(one.programs[0]).saved, memory_peak(two.programs[0]).saved);
  }
}

/// Where the parts of layers and ends lie in the array of parameters that is `owner`.
std::vector<std::pair<Bytes, Bytes>> parts_of(const Program& program, std::size_t owner) {
  std::vector<std::pair<Bytes, Bytes>> out;
  for (const Frame& frame : program.frames) {
    if (!frame.alias_of.valid() || frame.alias_of.index() != owner) continue;
    Bytes bytes = 0;
    for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
      bytes += buffer.bytes();
    }
    if (bytes > 0) out.emplace_back(frame.alias_offset, frame.alias_offset + bytes);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// One behind the other, up to padding.
void expect_in_turn(const Program& program, std::int64_t shards) {
  int arrays = 0;
  for (std::size_t f = 0; f < program.frames.size(); ++f) {
    const Frame& frame = program.frames[f];
    const FrameLayout& layout = program.layouts[frame.layout.index()];
    if (frame.alias_of.valid() || layout.name != "parameters") continue;
    Bytes reached = 0;
    for (const auto& [begin, end] : parts_of(program, f)) {
      EXPECT_EQ(begin, reached);
      reached = end;
    }
    const Buffer& all = layout.buffers.front();
    const Bytes padding = all.bytes() - reached;
    EXPECT_GE(padding, 0);
    EXPECT_LE(padding, 2 * 128 * shards + shards);
    ++arrays;
  }
  EXPECT_GT(arrays, 0);
}

// Stages that share a table, one that holds both ends, experts beside layers: the parts of the
// array lie one behind the other; ranks gather all of it, of which each updates an equal part.
TEST(LowWeights, LieInOneArray) {
  for (const bool tied : {false, true}) {
    for (const PlanDegrees degrees :
         {PlanDegrees{1, 1, 1, 3}, PlanDegrees{2, 2, 1, 2}, PlanDegrees{1, 2, 2, 2}}) {
      for (Model model : {small_gpt(), small_moe(), small_latent()}) {
        model.tied_embeddings = tied;
        const Workload workload = verified(model, plan_in_fp8(model, degrees, true, true));
        for (const Program& program : workload.programs) {
          const Bytes kept = kept_parameters(program);
          EXPECT_EQ(of_name(program, "parameters.gather").written, kept);
          // Experts that tensor ranks hold whole are shared by these too.
          const bool alike = degrees.tensor == 1 || !model.has_experts();
          if (alike) {
            EXPECT_EQ(degrees.data * updated_parameters(program), kept);
          }
          // A tied table on one stage is a part of both ends.
          if (!tied || degrees.pipeline > 1) expect_in_turn(program, degrees.data * degrees.tensor);
        }
      }
    }
  }
}

TEST(ByteMap, IsProportionalInsideAPart) {
  ByteMap map;
  EXPECT_TRUE(map.empty());
  map.add(0, 0);
  map.add(10, 20);
  map.add(100, 100);
  map.add(5, 10);
  EXPECT_EQ(map.bytes(), 130);
  EXPECT_EQ(map.at(0), 0);
  EXPECT_EQ(map.at(7), 14);
  EXPECT_EQ(map.at(10), 20);
  EXPECT_EQ(map.at(60), 70);
  EXPECT_EQ(map.at(110), 120);
  EXPECT_EQ(map.at(115), 130);
}

}  // namespace
}  // namespace foretrain

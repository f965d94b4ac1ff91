// Does a step move the bytes and do the arithmetic that the papers count?
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "models/lower.h"
#include "models/slots.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Bytes of the full arrays of a Program's collectives in one step, by group and kind, and of its
/// messages by channel.
struct Carried {
  std::map<std::pair<std::string, CollectiveKind>, Bytes> collectives;
  std::map<std::string, Bytes> sent, received;
  Bytes of(const char* group, CollectiveKind kind) const {
    const auto it = collectives.find({group, kind});
    return it == collectives.end() ? 0 : it->second;
  }
};

Carried traffic_of(const Program& program, bool layers_only) {
  Carried out;
  for (const Call& call : program.calls) {
    if (layers_only && call.layer < 0) continue;
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const Work& work = program.works[op.work.index()];
      if (const auto* c = std::get_if<Collective>(&work)) {
        out.collectives[{program.group_slots[c->group.index()], c->kind}] +=
            bytes_of(c->dtype, c->count);
      } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
        for (const Message& m : batch->messages) {
          (m.send ? out.sent : out.received)[program.channel_slots[m.channel.index()]] += m.bytes;
        }
      }
    }
  }
  return out;
}

/// A vocabulary that needs no padding for any tensor degree here.
Model unpadded(Model model) {
  model.vocabulary = 1024;
  return model;
}

constexpr auto kReduce = CollectiveKind::kAllReduce;
constexpr auto kGather = CollectiveKind::kAllGather;
constexpr auto kScatter = CollectiveKind::kReduceScatter;

// DDP: one all-reduce of all gradients, 2 x 4 P (d - 1) / d bytes a rank in a ring: the full arrays
// sum to 4 P. The all-reduce of the loss adds 4 bytes.
TEST(DataParallelVolume, AllReduce) {
  const Model model = unpadded(small_gpt());
  const std::int64_t parameters = parameter_count(model);
  for (const std::int64_t d : {2, 3, 4}) {
    for (const std::int64_t bucket : {0, 100'000, 1}) {
      Plan plan = small_plan(model, {1, 1, 1, d}, 2);
      plan.bucket_elements = bucket == 1 ? 1 << 16 : bucket;
      const Carried t = traffic_of(lower(model, plan).programs[0], false);
      EXPECT_EQ(t.of(kDataGroup, kReduce), 4 * parameters + 4);
      EXPECT_EQ(t.of(kDataGroup, kGather), 0);
      EXPECT_EQ(t.of(kDataGroup, kScatter), 0);
    }
  }
}

// Distributed optimizer: reduce-scatter of fp32 gradients and all-gather of bf16 parameters,
// (4 + 2) P / t (d - 1) / d; P is what a tensor rank holds, padded to 128 d elements.
TEST(DataParallelVolume, DistributedOptimizer) {
  const Model model = unpadded(small_gpt());
  for (const std::int64_t t : {1, 2}) {
    for (const std::int64_t d : {2, 4}) {
      std::int64_t held = 0;
      for (const auto& list :
           {layer_parameters(model), embedding_parameters(model), head_parameters(model)}) {
        const bool layer = list.front().name == "attention.norm.weight";
        for (const Parameter& p : list) {
          held += p.count() / (p.split == Split::kNone ? 1 : t) * (layer ? model.layers : 1);
        }
      }
      const std::int64_t padded = (held + 128 * d - 1) / (128 * d) * (128 * d);
      for (const bool overlap : {false, true}) {
        Plan plan = small_plan(model, {t, 1, 1, d}, 2);
        plan.sharding = Sharding::kOptimizer;
        plan.overlap.gradient_reduce = plan.overlap.parameter_gather = overlap;
        plan.bucket_elements = 100'000;
        const Carried traffic = traffic_of(lower(model, plan).programs[0], false);
        EXPECT_EQ(traffic.of(kDataGroup, kScatter), 4 * padded);
        EXPECT_EQ(traffic.of(kDataGroup, kGather), 2 * padded);
        EXPECT_EQ(traffic.of(kDataGroup, kReduce), 4);  // the loss
      }
      // ZeRO as DeepSpeed reduces: (2 x 4 + 2) P with fp32 gradients.
      Plan plan = small_plan(model, {t, 1, 1, d}, 2);
      plan.sharding = Sharding::kOptimizer;
      plan.reduction = GradientReduction::kAllReduce;
      const Carried traffic = traffic_of(lower(model, plan).programs[0], false);
      EXPECT_EQ(traffic.of(kDataGroup, kReduce), 4 * padded + 4);
      EXPECT_EQ(traffic.of(kDataGroup, kGather), 2 * padded);
    }
  }
}

// ZeRO-3: parameters in 16 bits gathered forward and backward, gradients in 16 bits scattered, 2 +
// 2 + 2 bytes of each, (d - 1) / d of them sent by a rank in rings. The ends stay gathered from
// their forward to their backward pass: 2 + 2.
TEST(DataParallelVolume, ShardedParameters) {
  Model model = unpadded(small_gpt());
  model.tied_embeddings = false;
  std::int64_t layers = 0;
  for (const Parameter& p : layer_parameters(model)) layers += p.count() * model.layers;
  const std::int64_t ends = parameter_count(model) - layers;
  for (const std::int64_t d : {2, 4, 8}) {
    Plan plan = small_plan(model, {1, 1, 1, d}, 1);
    plan.sharding = Sharding::kParameters;
    plan.units.reduce = plan.precision.compute;
    const Carried t = traffic_of(lower(model, plan).programs[0], false);
    EXPECT_EQ(t.of(kDataGroup, kGather), 4 * layers + 2 * ends);
    EXPECT_EQ(t.of(kDataGroup, kScatter), 2 * (layers + ends));
  }
}

// Hybrid sharding: parameters among the G ranks of a group, usually a node, so that only gradients
// cross to the W replicas, an all-reduce of what a rank keeps, 2 P / G bytes, of which it sends
// 2 (W - 1) / W in a ring: 2 x 2 P (W - 1) / (G W).
TEST(DataParallelVolume, HybridSharding) {
  Model model = unpadded(small_gpt());
  model.tied_embeddings = false;
  const std::int64_t parameters = parameter_count(model);
  for (const std::int64_t group : {2, 4}) {
    Plan plan = small_plan(model, {1, 1, 1, 8}, 1);
    plan.sharding = Sharding::kParameters;
    plan.shard_group = group;
    plan.units.reduce = plan.precision.compute;
    const Workload workload = lower(model, plan);
    const Carried t = traffic_of(workload.programs[0], false);
    EXPECT_EQ(t.of(kReplicaGroup, kReduce), 2 * parameters / group);
    EXPECT_EQ(t.of(kReplicaGroup, kGather) + t.of(kReplicaGroup, kScatter), 0);
    EXPECT_EQ(t.of(kShardGroup, kScatter), 2 * parameters);
    const RankBinding& first = workload.ranks[0];
    const std::vector<std::string>& slots = workload.programs[0].group_slots;
    const auto members = [&](const char* slot) {
      const auto at = std::find(slots.begin(), slots.end(), slot) - slots.begin();
      return workload.groups[first.groups[static_cast<std::size_t>(at)].index()].size();
    };
    EXPECT_EQ(members(kShardGroup), static_cast<std::size_t>(group));
    EXPECT_EQ(members(kReplicaGroup), static_cast<std::size_t>(8 / group));
  }
}

// Gradients reduced to their owners, parameters broadcast: d of each for a bucket or a unit, of n /
// d elements, in sum as many bytes as the arrays have.
TEST(DataParallelVolume, ReducedToOwners) {
  Model model = unpadded(small_gpt());
  model.tied_embeddings = false;
  const std::int64_t parameters = parameter_count(model);
  constexpr std::int64_t kOwners = 4;
  for (const Sharding level : {Sharding::kOptimizer, Sharding::kGradients}) {
    Plan plan = small_plan(model, {1, 1, 1, kOwners}, 1);
    plan.sharding = level;
    plan.reduction = GradientReduction::kReduce;
    plan.units.reduce = plan.precision.gradients = plan.precision.compute;
    const Workload workload = lower(model, plan);
    ASSERT_TRUE(verify(workload).ok()) << verify(workload).error().message;
    const Carried t = traffic_of(workload.programs[0], false);
    const std::int64_t unit = level == Sharding::kOptimizer ? 128 * kOwners : 1;
    const Bytes all = 2 * ((parameters + unit - 1) / unit * unit);
    EXPECT_EQ(t.of(kDataGroup, CollectiveKind::kReduce), all);
    EXPECT_EQ(t.of(kDataGroup, CollectiveKind::kBroadcast), all);
    EXPECT_EQ(t.of(kDataGroup, kScatter) + t.of(kDataGroup, kGather), 0);
    const auto each = collective_sizes(workload, "gradients.reduce");
    EXPECT_EQ(each.size() % kOwners, 0U);
    EXPECT_EQ(each[0], each[kOwners - 1]);
  }
}

// ZeRO++ (arXiv 2306.10209, table 1): of what crosses nodes for every parameter 2 + 2 + 2 bytes
// are left 1 + 0 + 0.5: gathers of the forward pass in 8 bits, those of the backward pass inside
// the node, gradients in 4 bits of which an inner group sends its sums.
TEST(DataParallelVolume, ZeroPlusPlus) {
  Model model = unpadded(small_gpt());
  model.tied_embeddings = false;
  Plan plan = small_plan(model, {1, 1, 1, 8}, 1);
  plan.sharding = Sharding::kParameters;
  plan.units.reduce = plan.precision.compute;
  plan.units.quantized_gathers = plan.units.quantized_reduction = true;
  plan.units.secondary = plan.buckets.inner_group = 4;
  const Workload workload = lower(model, plan);
  ASSERT_TRUE(verify(workload).ok()) << verify(workload).error().message;
  const Carried t = traffic_of(workload.programs[0], false);
  const auto parameters = static_cast<Bytes>(parameter_count(model));
  // Units are padded up to equal shards; the last one and the ends are not gathered again.
  const auto about = [](Bytes found, double expected) {
    EXPECT_NEAR(static_cast<double>(found) / expected, 1, 1e-3);
  };
  const auto all = static_cast<double>(parameters);
  constexpr auto kExchange = CollectiveKind::kAllToAll;
  about(t.of(kDataGroup, kGather), all);
  EXPECT_EQ(t.of(kDataGroup, kScatter), 0);
  about(t.of(kInnerGroup, kExchange), 0.5 * all);
  about(t.of(kOuterGroup, kExchange), 0.5 * all / 4);
  const Bytes again = t.of(kSecondaryGroup, kGather);
  EXPECT_GT(again, 0);
  EXPECT_EQ(again % 2, 0);
  EXPECT_LE(again, 2 * parameters);
  // The second copy takes 2 P / 4 bytes of a rank.
  plan.units.secondary = 0;
  const Workload without = lower(model, plan);
  const auto held = [](const Workload& w) {
    Bytes bytes = 0;
    for (const FrameLayout& layout : w.programs[0].layouts) {
      for (const Buffer& buffer : layout.buffers) {
        if (buffer.kind != BufferKind::kParameters || !buffer.persistent) continue;
        for (const Frame& frame : w.programs[0].frames) {
          if (&w.programs[0].layouts[frame.layout.index()] != &layout) continue;
          bytes += bytes_of(buffer.dtype, buffer.count);
        }
      }
    }
    return bytes;
  };
  about(held(workload) - held(without), 2 * all / 4);
}

// Layers gathered in fp8 take half of the bytes, their ends as many as before; scales are agreed on
// before, one for each of four matrices of a layer, unless they are delayed. No pass casts weights:
// the backward pass turns what came.
TEST(DataParallelVolume, GathersInFp8) {
  Model model = unpadded(small_gpt());
  model.tied_embeddings = false;
  Plan plan = small_plan(model, {1, 1, 1, 8}, 1);
  plan.sharding = Sharding::kParameters;
  plan.precision.linear = DType::kFp8;
  const auto gathered = [&] {
    const Workload workload = lower(model, plan);
    EXPECT_TRUE(verify(workload).ok()) << verify(workload).error().message;
    return traffic_of(workload.programs[0], false);
  };
  const auto count = [&](const std::string& end) {
    const Program program = lower(model, plan).programs[0];
    std::int64_t ops = 0;
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        ops += std::string(op.name).ends_with(end) ? 1 : 0;
      }
    }
    return ops;
  };
  for (const bool current : {false, true}) {
    plan.precision.current_scaling = current;
    plan.units.quantized_gathers = plan.units.casts_shards = false;
    const Carried wide = gathered();
    EXPECT_EQ(count(".quantize_weights"), 2 * 4 * model.layers);
    plan.units.quantized_gathers = plan.units.casts_shards = true;
    const Carried narrow = gathered();
    EXPECT_EQ(count(".quantize_weights"), 0);
    EXPECT_EQ(count(".turn_weights"), 4 * model.layers);
    const std::int64_t gathers = 2 * model.layers;  // forward and backward
    std::int64_t layer = 0;
    for (const Parameter& p : layer_parameters(model)) layer += p.count();
    EXPECT_EQ(wide.of(kDataGroup, kGather) - narrow.of(kDataGroup, kGather), gathers * layer);
    const Bytes agreed = narrow.of(kDataGroup, kReduce) - wide.of(kDataGroup, kReduce);
    EXPECT_EQ(agreed, current ? gathers * 4 * 4 : 0);
  }
}

// Megatron-LM, a layer and microbatch: 4 all-reduces of 2 b s h bytes, 2 forward and 2 backward.
// With sequence parallelism each is an all-gather and a reduce-scatter, and the backward pass
// gathers the two inputs of column-parallel linears again: 6 and 4 (Korthikanti et al. 2022).
TEST(TensorParallelVolume, PerLayer) {
  const Model model = unpadded(small_llama());
  for (const std::int64_t t : {2, 4}) {
    for (const bool overlap : {false, true}) {
      Plan plan = small_plan(model, {t, 1, 1, 1}, 3);
      plan.micro_batch = 2;
      plan.global_batch *= 2;
      plan.overlap.tensor_backward = overlap;
      const Bytes array = 2 * plan.tokens() * model.hidden;
      const std::int64_t passes = model.layers * plan.microbatches();
      Carried traffic = traffic_of(lower(model, plan).programs[0], true);
      EXPECT_EQ(traffic.of(kTensorGroup, kReduce), 4 * array * passes);
      EXPECT_EQ(traffic.of(kTensorGroup, kGather), 0);
      plan.sequence = true;
      traffic = traffic_of(lower(model, plan).programs[0], true);
      EXPECT_EQ(traffic.of(kTensorGroup, kReduce), 0);
      EXPECT_EQ(traffic.of(kTensorGroup, kGather), 6 * array * passes);
      EXPECT_EQ(traffic.of(kTensorGroup, kScatter), 4 * array * passes);
      // Full recomputation repeats the forward pass: 2 more of each.
      plan.recompute.layer = true;
      traffic = traffic_of(lower(model, plan).programs[0], true);
      EXPECT_EQ(traffic.of(kTensorGroup, kGather), 8 * array * passes);
      EXPECT_EQ(traffic.of(kTensorGroup, kScatter), 6 * array * passes);
    }
  }
}

// With overlap.tensor the forward collectives of a layer and the gathers of its row-parallel
// linears' gradients go around in parts: of the 6 gathers 2 remain, of the 4 reductions 2. A rank
// sends each array's t - 1 other parts, gathers by the channel to its neighbour alone, reductions
// by every channel once; what it sends is what it receives.
TEST(TensorParallelVolume, InRings) {
  const Model model = unpadded(small_llama());
  for (const std::int64_t t : {2, 4}) {
    Plan plan = small_plan(model, {t, 1, 1, 1}, 3);
    plan.sequence = plan.overlap.tensor = true;
    const Bytes array = 2 * plan.tokens() * model.hidden;
    const std::int64_t passes = model.layers * plan.microbatches();
    const Carried traffic = traffic_of(lower(model, plan).programs[0], true);
    EXPECT_EQ(traffic.of(kTensorGroup, kGather), 2 * array * passes);
    EXPECT_EQ(traffic.of(kTensorGroup, kScatter), 2 * array * passes);
    const Bytes gathered = 4 * (t - 1) * array / t * passes;
    for (std::int64_t i = 1; i < t; ++i) {
      const Bytes reduced = 2 * array / t * passes;
      const Bytes expected = reduced + (i == 1 ? gathered : 0);
      EXPECT_EQ(traffic.sent.at(ring_channel(true, i)), expected);
      EXPECT_EQ(traffic.received.at(ring_channel(false, i)), expected);
    }
  }
}

// Of the same parts: with three streams three products stand side by side, of two ranks two; copy
// engines move what is gathered, the t - 1 exchanges of four gathers a layer.
TEST(TensorParallelVolume, RingsOnSeveralStreams) {
  const Model model = unpadded(small_llama());
  for (const std::int64_t t : {2, 4}) {
    Plan plan = small_plan(model, {t, 1, 1, 1}, 1);
    plan.sequence = plan.overlap.tensor = true;
    const Workload plain = lower(model, plan);
    plan.overlap.tensor_streams = 3;
    plan.overlap.tensor_copy_engines = true;
    const Workload several = lower(model, plan);
    EXPECT_EQ(traffic_of(several.programs[0], true).sent, traffic_of(plain.programs[0], true).sent);
    std::int64_t parts = 0;
    std::int64_t copies = 0;
    for (const Call& call : several.programs[0].calls) {
      for (const Op& op : several.programs[0].segments[call.segment.index()].ops) {
        const Work& work = several.programs[0].works[op.work.index()];
        if (const auto* gemm = std::get_if<Gemm>(&work); gemm != nullptr && gemm->beside > 1) {
          EXPECT_EQ(gemm->beside, t);
          EXPECT_EQ(gemm->streams, std::min<std::int64_t>(t, 3));
          ++parts;
        }
        const auto* batch = std::get_if<P2PBatch>(&work);
        if (batch != nullptr && batch->messages.front().copied) ++copies;
      }
    }
    EXPECT_EQ(copies, 4 * (t - 1) * model.layers);
    EXPECT_EQ(parts, 6 * t * model.layers);
  }
}

// Tensor ranks compute the gradients of the norms of queries and keys from their own heads: without
// sequence parallelism these alone are summed, 2 x head_dim fp32 elements a layer; with it all that
// is held alike, which they are part of.
TEST(TensorParallelVolume, NormsOfQueriesAndKeys) {
  Model model = unpadded(small_llama());
  const Plan plan = small_plan(model, {2, 1, 1, 1}, 1);
  const Bytes without = traffic_of(lower(model, plan).programs[0], false).of(kTensorGroup, kReduce);
  model.qk_norm = true;
  const Bytes with = traffic_of(lower(model, plan).programs[0], false).of(kTensorGroup, kReduce);
  EXPECT_EQ(with - without, model.layers * 2 * model.head_dim * 4);
  Plan sequence = plan;
  sequence.sequence = true;
  const std::int64_t alike = model.layers * (2 * model.hidden + 2 * model.head_dim) + model.hidden;
  const Bytes losses = 3 * 4 * plan.tokens();  // maximum, target, sum of the loss
  EXPECT_EQ(traffic_of(lower(model, sequence).programs[0], false).of(kTensorGroup, kReduce),
            4 * alike + losses);
}

// Every boundary between chunks carries 2 b s h bytes (/ t with sequence parallelism) forward and
// as many back, a microbatch.
TEST(PipelineVolume, Messages) {
  const Model model = small_llama();
  for (const bool sequence : {false, true}) {
    for (const std::int64_t v : {1, 2}) {
      Plan plan = small_plan(model, {2, 2, v, 1}, 4);
      plan.sequence = sequence;
      const Bytes each = 2 * plan.tokens() * model.hidden / (sequence ? 2 : 1) * 4;
      const Workload workload = lower(model, plan);
      const Carried first = traffic_of(workload.programs[0], false);
      const Carried last = traffic_of(workload.programs[1], false);
      EXPECT_EQ(first.sent.at(kToNext), v * each);
      EXPECT_EQ(last.received.at(kFromPrevious), v * each);
      EXPECT_EQ(last.sent.at(kToPrevious), v * each);
      EXPECT_EQ(first.received.at(kFromNext), v * each);
      EXPECT_EQ(first.sent.count(kToPrevious), v == 1 ? 0U : 1U);
      if (v == 2) {  // chunk 1 on the last stage to chunk 2 on the first
        EXPECT_EQ(last.sent.at(kToNext), each);
        EXPECT_EQ(first.sent.at(kToPrevious), each);
      }
    }
  }
}

double flops_of(const Workload& workload, const Plan& plan) {
  double sum = 0;
  for (const Program& program : workload.programs) {
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        sum += foretrain::flops_of(program.works[op.work.index()]);
      }
    }
  }
  return sum * static_cast<double>(plan.tensor * plan.data);
}

// All ranks together: 6 P + 12 L q s FLOPs a token with unfused attention, whatever the plan. Flash
// attention does half the scores, and a fifth matrix product in the backward pass: 7 L q s. Full
// recomputation adds the layers' forward pass, not the output matrix': 2 V h less a token than the
// convention.
TEST(Flops, MatchTheConventions) {
  const Model model = unpadded(small_llama());
  for (const PlanDegrees degrees : {PlanDegrees{1, 1, 1, 1}, {2, 2, 1, 2}, {4, 2, 2, 1}}) {
    Plan plan = small_plan(model, degrees, 4);
    plan.attention = AttentionKernel::kUnfused;
    const std::int64_t tokens = plan.global_batch * plan.sequence_length;
    const FlopConventions c = model_flops(model, tokens, plan.sequence_length);
    EXPECT_EQ(flops_of(lower(model, plan), plan), c.full);
    plan.recompute.layer = true;
    const double head = 2.0 * static_cast<double>(model.vocabulary * model.hidden * tokens);
    EXPECT_EQ(flops_of(lower(model, plan), plan), c.recomputed - head);
    plan.recompute.layer = false;
    plan.attention = AttentionKernel::kFlash;
    const auto scores =
        static_cast<double>(model.layers * model.query_width() * plan.sequence_length * tokens);
    EXPECT_EQ(c.full - c.causal, 6 * scores);
    EXPECT_EQ(flops_of(lower(model, plan), plan), c.full - 5 * scores);
  }
}

// The vocabulary on all stages, a microbatch of T tokens: every stage reduces and takes broadcasts
// of T x hidden twice, and sums three fp32 numbers a token; its tables are 1/p of the vocabulary.
TEST(PipelineVolume, SharedVocabulary) {
  for (const std::int64_t tensor : {1, 2}) {
    const Model model = unpadded(small_llama());
    Plan plan = small_plan(model, {tensor, 4, 1, 1}, 6);
    plan.schedule = Schedule::kSharedVocabulary;
    plan.sequence = tensor > 1;
    const Workload workload = lower(model, plan);
    const Bytes hidden = 2 * plan.tokens() * model.hidden;
    for (const Program& program : workload.programs) {
      const Carried traffic = traffic_of(program, false);
      EXPECT_EQ(traffic.of(kStagesGroup, CollectiveKind::kReduce), 6 * 2 * hidden);
      EXPECT_EQ(traffic.of(kStagesGroup, CollectiveKind::kBroadcast), 6 * 2 * hidden);
      EXPECT_EQ(traffic.of(kVocabularyGroup, kReduce), 6 * 3 * 4 * plan.tokens());
      for (const FrameLayout& layout : program.layouts) {
        for (const Buffer& buffer : layout.buffers) {
          if (buffer.name != "embedding.tokens" && buffer.name != "head.output") continue;
          EXPECT_EQ(buffer.count, model.vocabulary / (4 * tensor) * model.hidden);
        }
      }
    }
  }
}

}  // namespace
}  // namespace foretrain

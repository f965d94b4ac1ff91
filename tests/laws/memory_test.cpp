// Do activations and model states take the bytes that the papers count?
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Bytes that one layer keeps for one microbatch: its input and the buffers marked saved, without
/// the statistics of norms and of flash attention, which the formula leaves out.
Bytes kept(const Model& model, const Plan& plan, const char* layout_name) {
  const Program program = lower(model, plan).programs[0];
  Bytes sum = 0;
  Bytes statistics = 0;
  for (const FrameLayout& layout : program.layouts) {
    if (layout.name != layout_name && layout.name != "hidden") continue;
    for (const Buffer& buffer : layout.buffers) {
      const bool statistic =
          buffer.name.find("statistics") != std::string::npos || buffer.name == "log-sum-exp";
      (statistic ? statistics : sum) += buffer.saved ? buffer.bytes() : 0;
    }
  }
  // LayerNorm: mean and deviation in fp32 twice, 16 bytes a token; log-sum-exp 4 a a token.
  EXPECT_LE(statistics, plan.tokens() * (16 + 4 * model.heads));
  return sum;
}

// Korthikanti et al. 2022, table 2, bytes a layer of a GPT with f = 4 h in 16 bits with dropout:
// tensor parallelism alone s b h (10 + 24 / t + 5 a s / (h t)), with sequence parallelism
// s b h / t (34 + 5 a s / h), with the attention core computed again 34 s b h / t, all again 2 s b
// h.
TEST(Activations, Korthikanti) {
  const Model model = small_gpt();
  for (const std::int64_t t : {1, 2, 4}) {
    for (const std::int64_t b : {1, 2}) {
      Plan plan = small_plan(model, {t, 1, 1, 1}, 1);
      plan.micro_batch = plan.global_batch = b;
      plan.attention = AttentionKernel::kUnfused;
      plan.dropout = 0.1;
      const Bytes sbh = plan.tokens() * model.hidden;
      const Bytes scores = 5 * model.heads * plan.tokens() * plan.sequence_length / t;
      EXPECT_EQ(kept(model, plan, "saved"), 10 * sbh + 24 * sbh / t + scores);
      plan.recompute.attention = true;
      EXPECT_EQ(kept(model, plan, "saved recomputed"), 10 * sbh + 24 * sbh / t);
      plan.sequence = t > 1;
      if (plan.sequence) {
        EXPECT_EQ(kept(model, plan, "saved recomputed"), 34 * sbh / t);
        plan.recompute.attention = false;
        EXPECT_EQ(kept(model, plan, "saved"), 34 * sbh / t + scores);
        plan.sequence = false;
      }
      plan.recompute = Recompute{};
      plan.recompute.layer = true;
      EXPECT_EQ(kept(model, plan, "saved recomputed"), 2 * sbh);
      plan.sequence = t > 1;
      EXPECT_EQ(kept(model, plan, "saved recomputed"), 2 * sbh / (plan.sequence ? t : 1));
    }
  }
}

// Flash attention keeps no scores: 34 s b h / t without any recomputation.
TEST(Activations, Flash) {
  const Model model = small_gpt();
  for (const std::int64_t t : {2, 4}) {
    Plan plan = small_plan(model, {t, 1, 1, 1}, 1);
    plan.sequence = true;
    plan.dropout = 0.1;
    EXPECT_EQ(kept(model, plan, "saved"), 34 * plan.tokens() * model.hidden / t);
  }
}

// Bytes a parameter: 2 weights + 4 gradients + 12 optimizer on every rank, or 6 + 12 / d; with
// gradients in 16 bits 4 + 12 / d (ZeRO stage 1). Parameters are padded to 128 d.
// Kept by operation: the input, queries and values, what attention gives, the gate, and without
// need the way down; all else is computed again. In fp8 no product is kept.
TEST(Activations, EverySecondProduct) {
  const Model model = small_llama();
  const std::int64_t h = model.hidden;
  const std::int64_t q = model.heads * model.head_dim;
  const std::int64_t kv = model.kv_heads * model.head_dim;
  Plan plan = small_plan(model, {1, 1, 1, 1}, 1);
  plan.recompute.operations = true;
  const Bytes attention = h + q;
  EXPECT_EQ(kept(model, plan, "saved recomputed"),
            2 * plan.tokens() * (attention + q + kv + model.intermediate + h));
  plan.precision.linear = DType::kFp8;
  EXPECT_EQ(kept(model, plan, "saved recomputed"), plan.tokens() * (2 * attention + q));
}

// Computed again: keys, the way out of attention and the second half of the way up.
TEST(Activations, EverySecondProductAgain) {
  const Model model = small_llama();
  Plan plan = small_plan(model, {1, 1, 1, 1}, 1);
  plan.recompute.operations = true;
  const Program program = lower(model, plan).programs[0];
  std::map<std::string, double> again;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const Work& work = program.works[op.work.index()];
      if (op.phase != Phase::kRecompute || flops_of(work) == 0) continue;
      if (std::holds_alternative<Gemm>(work)) again[op.name] = flops_of(work);
      EXPECT_FALSE(std::holds_alternative<Attention>(work));
    }
  }
  const auto product = [&plan](std::int64_t out, std::int64_t in) {
    return 2.0 * static_cast<double>(plan.tokens() * out * in);
  };
  const std::map<std::string, double> expected = {
      {"attention.k", product(model.kv_heads * model.head_dim, model.hidden)},
      {"attention.projection", product(model.hidden, model.heads * model.head_dim)},
      {"mlp.up", product(model.intermediate, model.hidden)}};
  EXPECT_EQ(again, expected);
}

/// What the ops of a program read in buffers whose names end in `name`, and had not written before
/// in the same segment, although the buffer does not outlive it.
std::vector<std::string> unwritten(const Program& program, const std::string& name) {
  std::vector<std::string> out;
  for (const Segment& segment : program.segments) {
    std::set<std::pair<int, int>> written;
    for (const Op& op : segment.ops) {
      for (const View& view : op.reads) {
        const auto frame = static_cast<std::size_t>(view.frame);
        const FrameLayout& layout = program.layouts[segment.frames[frame].index()];
        const Buffer& buffer = layout.buffers[static_cast<std::size_t>(view.buffer)];
        const bool local = layout.name.starts_with("backward");
        if (!local || !buffer.name.ends_with(name)) continue;
        if (!written.contains({view.frame, view.buffer})) out.push_back(op.name);
      }
      for (const View& view : op.writes) written.insert({view.frame, view.buffer});
    }
  }
  return out;
}

// A mask of dropout that the backward pass reads was kept, or is drawn again before.
TEST(Activations, MasksAreThereWhenTheyAreRead) {
  for (const bool parallel : {false, true}) {
    for (const bool low : {false, true}) {
      Model model = small_llama();
      model.parallel_residual = parallel;
      Plan plan = small_plan(model, {2, 1, 1, 1}, 1);
      plan.dropout = 0.1;
      plan.recompute.operations = true;
      plan.sequence = !low;
      if (low) plan.precision.linear = DType::kFp8;
      const Program program = lower(model, plan).programs[0];
      EXPECT_EQ(unwritten(program, "dropout mask"), std::vector<std::string>());
      std::size_t reads = 0;
      for (const Segment& segment : program.segments) {
        for (const Op& op : segment.ops) reads += op.name.ends_with("dropout_gradient") ? 1 : 0;
      }
      EXPECT_GE(reads, parallel ? 1U : 2U);
    }
  }
}

/// Products of a layer that are computed again, by name.
std::map<std::string, double> products_again(const Model& model, const Plan& plan) {
  const Program program = lower(model, plan).programs[0];
  std::map<std::string, double> again;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const Work& work = program.works[op.work.index()];
      if (op.phase == Phase::kRecompute && flops_of(work) > 0) again[op.name] = flops_of(work);
    }
  }
  return again;
}

// Of a layer that is computed again each result may stay: its bytes are kept and its products are
// not repeated. With early_stop the last product, which no gradient reads, is not either.
TEST(Activations, ResultsThatStay) {
  for (const Model& model : {small_gpt(), small_llama()}) {
    for (const std::int64_t t : {1, 2}) {
      Plan plan = small_plan(model, {t, 1, 1, 1}, 1);
      plan.sequence = t > 1;
      plan.recompute.layer = true;
      const Bytes input = kept(model, plan, "saved recomputed");
      const std::int64_t tokens = plan.tokens(), d = model.head_dim;
      const std::int64_t up = (model.gated() ? 2 : 1) * model.intermediate;
      const auto expect = [&](bool Recompute::*flag, std::int64_t width, const char* product) {
        Plan other = plan;
        other.recompute.*flag = true;
        auto all = products_again(model, plan);
        EXPECT_EQ(all.erase(product), 1U) << product;
        EXPECT_EQ(products_again(model, other), all) << product;
        EXPECT_EQ(kept(model, other, "saved recomputed"), input + 2 * tokens * width / t)
            << product;
      };
      expect(&Recompute::keep_heads, (model.heads + 2 * model.kv_heads) * d, "attention.qkv");
      expect(&Recompute::keep_core, model.heads * d, "attention.core");
      expect(&Recompute::keep_projection, model.hidden, "attention.projection");
      expect(&Recompute::keep_up, up, "mlp.up");
      expect(&Recompute::early_stop, 0, "mlp.down");
    }
  }
}

TEST(ModelStates, BytesPerParameter) {
  Model model = small_gpt();
  model.vocabulary = 1024;
  const std::int64_t p = parameter_count(model);
  for (const std::int64_t d : {1, 2, 4}) {
    for (const bool narrow : {false, true}) {
      Plan plan = small_plan(model, {1, 1, 1, d}, 1);
      plan.precision.gradients = narrow ? DType::kBf16 : DType::kFp32;
      const Bytes scalars = 8;  // the loss and the gradient norm
      const Bytes each = narrow ? 4 : 6;
      EXPECT_EQ(memory_peak(lower(model, plan).programs[0]).persistent, (each + 12) * p + scalars);
      plan.sharding = Sharding::kOptimizer;
      const std::int64_t padded = d == 1 ? p : (p + 128 * d - 1) / (128 * d) * (128 * d);
      const Program program = lower(model, plan).programs[0];
      EXPECT_EQ(memory_peak(program).persistent, each * padded + 12 * padded / d + scalars);
      const BytesByKind kinds = persistent_bytes(program);
      EXPECT_EQ(kinds[static_cast<std::size_t>(BufferKind::kOptimizer)], 12 * padded / d);
      EXPECT_EQ(kinds[static_cast<std::size_t>(BufferKind::kParameters)], 2 * padded);
    }
  }
}

// A table with a vector of every layer for every token (Gemma 3n): its rows have the states of
// parameters, and the vectors of a microbatch stay until its backward pass. Its look-up and its
// gradient move rows; they add no FLOPs.
TEST(ModelStates, TablesOfLayersAreHeld) {
  const Model plain = small_llama();
  Model model = plain;
  model.ends.layer_rows = 500;
  model.ends.layer_width = 16;
  const std::int64_t p = model.layers * 500 * 16;
  EXPECT_EQ(parameter_count(model), parameter_count(plain) + p);
  for (const std::int64_t data : {1, 2}) {
    for (const std::int64_t tensor : {1, 2}) {
      const Plan plan = small_plan(model, {tensor, 1, 1, data}, 2);
      const Workload with = lower(model, plan);
      ASSERT_TRUE(verify(with).ok()) << verify(with).error().message;
      const Workload without = lower(plain, plan);
      const Bytes each = 2 + bytes_of(plan.precision.gradients, 1) + 12;
      EXPECT_EQ(memory_peak(with.programs[0]).persistent,
                memory_peak(without.programs[0]).persistent + each * p);
      const auto saved = [](const Program& program) {
        Bytes sum = 0;
        for (const FrameLayout& layout : program.layouts) {
          for (const Buffer& buffer : layout.buffers) {
            sum += buffer.name == "vectors of every layer" && buffer.saved ? buffer.bytes() : 0;
          }
        }
        return sum;
      };
      EXPECT_EQ(saved(with.programs[0]), 2 * plan.tokens() * model.layers * 16);
      EXPECT_EQ(model_flops(model, 1000, 100).full, model_flops(plain, 1000, 100).full);
    }
  }
}

// ZeRO (arXiv 1910.02054, table 1): GB of model states a rank for 7.5 B, 128 B and 1 T parameters
// over n ranks with 2 bytes of weights, 2 of gradients and 12 of optimizer states a parameter:
// stage 1 shards the states, stage 2 the gradients too, stage 3 all. Within 0.1 %, which is what
// padding to equal shards may add.
TEST(ModelStates, ZeroTable) {
  struct Size {
    double parameters;
    std::int64_t layers, hidden;
  };
  for (const Size& size :
       {Size{7.5e9, 36, 4096}, Size{128e9, 100, 10240}, Size{1e12, 128, 25600}}) {
    Model model = small_gpt();
    model.layers = size.layers;
    model.hidden = size.hidden;
    model.intermediate = 4 * size.hidden;
    model.heads = model.kv_heads = size.hidden / 128;
    model.head_dim = 128;
    const auto p = static_cast<double>(parameter_count(model));
    for (const std::int64_t n : {1, 4, 16, 64, 256, 1024}) {
      const auto ranks = static_cast<double>(n);
      const double bytes[] = {4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks};
      for (int stage = 1; stage <= 3; ++stage) {
        Plan plan = small_plan(model, {1, 1, 1, n}, 1);
        plan.precision.gradients = plan.precision.compute;
        plan.sharding = static_cast<Sharding>(stage);
        plan.units.narrow_shards = true;
        const Program program = lower(model, plan).programs[0];
        const double held = static_cast<double>(memory_peak(program).persistent) / p;
        const double expected = bytes[stage - 1] * size.parameters / 1e9;
        EXPECT_NEAR(held * size.parameters / 1e9, expected, 1e-3 * expected)
            << size.parameters << " parameters, stage " << stage << ", " << n << " ranks";
      }
    }
  }
}

// Tensor and pipeline parallelism together hold every parameter once, but for norms, row-parallel
// biases and positions, which every tensor rank holds, and a tied table, which both ends hold.
TEST(ModelStates, EveryParameterOnce) {
  Model model = small_llama();
  model.vocabulary = 1024;
  for (const bool tied : {false, true}) {
    model.tied_embeddings = tied;
    const Plan plan = small_plan(model, {2, 4, 1, 1}, 4);
    Bytes held = 0;
    for (const Program& program : lower(model, plan).programs) {
      held += 2 * persistent_bytes(program)[static_cast<std::size_t>(BufferKind::kParameters)];
    }
    const std::int64_t norms = (2 * model.layers + 1) * model.hidden;
    const std::int64_t twice = tied ? model.vocabulary * model.hidden : 0;
    EXPECT_EQ(held, 2 * (parameter_count(model) + norms + twice));
  }
}

TEST(Presets, HaveTheParametersPublished) {
  int checked = 0;
  const std::filesystem::path folder = std::string(FORETRAIN_SOURCE_DIR) + "/configs/models";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    const Result<Json> json = read_json_file(path);
    ASSERT_TRUE(json.ok()) << json.error().message;
    const Result<Model> model = read_model(json.value(), path, "");
    ASSERT_TRUE(model.ok()) << model.error().message;
    const Json* published = json.value().find("parameters_published");
    if (published == nullptr) continue;
    ++checked;
    EXPECT_EQ(parameter_count(model.value()), static_cast<std::int64_t>(published->number()))
        << path;
  }
  EXPECT_GT(checked, 20);
}

// Where authors print billions, or count what is left out here: Llama 4's images (0.9 billion) and
// Qwen's gate of shared experts.
TEST(Presets, HaveTheBillionsPublished) {
  const std::string folder = std::string(FORETRAIN_SOURCE_DIR) + "/configs/models/";
  for (const auto& [name, billions] : {std::pair{"grok-1", 314.0},
                                       {"llama-4-scout", 109.0 - 0.9},
                                       {"llama-4-maverick", 401.7 - 0.9},
                                       {"qwen1.5-moe-a2.7b", 14.315784192},
                                       {"qwen2-57b-a14b", 57.4}}) {
    const Model model =
        read_model(read_json_file(folder + name + ".json").value(), name, "").value();
    EXPECT_NEAR(static_cast<double>(parameter_count(model)) / 1e9 / billions, 1, 0.006) << name;
  }
}

}  // namespace
}  // namespace foretrain

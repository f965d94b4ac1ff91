#include "tests/support/small_plans.h"

#include <algorithm>
#include <array>

#include "models/plan/layout/plan_layout.h"
#include "models/plan/plan_precision.h"
#include "models/plan/plan_sharding.h"

namespace foretrain {

Model small_gpt() {
  Model m;
  m.name = m.type = "gpt2";
  m.layers = 8;
  m.hidden = 256;
  m.heads = m.kv_heads = 4;
  m.head_dim = 64;
  m.intermediate = 1024;
  m.vocabulary = 1000;
  m.positions = 128;
  m.norm = Norm::kLayerNorm;
  m.activation = Activation::kGelu;
  m.position = Position::kLearned;
  m.biases.qkv = m.biases.projection = m.biases.mlp = m.biases.norm = true;
  return m;
}

Model small_llama() {
  Model m;
  m.name = m.type = "llama";
  m.layers = 8;
  m.hidden = 256;
  m.heads = 4;
  m.kv_heads = 4;
  m.head_dim = 64;
  m.intermediate = 512;
  m.vocabulary = 1000;
  return m;
}

Model small_moe() {
  Model m = small_llama();
  m.name = m.type = "deepseek_v3";
  m.layers = 4;
  m.hidden = 128;
  m.head_dim = 32;
  m.experts = Experts{8, 2, 64, 64, 1, 1, false};
  return m;
}

Model small_latent() {
  Model m = small_moe();
  m.latent = LatentAttention{48, 32, 16, 8, 24};
  m.head_dim = 24;
  m.kv_heads = m.heads;
  return m;
}

Plan small_plan(const Model& model, PlanDegrees degrees, std::int64_t microbatches) {
  Plan p;
  p.tensor = degrees.tensor;
  p.pipeline = degrees.pipeline;
  p.virtual_pipeline = degrees.virtual_pipeline;
  p.data = degrees.data;
  p.accelerators = p.tensor * p.pipeline * p.data;
  p.rank_order = {"tp", "cp", "ep", "dp", "pp"};
  p.pipeline_layout = default_layout(model.layers, p.chunks());
  p.global_batch = p.data * microbatches;
  p.sequence_length = 128;
  p.schedule = p.virtual_pipeline > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  p.dropout = 0;
  return p;
}

void fit_schedule(Model& model, Plan& p) {
  const std::int64_t stages = p.pipeline;
  if (stages == 1) p.virtual_pipeline = 1;
  const bool chunks = p.virtual_pipeline > 1 || model.predict_layers > 0;
  if (p.schedule == Schedule::k3F1B && chunks) p.schedule = Schedule::k1F1B;
  if (p.schedule != Schedule::k3F1B) p.forwards = 1;
  const bool placed = p.placement() == ChunkPlacement::kRound || stages > 1;
  const bool ends = p.shares_vocabulary() && (stages == 1 || model.predict_layers > 0);
  if (!placed || ends || (p.directions() == 2 && stages % 2 != 0)) p.schedule = Schedule::k1F1B;
  if (p.directions() == 2) model.tied_embeddings = false;
  if (p.schedule != Schedule::k1F1B && p.schedule != Schedule::kInterleaved)
    p.overlap.passes = false;
  std::int64_t m = std::max<std::int64_t>(1, p.microbatches());
  if (p.schedule == Schedule::kDualPipe || p.schedule == Schedule::kDualPipeV) {
    m = std::max(m, 2 * stages);
  }
  const bool groups = p.schedule == Schedule::kInterleaved && p.virtual_pipeline > 1;
  const std::int64_t unit = groups ? stages : p.directions();
  p.global_batch = p.micro_batch * p.batch_ranks() * ((m + unit - 1) / unit * unit);
  p.sums_after_pass = p.sums_after_pass && can_sum_after_pass(model, p);
  derive_messages(model, p);
}

void fit_parts(const Model& model, Plan& p) {
  const std::int64_t parts = p.recompute.parts * p.tensor;
  const bool exchanged = p.context_exchange == ContextExchange::kAllToAll;
  const bool divides = model.heads % parts == 0 && model.intermediate % parts == 0 &&
                       model.kv_heads % (parts * (exchanged ? p.context : 1)) == 0;
  const bool fits = !model.has_experts() && !p.in_grid() && !p.precision.low() && !p.rings() &&
                    p.overlap.tensor_slices == 1 && !p.splits_backward();
  if (p.recompute.parts > 1 && !(divides && fits)) p.recompute = Recompute{};
}

namespace {

Model draw_model(Rng& rng) {
  Model m = rng.below(2) == 0 ? small_gpt() : small_llama();
  m.layers = 1 + rng.below(9);
  m.head_dim = 8 * (1 + rng.below(4));
  m.heads = 4 * (1 + rng.below(2));
  m.kv_heads = rng.below(2) == 0 ? m.heads : 4;
  m.hidden = rng.below(3) == 0 ? 40 * (1 + rng.below(5)) : m.heads * m.head_dim;
  m.intermediate = 4 * (3 + rng.below(100));
  m.vocabulary = 50 + rng.below(1000);
  m.tied_embeddings = rng.below(2) == 0;
  m.qk_norm = rng.below(4) == 0;
  m.parallel_residual = rng.below(4) == 0;
  m.embedding_norm = rng.below(4) == 0;
  m.biases.norm = m.norm == Norm::kLayerNorm && rng.below(2) == 0;
  if (rng.below(4) == 0) m.position = Position::kAlibi;
  if (m.position != Position::kLearned) m.positions = 0;
  if (rng.below(4) == 0) m.sliding_window = 8;
  // What is drawn later does not depend on it.
  m.shared_norm = m.parallel_residual && Rng(rng).below(2) == 0;
  return m;
}

void draw_layout(Rng& rng, const Model& model, Plan& plan) {
  plan.pipeline_layout = default_layout(model.layers, plan.chunks());
  if (rng.below(2) == 0) return;
  // Moves layers about; any chunk may end up empty.
  for (std::int64_t moves = rng.below(6); moves > 0; --moves) {
    auto& from = plan.pipeline_layout[static_cast<std::size_t>(rng.below(plan.chunks()))];
    auto& to = plan.pipeline_layout[static_cast<std::size_t>(rng.below(plan.chunks()))];
    if (from == 0) continue;
    --from;
    ++to;
  }
}

void draw_switches(Rng& rng, Plan& p) {
  const auto coin = [&rng] { return rng.below(2) == 0; };
  p.sharding = coin() ? Sharding::kOptimizer : Sharding::kNone;
  p.reduction = coin() ? GradientReduction::kReduceScatter : GradientReduction::kAllReduce;
  p.bucket_elements = coin() ? 0 : 1 + rng.below(200'000);
  p.precision.master = coin();
  p.precision.gradients = coin() ? DType::kFp32 : DType::kBf16;
  p.overlap = Overlap{coin(), coin(), coin(), coin(), coin(), coin()};
  p.attention = coin() ? AttentionKernel::kFlash : AttentionKernel::kUnfused;
  p.optimizer = coin() ? Optimizer::kFusedAdam : Optimizer::kAdam;
  p.dropout = coin() ? 0.1 : 0.0;
  p.clip_norm = coin() ? 1.0 : 0.0;
  p.recompute.layer = rng.below(4) == 0;
  p.recompute.attention = rng.below(3) == 0;
  p.recompute.norm = rng.below(3) == 0;
  p.recompute.mlp = rng.below(3) == 0;
  p.recompute.activation = rng.below(3) == 0;
  p.recompute.layers = coin() ? -1 : rng.below(4);
  p.recompute.layer_period = 1 + rng.below(3);
  p.data_time = Time{rng.below(3) * 1'000'000};
  p.step_time = Time{rng.below(3) * 3'000'000};
  p.pass_time = Time{Rng(rng).below(3) * 500'000};
}

/// Cuts sequences among pairs of data-parallel ranks where the plan allows it.
void draw_context(Rng& rng, const Model& model, Plan& p) {
  const bool pairs = p.rank_order.size() == 5 && p.data % 2 == 0;
  if (pairs && p.attention == AttentionKernel::kUnfused && model.sliding_window == 0 &&
      Rng(rng).below(2) == 0) {
    p.context = 2;
    p.global_batch /= 2;
    p.context_exchange = ContextExchange::kRingSelf;
    return;
  }
  if (!pairs || p.attention == AttentionKernel::kUnfused || rng.below(2) == 0) return;
  p.context = 2;
  p.global_batch /= 2;
  const bool heads = model.kv_heads % (2 * p.tensor) == 0;
  p.context_exchange = static_cast<ContextExchange>(rng.below(heads ? 3 : 2));
  const bool ring = p.context_exchange == ContextExchange::kRing;
  if (ring && model.sliding_window > 0) p.context_exchange = ContextExchange::kAllGather;
}

/// Schedules beyond 1F1B, and those that give gradients of weights passes of their own.
void draw_schedule(Rng& rng, Model& model, Plan& p) {
  constexpr Schedule kPlain[] = {Schedule::kZbH1,    Schedule::kZbH2,
                                 Schedule::kZbAuto,  Schedule::kDualPipe,
                                 Schedule::kChimera, Schedule::kSharedVocabulary};
  constexpr Schedule kOfTwo[] = {Schedule::kZbV, Schedule::kDualPipeV};
  if (p.virtual_pipeline == 1 && rng.below(2) == 0) p.schedule = kPlain[rng.below(6)];
  constexpr Schedule kShared[] = {Schedule::kSharedVocabulary, Schedule::kVocabulary1,
                                  Schedule::kVocabulary2};
  if (p.shares_vocabulary()) p.schedule = kShared[Rng(rng).below(3)];
  if (p.virtual_pipeline > 1 && rng.below(3) == 0) p.schedule = Schedule::kBreadthFirst;
  if (p.virtual_pipeline == 2 && rng.below(2) == 0) p.schedule = kOfTwo[rng.below(2)];
  p.automatic = {Time{1 + rng.below(9)},
                 Time{1 + rng.below(9)},
                 Time{1 + rng.below(9)},
                 Time{rng.below(4)},
                 static_cast<double>(1 + rng.below(8)),
                 rng.below(2) == 0 ? 1.0 : 0.6};
  fit_schedule(model, p);
}

/// Buckets of plain data parallelism, how they travel and when.
void draw_buckets(Rng& rng, Plan& p) {
  if (p.sharding != Sharding::kNone) return;
  GradientBuckets& b = p.buckets;
  b.cut = static_cast<Bucketing>(rng.below(3));
  b.bytes = 1 + rng.below(2'000'000);
  b.first_bytes = 1 + rng.below(100'000);
  b.copy = rng.below(2) == 0;
  b.last_pass_only = p.pipeline > 1 || p.tensor > 1 || rng.below(2) == 0;
  if (p.directions() == 1 && p.data % 2 == 0 && rng.below(2) == 0)
    b.inner_group = rng.below(2) == 0 ? 2 : p.data;
  if (rng.below(3) == 0) b.cycle = Time{1 + rng.below(1'000'000)};
  if (rng.below(2) == 0) return;
  b.compression = static_cast<Compression>(rng.below(5));
  const bool casts = b.compression == Compression::kFp16 || b.compression == Compression::kBf16;
  if (casts && p.precision.gradients != DType::kFp32) b.compression = Compression::kNone;
  b.rank = 1 + rng.below(4);
  const bool factors = b.compression == Compression::kPowerSgd;
  if (factors && b.cut == Bucketing::kRanges) b.cut = Bucketing::kParameters;
  if (b.compression >= Compression::kPowerSgd) b.inner_group = 1;
}

constexpr std::array kKept = {&Recompute::keep_heads, &Recompute::keep_core,
                              &Recompute::keep_projection, &Recompute::keep_up};
void keep_nothing(Recompute& r) {
  for (const auto kept : kKept) r.*kept = false;
}

/// Of layers that are computed again, results that stay. Later draws do not depend on it.
void draw_kept(Rng rng, Recompute& r) {
  if (!r.layer) return;
  r.early_stop = rng.below(2) == 0;
  for (const auto kept : kKept) r.*kept = rng.below(4) == 0;
}

/// Slices that take turns. Later draws do not depend on it.
void draw_slices(Rng rng, const Model& model, Plan& p) {
  const bool possible = p.tensor > 1 && !p.sequence && p.context == 1 && p.micro_batch == 2 &&
                        !model.qk_norm && !p.precision.low() && !p.splits_backward();
  if (possible && rng.below(2) == 0) p.overlap.tensor_slices = 2;
}

/// Layers in parts. Later draws do not depend on it.
void draw_parts(Rng rng, const Model& model, Plan& p) {
  if (rng.below(2) == 0) return;
  Plan other = p;
  other.recompute = Recompute{};
  other.recompute.parts = std::int64_t{2} << rng.below(2);
  other.recompute.norm = rng.below(3) == 0;
  other.recompute.layer = rng.below(3) == 0;
  fit_parts(model, other);
  if (other.recompute.parts > 1) p = other;
}

/// Forward passes whose output comes back. Later draws do not depend on it.
void draw_recycling(Rng rng, Plan& p) {
  if (p.schedule != Schedule::k1F1B || p.virtual_pipeline > 1 || rng.below(2) == 0) return;
  p.schedule = Schedule::k3F1B;
  p.forwards = 1 + rng.below(4);
  p.overlap.passes = false;
}

/// Gradients copied into contiguous buckets, of a part sharded too. Later draws are as without.
void draw_contiguous(Rng rng, const Model& model, Plan& p) {
  if (p.sharding != Sharding::kOptimizer || rng.below(2) == 0) return;
  p.buckets.cut = Bucketing::kContiguous;
  p.bucket_elements = 1 + rng.below(1'000'000);
  if (rng.below(2) == 0) p.sharding = Sharding::kGradients;
  fit_buckets(model, p);
}

/// Linears on 16-bit copies. What is drawn later does not depend on it.
void draw_autocast(Rng rng, const Model& model, Plan& p) {
  if (!found_by(check_autocast, model, p).empty() || rng.below(3) == 0) return;
  p.fusion = std::array{Fusion::kEager, Fusion::kFused, Fusion::kCompiled}.at(
      static_cast<std::size_t>(rng.below(3)));
  p = under_autocast(p);
  p.loss.form = rng.below(2) == 0 ? LossForm::kTorch : LossForm::kFused;
  p.separate_projections = rng.below(2) == 0;
}

/// What frameworks keep or copy that others do not. What is drawn later does not depend on it.
void draw_habits(Rng rng, const Model& model, Plan& p) {
  p.sums_after_pass = rng.below(3) == 0 && can_sum_after_pass(model, p);
  for (bool* habit : {&p.flat_update, &p.unscales, &p.retain_outputs, &p.buckets.averages,
                      &p.buckets.checks, &p.copies_master_to_model}) {
    *habit = rng.below(3) == 0;
  }
  p.scatter_gather = rng.below(2) == 0 && can_scatter_messages(model, p);
}

}  // namespace

Plan under_autocast(Plan plan) {
  Precision& p = plan.precision;
  p.autocast = true, p.fuses_casts = plan.fusion == Fusion::kCompiled;
  p.matrix = p.linear = p.compute;
  p.compute = p.gradients = DType::kFp32;
  p.master = false;
  return plan;
}

void fit_autocast(const Model& model, Plan& plan) {
  if (!plan.precision.autocast || found_by(check_autocast, model, plan).empty()) return;
  plan.precision = Precision{};
}

void fit_buckets(const Model& model, Plan& plan) {
  if (!plan.contiguous() || can_copy_into_buckets(model, plan)) return;
  plan.buckets.cut = Bucketing::kRanges;
  if (plan.sharding == Sharding::kGradients) plan.sharding = Sharding::kOptimizer;
}

Drawn draw_plan(Rng& rng) {
  Drawn out;
  out.model = draw_model(rng);
  Plan& p = out.plan;
  p.tensor = std::int64_t{1} << rng.below(3);
  p.pipeline = 1 + rng.below(4);
  p.data = 1 + rng.below(32 / (p.tensor * p.pipeline) < 4 ? 32 / (p.tensor * p.pipeline) : 4);
  p.accelerators = p.tensor * p.pipeline * p.data;
  p.sequence = p.tensor > 1 && rng.below(2) == 0;
  p.schedule = static_cast<Schedule>(rng.below(3));
  std::int64_t microbatches = 1 + rng.below(6);
  if (p.schedule == Schedule::kInterleaved && p.pipeline > 1) {
    p.virtual_pipeline = 1 + rng.below(3);
    if (p.virtual_pipeline > 1) microbatches = p.pipeline * (1 + rng.below(3));
  }
  p.micro_batch = 1 + rng.below(2);
  p.sequence_length = 8 * (1 + rng.below(16));
  p.global_batch = p.micro_batch * p.data * microbatches;
  const std::vector<std::vector<std::string>> orders = {
      {"tp", "cp", "ep", "dp", "pp"}, {"tp", "pp", "dp"}, {"dp", "tp", "pp"}, {"pp", "dp", "tp"}};
  p.rank_order = orders[static_cast<std::size_t>(rng.below(4))];
  draw_layout(rng, out.model, p);
  draw_switches(rng, p);
  draw_context(rng, out.model, p);
  if (rng.below(4) == 0) {
    p.precision.linear = rng.below(4) == 0 ? DType::kFp4 : DType::kFp8;
    p.precision.current_scaling = rng.below(2) == 0;
    p.precision.blocks = rng.below(2) == 0;
    if (p.tensor == 1 && !out.model.has_experts() && !out.model.is_latent() && rng.below(3) == 0) {
      p.precision.linear = DType::kInt8;
      p.precision.current_scaling = p.precision.blocks = false;
    }
  }
  draw_schedule(rng, out.model, p);
  p.host_waits = static_cast<HostWaits>(rng.below(4));
  if (p.spreads_vocabulary()) p.host_waits = HostWaits::kNone;
  p.fused_accumulation = rng.below(3) > 0;
  draw_buckets(rng, p);
  draw_kept(rng, p.recompute);
  draw_slices(rng, out.model, p);
  draw_parts(rng, out.model, p);
  draw_recycling(rng, p);
  draw_habits(rng, out.model, p);
  draw_contiguous(rng, out.model, p);
  draw_autocast(rng, out.model, p);
  return out;
}

Drawn draw_grid_plan(Rng& rng, std::int64_t most_ranks) {
  struct Grid {
    TensorMode mode;
    std::int64_t tensor, depth;
  };
  constexpr Grid kGrids[] = {{TensorMode::k2D, 4, 1},
                             {TensorMode::k25D, 2, 2},
                             {TensorMode::k25D, 8, 2},
                             {TensorMode::k3D, 8, 1},
                             {TensorMode::k2D, 16, 1}};
  const Grid& grid = kGrids[rng.below(most_ranks < 16 ? 4 : 5)];
  Drawn out = draw_plan(rng);
  Plan& p = out.plan;
  out.model.qk_norm = false;
  keep_nothing(p.recompute);
  p.context = p.overlap.tensor_slices = 1;
  p.sequence = false;
  p.tensor_mode = grid.mode;
  p.tensor = grid.tensor;
  p.tensor_depth = grid.depth;
  p.precision.linear = p.precision.matrix;
  const std::int64_t microbatches = std::max<std::int64_t>(1, p.microbatches());
  if (p.tensor * p.pipeline > most_ranks) {
    p.pipeline = p.virtual_pipeline = 1;
    p.schedule = Schedule::k1F1B;
    p.pipeline_layout = default_layout(out.model.layers, 1);
  }
  if (p.directions() == 2 || p.shares_vocabulary()) p.schedule = Schedule::k1F1B;
  while (p.tensor * p.pipeline * p.data > most_ranks) --p.data;
  p.accelerators = p.tensor * p.pipeline * p.data;
  if (p.data % p.buckets.inner_group != 0) p.buckets.inner_group = 1;
  p.buckets.last_pass_only = true;
  p.micro_batch = p.token_parts() * (1 + rng.below(2));
  p.global_batch = p.micro_batch * p.data * microbatches;
  fit_schedule(out.model, p);
  fit_parts(out.model, p);
  fit_buckets(out.model, p);
  fit_autocast(out.model, p);
  return out;
}

namespace {

/// A divisor of `whole`, at most `most`.
std::int64_t draw_divisor(Rng& rng, std::int64_t whole, std::int64_t most) {
  std::int64_t out = 1 + rng.below(most);
  while (whole % out != 0) out = 1 + rng.below(most);
  return out;
}

void draw_experts(Rng& rng, Model& m, Plan& p) {
  const auto coin = [&rng] { return rng.below(2) == 0; };
  m.activation = Activation::kSwiglu;
  m.parallel_residual = m.shared_norm = false;
  Experts& e = m.experts;
  e.count = std::int64_t{1} << rng.below(5);
  e.top_k = 1 + rng.below(std::min<std::int64_t>(e.count, 4));
  e.width = 16 * (1 + rng.below(4));
  e.shared_width = coin() ? 0 : 16 * (1 + rng.below(4));
  e.first_dense = rng.below(3);
  e.step = 1 + rng.below(2);
  e.bias = e.router_bias = rng.below(4) == 0;
  if (!m.tied_embeddings && !p.shares_vocabulary() && coin()) m.predict_layers = rng.below(3);
  const std::int64_t ranks = p.accelerators / p.pipeline;
  p.experts.expert = std::int64_t{1} << rng.below(5);
  while (ranks % p.experts.expert != 0 || e.count % p.experts.expert != 0) p.experts.expert /= 2;
  p.experts.tensor = draw_divisor(rng, ranks / p.experts.expert, 4);
  if (e.width % p.experts.tensor != 0) p.experts.tensor = 1;
  p.experts.dispatcher = static_cast<Dispatcher>(rng.below(4));
  p.experts.routing = static_cast<Routing>(rng.below(3));
  if (p.experts.routing != Routing::kBalanced) p.experts.factor = coin() ? 1 : 1.5;
  p.overlap.passes = !p.by_units() && p.offload.activation_layers == 0 && coin();
  fit_schedule(m, p);
  Recompute& r = p.recompute;
  r.moe = rng.below(4) == 0;
  r.expert_activation = rng.below(3) == 0;
  r.shared_experts = rng.below(3) == 0;
}

void draw_latent(Rng& rng, Model& m, Plan& p) {
  m.latent = LatentAttention{rng.below(2) == 0 ? 0 : 8 * (1 + rng.below(6)), 8 * (1 + rng.below(6)),
                             8 * (1 + rng.below(3)), 8, 8 * (1 + rng.below(3))};
  m.head_dim = m.latent.nope + m.latent.rope;
  m.kv_heads = m.heads;
  m.qk_norm = false;
  m.position = Position::kRope;
  m.positions = 0;
  p.attention = AttentionKernel::kFlash;
  if (p.context_exchange == ContextExchange::kRingSelf) p.context_exchange = ContextExchange::kRing;
  p.recompute.latent_up = rng.below(3) == 0;
}

/// Groups of shards that hold all experts.
void draw_groups(Rng rng, Plan& p) {
  if (p.sharding == Sharding::kNone || p.directions() == 2 || p.reduces_to_owner()) return;
  std::vector<std::string> order = p.rank_order;
  std::erase(order, "pp");
  if (order.back() != "dp" || (order.front() != "tp" && p.context > 1)) return;
  const std::int64_t group = 1 + rng.below(p.data);
  const bool holds = group * p.tensor % (p.experts.expert * p.experts.tensor) == 0;
  const bool goes = group > 1 || !p.by_units();
  if (p.data % group == 0 && holds && goes) p.shard_group = group;
}

}  // namespace

Drawn draw_sparse_plan(Rng& rng) {
  Drawn out = rng.below(2) == 0 ? draw_plan(rng) : draw_sharded_plan(rng);
  Plan& p = out.plan;
  p.shard_group = p.units.secondary = 0;
  p.overlap.tensor_slices = 1;
  p.units.inner_group = 1;
  p.units.quantized_gathers = p.units.quantized_reduction = false;
  p.buckets = GradientBuckets();
  if (p.precision.forward_only()) p.precision.linear = DType::kFp8;
  keep_nothing(p.recompute);
  p.sequence = p.tensor > 1;
  if (p.tokens() % p.tensor != 0) {
    p.tensor = 1;
    p.sequence = false;
    p.accelerators = p.pipeline * p.data;
  }
  draw_experts(rng, out.model, p);
  fit_parts(out.model, p);
  if (rng.below(2) == 0) draw_latent(rng, out.model, p);
  draw_groups(rng, p);
  fit_autocast(out.model, p);
  return out;
}

}  // namespace foretrain

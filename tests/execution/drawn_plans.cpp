#include "tests/execution/drawn_plans.h"

#include <numeric>

#include "models/plan/layout/partition.h"

namespace foretrain {
namespace {

/// Experts of few columns on the ranks that are left, every token with room: what drops tokens
/// depends on the plan.
void make_experts_small(Rng& rng, Model& m, Plan& p) {
  const auto coin = [&rng] { return rng.below(2) == 0; };
  Experts& e = m.experts;
  ExpertPlan& to = p.experts;
  m.latent = LatentAttention{};
  m.predict_layers = 0;
  e.bias = false;
  e.width = 4 * (1 + rng.below(3));
  e.shared_width = e.shared_width > 0 ? 8 : 0;
  const std::int64_t ranks = p.accelerators / p.pipeline;
  while (ranks % to.expert != 0) to.expert /= 2;
  if (ranks % (to.expert * to.tensor) != 0 || e.width % to.tensor != 0) to.tensor = 1;
  to.dispatcher = coin() ? Dispatcher::kAllGather : Dispatcher::kAllToAll;
  const std::int64_t rows = p.tokens() / p.shard();
  const std::int64_t chunk = p.context > 1 ? p.sequence_length / (2 * p.context) : rows;
  const bool even = std::gcd(rows, chunk) * e.top_k % e.count == 0;
  to.routing = even && coin() ? Routing::kBalanced : Routing::kCapacity;
  to.factor = 1;
  if (to.routing == Routing::kBalanced) return;
  to.factor = static_cast<double>(e.count) / static_cast<double>(e.top_k);
}

/// Sequences cut among all data-parallel ranks, or half of what there are.
void cut_sequences(Rng& rng, Model& m, Plan& p) {
  const std::int64_t microbatches = p.microbatches();
  p.overlap.tensor_slices = 1;
  p.attention = AttentionKernel::kFlash;
  p.rank_order = {"tp", "cp", "ep", "dp", "pp"};
  p.context = p.tensor * p.pipeline <= 2 && rng.below(2) == 0 ? 4 : 2;
  p.data = p.tensor * p.pipeline <= 2 ? 4 : 2;
  p.accelerators = p.tensor * p.pipeline * p.data;
  p.global_batch = p.micro_batch * p.batch_ranks() * microbatches;
  p.shard_group = 0;
  const bool heads = m.kv_heads % (p.context * p.tensor) == 0;
  p.context_exchange = static_cast<ContextExchange>(rng.below(heads ? 3 : 2));
  if (Rng(rng).below(4) == 0) {
    p.context_exchange = ContextExchange::kRingSelf;
    p.attention = AttentionKernel::kUnfused;
  }
  const bool ring = p.context_exchange == ContextExchange::kRing;
  if (ring || p.context_exchange == ContextExchange::kRingSelf) m.sliding_window = 0;
}

Drawn draw_any(Rng& rng, DrawnKind kind) {
  if (kind == DrawnKind::kExperts) return draw_sparse_plan(rng);
  if (kind == DrawnKind::kUnits) return draw_sharded_plan(rng);
  if (kind == DrawnKind::kGrid) return draw_grid_plan(rng, 8);
  if (kind == DrawnKind::kBuckets) return draw_plan(rng);
  Drawn out = rng.below(2) == 0 ? draw_sharded_plan(rng) : draw_plan(rng);
  cut_sequences(rng, out.model, out.plan);
  return out;
}

void make_small(Rng& rng, Model& m) {
  m.layers = 1 + rng.below(4);
  m.head_dim = 4;
  m.hidden = rng.below(3) == 0 ? 20 : m.heads * m.head_dim;
  m.intermediate = 4 * (3 + rng.below(6));
  m.vocabulary = 40 + rng.below(250);
  m.positions = m.position == Position::kLearned ? 16 : 0;
  if (m.sliding_window > 0) m.sliding_window = 3 + rng.below(8);
  if (!m.gated()) {
    const Activation kinds[] = {Activation::kGelu, Activation::kRelu, Activation::kRelu2};
    m.activation = kinds[rng.below(3)];
  }
  m.norm = rng.below(2) == 0 ? Norm::kLayerNorm : Norm::kRmsNorm;
  m.biases.norm = m.norm == Norm::kLayerNorm && rng.below(2) == 0;
}

}  // namespace

Drawn draw_small(Rng& rng, DrawnKind kind) {
  Drawn out = draw_any(rng, kind);
  fit_autocast(out.model, out.plan);
  Model& m = out.model;
  make_small(rng, m);
  Plan& p = out.plan;
  if (m.vocabulary % 2 == 1) p.loss.vocabulary_multiple = 1;
  while (p.accelerators > 8) {
    std::int64_t& largest = p.data > 2 ? p.data : p.pipeline > 2 ? p.pipeline : p.tensor;
    const std::int64_t microbatches = p.microbatches();
    largest = std::max<std::int64_t>(1, largest / 2);
    p.accelerators = p.tensor * p.pipeline * p.data;
    p.global_batch = p.micro_batch * p.batch_ranks() * microbatches;
  }
  if (p.tensor == 1) {
    p.sequence = false;
    p.overlap.tensor_slices = 1;
  }
  if (p.virtual_pipeline > 1) {
    p.global_batch = p.micro_batch * p.batch_ranks() * p.pipeline * (1 + rng.below(2));
  }
  fit_schedule(m, p);
  if (p.shard_group > 0 && p.data % p.shard_group != 0) p.shard_group = 0;
  if (p.units.secondary == 1 || p.shards() % std::max<std::int64_t>(p.units.secondary, 1) != 0) {
    p.units.secondary = 0;
  }
  std::int64_t& level = p.units.inner_group;
  if (level >= p.shards() || p.shards() % level != 0) level = 1;
  if (p.units.quantized_reduction) p.buckets.inner_group = 1;
  p.units.quantized_gathers = p.units.quantized_reduction = false;  // not the same numbers
  p.units.reduce = DType::kFp32;
  p.sequence_length = 4 * (1 + rng.below(4));
  while (p.sequence_length % (2 * p.context) != 0 || p.tokens() % p.shard() != 0) {
    p.sequence_length *= 2;
  }
  if (m.positions > 0) m.positions = std::max(m.positions, p.sequence_length);
  while (p.chunks() > m.layers + 2) ++m.layers;
  p.pipeline_layout = default_layout(m.layers, p.chunks());
  p.bucket_elements = rng.below(2) == 0 ? 0 : 1 + rng.below(20'000);
  p.precision.compute = p.precision.gradients = p.precision.matrix = DType::kFp32;
  p.precision.linear = DType::kFp32;
  p.clip_norm = rng.below(3) == 0 ? 0.0 : 0.3;
  p.data_time = p.step_time = Time{};
  p.offload.delayed_update = false;  // another step's gradients
  GradientBuckets& b = p.buckets;
  b.compression = Compression::kNone;  // not the same gradients
  b.bytes = 1 + b.bytes % 20'000;
  b.first_bytes = 1 + b.first_bytes % 2'000;
  if (p.data % b.inner_group != 0) b.inner_group = 1;
  if (p.pipeline > 1 || p.tensor > 1) b.last_pass_only = true;
  if (kind == DrawnKind::kExperts) make_experts_small(rng, m, p);
  fit_parts(m, p);
  fit_buckets(m, p);
  if (Rng(rng).below(3) == 0)
    p.pipeline_layout = balanced_layout({parameter_weights(m, p)}, p.chunks());
  const bool whole = !p.splits_backward() && !p.shares_vocabulary() && p.directions() == 1;
  const bool once = !p.by_units() && !p.reduces_each_pass() && !p.sums_after_pass;
  if (p.pipeline > 1 && whole && once) p.overlap.head_deferral = rng.below(5);
  draw_offloaded_buckets(Rng(rng), m, p);
  p.offload.delayed_update = false;
  return out;
}

}  // namespace foretrain

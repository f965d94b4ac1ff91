#include "models/layers/mixers/index_block.h"

#include <algorithm>

namespace foretrain {
namespace {

/// Queries whose scores are there at once.
constexpr std::int64_t kQueriesAtOnce = 8192;

}  // namespace

IndexBlock::IndexBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
                       const LayerLayouts& layouts)
    : Block(builder, model, plan, layouts),
      x_heads(model.latent.index_heads),
      x_dim(model.latent.index_dim),
      x_keys(keys(model, plan)) {
  const std::int64_t from = model.latent.q_rank > 0 ? model.latent.q_rank : model.hidden;
  x_q = matrix("attention.index.q", x_heads * x_dim, from);
  x_k = matrix("attention.index.k", x_dim, model.hidden);
  x_gates = matrix("attention.index.heads", x_heads, model.hidden);
}

std::int64_t IndexBlock::keys(const Model& model, const Plan& plan) {
  return std::min(model.latent.index_keys, plan.sequence_length);
}

void IndexBlock::declare(LayoutWriter& saved, LayoutWriter& local, bool again) {
  const Placer place{saved, local, x_plan.precision};
  const DType type = x_plan.precision.compute;
  x_kept.queries = place.add("index queries", type, x_tokens * x_heads * x_dim, again);
  x_kept.low = place.add("index key in", type, x_tokens * x_dim, again);
  x_kept.key = place.add("index key", type, x_tokens * x_dim, again);
  x_kept.statistics = place.add("index key statistics", DType::kFp32, 2 * x_tokens, again);
  x_kept.weights = place.add("index gates", type, x_tokens * x_heads, again);
  x_kept.chosen = place.add("index choice", DType::kFp32, x_tokens * x_keys, again);  // int32
  x_kept.target = place.add("index target", DType::kFp32, x_tokens * x_keys, again);
  const LatentAttention& l = x_model.latent;
  const std::int64_t more = 2 * l.kv_rank + l.rope - (l.nope + l.rope + l.value);
  if (more <= 0) return;
  x_kept.absorbed = place.add("latent queries and results", type,
                              x_tokens * (x_model.heads / x_plan.tensor) * more, again);
}

Attention IndexBlock::scores(bool backward) const {
  Attention out;
  out.backward = backward;
  out.batch = x_plan.micro_batch;
  out.q_heads = x_heads;
  out.kv_heads = 1;
  out.q_len = out.kv_len = x_plan.sequence_length;
  out.head_dim = x_dim;
  out.value_dim = 1;
  out.kernel = x_plan.attention;
  out.dtype = x_plan.precision.attention();
  // All keys are scored; the loss sees those that are chosen.
  if (backward && x_keys < x_plan.sequence_length) out.window = x_keys;
  return out;
}

Attention IndexBlock::teacher() const {
  const LatentAttention& l = x_model.latent;
  Attention out = scores(false);
  out.q_heads = x_model.heads / x_plan.tensor;
  out.head_dim = l.kv_rank + l.rope;
  if (x_keys < x_plan.sequence_length) out.window = x_keys;
  return out;
}

Kernel IndexBlock::rope() const {
  Kernel out = kernel(KernelKind::kRope, x_tokens, x_heads * x_dim);
  out.head_dim = x_dim;
  out.value = static_cast<double>(x_model.latent.rope) / static_cast<double>(x_dim);
  return out;
}

void IndexBlock::forward(SegmentWriter& w, const Ref& x, const Ref& queries, const Ref& qkv) {
  const Ref all = gathered(w, "attention.index", x);
  const Ref from = queries == x ? all : gathered(w, "attention.index.queries", queries);
  linear(w, "attention.index.q", x_q, x_tokens, from, x_kept.queries);
  w.compute("attention.index.rope", rope(), {x_kept.queries.view()}, {x_kept.queries.view()});
  linear(w, "attention.index.k", x_k, x_tokens, all, x_kept.low);
  w.compute("attention.index.norm", kernel(KernelKind::kLayerNorm, x_tokens, x_dim),
            {x_kept.low.view(), weight("attention.index.norm").view(),
             parameter("attention.index.norm.bias").view()},
            {x_kept.key.view(), x_kept.statistics.view()});
  linear(w, "attention.index.heads", x_gates, x_tokens, all, x_kept.weights);
  const std::int64_t rows = std::min(x_tokens, kQueriesAtOnce);
  const Ref block = temporary("index scores", rows * x_plan.sequence_length, DType::kFp32);
  w.compute("attention.index.scores", scores(false),
            {x_kept.queries.view(), x_kept.key.view(), x_kept.weights.view()}, {block.view()});
  Kernel choose = kernel_of(KernelKind::kLossMax, x_tokens, x_plan.sequence_length, DType::kFp32);
  choose.launches = static_cast<std::int32_t>((x_tokens + rows - 1) / rows);
  choose.between.bytes = (4 * (x_tokens - rows) + x_tokens / 2) / x_tokens;  // of other blocks
  w.compute("attention.index.choose", choose, {block.view()}, {x_kept.chosen.view()});
  w.compute("attention.index.target", teacher(), {qkv.view(), x_kept.chosen.view()},
            {x_kept.target.view()});
  keep_until_released(w, "attention.absorbed", x_kept.absorbed);
  if (x_plan.tensor == 1) return;
  Collective sum = over_tensor(CollectiveKind::kAllReduce, x_kept.target.count);
  sum.dtype = DType::kFp32;
  w.collective("attention.index.target.reduce", sum, {x_kept.target.view()},
               {x_kept.target.view()});
}

void IndexBlock::backward(SegmentWriter& w, const Ref& x, const Ref& queries) {
  release_kept(w, "attention.absorbed", x_kept.absorbed);
  const Ref d_queries = temporary("d index queries", x_kept.queries.count);
  const Ref d_key = temporary("d index key", x_kept.key.count);
  const Ref d_gates = temporary("d index gates", x_kept.weights.count);
  w.compute("attention.index.scores_gradient", scores(true),
            {x_kept.queries.view(), x_kept.key.view(), x_kept.weights.view(), x_kept.chosen.view(),
             x_kept.target.view()},
            {d_queries.view(), d_key.view(), d_gates.view()});
  const Ref d_low = temporary("d index key in", x_kept.key.count);
  std::vector<View> reads = {d_key.view(), x_kept.low.view(), x_kept.statistics.view(),
                             weight("attention.index.norm").view()};
  std::vector<View> writes = {d_low.view()};
  add_gradients(x_plan,
                {gradient("attention.index.norm"), parameter_gradient("attention.index.norm.bias")},
                reads, writes);
  w.compute("attention.index.norm.gradient",
            kernel(KernelKind::kLayerNormBackward, x_tokens, x_dim), std::move(reads),
            std::move(writes));
  const Ref all = gathered(w, "attention.index.again", x);
  const Ref from = queries == x ? all : gathered(w, "attention.index.queries.again", queries);
  weight_gradient(w, "attention.index.q", x_q, x_tokens, d_queries, from);
  weight_gradient(w, "attention.index.k", x_k, x_tokens, d_low, all);
  weight_gradient(w, "attention.index.heads", x_gates, x_tokens, d_gates, all);
}

}  // namespace foretrain

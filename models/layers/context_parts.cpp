#include "models/layers/context_parts.h"

#include <algorithm>
#include <utility>

#include "models/slots.h"

namespace foretrain {

Kernel ContextParts::kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
  return kernel_of(kind, rows, cols, x_plan.precision.branch());
}

Kernel ContextParts::rope(bool backward) const {
  Kernel out = kernel(backward ? KernelKind::kRopeBackward : KernelKind::kRope, x_tokens,
                      (x_q_heads + x_kv_heads) * x_model.head_dim);
  out.head_dim = x_model.head_dim;
  out.value = x_model.attention.rotary_share;
  return out;
}

Attention ContextParts::core(bool backward) const {
  Attention a;
  a.backward = backward;
  a.batch = x_tokens / local_length();
  a.q_heads = x_q_heads;
  a.kv_heads = x_kv_heads;
  a.q_len = a.kv_len = local_length();
  a.head_dim = x_model.head_dim;
  a.value_dim = x_mixers.latent ? x_model.latent.value : x_model.attention.value_dim;
  a.causal = !x_model.bidirectional;
  a.alibi = x_model.position == Position::kAlibi;
  a.dropout = x_dropout.attention;
  const bool windowed = x_layouts.windowed && x_model.sliding_window < x_plan.sequence_length;
  a.window = windowed ? x_model.sliding_window : 0;
  if (IndexBlock::used(x_model)) {  // on the latent vectors, one key for all heads
    a.kv_heads = 1;
    a.value_dim = x_model.latent.kv_rank;
    a.head_dim = a.value_dim + x_model.latent.rope;
    const std::int64_t keys = IndexBlock::keys(x_model, x_plan);
    if (keys < x_plan.sequence_length) a.window = keys;
  }
  a.documents = x_plan.documents;
  a.kernel = x_plan.attention;
  a.dtype = x_plan.precision.attention();
  a.plain = x_plan.stored_scores.plain_products;
  if (x_plan.tensor > 1) a.heads_split_over = x_tensor;
  if (x_plan.recompute.parts > 1 && (a.dropout > 0 || a.alibi)) {
    a.head_part = static_cast<std::int32_t>(x_part);
    a.head_parts = static_cast<std::int32_t>(x_plan.recompute.parts);
  }
  if (x_plan.in_grid()) {
    a.heads_split_over = x_builder.group(inner_axes(x_plan).columns);
    a.sequences_split_over = x_builder.group(inner_axes(x_plan).tokens);
  }
  a.score.sinks = x_model.attention.sinks && x_plan.context == 1;
  a.score.cap = x_model.attention.score_cap;
  if (x_plan.context > 1) a.part = ContextPart::kOwn;
  if (inner() == 1) return a;
  a.q_heads /= inner();
  a.kv_heads /= inner();
  a.q_len = a.kv_len = local_length() * inner();
  a.parts_over = x_builder.group(kContextOuterGroup);
  a.heads_over = x_builder.group(kContextInnerGroup);
  return a;
}

/// Half a square: all queries against half the keys, or half the queries against all of them.
Attention ContextParts::later_piece(bool backward, std::int64_t hops) const {
  Attention a = core(backward);
  a.causal = false;
  a.kv_len /= 2;
  a.part = hops > 0 ? ContextPart::kMember : ContextPart::kAll;
  a.hops = static_cast<std::int32_t>(hops);
  return a;
}

std::vector<View> ContextParts::core_statistics() const {
  std::vector<View> out;
  for (const Ref* ref : {&x_b.row_stats, &x_b.scores, &x_b.score_mask, &x_b.dropped}) {
    if (ref->valid()) out.push_back(ref->view());
  }
  if (x_b.narrow_scores.valid()) out.push_back(x_b.narrow_scores.part(0, 0));
  return out;
}

Ref ContextParts::temporary(SegmentWriter& w, const std::string& name, std::int64_t count) {
  return temporary(w, name, count, x_plan.precision.branch());
}

Ref ContextParts::temporary(SegmentWriter& w, const std::string& name, std::int64_t count,
                            DType type) {
  return w.local().add(name, BufferKind::kActivations, type, count);
}

EventRef ContextParts::exchange(SegmentWriter& w, const std::string& name, const View& out,
                                const View& in) {
  return w.exchange("context", name, Category::kContext, kContextToNext, kContextFromPrevious, out,
                    in);
}

EventRef ContextParts::over_context(SegmentWriter& w, const std::string& name, CollectiveKind kind,
                                    std::int64_t count, const Ref& in, const Ref& out) {
  const char* members = inner() > 1 ? kContextInnerGroup : kContextGroup;
  const Collective work{kind, x_builder.group(members), count, x_plan.precision.compute, false};
  return w.on_stream("context", name, Category::kContext, work, {in.view()}, {out.view()});
}

Kernel ContextParts::of_heads(KernelKind kind, std::int64_t cols) const {
  Kernel out = kernel(kind, x_tokens * inner(), cols);
  out.head_dim = x_model.head_dim;
  return out;
}

void ContextParts::pack_keys(SegmentWriter& w, const std::string& name, const Ref& qkv,
                             const View& keys) {
  w.compute(name, of_heads(KernelKind::kPackKeys, kv_width() / inner()), {qkv.view()}, {keys});
}

void ContextParts::unpack_keys(SegmentWriter& w, const std::string& name, const View& keys,
                               const Ref& qkv) {
  w.compute(name, of_heads(KernelKind::kUnpackKeys, kv_width() / inner()), {keys}, {qkv.view()});
}

/// Adds a part of the result to what others have given.
void ContextParts::merge(SegmentWriter& w, const Ref& part, const Ref& statistics,
                         const Ref& whole) {
  Kernel work = of_heads(KernelKind::kMergeAttention, part.count / x_tokens / inner());
  work.head_dim = x_model.value_width() / x_model.heads;
  const std::vector<View> sum = {whole.view(), x_b.row_stats.view()};
  w.compute("attention.context.merge", work, {sum[0], sum[1], part.view(), statistics.view()}, sum);
}

void ContextParts::context_forward(SegmentWriter& w) {
  switch (x_plan.context_exchange) {
    case ContextExchange::kRing:
      return inner() > 1 ? heads_forward(w) : ring_forward(w, x_b.qkv, x_b.context);
    case ContextExchange::kAllGather:
      return gather_forward(w);
    case ContextExchange::kAllToAll:
      return heads_forward(w);
    case ContextExchange::kRingSelf:
      return self_forward(w);
  }
}

void ContextParts::context_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv) {
  switch (x_plan.context_exchange) {
    case ContextExchange::kRing:
      if (inner() > 1) return heads_backward(w, d_context, d_qkv);
      return ring_backward(w, {x_b.qkv, x_b.context, d_context, d_qkv});
    case ContextExchange::kAllGather:
      return gather_backward(w, d_context, d_qkv);
    case ContextExchange::kAllToAll:
      return heads_backward(w, d_context, d_qkv);
    case ContextExchange::kRingSelf:
      return self_backward(w, d_context, d_qkv);
  }
}

// --- Ring
// ----------------------------------------------------------------------------------------

void ContextParts::ring_forward(SegmentWriter& w, const Ref& qkv, const Ref& context) {
  const std::int64_t kv = x_tokens * kv_width();
  const std::int64_t pieces = x_plan.context / inner();
  // One buffer, so that a block lives until its compute and its exchange are both done.
  const Ref ring = temporary(w, "context kv", kv * pieces);
  const auto block = [&ring, kv](std::int64_t i) { return ring.part(i * kv, kv); };
  const Ref part = temporary(w, "context partial", context.count);
  const Ref statistics =
      temporary(w, "context partial log-sum-exp", x_b.row_stats.count, DType::kFp32);
  pack_keys(w, "attention.context.pack", qkv, block(0));
  for (std::int64_t i = 0; i < pieces; ++i) {
    EventRef next;
    if (i + 1 < pieces) next = exchange(w, "attention.context.exchange", block(i), block(i + 1));
    if (i == 0) {
      w.compute("attention.core", core(false), {qkv.view()},
                {context.view(), x_b.row_stats.view()});
    } else {
      w.compute("attention.core", later_piece(false, i), {qkv.view(), block(i)},
                {part.view(), statistics.view()});
      merge(w, part, statistics, context);
    }
    if (next.valid()) w.wait(next);
  }
}

void ContextParts::ring_backward(SegmentWriter& w, const Around& x) {
  const std::int64_t kv = x_tokens * kv_width();
  const std::int64_t queries = x_q_heads * x_model.head_dim / inner();
  const std::int64_t pieces = x_plan.context / inner();
  const Ref ring = temporary(w, "context kv again", kv * pieces);
  const Ref sums = temporary(w, "context d kv", kv * (pieces + 1));
  const auto block = [&ring, kv](std::int64_t i) { return ring.part(i * kv, kv); };
  const auto sum = [&sums, kv](std::int64_t i) { return sums.part(i * kv, kv); };
  const Ref d_q = temporary(w, "context d q", x_tokens * inner() * queries);
  const Ref d_kv = temporary(w, "context d kv partial", kv);
  pack_keys(w, "attention.context.pack_again", x.qkv, block(0));
  EventRef arrived;
  for (std::int64_t i = 0; i < pieces; ++i) {
    EventRef next;
    if (i + 1 < pieces) {
      next = exchange(w, "attention.context.exchange_again", block(i), block(i + 1));
    }
    std::vector<View> reads = {x.d_context.view(), x.qkv.view(), x.context.view()};
    if (i > 0) reads.push_back(block(i));
    reads.push_back(x_b.row_stats.view());
    std::vector<View> writes = {x.d_qkv.view()};
    if (i > 0) writes = {d_q.view(), d_kv.view()};
    w.compute("attention.core_gradient", i == 0 ? core(true) : later_piece(true, i),
              std::move(reads), std::move(writes));
    if (i == 0) {
      pack_keys(w, "attention.context.pack_gradient", x.d_qkv, sum(0));
    } else {
      w.compute("attention.context.merge_gradient", of_heads(KernelKind::kAddQueries, queries),
                {x.d_qkv.view(), d_q.view()}, {x.d_qkv.view()});
      w.wait(arrived);
      w.compute("attention.context.merge_kv_gradient",
                kernel(KernelKind::kAdd, x_tokens * inner(), kv_width() / inner()),
                {sum(i), d_kv.view()}, {sum(i)});
    }
    arrived = exchange(w, "attention.context.exchange_gradient", sum(i), sum(i + 1));
    if (next.valid()) w.wait(next);
  }
  w.wait(arrived);
  unpack_keys(w, "attention.context.unpack_gradient", sum(pieces), x.d_qkv);
}

// --- All-gather
// ----------------------------------------------------------------------------------

/// Keys up to a query's own chunk: half the sequence on average, for every rank.
void ContextParts::gather_forward(SegmentWriter& w) {
  const std::int64_t kv = x_tokens * kv_width();
  const Ref own = temporary(w, "context kv", kv);
  const Ref all = temporary(w, "context kv gathered", kv * x_plan.context);
  pack_keys(w, "attention.context.pack", x_b.qkv, own.view());
  w.wait(
      over_context(w, "attention.context.gather", CollectiveKind::kAllGather, all.count, own, all));
  Attention piece = later_piece(false, 0);
  piece.kv_len = x_plan.sequence_length / 2;
  std::vector<View> writes = core_statistics();
  writes.insert(writes.begin(), x_b.context.view());
  w.compute("attention.core", piece, {x_b.qkv.view(), all.view()}, std::move(writes));
}

void ContextParts::gather_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv) {
  const std::int64_t kv = x_tokens * kv_width();
  const Ref own = temporary(w, "context kv again", kv);
  const Ref all = temporary(w, "context kv gathered again", kv * x_plan.context);
  const Ref d_all = temporary(w, "context d kv", kv * x_plan.context);
  const Ref d_own = temporary(w, "context d kv own", kv);
  pack_keys(w, "attention.context.pack_again", x_b.qkv, own.view());
  w.wait(over_context(w, "attention.context.gather_again", CollectiveKind::kAllGather, all.count,
                      own, all));
  Attention piece = later_piece(true, 0);
  piece.kv_len = x_plan.sequence_length / 2;
  std::vector<View> reads = {d_context.view(), x_b.qkv.view(), x_b.context.view(), all.view()};
  const std::vector<View> statistics = core_statistics();
  reads.insert(reads.end(), statistics.begin(), statistics.end());
  w.compute("attention.core_gradient", piece, std::move(reads), {d_qkv.view(), d_all.view()});
  w.wait(over_context(w, "attention.context.reduce_gradient", CollectiveKind::kReduceScatter,
                      d_all.count, d_all, d_own));
  unpack_keys(w, "attention.context.unpack_gradient", d_own.view(), d_qkv);
}

// --- All-to-all
// ----------------------------------------------------------------------------------

Kernel ContextParts::exchanged(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
  Kernel out = kernel(kind, rows, cols);
  if (inner() > 1) out.split_over = x_builder.group(kContextInnerGroup);
  return out;
}

void ContextParts::to_heads(SegmentWriter& w, const std::string& name, const Ref& in,
                            const Ref& out) {
  const std::int64_t cols = in.count / x_tokens;
  const std::int64_t members = x_plan.head_ranks();
  const Ref sent = temporary(w, name + " by heads", in.count);
  const Ref received = temporary(w, name + " by members", in.count);
  w.compute(name + ".split", exchanged(KernelKind::kSplitHeads, x_tokens, cols), {in.view()},
            {sent.view()});
  w.wait(over_context(w, name, CollectiveKind::kAllToAll, in.count, sent, received));
  w.compute(name + ".join",
            exchanged(KernelKind::kJoinSequence, x_tokens * members, cols / members),
            {received.view()}, {out.view()});
}

void ContextParts::to_tokens(SegmentWriter& w, const std::string& name, const Ref& in,
                             const Ref& out) {
  const std::int64_t cols = in.count / x_tokens;
  const std::int64_t members = x_plan.head_ranks();
  const Ref sent = temporary(w, name + " by members", in.count);
  const Ref received = temporary(w, name + " by heads", in.count);
  w.compute(name + ".split",
            exchanged(KernelKind::kSplitSequence, x_tokens * members, cols / members), {in.view()},
            {sent.view()});
  w.wait(over_context(w, name, CollectiveKind::kAllToAll, in.count, sent, received));
  w.compute(name + ".join", exchanged(KernelKind::kJoinHeads, x_tokens, cols), {received.view()},
            {out.view()});
}

void ContextParts::heads_forward(SegmentWriter& w) {
  to_heads(w, "attention.context.to_heads", x_b.qkv, x_b.qkv_heads);
  if (inner() > 1) {
    ring_forward(w, x_b.qkv_heads, x_b.out_heads);
  } else {
    std::vector<View> writes = core_statistics();
    writes.insert(writes.begin(), x_b.out_heads.view());
    w.compute("attention.core", by_heads(false), {x_b.qkv_heads.view()}, std::move(writes));
  }
  to_tokens(w, "attention.context.to_tokens", x_b.out_heads, x_b.context);
}

void ContextParts::heads_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv) {
  const Ref d_out = temporary(w, "context gradient of own heads", d_context.count);
  to_heads(w, "attention.context.gradient_to_heads", d_context, d_out);
  const Ref d_heads = temporary(w, "context d qkv of own heads", d_qkv.count);
  if (inner() > 1) {
    ring_backward(w, {x_b.qkv_heads, x_b.out_heads, d_out, d_heads});
  } else {
    std::vector<View> reads = {d_out.view(), x_b.qkv_heads.view(), x_b.out_heads.view()};
    const std::vector<View> statistics = core_statistics();
    reads.insert(reads.end(), statistics.begin(), statistics.end());
    w.compute("attention.core_gradient", by_heads(true), std::move(reads), {d_heads.view()});
  }
  to_tokens(w, "attention.context.gradient_to_tokens", d_heads, d_qkv);
}

Attention ContextParts::by_heads(bool backward) const {
  Attention a = core(backward);
  a.q_heads /= x_plan.context;
  a.kv_heads /= x_plan.context;
  a.q_len = a.kv_len = x_plan.sequence_length;
  a.part = ContextPart::kHeads;
  return a;
}

}  // namespace foretrain

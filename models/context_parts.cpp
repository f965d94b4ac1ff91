#include "models/context_parts.h"

#include <algorithm>
#include <utility>

#include "models/stage.h"

namespace foretrain {

Kernel ContextParts::kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
  return kernel_of(kind, rows, cols, x_plan.precision.compute);
}

Attention ContextParts::core(bool backward) const {
  Attention a;
  a.backward = backward;
  a.batch = x_plan.micro_batch;
  a.q_heads = x_q_heads;
  a.kv_heads = x_kv_heads;
  a.q_len = a.kv_len = local_length();
  a.head_dim = x_model.head_dim;
  if (x_latent) a.value_dim = x_model.latent.value;
  a.causal = !x_model.bidirectional;
  a.alibi = x_model.position == Position::kAlibi;
  a.dropout = x_dropout.attention;
  const bool windowed = x_layouts.windowed && x_model.sliding_window < x_plan.sequence_length;
  a.window = windowed ? x_model.sliding_window : 0;
  a.kernel = x_plan.attention;
  a.dtype = x_plan.precision.compute;
  if (x_plan.tensor > 1) a.heads_split_over = x_tensor;
  return a;
}

/// Half a square: all queries against half the keys, or half the queries against all of them.
Attention ContextParts::later_piece(bool backward) const {
  Attention a = core(backward);
  a.causal = false;
  a.kv_len /= 2;
  return a;
}

std::vector<View> ContextParts::core_statistics() const {
  std::vector<View> out;
  for (const Ref* ref : {&x_b.row_stats, &x_b.scores, &x_b.score_mask, &x_b.dropped}) {
    if (ref->valid()) out.push_back(ref->view());
  }
  return out;
}

Ref ContextParts::temporary(SegmentWriter& w, const std::string& name, std::int64_t count) {
  LayoutWriter& place = w.phase == Phase::kForward ? x_forward : x_backward;
  return place.add(name, BufferKind::kActivations, x_plan.precision.compute, count);
}

EventRef ContextParts::exchange(SegmentWriter& w, const std::string& name, const View& out,
                                const View& in) {
  const Bytes bytes = out.bytes;
  P2PBatch batch{{Message{true, x_builder.channel(kContextToNext), bytes},
                  Message{false, x_builder.channel(kContextFromPrevious), bytes}}};
  return w.on_stream("context", name, Category::kContext, std::move(batch), {out}, {in});
}

EventRef ContextParts::over_context(SegmentWriter& w, const std::string& name, CollectiveKind kind,
                                    std::int64_t count, const Ref& in, const Ref& out) {
  const Collective work{kind, x_builder.group(kContextGroup), count, x_plan.precision.compute,
                        false};
  return w.on_stream("context", name, Category::kContext, work, {in.view()}, {out.view()});
}

/// Elements of the compute type in a view.
std::int64_t ContextParts::elements(const View& view) const {
  return view.bytes * 8 / bits_of(x_plan.precision.compute);
}

void ContextParts::move(SegmentWriter& w, const std::string& name, const View& from,
                        const View& to) {
  View part = from;
  part.bytes = std::min(from.bytes, to.bytes);
  w.compute(name, kernel(KernelKind::kCast, x_tokens, elements(part) / x_tokens), {part}, {to});
}

void ContextParts::add(SegmentWriter& w, const std::string& name, const View& part,
                       const View& sum) {
  View target = sum;
  target.bytes = part.bytes;
  w.compute(name, kernel(KernelKind::kAdd, x_tokens, elements(part) / x_tokens), {target, part},
            {target});
}

void ContextParts::context_forward(SegmentWriter& w) {
  switch (x_plan.context_exchange) {
    case ContextExchange::kRing:
      return ring_forward(w);
    case ContextExchange::kAllGather:
      return gather_forward(w);
    case ContextExchange::kAllToAll:
      return heads_forward(w);
  }
}

void ContextParts::context_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv) {
  switch (x_plan.context_exchange) {
    case ContextExchange::kRing:
      return ring_backward(w, d_context, d_qkv);
    case ContextExchange::kAllGather:
      return gather_backward(w, d_context, d_qkv);
    case ContextExchange::kAllToAll:
      return heads_backward(w, d_context, d_qkv);
  }
}

// --- Ring
// ----------------------------------------------------------------------------------------

void ContextParts::ring_forward(SegmentWriter& w) {
  const std::int64_t kv = x_tokens * kv_width();
  const std::int64_t pieces = x_plan.context;
  // One buffer, so that a block lives until its compute and its exchange are both done.
  const Ref ring = temporary(w, "context kv", kv * pieces);
  const auto block = [&ring, kv](std::int64_t i) { return ring.part(i * kv, kv); };
  const Ref part = temporary(w, "context partial", x_b.context.count);
  move(w, "attention.context.pack", x_b.qkv.view(), block(0));
  for (std::int64_t i = 0; i < pieces; ++i) {
    EventRef next;
    if (i + 1 < pieces) next = exchange(w, "attention.context.exchange", block(i), block(i + 1));
    std::vector<View> writes = core_statistics();
    writes.insert(writes.begin(), i == 0 ? x_b.context.view() : part.view());
    std::vector<View> reads = {x_b.qkv.view()};
    if (i > 0) reads.push_back(block(i));
    w.compute("attention.core", i == 0 ? core(false) : later_piece(false), std::move(reads),
              std::move(writes));
    if (i > 0) add(w, "attention.context.merge", part.view(), x_b.context.view());
    if (next.valid()) w.wait(next);
  }
}

void ContextParts::ring_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv) {
  const std::int64_t kv = x_tokens * kv_width();
  const std::int64_t pieces = x_plan.context;
  const Ref ring = temporary(w, "context kv again", kv * pieces);
  const Ref sums = temporary(w, "context d kv", kv * (pieces + 1));
  const auto block = [&ring, kv](std::int64_t i) { return ring.part(i * kv, kv); };
  const auto sum = [&sums, kv](std::int64_t i) { return sums.part(i * kv, kv); };
  const Ref d_q = temporary(w, "context d q", x_tokens * x_q_heads * x_model.head_dim);
  const Ref d_kv = temporary(w, "context d kv partial", kv);
  move(w, "attention.context.pack_again", x_b.qkv.view(), block(0));
  EventRef arrived;
  for (std::int64_t i = 0; i < pieces; ++i) {
    EventRef next;
    if (i + 1 < pieces) {
      next = exchange(w, "attention.context.exchange_again", block(i), block(i + 1));
    }
    std::vector<View> reads = {d_context.view(), x_b.qkv.view(), x_b.context.view()};
    if (i > 0) reads.push_back(block(i));
    const std::vector<View> statistics = core_statistics();
    reads.insert(reads.end(), statistics.begin(), statistics.end());
    std::vector<View> writes = {d_qkv.view()};
    if (i > 0) writes = {d_q.view(), d_kv.view()};
    w.compute("attention.core_gradient", i == 0 ? core(true) : later_piece(true), std::move(reads),
              std::move(writes));
    if (i == 0) {
      move(w, "attention.context.pack_gradient", d_qkv.view(), sum(0));
    } else {
      add(w, "attention.context.merge_gradient", d_q.view(), d_qkv.view());
      w.wait(arrived);
      add(w, "attention.context.merge_kv_gradient", d_kv.view(), sum(i));
    }
    arrived = exchange(w, "attention.context.exchange_gradient", sum(i), sum(i + 1));
    if (next.valid()) w.wait(next);
  }
  w.wait(arrived);
  add(w, "attention.context.unpack_gradient", sum(pieces), d_qkv.view());
}

// --- All-gather
// ----------------------------------------------------------------------------------

/// Keys up to a query's own chunk: half the sequence on average, for every rank.
void ContextParts::gather_forward(SegmentWriter& w) {
  const std::int64_t kv = x_tokens * kv_width();
  const Ref own = temporary(w, "context kv", kv);
  const Ref all = temporary(w, "context kv gathered", kv * x_plan.context);
  move(w, "attention.context.pack", x_b.qkv.view(), own.view());
  w.wait(
      over_context(w, "attention.context.gather", CollectiveKind::kAllGather, all.count, own, all));
  Attention piece = later_piece(false);
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
  move(w, "attention.context.pack_again", x_b.qkv.view(), own.view());
  w.wait(over_context(w, "attention.context.gather_again", CollectiveKind::kAllGather, all.count,
                      own, all));
  Attention piece = later_piece(true);
  piece.kv_len = x_plan.sequence_length / 2;
  std::vector<View> reads = {d_context.view(), x_b.qkv.view(), x_b.context.view(), all.view()};
  const std::vector<View> statistics = core_statistics();
  reads.insert(reads.end(), statistics.begin(), statistics.end());
  w.compute("attention.core_gradient", piece, std::move(reads), {d_qkv.view(), d_all.view()});
  w.wait(over_context(w, "attention.context.reduce_gradient", CollectiveKind::kReduceScatter,
                      d_all.count, d_all, d_own));
  add(w, "attention.context.unpack_gradient", d_own.view(), d_qkv.view());
}

// --- All-to-all
// ----------------------------------------------------------------------------------

void ContextParts::heads_forward(SegmentWriter& w) {
  const Ref qkv = temporary(w, "context qkv by heads", x_b.qkv.count);
  const Ref out = temporary(w, "context out by heads", x_b.context.count);
  w.wait(over_context(w, "attention.context.to_heads", CollectiveKind::kAllToAll, qkv.count,
                      x_b.qkv, qkv));
  std::vector<View> writes = core_statistics();
  writes.insert(writes.begin(), out.view());
  w.compute("attention.core", by_heads(false), {qkv.view()}, std::move(writes));
  w.wait(over_context(w, "attention.context.to_tokens", CollectiveKind::kAllToAll, out.count, out,
                      x_b.context));
}

void ContextParts::heads_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv) {
  const Ref qkv = temporary(w, "context qkv by heads again", x_b.qkv.count);
  const Ref out = temporary(w, "context out by heads again", x_b.context.count);
  const Ref d_out = temporary(w, "context d out by heads", d_context.count);
  const Ref d_heads = temporary(w, "context d qkv by heads", d_qkv.count);
  over_context(w, "attention.context.to_heads_again", CollectiveKind::kAllToAll, qkv.count, x_b.qkv,
               qkv);
  over_context(w, "attention.context.out_to_heads", CollectiveKind::kAllToAll, out.count,
               x_b.context, out);
  w.wait(over_context(w, "attention.context.gradient_to_heads", CollectiveKind::kAllToAll,
                      d_out.count, d_context, d_out));
  std::vector<View> reads = {d_out.view(), qkv.view(), out.view()};
  const std::vector<View> statistics = core_statistics();
  reads.insert(reads.end(), statistics.begin(), statistics.end());
  w.compute("attention.core_gradient", by_heads(true), std::move(reads), {d_heads.view()});
  w.wait(over_context(w, "attention.context.gradient_to_tokens", CollectiveKind::kAllToAll,
                      d_heads.count, d_heads, d_qkv));
}

Attention ContextParts::by_heads(bool backward) const {
  Attention a = core(backward);
  a.q_heads /= x_plan.context;
  a.kv_heads /= x_plan.context;
  a.q_len = a.kv_len = x_plan.sequence_length;
  return a;
}

}  // namespace foretrain

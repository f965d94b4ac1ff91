// Ring self-attention (Li et al., "Sequence Parallelism", arXiv 2105.13120), as RingQK and RingAV
// of Colossal-AI (colossalai/legacy/nn/layer/parallel_sequence/_operation.py) have it: whole rows
// of scores are stored and their softmax is one op, so keys go around a ring before it and values
// after it.
//
//   forward   S = Q K^T, c products with c-1 exchanges of keys; P = softmax(S); out = P V likewise
//   backward  d V = P^T d out of all tokens in one product, all-reduced, of which a rank keeps its
//             own; d P = d out V^T around the ring; d S; d K = d S^T Q as d V; d Q = d S K around
//             the ring
//
// An exchange begins when the product before it has ended, and the next product waits for it; with
// `host.synchronize` `transfers` so does the host.
// Left out: the division of all gradients by c (their sum is what one rank has), scores in another
// type than the probabilities.
#include <utility>

#include "models/layers/context_parts.h"

namespace foretrain {

Attention ContextParts::step(AttentionStep which, bool backward, std::int64_t hops) const {
  Attention a = core(backward);
  a.step = which;
  a.part = ContextPart::kMember;
  a.hops = static_cast<std::int32_t>(hops);
  const bool softmax = which == AttentionStep::kSoftmax;
  if (softmax || which == AttentionStep::kValueGradient || which == AttentionStep::kKeyGradient) {
    a.part = ContextPart::kAll;
    a.kv_len = x_plan.sequence_length;
  }
  if (softmax) return a;
  // A product knows neither what is masked nor what is dropped.
  a.causal = a.alibi = false;
  a.dropout = 0;
  return a;
}

Ref ContextParts::pass_on(SegmentWriter& w, const std::string& what, const Ref& block) {
  const Ref next = temporary(w, "context " + what, block.count);
  w.wait(exchange(w, "attention.context.exchange_" + what, block.view(), next.view()));
  if (x_plan.host_waits == HostWaits::kTransfers) {
    w.compute("attention.context.wait", HostSync{}, {}, {}).category = Category::kHost;
  }
  return next;
}

template <typename Visit>
void ContextParts::each_block(SegmentWriter& w, const std::string& what, Ref block, Visit visit) {
  for (std::int64_t hops = 0; hops < x_plan.context; ++hops) {
    if (hops > 0) block = pass_on(w, what, block);
    visit(block, hops);
  }
}

std::pair<Ref, Ref> ContextParts::keys_and_values(SegmentWriter& w, const std::string& name,
                                                  const Ref& qkv) {
  const std::int64_t half = x_tokens * kv_width() / 2;
  const Ref keys = temporary(w, "context keys", half);
  const Ref values = temporary(w, "context values", half);
  w.compute(name, of_heads(KernelKind::kPackKeys, kv_width()), {qkv.view()},
            {keys.view(), values.view()});
  return {keys, values};
}

Ref ContextParts::gradient_of_all(SegmentWriter& w, const std::string& what, AttentionStep which,
                                  const std::vector<View>& reads) {
  const Ref all = temporary(w, "context d " + what, x_tokens * x_plan.context * kv_width() / 2);
  w.compute("attention.core." + what + "_gradient", step(which, true, 0), reads, {all.view()});
  w.wait(over_context(w, "attention.context.reduce_" + what, CollectiveKind::kAllReduce, all.count,
                      all, all));
  return all;
}

void ContextParts::self_forward(SegmentWriter& w) {
  const auto [keys, values] = keys_and_values(w, "attention.context.pack", x_b.qkv);
  const Ref scores = temporary(w, "context scores", x_b.scores.count);
  each_block(w, "keys", keys, [&](const Ref& block, std::int64_t hops) {
    w.compute("attention.core.scores", step(AttentionStep::kScores, false, hops),
              {x_b.qkv.view(), block.view()}, {scores.view()});
  });
  w.compute("attention.core.softmax", step(AttentionStep::kSoftmax, false, 0), {scores.view()},
            core_statistics());
  each_block(w, "values", values, [&](const Ref& block, std::int64_t hops) {
    std::vector<View> reads = {probabilities().view(), block.view()};
    if (hops > 0) reads.push_back(x_b.context.view());
    w.compute("attention.core.values", step(AttentionStep::kValues, false, hops), std::move(reads),
              {x_b.context.view()});
  });
}

void ContextParts::self_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv) {
  const auto [keys, values] = keys_and_values(w, "attention.context.pack_again", x_b.qkv);
  const Ref d_values = gradient_of_all(w, "values", AttentionStep::kValueGradient,
                                       {probabilities().view(), d_context.view()});
  const Ref d_scores = temporary(w, "context d scores", x_b.scores.count);
  each_block(w, "values", values, [&](const Ref& block, std::int64_t hops) {
    w.compute("attention.core.probability_gradient",
              step(AttentionStep::kProbabilityGradient, true, hops),
              {d_context.view(), block.view()}, {d_scores.view()});
  });
  std::vector<View> reads = {d_scores.view(), x_b.scores.view()};
  if (x_b.score_mask.valid()) reads.push_back(x_b.score_mask.view());
  w.compute("attention.core.softmax_gradient", step(AttentionStep::kSoftmax, true, 0),
            std::move(reads), {d_scores.view()});
  const Ref d_keys =
      gradient_of_all(w, "keys", AttentionStep::kKeyGradient, {d_scores.view(), x_b.qkv.view()});
  each_block(w, "keys", keys, [&](const Ref& block, std::int64_t hops) {
    std::vector<View> factors = {d_scores.view(), block.view()};
    if (hops > 0) factors.push_back(d_qkv.view());
    w.compute("attention.core.query_gradient", step(AttentionStep::kQueryGradient, true, hops),
              std::move(factors), {d_qkv.view()});
  });
  w.compute("attention.context.unpack_gradient", of_heads(KernelKind::kUnpackKeys, kv_width()),
            {d_keys.view(), d_values.view()}, {d_qkv.view()});
}

}  // namespace foretrain

// Experts whose tokens are picked by products with masks, as GShard wrote it and DeepSpeed's gate
// does (deepspeed/moe/sharded_moe.py of v0.6.5, top1gating and MOELayer, without Tutel).
//
// Of s tokens, E experts and c places of each: combine weights [s, E c] in fp32, the probability of
// a token where it has a place and 0 elsewhere; the mask that says where they are not 0; both cast
// to the compute type. Then
//
//   picked = mask^T in    out = weights results    d in = mask d picked
//   d results = weights^T d out    d weights = d out results^T
//
// are products of s x E c x h, whose size grows with the square of the tokens, s^2 h for a capacity
// factor of 1, where a permutation would move s h. Gradients reach the probabilities by sums over
// the places of each. The host waits for the counts. Left out: random selection of the tokens that
// find a place, noise.
#include "models/layers/moe_block.h"

namespace foretrain {

void MoeBlock::declare_masks(const Placer& place, bool again) {
  const DType type = x_plan.precision.compute;
  x_masks.mask = place.add("token mask", type, x_rows * x_sizes.sent, again);
  x_masks.weights = place.add("combine weights", type, x_rows * x_sizes.sent, again);
  x_masks.results = place.add("expert results", type, x_sizes.sent * x_more.width, again);
}

void MoeBlock::pick(SegmentWriter& w, const Ref& in, const Ref& tokens) {
  const std::int64_t all = x_rows * x_sizes.sent;
  const Bytes narrow = bytes_of(x_plan.precision.compute, all);
  const Ref wide = temporary("combine weights in fp32", all, DType::kFp32);
  // The outer product; whether it is 0, in bytes; both in the compute type.
  const auto pass = [&](const char* name, Bytes bytes, const Ref& from, const Ref& to) {
    w.compute(name, Opaque{name, bytes, 0, DType::kFp32, Memory::kDevice}, {from.view()},
              {to.view()});
  };
  pass("moe.masks.weights", 4 * all, x_scores, wide);
  pass("moe.masks.mask", 4 * all + 2 * all + narrow, wide, x_masks.mask);
  pass("moe.masks.cast", 4 * all + narrow, wide, x_masks.weights);
  Gemm product{x_sizes.sent, x_more.width, x_rows};
  product.transpose_a = true;
  product.in = product.out = x_plan.precision.compute;
  w.compute("moe.masks.pick", product, {x_masks.mask.view(), in.view()}, {tokens.view()});
}

void MoeBlock::join(SegmentWriter& w, const Ref& out) {
  Gemm product{x_rows, x_more.width, x_sizes.sent};
  product.in = product.out = x_plan.precision.compute;
  w.compute("moe.masks.join", product, {x_masks.weights.view(), x_masks.results.view()},
            {out.view()});
}

void MoeBlock::join_gradient(SegmentWriter& w, const Ref& d_out, const Ref& d_results) {
  x_masks.d_weights = temporary("d combine weights", x_rows * x_sizes.sent);
  Gemm of_weights{x_rows, x_sizes.sent, x_more.width, 1, false, true};
  Gemm of_results{x_sizes.sent, x_more.width, x_rows};
  of_results.transpose_a = true;
  for (Gemm* product : {&of_weights, &of_results}) {
    product->in = product->out = x_plan.precision.compute;
  }
  w.compute("moe.masks.join_weight_gradient", of_weights, {d_out.view(), x_masks.results.view()},
            {x_masks.d_weights.view()});
  w.compute("moe.masks.join_gradient", of_results, {x_masks.weights.view(), d_out.view()},
            {d_results.view()});
}

MoeBlock::InputGradients MoeBlock::pick_gradient(SegmentWriter& w, const Ref& d_picked) {
  const std::int64_t all = x_rows * x_sizes.sent;
  const Ref d_tokens = temporary("d dispatched", x_rows * x_more.width);
  const Ref d_scores = temporary("d scores", x_rows * x_model.experts.count, DType::kFp32);
  Gemm product{x_rows, x_more.width, x_sizes.sent};
  product.in = product.out = x_plan.precision.compute;
  w.compute("moe.masks.pick_gradient", product, {x_masks.mask.view(), d_picked.view()},
            {d_tokens.view()});
  // Cast to fp32, times the places, summed over them.
  const std::string name = "moe.masks.weights_gradient";
  const Bytes bytes = bytes_of(x_plan.precision.compute, all) + 3 * 4 * all;
  w.compute(name, Opaque{name, bytes, 0, DType::kFp32, Memory::kDevice}, {x_masks.d_weights.view()},
            {d_scores.view()});
  return {d_tokens, d_scores};
}

}  // namespace foretrain

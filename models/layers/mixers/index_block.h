// DeepSeek sparse attention: an indexer chooses the keys that a query sees (DeepSeek-V3.2's report;
// Megatron Core, experimental_attention_variant/dsa.py; GLM-5).
//
//   q = W_q c_q (or W_q x), k = norm(W_k x), g = W_g x       heads H_i of d_i elements, one key
//   I[t, s] = sum over heads of g[t, h] relu(q[t, h] k[s])    of all s up to t
//   the k keys s with the largest I[t, s] are those that attention of query t sees
//   loss: KL(p || softmax I) over them, p the mean of what the heads of attention give
//
// Attention works on the latent vectors themselves, one key of kv_rank + rope elements for all
// heads and a value of kv_rank; what takes queries there and results back has the FLOPs of the
// linear from the ranks up, which stands for it. Every tensor rank has the whole indexer, on the
// tokens of all, whose inputs are gathered with sequence parallelism; p is summed over the tensor
// ranks. No gradient goes through the inputs. Scores are made for 8,192 queries at a time (the
// blocks of dsa.py). Kept: q, k and the vector before its norm, g, indices, p; of attention itself
// besides what it keeps on separate keys, a head: queries of kv_rank + rope elements and a result
// of kv_rank, less its own keys and values.
//
// Scores and their gradients are priced as attention of d_i elements with values of one, the choice
// as one pass over the scores. Gradients of its parameters are averaged over tensor ranks, as
// dsa.py asks for. Left out: the rotation of q and k by Hadamard's matrix, gradients of rotary
// positions, the first stage of training, in which the loss sees all keys; layers that take the
// choice of an earlier one; context parallelism and unfused attention (refused by the plan's
// rules).
#pragma once

#include "models/layers/block.h"

namespace foretrain {

class IndexBlock : public Block {
 public:
  static bool used(const Model& model) { return model.latent.index_heads > 0; }
  IndexBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const LayerLayouts& layouts);

  /// Keys that a query sees at most.
  static std::int64_t keys(const Model& model, const Plan& plan);
  /// Declares what goes from forward to backward; `again`: computed again, so not kept.
  void declare(LayoutWriter& saved, LayoutWriter& local, bool again);
  /// From the normed input `x` and what queries come from (`x` or their rank), of this rank's
  /// tokens, to the choice and, with the packed queries of attention, to the loss.
  void forward(SegmentWriter& w, const Ref& x, const Ref& queries, const Ref& qkv);
  /// The gradients of its parameters.
  void backward(SegmentWriter& w, const Ref& x, const Ref& queries);

 private:
  Attention scores(bool backward) const;
  Attention teacher() const;
  Kernel rope() const;

  std::int64_t x_heads, x_dim, x_keys;
  Matrix x_q, x_k, x_gates;
  struct Kept {
    Ref queries, low, key, statistics, weights, chosen, target;
    Ref absorbed;  ///< what attention on latent vectors keeps beyond that on separate keys
  };
  Kept x_kept;
};

}  // namespace foretrain

// Attention over sequences that are cut among context-parallel ranks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/layers/layer_parts.h"

namespace foretrain {

/// Each of c ranks holds s/c tokens of a sequence: chunks i and 2c-1-i of 2c, so that the causal
/// mask gives all ranks the same work, s^2 / 2c query-key pairs. `kernels.context` says how keys
/// and values meet the queries:
///   ring       c-1 exchanges with the neighbours beside the c pieces of attention; the first piece
///              is the rank's own causal square, every later one half a square. Backward the
///              gradients of keys and values travel along, and home at the end. Where sequences
///              pack documents each of these is so cut, and a piece is one for every document.
///   allgather  keys and values are gathered before, their gradients reduce-scattered after.
///   ring_self  ring self-attention (Li et al., arXiv 2105.13120): models/layers/context_self.cpp.
///   alltoall   heads instead of tokens are cut within the attention: two exchanges each way; what
///              attention took and gave by heads is kept for the backward pass.
/// With `parallel.context_inner` a (a2a+p2p of TransformerEngine) a ranks exchange heads for their
/// tokens, which are the two chunks that one of c/a members of a ring would hold, and their keys go
/// around that ring, among ranks of the same heads.
/// Partial results of a ring are merged by a memory-bound kernel each. Before and after an exchange
/// of heads for tokens what travels is put into the order that equal parts need.
/// With sliding windows go the latter two (as in TransformerEngine); what a window leaves a rank of
/// allgather: sim/program/context_pairs.h.
/// Ranks of ring_self hold one run of tokens each and compute the whole rectangle of scores.
/// Left out: two compute streams for the pieces (which hide their launch), windows in a ring.
class ContextParts : public LayerParts {
 protected:
  using LayerParts::LayerParts;

  void context_forward(SegmentWriter& w);
  void context_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv);
  /// The whole attention of this rank, or its own square where keys go around a ring.
  Attention core(bool backward) const;
  Kernel rope(bool backward) const;
  std::vector<View> core_statistics() const;
  Kernel kernel(KernelKind kind, std::int64_t rows, std::int64_t cols) const;
  /// A buffer of the pass that `w` writes.
  Ref temporary(SegmentWriter& w, const std::string& name, std::int64_t count);
  Ref temporary(SegmentWriter& w, const std::string& name, std::int64_t count, DType type);

 private:
  /// What a ring attends to, and the gradients.
  struct Around {
    Ref qkv, context, d_context, d_qkv;
  };
  /// Ranks that exchange heads within a ring.
  std::int64_t inner() const { return x_plan.context_inner; }
  std::int64_t local_length() const { return x_plan.sequence_length / x_plan.context; }
  /// Elements of a token's keys and values.
  std::int64_t kv_width() const {
    return x_kv_heads * (x_model.head_dim + x_model.value_width() / x_model.heads);
  }
  /// Against the keys of the member `hops` places before this one; of all of them with 0.
  Attention later_piece(bool backward, std::int64_t hops) const;
  Attention by_heads(bool backward) const;
  EventRef exchange(SegmentWriter& w, const std::string& name, const View& out, const View& in);
  EventRef over_context(SegmentWriter& w, const std::string& name, CollectiveKind kind,
                        std::int64_t count, const Ref& in, const Ref& out);
  /// A kernel on a token's keys and values, or on `cols` elements of it.
  Kernel of_heads(KernelKind kind, std::int64_t cols) const;
  void pack_keys(SegmentWriter& w, const std::string& name, const Ref& qkv, const View& keys);
  void unpack_keys(SegmentWriter& w, const std::string& name, const View& keys, const Ref& qkv);
  void merge(SegmentWriter& w, const Ref& part, const Ref& statistics, const Ref& whole);
  /// What puts heads or tokens into the order that their exchange needs.
  Kernel exchanged(KernelKind kind, std::int64_t rows, std::int64_t cols) const;
  /// Exchanges heads for tokens: `in` holds all heads of this rank's tokens, `out` its heads of all
  /// tokens.
  void to_heads(SegmentWriter& w, const std::string& name, const Ref& in, const Ref& out);
  void to_tokens(SegmentWriter& w, const std::string& name, const Ref& in, const Ref& out);

  void ring_forward(SegmentWriter& w, const Ref& qkv, const Ref& context);
  void ring_backward(SegmentWriter& w, const Around& x);
  void gather_forward(SegmentWriter& w);
  void gather_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv);
  void heads_forward(SegmentWriter& w);
  void heads_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv);

  // Ring self-attention: context_self.cpp.
  Attention step(AttentionStep which, bool backward, std::int64_t hops) const;
  const Ref& probabilities() const { return x_b.dropped.valid() ? x_b.dropped : x_b.scores; }
  /// `block` goes to the next member; what the one before sends, which compute waits for.
  Ref pass_on(SegmentWriter& w, const std::string& what, const Ref& block);
  /// Calls visit(block, hops) with the block of this member, then with those of the others.
  template <typename Visit>
  void each_block(SegmentWriter& w, const std::string& what, Ref block, Visit visit);
  std::pair<Ref, Ref> keys_and_values(SegmentWriter& w, const std::string& name, const Ref& qkv);
  /// The sum over all members of what an op gives for the tokens of all.
  Ref gradient_of_all(SegmentWriter& w, const std::string& what, AttentionStep which,
                      const std::vector<View>& reads);
  void self_forward(SegmentWriter& w);
  void self_backward(SegmentWriter& w, const Ref& d_context, const Ref& d_qkv);
};

}  // namespace foretrain

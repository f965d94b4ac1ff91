// Experts in place of a layer's MLP, as Megatron-LM dispatches tokens to them.
//
// Forward: router (a narrow linear), choice of the top experts, the counts of tokens to all ranks
// and to the host; permutation by expert, all-to-all over the expert group, all-gather over
// expert_tensor, a second permutation where a rank holds several experts, the grouped GEMMs with
// the gated activation times the router's probabilities between them, and the way back. Experts
// that all tokens share are an MLP cut over tensor ranks; with `overlap.expert` its first half runs
// beside the exchange that takes tokens to the experts, its second beside the one that brings them
// back, and so do their gradients. Dispatch by all-gather brings every rank the tokens of all and
// picks its experts' out of them.
#pragma once

#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "models/layers/block.h"
#include "models/layers/experts/beside_mlp.h"
#include "models/layers/experts/latent_way.h"

namespace foretrain {

/// Tokens (one for every expert that a token goes to) on the ways of a microbatch.
struct MoeSizes {
  std::int64_t sent = 0;           ///< by a rank to the expert group; what comes back
  std::int64_t received = 0;       ///< by a rank from the expert group
  std::int64_t capacity = 0;       ///< of one rank for one expert
  std::int64_t per_expert = 0;     ///< rows of one group of the grouped GEMMs, in the mean
  std::vector<std::int64_t> rows;  ///< of each group, where they differ
  std::int64_t local = 0;          ///< experts of a rank
  std::int64_t worked() const {
    return rows.empty() ? per_expert * local
                        : std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  }
};
MoeSizes moe_sizes(const Model& model, const Plan& plan);

/// Of the ranks of an expert group, those that a token goes to.
FanOut fan_out(const Experts& experts);

/// Shared experts' results times the sigmoid of a number for each token, as Qwen's have it.
class SharedGate : public Block {
 public:
  SharedGate(ProgramBuilder& builder, const Model& model, const Plan& plan,
             const LayerLayouts& layouts)
      : Block(builder, model, plan, layouts) {}
  void declare(const Placer& place, bool again);
  /// Where the results stand, for the backward pass.
  const Ref& results() const { return x_results; }
  /// The results, weighed by the gate of `in`.
  Ref forward(SegmentWriter& w, const Ref& in);
  /// The gradient of the results; adds to that of the gate's weight, and puts that of `in` beside
  /// others in `d_inputs`.
  Ref backward(SegmentWriter& w, const Ref& in, const Ref& d_out, std::vector<View>& d_inputs);

 private:
  Ref x_gate, x_results;
};

class MoeBlock : public Block {
 public:
  MoeBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
           const LayerLayouts& layouts, const Recompute& again);

  /// `stream`: what the layer's feed-forward reads, before its norm.
  void declare(LayoutWriter& saved, LayoutWriter& local, const Ref& stream);
  /// From the normed `in` of this rank's tokens to the branch `out` of the same tokens; `x` is `in`
  /// as the shared experts read it.
  void forward(SegmentWriter& w, const Ref& in, const LinearOperand& x, const Ref& out);
  /// Computes again what forward did not keep.
  void again(SegmentWriter& w, const Ref& in, const LinearOperand& x, const Ref& out);
  /// Returns the gradient of `in`; an MLP beside the experts adds its own to that of the stream.
  Ref backward(SegmentWriter& w, const Ref& in, const LinearOperand& x, const Ref& d_out,
               Ref& d_stream);
  /// Shared experts read the normed input.
  bool shares() const { return x_shared > 0 && !x_more.beside; }
  /// Elements that the first matrix of an expert of this width gives: gate and up, or up alone.
  std::int64_t raised(std::int64_t width) const { return x_model.gated() ? 2 * width : width; }

 private:
  bool gathers() const { return x_plan.experts.dispatcher == Dispatcher::kAllGather; }
  bool fused() const { return x_plan.experts.fused(); }
  bool exchanges() const { return x_plan.experts.expert > 1; }
  std::int64_t group_size() const { return x_plan.experts.expert * x_plan.experts.tensor; }
  bool sorts() const;
  Kernel of_experts(KernelKind kind, std::int64_t rows, std::int64_t cols) const;
  Ref expert(const std::string& name, bool of_gradients, const char* part = ".weight") const;
  /// Biases are added by the kernels of their GEMMs; their gradients are not.
  void bias_gradient(SegmentWriter& w, const std::string& name, std::int64_t rows,
                     std::int64_t cols, const Ref& d_out, const Ref& bias,
                     const Ref& d_chances = {});
  /// A grouped GEMM of the experts' matrix `of`, forward or backward; reads `a` and `b`.
  void grouped(SegmentWriter& w, const std::string& name, Gemm gemm, const Ref& of, bool backward,
               const Ref& a, const Ref& b, const Ref& out);
  void route(SegmentWriter& w, const Ref& in);
  void count_tokens(SegmentWriter& w);
  /// Rows on their way to the experts and back: tokens, and the probabilities beside them.
  struct Rows {
    Ref from, to;
    std::int64_t width = 1;  ///< elements of a row
  };
  using Payload = std::vector<Rows>;
  /// Where rows are after each step of the way: the first entry is before the first step.
  enum class Step : std::uint8_t { kExchange, kExpertTensor, kSort };
  struct Way {
    std::vector<Step> steps;
    std::vector<std::int64_t> rows;
  };
  Way way() const;
  void to_experts(SegmentWriter& w, const std::string& name, const Payload& payload);
  void from_experts(SegmentWriter& w, const std::string& name, const Payload& payload);
  void walk(SegmentWriter& w, const std::string& name, const Payload& payload, bool back);
  void sort(SegmentWriter& w, const std::string& name, const Payload& payload, bool back);
  void swap(SegmentWriter& w, const std::string& name, const Payload& payload);
  /// Compute waits for these exchanges, after what runs beside them.
  void await(SegmentWriter& w, const std::vector<EventRef>& arrived);
  /// As in Megatron-LM only with tokens permuted for an all-to-all: the other dispatchers read what
  /// the shared experts read.
  bool overlaps() const {
    return x_plan.overlap.expert && x_plan.experts.dispatcher == Dispatcher::kAllToAll;
  }
  /// Writes `x_beside`, unless an exchange has.
  void run_waiting();
  void take_step(SegmentWriter& w, const std::string& name, Step step, const Payload& payload,
                 bool back);
  /// Tokens are cast before they travel.
  bool cast_first() const { return x_plan.experts.cast_first && group_size() > 1; }
  /// Products in low precision take multiples of 16 or 32 rows an expert: Transformer Engine's
  /// grouped linears get them, and give their results back, by passes over all rows. HybridEP pads
  /// on the way, and a capacity that is such a multiple needs no padding.
  bool pads() const {
    constexpr std::int64_t kRowsOfProducts = 32;
    const ExpertPlan& p = x_plan.experts;
    const bool fits = p.routing == Routing::kCapacity && x_sizes.per_expert % kRowsOfProducts == 0;
    return x_plan.precision.low() && !p.single_kernel && p.dispatcher != Dispatcher::kHybridEp &&
           !cast_first() && !fits;
  }
  Ref padded(SegmentWriter& w, const std::string& name, const Ref& rows);
  /// Tokens of experts with a capacity are picked, and their results joined, by products with dense
  /// masks: models/layers/moe_masks.cpp.
  bool masks() const {
    return x_plan.experts.masks && x_plan.experts.routing == Routing::kCapacity;
  }
  void declare_masks(const Placer& place, bool again);
  /// tokens [E c, h] = mask^T in, and out = weights results.
  void pick(SegmentWriter& w, const Ref& in, const Ref& tokens);
  void join(SegmentWriter& w, const Ref& out);
  /// d results = weights^T d_out, d weights = d_out results^T.
  void join_gradient(SegmentWriter& w, const Ref& d_out, const Ref& d_results);
  struct InputGradients {
    Ref tokens, probabilities;
  };
  InputGradients pick_gradient(SegmentWriter& w, const Ref& d_picked);
  bool direct() const { return gathers() || (fused() && !exchanges()); }
  std::int64_t probability_width() const { return gathers() ? x_model.experts.count : 1; }
  void dispatch(SegmentWriter& w, const Ref& in);
  void activation(SegmentWriter& w);
  void experts_forward(SegmentWriter& w, const Ref& out);
  void shared_up(SegmentWriter& w, const LinearOperand& x);
  Ref shared_down(SegmentWriter& w);
  /// Returns the gradient of what the first matrix gives.
  Ref shared_down_backward(SegmentWriter& w, const Ref& d_out);
  void expert_linear_backward(SegmentWriter& w, const std::string& name, Gemm of_input,
                              Gemm of_weight, const Quantizer::Copies& d, const Ref& in,
                              const Ref& d_in);
  Quantizer::Copies gradient_of(SegmentWriter& w, const std::string& name, const Ref& d);
  Quantizer::Copies result_gradient(SegmentWriter& w, const Ref& d_back);
  /// `beside`, if there is any, runs beside the exchange that takes the gradients home.
  InputGradients experts_backward(SegmentWriter& w, const Ref& d_out, std::function<void()> beside);
  Ref router_backward(SegmentWriter& w, const Ref& in, const Ref& d_probabilities);

  MoeSizes x_sizes;
  Recompute x_again;
  std::int64_t x_width, x_shared;
  Matrix x_router, x_shared_up, x_shared_down;
  Ref x_scores, x_map, x_input, x_probabilities, x_up, x_act, x_s_up, x_s_act;
  /// What some models have besides.
  struct More {
    std::optional<SharedGate> gate;
    std::optional<BesideMlp> beside;
    std::optional<LatentWay> latent;
    std::int64_t width = 0;  ///< of a token as experts see it
  };
  More x_more;
  struct Masks {
    Ref mask, weights, results, d_weights;
  };
  Masks x_masks;  ///< of `masks`
  Ref x_places;   ///< of gathered tokens: which of them an expert's row is
  LinearOperand x_in, x_activated, x_s_activated;  ///< as the linears read them
  std::function<void()> x_beside;                  ///< what the next exchange of tokens hides
};

}  // namespace foretrain

// One transformer layer as segments: forward, and backward with what it computes again.
//
// Each tensor-parallel rank holds T = micro x sequence tokens and 1/t of the heads and of the MLP's
// width. With sequence parallelism (Korthikanti et al. 2022) what lies between the blocks is cut
// along tokens, and an all-gather and a reduce-scatter replace every all-reduce. In the backward
// pass of a column-parallel linear the gather of its input goes beside the input gradient, the
// reduction of the input gradient beside the weight gradient (`overlap.tensor_backward`).
#pragma once

#include <cstdint>
#include <vector>

#include "models/layers/segment_writer.h"
#include "models/plan/plan.h"

namespace foretrain {

/// Numbers that a norm keeps of a token.
inline std::int64_t norm_statistics(const Model& model) {
  return model.norm == Norm::kLayerNorm ? 2 : 1;
}

/// Formal frames of a layer's segments.
enum LayerFrame : std::int16_t {
  kWeights,  ///< cut by tensor parallelism
  kGradients,
  kShared,  ///< norms and biases that every tensor rank holds
  kSharedGradients,
  kInput,   ///< the residual stream before the layer
  kOutput,  ///< and after it
  kSaved,   ///< what forward keeps for backward
  kLocal,   ///< temporary buffers and events of one call
  kOutputGradient,
  kInputGradient,
  kLayerFrames,  ///< with sharded units the owners follow
  /// Of layers with experts, which come before the owners and before `quantized_frame`.
  kExpertWeights = kLayerFrames,
  kExpertGradients
};

/// Events of a residual-stream frame.
inline constexpr std::int16_t kReady = 0;  ///< its content is there
inline constexpr std::int16_t kSent = 1;   ///< it has been sent to the next stage
/// With `scatter_gather`: the rank's own part has been received.
inline constexpr std::int16_t kPartArrived = 2;
inline constexpr std::int16_t kHiddenBuffer = 0;

struct DropoutRates {
  double hidden = 0, attention = 0;
};
/// The plan's rate, else the model's, else 0.1 where attention is unfused (the default of the GPT
/// training codes of that era) and none elsewhere.
DropoutRates dropout_of(const Model& model, const Plan& plan);

/// Elements of a residual activation on one rank.
inline std::int64_t hidden_elements(const Model& model, const Plan& plan) {
  return plan.rows() * (model.hidden / plan.column_parts());
}

/// Layouts of parameters: one with what tensor parallelism cuts, one with what every rank holds,
/// one with the experts. Where small parameters stay gathered these are the second one, cut or not,
/// unless there is nothing else.
/// With `gradients` the same shapes in the gradients' type and kind.
struct ParameterLayouts {
  FrameLayout cut, shared, experts;
  std::int64_t cut_elements = 0, shared_elements = 0, expert_elements = 0;
  bool small = false;  ///< all but the experts stay gathered
};
ParameterLayouts parameter_layouts(ProgramBuilder& builder, const std::string& name,
                                   const std::vector<Parameter>& parameters, const Plan& plan,
                                   bool gradients);

/// Whether a buffer holds a norm of query, key or value heads, whose gradient every tensor rank has
/// of its own heads alone.
inline bool is_head_norm(const std::string& buffer) {
  return buffer == "attention.q_norm.weight" || buffer == "attention.k_norm.weight" ||
         buffer == "delta.gate_norm.weight";
}

/// Finds a parameter's buffer in the layouts: a Ref to formal frame `cut_frame` or `shared_frame`.
Ref parameter_ref(const ParameterLayouts& layouts, const std::string& name, std::int16_t cut_frame,
                  std::int16_t shared_frame);

struct LayerSegments {
  SegmentId forward, backward;
  SegmentId weights;       ///< gradients of weights, where they have a pass of their own
  std::int16_t done = -1;  ///< event of the local frame that its last op records
  SegmentId quantize;      ///< writes the copies of weights, where the layer has it
  /// The forward pass repeated, where blocks of layers are; of the last layer of one.
  SegmentId again, again_last;
  /// With `overlap.tensor_slices` in place of forward and backward: of every slice.
  std::vector<SegmentId> forward_slices, backward_slices;
  LayoutId saved, local_forward, local_backward;
};

/// Of layers with a block that others share: the layouts of its formal frames, and its parameters
/// among the embedding's.
struct BorrowedBlock {
  std::vector<LayoutId> block_frames;
  ParameterLayouts borrowed, borrowed_gradients;
};

/// What all layers of a kind share.
struct LayerLayouts : BorrowedBlock {
  LayerKind kind;
  bool windowed = false;  ///< its queries see only the model's window of keys
  LayoutId experts, expert_gradients;
  LayoutId weights, gradients, shared, shared_gradients, hidden, hidden_gradient;
  LayoutId output, output_gradient;  ///< of the residual stream behind the layer
  /// With sharded units the frames that own what kWeights, kShared and experts and their gradients
  /// lie in: weights and gradients of each unit.
  std::vector<LayoutId> owners;
  LayoutId quantized;
  ParameterLayouts parameters, parameter_gradients;
  /// Of the formal frames that every layer has.
  std::vector<LayoutId> frames(LayoutId saved, LayoutId local) const {
    return {weights, gradients, shared, shared_gradients, hidden,
            output,  saved,     local,  output_gradient,  hidden_gradient};
  }
};

/// Formal frame of copies of the weights in a type of less than 16 bits, without sharded units.
inline std::int16_t quantized_frame(const LayerLayouts& layouts) {
  return static_cast<std::int16_t>(kLayerFrames + (layouts.kind.sparse() ? 2 : 0));
}

/// Writes the segments of a layer; `recompute` says whether this layer follows plan.recompute.
/// `name_suffix` tells variants apart.
LayerSegments write_layer(ProgramBuilder& builder, const Model& model, const Plan& plan,
                          const LayerLayouts& layouts, bool recompute);

/// A norm with its weights.
struct NormRefs {
  Ref weight, bias, weight_gradient, bias_gradient;
  Ref composed = {};  ///< what autograd keeps of an RMS norm that is composed of operations
};
Kernel norm_kernel(const Model& model, std::int64_t rows, std::int64_t cols, DType dtype,
                   bool backward);
std::vector<View> norm_reads(const Ref& input, const NormRefs& norm);
std::vector<View> norm_gradient_reads(const Ref& d_out, const Ref& input, const Ref& statistics,
                                      const NormRefs& norm);
/// Writes gradients of parameters, and reads them where the pass adds to them.
void add_gradients(const Plan& plan, const std::vector<Ref>& gradients, std::vector<View>& reads,
                   std::vector<View>& writes);

/// The gradient of a matrix, d^T in, added to what earlier microbatches left: by the GEMM itself
/// or, with `gradients.accumulation` = `separate`, by a kernel of its own, as autograd does. Goes
/// to the pass of weights of `w`; `gemm.accumulate` and `gemm.out` follow from the plan.
void write_weight_gradient(SegmentWriter& w, const Plan& plan, const std::string& name,
                           const Gemm& gemm, const Ref& d, const Ref& in, const Ref& gradient);
void write_weight_gradient(SegmentWriter& w, const Plan& plan, const std::string& name,
                           const Convolution& work, const Ref& d, const Ref& in,
                           const Ref& gradient);

/// GEMMs of y[T, out] = x[T, in] W[out, in]^T.
Gemm forward_gemm(const Plan& plan, std::int64_t tokens, std::int64_t out, std::int64_t in);
Gemm input_gradient_gemm(const Plan& plan, std::int64_t tokens, std::int64_t out, std::int64_t in);
Gemm weight_gradient_gemm(const Plan& plan, std::int64_t tokens, std::int64_t out, std::int64_t in);

}  // namespace foretrain

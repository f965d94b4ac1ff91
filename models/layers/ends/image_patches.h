// The first end of a model of images (Dosovitskiy et al., arXiv 2010.11929): the pixels of every
// patch through a linear, a trained vector for the class before them. Every tensor rank does all
// of them. The linear is a convolution whose kernel and stride are a patch; here it is the product
// that it equals.
#pragma once

#include "models/layers/ends.h"
#include "models/layers/ends/whole_matrix.h"

namespace foretrain {

/// The parameters of the first end that stand in place of a table of tokens.
struct PatchParameters {
  NormRefs matrix;
  Ref token, token_gradient;
};

class ImagePatches {
 public:
  /// Of `rows` tokens of the residual stream, one of each sequence the class; of `patch` pixels
  /// times channels.
  ImagePatches(const Model& model, const Plan& plan, const PatchParameters& parameters)
      : x_plan(plan),
        x_parameters(parameters),
        x_rows(plan.tokens()),
        x_hidden(model.hidden),
        x_patch(model.ends.patch),
        x_matrix(plan, "embedding.patches", parameters.matrix, patches(), x_hidden, x_patch) {}

  /// From the pixels among the inputs to the class and its patches, sequence by sequence.
  Ref forward(SegmentWriter& w, LayoutWriter& local) const;
  /// The class token's gradient is the sum over sequences, the others' goes to the linear.
  void backward(SegmentWriter& w, const Ref& d) const;

 private:
  std::int64_t patches() const { return x_rows - x_plan.micro_batch; }
  Ref pixels() const {
    return {kEmbeddingInputs, kTokens, x_plan.precision.compute, patches() * x_patch};
  }

  const Plan& x_plan;
  PatchParameters x_parameters;
  std::int64_t x_rows, x_hidden, x_patch;
  WholeMatrix x_matrix;
};

}  // namespace foretrain

// Softmax and cross-entropy over the classes of images.
#pragma once

#include <string>

#include "models/layers/ends.h"

namespace foretrain {

/// What the loss keeps for its backward pass.
struct Scores {
  Ref exponentials, sums;
};

/// Of logits [images, classes] of `type`; `labels` are int64, `loss` the fp32 sum that is added to.
class NetworkLossWriter {
 public:
  NetworkLossWriter(std::string name, const Ref& labels, const Ref& loss, std::int64_t images,
                    std::int64_t classes, DType type);

  Scores declare(LayoutWriter& saved) const;
  void forward(SegmentWriter& w, const Ref& logits, const Scores& scores) const;
  void backward(SegmentWriter& w, const Scores& scores, const Ref& d_logits) const;

 private:
  Kernel kernel(KernelKind kind, std::int64_t cols) const;

  std::string x_name;
  Ref x_labels, x_loss;
  std::int64_t x_images, x_classes;
  DType x_type;
};

/// The end of a network: the loss over the classes that its last block leaves; no parameters.
EndSegments write_classes(ProgramBuilder& builder, const Model& model, const Plan& plan,
                          const EndLayouts& layouts);

}  // namespace foretrain

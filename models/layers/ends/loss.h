// The loss of some rows of logits, and its gradient: the largest logit, exponentials less it, their
// sum and the label's logit; then (exponential / sum - 1 at the label) / tokens of the batch. Where
// ranks hold parts of the vocabulary whoever writes the head joins the numbers of a row in between.
#pragma once

#include <optional>
#include <string>

#include "models/layers/segment_writer.h"
#include "models/plan/plan.h"

namespace foretrain {

/// Inputs of the loss of some rows, and what its passes write.
struct LossRows {
  Ref logits, wide;  ///< in the branch's type, and in fp32 where the loss widens
  Ref exp, sum, maximum, target;
  View labels;
  std::int64_t rows = 0;
};

class LossWriter {
 public:
  /// Of a rank's `vocabulary` logits a row, in `branch`; `split`: the ranks that hold the others;
  /// `cap`: the logits' soft cap, 0: none.
  LossWriter(const Plan& plan, std::int64_t vocabulary, DType branch,
             std::optional<GroupSlot> split, double cap)
      : x_plan(plan), x_vocabulary(vocabulary), x_branch(branch), x_split(split), x_cap(cap) {}

  /// cross_entropy on a copy of the logits in fp32. Its copies are there (views without bytes);
  /// what they move is in the kernels' forms.
  bool widens() const { return x_plan.loss.form == LossForm::kTorch && bits_of(x_branch) < 32; }
  /// The gradient of a capped logit follows from its exponential and the row's maximum. Left out
  /// where all stages share the vocabulary: the maximum is the rank's own there.
  bool keeps_maximum() const { return x_cap > 0 && !x_plan.spreads_vocabulary(); }
  void maximum(SegmentWriter& w, const std::string& at, const LossRows& of) const;
  void exponentials(SegmentWriter& w, const std::string& at, const LossRows& of) const;
  /// Adds the rows' part to `loss`.
  void mean(SegmentWriter& w, const std::string& at, const LossRows& of, const Ref& loss) const;
  /// Of `exp`, `sum` and `labels`, with a cap of `maximum` too; temporaries go to `local`.
  void gradient(SegmentWriter& w, LayoutWriter& local, const std::string& at, const LossRows& of,
                const Ref& d_logits) const;

 private:
  Kernel kernel(KernelKind kind, DType type, std::int64_t rows) const;

  const Plan& x_plan;
  std::int64_t x_vocabulary;
  DType x_branch;
  std::optional<GroupSlot> x_split;
  double x_cap;
};

}  // namespace foretrain

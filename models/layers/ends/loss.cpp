#include "models/layers/ends/loss.h"

#include <vector>

#include "models/layers/layer_ops.h"

namespace foretrain {

Kernel LossWriter::kernel(KernelKind kind, DType type, std::int64_t rows) const {
  Kernel out = kernel_of(kind, rows, x_vocabulary, type);
  if (x_split) out.split_over = *x_split;
  if (kind != KernelKind::kFill && kind != KernelKind::kCast) out.value = x_cap;
  return out;
}

void LossWriter::maximum(SegmentWriter& w, const std::string& at, const LossRows& of) const {
  std::vector<View> writes = {of.maximum.view()};
  if (of.wide.valid()) writes.push_back(of.wide.part(0, 0));
  w.compute(at + "loss.maximum", kernel(KernelKind::kLossMax, x_branch, of.rows),
            {of.logits.view()}, std::move(writes));
}

void LossWriter::exponentials(SegmentWriter& w, const std::string& at, const LossRows& of) const {
  std::vector<View> reads = {of.logits.view(), of.maximum.view(), of.labels};
  if (of.wide.valid()) reads.push_back(of.wide.part(0, 0));
  w.compute(at + "loss.exponentials", kernel(KernelKind::kLossSumExp, x_branch, of.rows),
            std::move(reads), {of.exp.view(), of.sum.view(), of.target.view()});
}

void LossWriter::mean(SegmentWriter& w, const std::string& at, const LossRows& of,
                      const Ref& loss) const {
  w.compute(at + "loss.mean",
            kernel_of(KernelKind::kLossMean, of.rows, 1, x_plan.precision.compute),
            {of.target.view(), of.sum.view(), loss.view()}, {loss.view()});
}

void LossWriter::gradient(SegmentWriter& w, LayoutWriter& local, const std::string& at,
                          const LossRows& of, const Ref& d_logits) const {
  const DType narrow = x_branch;
  const bool torch = x_plan.loss.form == LossForm::kTorch;
  const DType wide = torch ? DType::kFp32 : narrow;
  const auto temporary = [&](const char* name) {
    return local.add(at + name, BufferKind::kActivations, wide, d_logits.count);
  };
  // cross_entropy: in fp32 that of log_softmax' result, then of the logits; then in 16 bits.
  const Ref d_wide = widens() ? temporary("d logits in fp32") : d_logits;
  std::vector<View> gradients = {d_wide.view()};
  if (torch) {
    const Ref targets = temporary("d targets");
    w.compute(at + "loss.targets", kernel(KernelKind::kFill, wide, of.rows), {}, {targets.view()});
    gradients.push_back(targets.part(0, 0));
  }
  std::vector<View> reads = {of.exp.view(), of.sum.view(), of.labels};
  if (of.maximum.valid()) reads.push_back(of.maximum.view());
  w.compute(at + "loss.gradient", kernel(KernelKind::kLossBackward, wide, of.rows),
            std::move(reads), std::move(gradients));
  if (!widens()) return;
  w.compute(at + "loss.narrow", kernel(KernelKind::kCast, narrow, of.rows), {d_wide.view()},
            {d_logits.view()});
}

}  // namespace foretrain

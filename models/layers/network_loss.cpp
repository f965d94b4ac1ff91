#include "models/layers/network_loss.h"

namespace foretrain {

NetworkLossWriter::NetworkLossWriter(std::string name, const Ref& labels, const Ref& loss,
                                     std::int64_t images, std::int64_t classes, DType type)
    : x_name(std::move(name)),
      x_labels(labels),
      x_loss(loss),
      x_images(images),
      x_classes(classes),
      x_type(type) {}

Scores NetworkLossWriter::declare(LayoutWriter& saved) const {
  return {saved.add(x_name + ".exponentials", BufferKind::kActivations, DType::kFp32,
                    x_images * x_classes, true),
          saved.add(x_name + ".sums", BufferKind::kActivations, DType::kFp32, x_images, true)};
}

void NetworkLossWriter::forward(SegmentWriter& w, const Ref& logits, const Scores& scores) const {
  const auto temporary = [&](const char* name) {
    return w.local().add(x_name + name, BufferKind::kActivations, DType::kFp32, x_images);
  };
  const Ref maximum = temporary(".maximum");
  const Ref target = temporary(".target");
  w.compute(x_name + ".maximum", kernel(KernelKind::kLossMax, x_classes), {logits.view()},
            {maximum.view()});
  w.compute(x_name + ".exponentials", kernel(KernelKind::kLossSumExp, x_classes),
            {logits.view(), maximum.view(), x_labels.view()},
            {scores.exponentials.view(), scores.sums.view(), target.view()});
  w.compute(x_name + ".mean", kernel(KernelKind::kLossMean, 1),
            {target.view(), scores.sums.view(), x_loss.view()}, {x_loss.view()});
}

void NetworkLossWriter::backward(SegmentWriter& w, const Scores& scores,
                                 const Ref& d_logits) const {
  w.compute(x_name + ".gradient", kernel(KernelKind::kLossBackward, x_classes),
            {scores.exponentials.view(), scores.sums.view(), x_labels.view()}, {d_logits.view()});
}

Kernel NetworkLossWriter::kernel(KernelKind kind, std::int64_t cols) const {
  return kernel_of(kind, x_images, cols, x_type);
}

EndSegments write_classes(ProgramBuilder& builder, const Model& model, const Plan& plan,
                          const EndLayouts& layouts) {
  const std::int64_t images = plan.micro_batch;
  const std::int64_t classes = model.vocabulary;
  const DType type = plan.precision.compute;
  const NetworkLossWriter loss("loss", Ref{kHeadInputs, kLabels, DType::kInt64, images},
                               Ref{kHeadScalars, kLoss, DType::kFp32, 1}, images, classes, type);
  LayoutWriter saved("classes saved", kHeadSaved);
  LayoutWriter in_forward("classes forward", kHeadLocal);
  LayoutWriter in_backward("classes backward", kHeadLocal);
  const Scores scores = loss.declare(saved);
  const auto logits = [&](std::int16_t frame) {
    return Ref{frame, kHiddenBuffer, type, images * classes};
  };
  SegmentWriter forward(builder, "classes forward", in_forward);
  forward.wait(EventRef{kHeadHidden, kReady});
  loss.forward(forward, logits(kHeadHidden), scores);
  SegmentWriter backward(builder, "classes backward", in_backward);
  backward.phase = Phase::kBackward;
  loss.backward(backward, scores, logits(kHeadHiddenGradient));
  backward.record(EventRef{kHeadHiddenGradient, kReady});
  auto out = closed_layouts<EndSegments>(builder, saved, in_forward, in_backward);
  const auto finish = [&](SegmentWriter& w, LayoutId local) {
    w.segment().frames = layouts.frames(out.saved, local, true);
    return builder.segment(std::move(w.segment()));
  };
  out.forward = finish(forward, out.local_forward);
  out.backward = finish(backward, out.local_backward);
  return out;
}

}  // namespace foretrain

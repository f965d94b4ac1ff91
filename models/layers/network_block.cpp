#include "models/layers/network_block.h"

#include <algorithm>

#include "models/layers/network_loss.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

class BlockWriter {
 public:
  BlockWriter(ProgramBuilder& builder, const NetworkBlock& block, const Plan& plan,
              const LayerLayouts& layouts)
      : x_builder(builder),
        x_block(block),
        x_plan(plan),
        x_layouts(layouts),
        x_images(plan.micro_batch),
        x_type(plan.precision.compute),
        x_saved("block saved", kSaved),
        x_forward("block forward", kLocal),
        x_backward("block backward", kLocal) {
    x_readers.assign(x_block.nodes.size() + 1, {});
    for (std::size_t n = 0; n < x_block.nodes.size(); ++n) {
      for (const std::int32_t input : x_block.nodes[n].inputs) readers(input).push_back(n);
    }
  }

  LayerSegments run(LayoutId inputs, LayoutId scalars) {
    declare();
    SegmentWriter forward(x_builder, "block forward", x_forward);
    forward.wait(EventRef{kInput, kReady});
    for (std::size_t n = 0; n < x_block.nodes.size(); ++n) write_forward(forward, n);
    forward.record(EventRef{kOutput, kReady});
    SegmentWriter backward(x_builder, "block backward", x_backward);
    backward.phase = Phase::kBackward;
    backward.wait(EventRef{kOutputGradient, kReady});
    write_backward(backward);
    backward.record(EventRef{kInputGradient, kReady});
    auto out = closed_layouts<LayerSegments>(x_builder, x_saved, x_forward, x_backward);
    const auto finish = [&](SegmentWriter& w, LayoutId local) {
      std::vector<LayoutId>& frames = w.segment().frames;
      frames = x_layouts.frames(out.saved, local);
      if (x_block.has_loss()) frames.insert(frames.end(), {inputs, scalars});
      return x_builder.segment(std::move(w.segment()));
    };
    out.forward = finish(forward, out.local_forward);
    out.backward = finish(backward, out.local_backward);
    return out;
  }

 private:
  /// The gradient of an activation while the backward pass comes down to it.
  struct Gradient {
    Ref sum;
    std::size_t to_come = 0;  ///< readers that have not added theirs
  };

  const Node& node(std::size_t n) const { return x_block.nodes[n]; }
  std::vector<std::size_t>& readers(std::int32_t input) {
    return x_readers[static_cast<std::size_t>(std::int64_t{input} + 1)];
  }
  const std::vector<std::size_t>& readers_of(std::size_t n) const { return x_readers[n + 1]; }
  std::int64_t elements(const ImageShape& shape) const { return x_images * shape.elements(); }
  Kernel kernel(KernelKind kind, const ImageShape& shape) const {
    return kernel_of(kind, x_images * shape.pixels(), shape.channels, x_type);
  }
  Ref activation(std::int32_t index) const {
    if (index < 0) return Ref{kInput, kHiddenBuffer, x_type, elements(x_block.in)};
    return x_outputs[static_cast<std::size_t>(index)];
  }
  Ref input(std::size_t n) const { return activation(node(n).inputs.front()); }
  Ref weight(std::size_t n, const char* what) const {
    return parameter_ref(x_layouts.parameters, node(n).name + what, kWeights, kShared);
  }
  Ref gradient(std::size_t n, const char* what) const {
    return parameter_ref(x_layouts.parameter_gradients, node(n).name + what, kGradients,
                         kSharedGradients);
  }
  bool eager() const { return x_plan.fusion == Fusion::kEager; }
  double rate(const Node& n) const { return x_plan.dropout >= 0 ? x_plan.dropout : n.rate; }

  /// The relu that goes with node `n`, its only reader; -1 without one.
  std::int32_t fused_relu(std::size_t n) const {
    const NodeKind kind = node(n).kind;
    const bool takes = kind == NodeKind::kNorm || kind == NodeKind::kConvolution ||
                       kind == NodeKind::kLinear || kind == NodeKind::kAdd;
    if (eager() || !takes || readers_of(n).size() != 1) return -1;
    const std::size_t reader = readers_of(n).front();
    return node(reader).kind == NodeKind::kRelu ? static_cast<std::int32_t>(reader) : -1;
  }
  /// Whether relu `n` goes with the node before it.
  bool goes_with(std::size_t n) const {
    const std::int32_t before = node(n).inputs.front();
    return before >= 0 && fused_relu(static_cast<std::size_t>(before)) == static_cast<int>(n);
  }

  /// Whether a backward pass reads the output of node `n`.
  bool kept(std::size_t n) const {
    if (node(n).kind == NodeKind::kRelu) return true;
    return std::any_of(readers_of(n).begin(), readers_of(n).end(), [this](std::size_t reader) {
      switch (node(reader).kind) {
        case NodeKind::kConvolution:
        case NodeKind::kLinear:
        case NodeKind::kNorm:
        case NodeKind::kMaxPool:
        case NodeKind::kOpaque:
          return true;
        case NodeKind::kDropout:
          return rate(node(reader)) == 0;  // what reads it reads this
        default:
          return false;
      }
    });
  }

  void declare() {
    const std::size_t count = x_block.nodes.size();
    x_outputs.resize(count);
    x_extra.resize(count);
    x_scores.resize(count);
    for (std::size_t i = count; i-- > 0;) {
      const Node& n = node(i);
      const std::int32_t relu = fused_relu(i);
      if (n.kind == NodeKind::kLoss || (n.kind == NodeKind::kDropout && rate(n) == 0)) continue;
      if (relu >= 0) {
        x_outputs[i] = x_outputs[static_cast<std::size_t>(relu)];
      } else if (static_cast<std::int32_t>(i) == x_block.output) {
        x_outputs[i] = Ref{kOutput, kHiddenBuffer, x_type, elements(n.out)};
      } else {
        LayoutWriter& place = kept(i) ? x_saved : x_forward;
        x_outputs[i] =
            place.add(n.name, BufferKind::kActivations, x_type, elements(n.out), kept(i));
      }
    }
    for (std::size_t i = 0; i < count; ++i) declare_extra(i);
  }

  /// What a node keeps beside activations.
  void declare_extra(std::size_t i) {
    const Node& n = node(i);
    const auto keep = [&](const char* name, DType type, std::int64_t size) {
      x_extra[i] = x_saved.add(n.name + name, BufferKind::kActivations, type, size, true);
    };
    if (n.kind == NodeKind::kNorm) keep(".statistics", DType::kFp32, 2 * n.out.channels);
    if (n.kind == NodeKind::kOpaque) keep(".kept", DType::kUint8, x_images * n.kept_bytes);
    if (n.kind == NodeKind::kLoss) x_scores[i] = loss(i).declare(x_saved);
    if (n.kind != NodeKind::kDropout) return;
    if (rate(n) == 0) {
      x_outputs[i] = input(i);
    } else {
      keep(".mask", DType::kUint8, elements(n.out));
    }
  }

  NetworkLossWriter loss(std::size_t i) const {
    return {node(i).name,
            Ref{kBlockInputs, kLabels, DType::kInt64, x_images},
            Ref{kBlockScalars, kLoss, DType::kFp32, 1},
            x_images,
            node(i).in.channels,
            x_type};
  }

  Convolution convolution(const Node& n, ConvolutionPass pass) const {
    Convolution out{pass,           x_images,     n.in.channels, n.in.height,     n.in.width,
                    n.out.channels, n.out.height, n.out.width,   n.kernel_height, n.kernel_width,
                    n.stride,       n.pad_height, n.pad_width};
    out.in = x_plan.precision.matrix;
    out.out = x_type;
    return out;
  }

  /// `image` as the convolution `name` reads it. Tensor cores multiply 16-bit images whose channels
  /// lie together; where they lie apart cuDNN copies what each call reads, and its kernels write
  /// their result as it shall lie (nchwToNhwcKernel and ..._nhwc2nchw_... in profiles, tensorflow
  /// issue 15897). Left out: the filters, which are copied too, small beside images.
  Ref turned(SegmentWriter& w, const Node& n, const std::string& name, const Ref& image,
             const ImageShape& shape) const {
    const bool halves = bits_of(x_plan.precision.matrix) == 16;
    if (!x_plan.channels_first || !halves || n.kind != NodeKind::kConvolution) return image;
    const Ref out = w.local().add(name, BufferKind::kWorkspace, x_type, image.count);
    w.compute(name, kernel(KernelKind::kTranspose, shape), {image.view()}, {out.view()});
    return out;
  }

  // --- Forward
  void write_forward(SegmentWriter& w, std::size_t i) {
    const Node& n = node(i);
    const View y = x_outputs[i].view();
    switch (n.kind) {
      case NodeKind::kConvolution:
        return product(w, i, convolution(n, ConvolutionPass::kForward));
      case NodeKind::kLinear:
        return product(w, i, forward_gemm(x_plan, x_images, n.out.channels, n.in.elements()));
      case NodeKind::kNorm:
        w.compute(n.name, kernel(KernelKind::kBatchNorm, n.out),
                  {input(i).view(), weight(i, ".weight").view(), weight(i, ".bias").view()},
                  {y, x_extra[i].view()});
        return;
      case NodeKind::kRelu:
        if (goes_with(i)) return;
        w.compute(n.name, kernel(KernelKind::kRelu, n.out), {input(i).view()}, {y});
        return;
      case NodeKind::kMaxPool:
      case NodeKind::kAveragePool:
        w.compute(
            n.name,
            kernel(n.kind == NodeKind::kMaxPool ? KernelKind::kMaxPool : KernelKind::kAveragePool,
                   n.out),
            {input(i).view()}, {y});
        return;
      case NodeKind::kDropout:
        if (rate(n) > 0) {
          w.compute(n.name, dropout(n, KernelKind::kDropout), {input(i).view()},
                    {y, x_extra[i].view()});
        }
        return;
      case NodeKind::kAdd:
      case NodeKind::kConcatenate:
        return join(w, i);
      case NodeKind::kLoss:
        return loss(i).forward(w, input(i), x_scores[i]);
      case NodeKind::kOpaque:
        return opaque(w, n.name, n.flops, {input(i), weight(i, ".weight")},
                      {x_outputs[i], x_extra[i]});
    }
  }

  Kernel dropout(const Node& n, KernelKind kind) const {
    Kernel out = kernel(kind, n.out);
    out.value = rate(n);
    return out;
  }

  /// A convolution or a linear with its bias.
  template <typename Product>
  void product(SegmentWriter& w, std::size_t i, const Product& work) {
    const Node& n = node(i);
    const Ref bias = weight(i, ".bias");
    const Ref x = turned(w, n, n.name + ".transpose", input(i), n.in);
    std::vector<View> reads = {x.view(), weight(i, ".weight").view()};
    // Linears take their bias along in eager code too (addmm).
    const bool along = n.kind == NodeKind::kLinear || !eager();
    if (bias.valid() && along) reads.push_back(bias.view());
    const View y = x_outputs[i].view();
    w.compute(n.name, work, std::move(reads), {y});
    if (!bias.valid() || along) return;
    w.compute(n.name + ".bias", kernel(KernelKind::kBiasAdd, n.out), {y, bias.view()}, {y});
  }

  void join(SegmentWriter& w, std::size_t i) {
    const Node& n = node(i);
    if (n.kind == NodeKind::kConcatenate) {
      std::vector<View> reads;
      for (const std::int32_t in : n.inputs) reads.push_back(activation(in).view());
      w.compute(n.name, kernel(KernelKind::kConcatenate, n.out), std::move(reads),
                {x_outputs[i].view()});
      return;
    }
    Ref sum = activation(n.inputs.front());
    for (std::size_t k = 1; k < n.inputs.size(); ++k) {
      w.compute(n.name, kernel(KernelKind::kAdd, n.out),
                {sum.view(), activation(n.inputs[k]).view()}, {x_outputs[i].view()});
      sum = x_outputs[i];
    }
  }

  void opaque(SegmentWriter& w, const std::string& name, std::int64_t flops,
              const std::vector<Ref>& reads, const std::vector<Ref>& writes) {
    Opaque work{name, 0, flops * x_images, x_plan.precision.matrix, Memory::kDevice};
    const auto views = [&work](const std::vector<Ref>& refs) {
      std::vector<View> out;
      for (const Ref& ref : refs) {
        if (!ref.valid() || ref.count == 0) continue;
        out.push_back(ref.view());
        work.bytes += out.back().bytes;
      }
      return out;
    };
    std::vector<View> in = views(reads);
    std::vector<View> out = views(writes);
    w.compute(name, work, std::move(in), std::move(out));
  }

  // --- Backward
  Gradient& gradient_of(std::int32_t index) {
    return x_gradients[static_cast<std::size_t>(std::int64_t{index} + 1)];
  }
  bool wanted(std::int32_t index) const { return index >= 0 || !x_block.first; }

  Ref temporary(const std::string& name, std::int64_t count) {
    return x_backward.add(name, BufferKind::kActivations, x_type, count);
  }

  /// Where a node writes its part of the gradient of activation `index`.
  Ref place(std::int32_t index, const std::string& name) {
    const Gradient& g = gradient_of(index);
    const bool alone = !g.sum.valid() && g.to_come == 1;
    if (alone && index < 0) return whole_input_gradient();
    return temporary(name + ".d_input", activation_elements(index));
  }
  std::int64_t activation_elements(std::int32_t index) const {
    return elements(index < 0 ? x_block.in : node(static_cast<std::size_t>(index)).out);
  }
  Ref whole_input_gradient() const {
    return {kInputGradient, kHiddenBuffer, x_type, elements(x_block.in)};
  }

  /// Node `i` has its part of the gradient of activation `index` in `part`.
  void contribute(SegmentWriter& w, std::int32_t index, const Ref& part, const std::string& name) {
    Gradient& g = gradient_of(index);
    const bool last = --g.to_come == 0;
    const ImageShape& shape = index < 0 ? x_block.in : node(static_cast<std::size_t>(index)).out;
    const Ref end = last && index < 0 ? whole_input_gradient() : Ref();
    if (!g.sum.valid()) {
      g.sum = part;
      if (!end.valid() || part.frame == kInputGradient) return;
      w.compute(name + ".d_input.copy", kernel(KernelKind::kCast, shape), {part.view()},
                {end.view()});
      g.sum = end;
      return;
    }
    const Ref sum = end.valid() ? end : temporary(name + ".d_sum", part.count);
    w.compute(name + ".d_sum", kernel(KernelKind::kAdd, shape), {g.sum.view(), part.view()},
              {sum.view()});
    g.sum = sum;
  }

  void write_backward(SegmentWriter& w) {
    x_gradients.assign(x_block.nodes.size() + 1, {});
    for (std::size_t n = 0; n <= x_block.nodes.size(); ++n) {
      x_gradients[n].to_come = x_readers[n].size();
    }
    gradient_of(x_block.output).sum =
        Ref{kOutputGradient, kHiddenBuffer, x_type, elements(x_block.out)};
    for (std::size_t i = x_block.nodes.size(); i-- > 0;) write_backward(w, i);
  }

  void write_backward(SegmentWriter& w, std::size_t i) {
    const Node& n = node(i);
    const std::int32_t in = n.inputs.front();
    const Ref d = gradient_of(static_cast<std::int32_t>(i)).sum;
    switch (n.kind) {
      case NodeKind::kConvolution:
      case NodeKind::kLinear:
        return product_backward(w, i, d);
      case NodeKind::kNorm:
        return norm_backward(w, i, d);
      case NodeKind::kAdd:
        for (const std::int32_t each : n.inputs) {
          if (wanted(each)) contribute(w, each, d, n.name);
        }
        return;
      case NodeKind::kConcatenate:
        return split(w, i, d);
      case NodeKind::kOpaque:
        return opaque_backward(w, i, d);
      default:
        break;
    }
    if (!wanted(in)) return;
    const bool alias = (n.kind == NodeKind::kDropout && rate(n) == 0) ||
                       (n.kind == NodeKind::kRelu && goes_with_norm(i));
    if (alias) return contribute(w, in, d, n.name);
    const Ref d_in = place(in, n.name);
    if (n.kind == NodeKind::kLoss) {
      loss(i).backward(w, x_scores[i], d_in);
    } else {
      pointwise_backward(w, i, d, d_in);
    }
    contribute(w, in, d_in, n.name);
  }

  bool goes_with_norm(std::size_t i) const {
    return goes_with(i) &&
           node(static_cast<std::size_t>(node(i).inputs.front())).kind == NodeKind::kNorm;
  }

  void pointwise_backward(SegmentWriter& w, std::size_t i, const Ref& d, const Ref& d_in) {
    const Node& n = node(i);
    const std::string name = n.name + ".gradient";
    switch (n.kind) {
      case NodeKind::kRelu:
        w.compute(name, kernel(KernelKind::kReluBackward, n.out), {d.view(), x_outputs[i].view()},
                  {d_in.view()});
        return;
      case NodeKind::kMaxPool:
        w.compute(name, kernel(KernelKind::kMaxPoolBackward, n.in), {d.view(), input(i).view()},
                  {d_in.view()});
        return;
      case NodeKind::kAveragePool:
        w.compute(name, kernel(KernelKind::kAveragePoolBackward, n.in), {d.view()}, {d_in.view()});
        return;
      case NodeKind::kDropout:
        w.compute(name, dropout(n, KernelKind::kResidualAddBackward), {d.view(), x_extra[i].view()},
                  {d_in.view()});
        return;
      default:
        FT_CHECK(false, "a node without a backward pass");
    }
  }

  void product_backward(SegmentWriter& w, std::size_t i, const Ref& d) {
    const Node& n = node(i);
    const std::int32_t in = n.inputs.front();
    const bool linear = n.kind == NodeKind::kLinear;
    const Ref d_weight = gradient(i, ".weight");
    if (const Ref bias = gradient(i, ".bias"); bias.valid()) {
      w.compute(n.name + ".bias_gradient", kernel(KernelKind::kBiasGrad, n.out),
                {d.view(), bias.view()}, {bias.view()});
    }
    if (wanted(in)) {
      const Ref d_in = place(in, n.name);
      Work work = convolution(n, ConvolutionPass::kInputGradient);
      if (linear) work = input_gradient_gemm(x_plan, x_images, n.out.channels, n.in.elements());
      const Ref d_out = turned(w, n, n.name + ".input_gradient.transpose", d, n.out);
      w.compute(n.name + ".input_gradient", std::move(work),
                {d_out.view(), weight(i, ".weight").view()}, {d_in.view()});
      contribute(w, in, d_in, n.name);
    }
    if (linear) {
      write_weight_gradient(w, x_plan, n.name,
                            weight_gradient_gemm(x_plan, x_images, n.out.channels, n.in.elements()),
                            d, input(i), d_weight);
      return;
    }
    const std::string name = n.name + ".weight_gradient";
    const Ref d_out = turned(w, n, name + ".transpose", d, n.out);
    const Ref x = turned(w, n, name + ".input.transpose", input(i), n.in);
    write_weight_gradient(w, x_plan, n.name, convolution(n, ConvolutionPass::kWeightGradient),
                          d_out, x, d_weight);
  }

  void norm_backward(SegmentWriter& w, std::size_t i, const Ref& d) {
    const Node& n = node(i);
    const std::int32_t in = n.inputs.front();
    std::vector<View> reads = {d.view(), input(i).view(), x_extra[i].view(),
                               weight(i, ".weight").view()};
    // The mask of a relu that goes with it: what it left.
    if (fused_relu(i) >= 0) reads.push_back(x_outputs[i].view());
    std::vector<View> writes;
    const Ref d_in = wanted(in) ? place(in, n.name) : Ref();
    if (d_in.valid()) writes.push_back(d_in.view());
    add_gradients(x_plan, {gradient(i, ".weight"), gradient(i, ".bias")}, reads, writes);
    w.compute(n.name + ".gradient", kernel(KernelKind::kBatchNormBackward, n.out), std::move(reads),
              std::move(writes));
    if (d_in.valid()) contribute(w, in, d_in, n.name);
  }

  void split(SegmentWriter& w, std::size_t i, const Ref& d) {
    const Node& n = node(i);
    std::vector<Ref> parts;
    std::vector<View> writes;
    for (const std::int32_t in : n.inputs) {
      parts.push_back(wanted(in) ? place(in, n.name) : Ref());
      if (parts.back().valid()) writes.push_back(parts.back().view());
    }
    if (writes.empty()) return;
    w.compute(n.name + ".gradient", kernel(KernelKind::kSplitChannels, n.out), {d.view()},
              std::move(writes));
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (parts[k].valid()) contribute(w, n.inputs[k], parts[k], n.name);
    }
  }

  void opaque_backward(SegmentWriter& w, std::size_t i, const Ref& d) {
    const Node& n = node(i);
    const std::int32_t in = n.inputs.front();
    const Ref d_in = wanted(in) ? place(in, n.name) : Ref();
    const Ref d_weight = gradient(i, ".weight");
    opaque(
        w, n.name + ".gradient", 2 * n.flops,
        {d, input(i), x_extra[i], weight(i, ".weight"), x_plan.writes_fresh() ? Ref() : d_weight},
        {d_in, d_weight});
    if (d_in.valid()) contribute(w, in, d_in, n.name);
  }

  ProgramBuilder& x_builder;
  const NetworkBlock& x_block;
  const Plan& x_plan;
  const LayerLayouts& x_layouts;
  std::int64_t x_images;
  DType x_type;
  LayoutWriter x_saved, x_forward, x_backward;
  std::vector<std::vector<std::size_t>> x_readers;  ///< nodes, by activation + 1
  std::vector<Ref> x_outputs, x_extra;              ///< by node
  std::vector<Scores> x_scores;
  std::vector<Gradient> x_gradients;  ///< by activation + 1
};

}  // namespace

LayerSegments write_block(ProgramBuilder& builder, const NetworkBlock& block, const Plan& plan,
                          const LayerLayouts& layouts, LayoutId inputs, LayoutId scalars) {
  return BlockWriter(builder, block, plan, layouts).run(inputs, scalars);
}

}  // namespace foretrain

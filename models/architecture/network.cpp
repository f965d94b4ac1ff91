#include "models/architecture/network.h"

#include <algorithm>

namespace foretrain {

double Node::multiply_adds() const {
  if (kind == NodeKind::kLinear) {
    return static_cast<double>(in.elements()) * static_cast<double>(out.channels);
  }
  if (kind != NodeKind::kConvolution) return 0;
  return static_cast<double>(out.elements()) * static_cast<double>(in.channels) *
         static_cast<double>(kernel_height * kernel_width);
}

std::int64_t Node::parameter_count() const {
  switch (kind) {
    case NodeKind::kConvolution:
      return out.channels * (in.channels * kernel_height * kernel_width + (bias ? 1 : 0));
    case NodeKind::kLinear:
      return out.channels * (in.elements() + (bias ? 1 : 0));
    case NodeKind::kNorm:
      return 2 * out.channels;
    case NodeKind::kOpaque:
      return parameters;
    default:
      return 0;
  }
}

bool NetworkBlock::has_loss() const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const Node& node) { return node.kind == NodeKind::kLoss; });
}

std::int64_t parameter_count(const Network& network) {
  std::int64_t sum = 0;
  for (const NetworkBlock& block : network.blocks) {
    for (const Node& node : block.nodes) sum += node.parameter_count();
  }
  return sum;
}

double forward_flops(const Network& network) {
  double sum = 0;
  for (const NetworkBlock& block : network.blocks) {
    for (const Node& node : block.nodes) {
      sum += 2 * node.multiply_adds() + static_cast<double>(node.flops);
    }
  }
  return sum;
}

}  // namespace foretrain

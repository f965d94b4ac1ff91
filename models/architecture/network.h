// A network given as a list of layers, in place of a transformer's sizes: convolutions and what
// stands between them (ResNet, VGG, Inception), or layers of which only numbers are known.
//
// A block is what one item of the list becomes: nodes in the order in which they run, each reading
// the outputs of earlier ones or the block's input. Gradients are ready block by block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace foretrain {

/// Of one image: channels x height x width.
struct ImageShape {
  std::int64_t channels = 0, height = 1, width = 1;
  std::int64_t pixels() const { return height * width; }
  std::int64_t elements() const { return channels * height * width; }
  bool operator==(const ImageShape&) const = default;
};

enum class NodeKind : std::uint8_t {
  kConvolution,
  kLinear,  ///< over all elements of its input
  kNorm,    ///< batch normalisation, with weight and bias
  kRelu,
  kMaxPool,
  kAveragePool,
  kDropout,
  kAdd,
  kConcatenate,
  kLoss,    ///< of an auxiliary head: softmax and cross-entropy
  kOpaque,  ///< parameters, FLOPs and bytes are given as numbers
};

struct Node {
  NodeKind kind = NodeKind::kConvolution;
  std::string name;
  std::vector<std::int32_t> inputs;  ///< nodes of the block; -1: the block's input
  ImageShape in, out;                ///< in: of the first input
  std::int64_t kernel_height = 1, kernel_width = 1, stride = 1, pad_height = 0, pad_width = 0;
  bool bias = false;
  double rate = 0;                         ///< of a dropout
  std::int64_t parameters = 0;             ///< of an opaque node, and:
  std::int64_t flops = 0, kept_bytes = 0;  ///< of the forward pass of an image; kept for backward
  /// Multiply-adds of an image's forward pass in convolutions and linears.
  double multiply_adds() const;
  std::int64_t parameter_count() const;
  bool operator==(const Node&) const = default;
};

struct NetworkBlock {
  std::vector<Node> nodes;
  std::int32_t output = 0;  ///< the node whose output is the block's
  ImageShape in, out;
  bool first = false;  ///< its input are the images, which need no gradient
  bool has_loss() const;
  bool operator==(const NetworkBlock&) const = default;
};

struct Network {
  ImageShape image;
  std::vector<NetworkBlock> blocks;
  bool empty() const { return blocks.empty(); }
  bool operator==(const Network&) const = default;
};

std::int64_t parameter_count(const Network& network);
/// 2 FLOPs for each multiply-add of convolutions and linears, and what opaque layers say: the
/// forward pass of one image.
double forward_flops(const Network& network);

}  // namespace foretrain

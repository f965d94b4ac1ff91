#include <vector>

#include "hardware/gemm_formula.h"
#include "hardware/local_cost.h"

namespace foretrain {
namespace {

struct Traffic {
  double x = 0, y = 0, weights = 0;  ///< elements
};

Traffic traffic_of(const Convolution& w) {
  const auto product = [](std::initializer_list<std::int64_t> sizes) {
    double out = 1;
    for (const std::int64_t size : sizes) out *= static_cast<double>(size);
    return out;
  };
  return {product({w.batch, w.in_channels, w.in_height, w.in_width}),
          product({w.batch, w.out_channels, w.out_height, w.out_width}),
          product({w.in_channels, w.out_channels, w.kernel_height, w.kernel_width})};
}

double bytes_moved(const Convolution& work) {
  const Traffic t = traffic_of(work);
  const double in = bits_of(work.in) / 8.0;
  const double out = bits_of(work.out) / 8.0;
  switch (work.pass) {
    case ConvolutionPass::kForward:
      return in * (t.x + t.weights) + out * t.y;
    case ConvolutionPass::kInputGradient:
      return in * (t.y + t.weights) + out * t.x;
    case ConvolutionPass::kWeightGradient:
      return in * (t.x + t.y) + out * t.weights * (work.accumulate ? 2 : 1);
  }
  return 0;
}

/// Kernels for it: 3 x 3, stride 1, in fp32 off the tensor cores.
bool takes_winograd(const Convolution& w) {
  return w.in == DType::kFp32 && w.kernel_height == 3 && w.kernel_width == 3 && w.stride == 1;
}

/// F(2 x 2, 3 x 3) of Lavin and Gray (arXiv 1509.09308): each 2 x 2 of the result, or of d y where
/// the weights' gradient is wanted, from one element of each of 16 products, in place of 36
/// multiplications.
Gemm winograd_products(const Convolution& w) {
  const bool input = w.pass == ConvolutionPass::kInputGradient;
  const std::int64_t height = input ? w.in_height : w.out_height;
  const std::int64_t width = input ? w.in_width : w.out_width;
  const std::int64_t tiles = w.batch * ((height + 1) / 2) * ((width + 1) / 2);
  Gemm out = implicit_gemm(w);
  out.batch = 16;
  switch (w.pass) {
    case ConvolutionPass::kForward:
      out.m = tiles;
      out.k = w.in_channels;
      break;
    case ConvolutionPass::kInputGradient:
      out.m = tiles;
      out.k = w.out_channels;
      break;
    case ConvolutionPass::kWeightGradient:
      out.n = w.in_channels;
      out.k = tiles;
      break;
  }
  return out;
}

/// Forward and input gradient transform on their way through the kernel. For the weights' gradient
/// cuDNN has kernels apart (WINOGRAD_NONFUSED): of a tile's 4 elements they write 16 and read them.
double winograd_bytes(const Convolution& w) {
  double out = bytes_moved(w);
  if (w.pass != ConvolutionPass::kWeightGradient) return out;
  const Traffic t = traffic_of(w);
  return out + bits_of(w.in) / 8.0 * 2 * 4 * (t.x + t.y);
}

}  // namespace

Result<Cost> convolution_cost(const DeviceSpec& device, const Convolution& work,
                              std::ostream* steps) {
  GemmConstants c = kernel_constants(device.architecture).gemm;
  const std::vector<GemmTile>& narrow = shared_constants().narrow_tiles;
  c.tiles.insert(c.tiles.end(), narrow.begin(), narrow.end());
  while (c.splits.back() < device.sm_count) c.splits.push_back(c.splits.back() * 2);
  const Gemm product = implicit_gemm(work);
  if (c.winograd > 0 && takes_winograd(work)) {
    GemmConstants slower = c;
    for (GemmTile& tile : slower.tiles) tile.relative *= c.winograd;
    const Gemm products = winograd_products(work);
    FT_ASSIGN(const Cost implicit, product_cost(device, c, product, bytes_moved(work), nullptr));
    FT_ASSIGN(const Cost winograd,
              product_cost(device, slower, products, winograd_bytes(work), nullptr));
    if (winograd.duration < implicit.duration) {
      if (steps != nullptr) *steps << "Winograd's F(2 x 2, 3 x 3), 16 products\n";
      return product_cost(device, slower, products, winograd_bytes(work), steps);
    }
  }
  return product_cost(device, c, product, bytes_moved(work), steps);
}

}  // namespace foretrain

#include <array>

#include "hardware/gemm_formula.h"
#include "hardware/local_cost.h"

namespace foretrain {
namespace {

/// Kernels for few channels that GEMM libraries do not choose. Their sizes stand in the names of
/// cuDNN's kernels (..._256x64_..., tilesize128x64x32); rates of the best tile's from memory.
constexpr std::array kNarrowTiles = {GemmTile{256, 64, 0.9}, GemmTile{64, 256, 0.9},
                                     GemmTile{128, 64, 0.85}, GemmTile{64, 128, 0.85},
                                     GemmTile{64, 64, 0.7}};

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

}  // namespace

Result<Cost> convolution_cost(const DeviceSpec& device, const Convolution& work,
                              std::ostream* steps) {
  GemmConstants c = kernel_constants(device.architecture).gemm;
  c.tiles.insert(c.tiles.end(), kNarrowTiles.begin(), kNarrowTiles.end());
  while (c.splits.back() < device.sm_count) c.splits.push_back(c.splits.back() * 2);
  return product_cost(device, c, implicit_gemm(work), bytes_moved(work), steps);
}

}  // namespace foretrain

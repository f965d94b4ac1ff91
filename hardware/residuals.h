// How far measured times are from modelled ones, between the shapes that were measured.
//
// r = ln(measured / modelled) is a random function of the shape whose mean is 0 and whose
// covariance falls with the distance d of two shapes (kriging; Matheron 1963):
//     C = s^2 (a exp(-d / L) + (1 - a) exp(-d / l)) exp(-(f - f')^2 / F^2)
// The first part is what a device does to all shapes alike, the second what it does to neighbours;
// f is the share of a shape's modelled time that is latency: what is bound by launches tells
// nothing of rates, nor the other way round.
// With samples r_i of noise e_i at x_i the estimate at x is
//     r(x) = sum w_i r_i,   w = (C + diag(e^2))^-1 c,   c_i = C(|x - x_i|)
// and 1 - c w / C(0) of its variance is left. Where the samples explain less than half of the
// variance r is that share of it over a half smaller. So r is the sample at a sample and falls to 0
// far from all of them: the price is then the modelled one.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace foretrain {

/// A shape: logarithms of its extents, unused ones 0, a number for the kind of operation, and the
/// share of its modelled time that is latency.
struct ShapePoint {
  std::array<double, 6> x{};
  std::int64_t kind = 0;
  double latency = 0;
};

class Residuals {
 public:
  /// Kinds are `apart` from each other.
  explicit Residuals(double apart = 1.5) : x_apart(apart) {}
  /// `log_ratio`: ln(measured / modelled); `noise`: its standard deviation.
  void add(const ShapePoint& at, double log_ratio, double noise);
  bool empty() const { return x_samples.empty(); }

  struct Neighbour {
    std::size_t sample = 0;  ///< in the order of `add`
    double distance = 0, weight = 0;
  };
  struct Estimate {
    double log_ratio = 0;
    double explained = 0;               ///< share of the variance, from 0 to 1
    std::vector<Neighbour> neighbours;  ///< by weight, the largest first
  };
  /// From the nearest samples, at most kMost of them.
  Estimate at(const ShapePoint& shape) const;

  static constexpr std::size_t kMost = 48;

 private:
  struct Sample {
    ShapePoint at;
    double log_ratio = 0, noise = 0;
  };
  /// The root of the sum of squares of all differences of extents.
  double distance(const ShapePoint& a, const ShapePoint& b) const;

  double x_apart;
  std::vector<Sample> x_samples;
};

}  // namespace foretrain

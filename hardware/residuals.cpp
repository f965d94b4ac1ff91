#include "hardware/residuals.h"

#include <algorithm>
#include <cmath>

namespace foretrain {
namespace {

// Chosen by how well shapes left out of grids are predicted; see
// docs/explanation/profiles-and-residuals.md.
constexpr double kDeviation = 0.3;  // s: of analytic prices on a device that nobody measured
constexpr double kShared = 0.85;    // a
constexpr double kFar = 10;         // L, in logarithms of extents
constexpr double kNear = 1.5;       // l

constexpr double kLatency = 0.3;    // F
constexpr double kExplained = 0.5;  // of the variance: what less explains counts for less

/// Of distance `d` and latency shares that are `f` apart.
double covariance(double d, double f) {
  return kDeviation * kDeviation *
         (kShared * std::exp(-d / kFar) + (1 - kShared) * std::exp(-d / kNear)) *
         std::exp(-f * f / (kLatency * kLatency));
}

/// Solves A x = b for a symmetric positive definite A of n rows, by Cholesky; A is overwritten.
void solve(std::vector<double>& a, std::size_t n, std::vector<double>& b) {
  for (std::size_t j = 0; j < n; ++j) {
    double* const row = &a[j * n];
    for (std::size_t i = 0; i <= j; ++i) {
      const double* const other = &a[i * n];
      double sum = row[i];
      for (std::size_t k = 0; k < i; ++k) sum -= row[k] * other[k];
      row[i] = i == j ? std::sqrt(std::max(sum, 1e-12)) : sum / other[i];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
}

}  // namespace

double Residuals::distance(const ShapePoint& a, const ShapePoint& b) const {
  double sum = a.kind == b.kind ? 0 : x_apart * x_apart;
  for (std::size_t i = 0; i < a.x.size(); ++i) sum += (a.x[i] - b.x[i]) * (a.x[i] - b.x[i]);
  return std::sqrt(sum);
}

void Residuals::add(const ShapePoint& at, double log_ratio, double noise) {
  x_samples.push_back({at, log_ratio, noise});
}

Residuals::Estimate Residuals::at(const ShapePoint& shape) const {
  Estimate out;
  const auto covariance_of = [this](const ShapePoint& a, const ShapePoint& b) {
    return covariance(distance(a, b), std::abs(a.latency - b.latency));
  };
  for (std::size_t i = 0; i < x_samples.size(); ++i) {
    const ShapePoint& at = x_samples[i].at;
    out.neighbours.push_back({i, distance(shape, at), covariance_of(shape, at)});
  }
  const std::size_t n = std::min(kMost, out.neighbours.size());
  const auto nearer = [](const Neighbour& a, const Neighbour& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.sample < b.sample;
  };
  std::partial_sort(out.neighbours.begin(), out.neighbours.begin() + static_cast<std::ptrdiff_t>(n),
                    out.neighbours.end(), nearer);
  out.neighbours.resize(n);
  std::vector<double> matrix(n * n);
  std::vector<double> weights(n);
  std::vector<double> asked(n);
  for (std::size_t i = 0; i < n; ++i) {
    const Sample& own = x_samples[out.neighbours[i].sample];
    for (std::size_t j = 0; j <= i; ++j) {
      matrix[i * n + j] = covariance_of(own.at, x_samples[out.neighbours[j].sample].at);
    }
    matrix[i * n + i] += own.noise * own.noise;
    weights[i] = asked[i] = out.neighbours[i].weight;
  }
  solve(matrix, n, weights);
  for (std::size_t i = 0; i < n; ++i) {
    Neighbour& one = out.neighbours[i];
    one.weight = weights[i];
    out.log_ratio += weights[i] * x_samples[one.sample].log_ratio;
    out.explained += weights[i] * asked[i] / covariance(0, 0);
  }
  out.explained = std::clamp(out.explained, 0.0, 1.0);
  out.log_ratio *= std::min(1.0, out.explained / kExplained);
  std::stable_sort(out.neighbours.begin(), out.neighbours.end(),
                   [](const Neighbour& a, const Neighbour& b) {
                     return std::abs(a.weight) > std::abs(b.weight);
                   });
  return out;
}

}  // namespace foretrain

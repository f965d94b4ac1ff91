#include "sim/program/scan.h"

namespace foretrain {
namespace {

constexpr double kFp32Bytes = 4;

/// Sizes of a scan: elements of each array, and its bytes in the scan's type.
struct Sizes {
  explicit Sizes(const Scan& w)
      : tokens(static_cast<double>(w.batch) * static_cast<double>(w.length)),
        chunk(static_cast<double>(w.chunk)),
        state(static_cast<double>(w.state)),
        width(static_cast<double>(w.heads) * static_cast<double>(w.head_dim)),
        grouped(static_cast<double>(w.groups) * static_cast<double>(w.state)),
        element(bits_of(w.dtype) / 8.0),
        states(tokens / chunk * width * state),
        steps(tokens * static_cast<double>(w.heads)),
        squares(tokens * static_cast<double>(w.groups) * chunk) {}

  double x() const { return tokens * width * element; }            ///< bytes of inputs or outputs
  double b() const { return tokens * grouped * element; }          ///< of B or C
  double sums() const { return 2 * kFp32Bytes * steps; }           ///< of steps and their sums
  double products() const { return kFp32Bytes * squares; }         ///< of C B^T
  double by_states() const { return 2 * tokens * width * state; }  ///< FLOPs
  double by_chunk() const { return tokens * width * chunk; }       ///< of half of the square
  double of_groups() const { return 2 * tokens * grouped * chunk; }

  double tokens, chunk, state, width, grouped, element, states, steps, squares;
};

/// Up to the states before each chunk, which are in `passed` bytes an element.
void add_states(const Sizes& z, double passed, std::vector<ScanKernel>& out) {
  out.push_back({"cumsum", 0, z.steps * z.element + z.sums()});
  out.push_back({"chunk-state", z.by_states(), z.x() + z.b() + z.sums() + kFp32Bytes * z.states});
  out.push_back({"state-passing", 0, (kFp32Bytes + passed) * z.states});
  out.push_back({"products", z.of_groups(), 2 * z.b() + z.products()});
}

std::vector<ScanKernel> selective_kernels(const Scan& w) {
  const double tokens = static_cast<double>(w.batch) * static_cast<double>(w.length);
  const double channels = tokens * static_cast<double>(w.heads);
  const double element = bits_of(w.dtype) / 8.0;
  const double shared = tokens * static_cast<double>(w.groups * w.state) * element;
  const double flops = 9 * channels * static_cast<double>(w.state);
  if (!w.backward) {
    return {{"selective-scan", flops, 4 * channels * element + 2 * shared, true}};
  }
  return {{"selective-scan-gradient", 3 * flops, 7 * channels * element + 4 * shared, true}};
}

/// Sizes of a gated delta rule: bytes of each array.
struct DeltaSizes {
  explicit DeltaSizes(const Scan& w)
      : tokens(static_cast<double>(w.batch) * static_cast<double>(w.length)),
        chunk(static_cast<double>(w.chunk)),
        heads(static_cast<double>(w.heads)),
        keys(heads * static_cast<double>(w.state)),
        values(heads * static_cast<double>(w.head_dim)),
        products(2 * tokens * keys * static_cast<double>(w.head_dim)),
        k(tokens * keys * bits_of(w.dtype) / 8.0),
        v(tokens * values * bits_of(w.dtype) / 8.0),
        squares(tokens * heads * chunk * bits_of(w.dtype) / 8.0),
        states(tokens / chunk * keys * static_cast<double>(w.head_dim) * bits_of(w.dtype) / 8.0),
        decays(kFp32Bytes * tokens * (w.rule == ScanRule::kChannelDelta ? keys : heads)),
        betas(tokens * heads * bits_of(w.dtype) / 8.0) {}

  double by_keys() const { return 2 * tokens * chunk * keys; }      ///< FLOPs of a square
  double by_values() const { return 2 * tokens * chunk * values; }  ///< likewise
  double of_squares() const { return tokens * heads * chunk * chunk; }

  double tokens, chunk, heads, keys, values;
  double products;  ///< FLOPs of keys with states
  double k, v, squares, states, decays, betas;
};

/// Up to the states before each chunk, from the inverse on.
void add_delta_states(const DeltaSizes& z, std::vector<ScanKernel>& out) {
  out.push_back({"keys-values", z.by_keys() + z.by_values(),
                 2 * z.k + 2 * z.v + z.squares + z.decays + z.betas});
  out.push_back({"states", 2 * z.products, 2 * z.k + 2 * z.v + z.decays + z.states});
}

std::vector<ScanKernel> delta_kernels(const Scan& work) {
  const DeltaSizes z(work);
  std::vector<ScanKernel> out;
  if (!work.backward) {
    out.push_back({"cumsum", 0, 2 * z.decays});
    out.push_back({"inverse", 0.625 * z.by_keys() + z.of_squares() / 2,
                   z.k + z.squares + z.decays + z.betas});
    add_delta_states(z, out);
    out.push_back({"outputs", z.products + z.by_keys() + z.by_values(),
                   2 * z.k + 2 * z.v + z.decays + z.states});
    return out;
  }
  add_delta_states(z, out);
  out.push_back({"values-gradient", z.by_keys() + z.by_values(), 2 * z.k + 2 * z.v + z.decays});
  out.push_back({"states-gradient", 3 * z.products, 3 * z.k + 3 * z.v + z.decays + z.states});
  out.push_back({"queries-keys-gradient", 3 * z.products + z.by_values() + 2 * z.by_keys(),
                 5 * z.k + 3 * z.v + 2 * z.decays + 2 * z.states});
  out.push_back({"inverse-gradient", 5 * z.by_keys() + 2 * z.by_values() + 4 * z.of_squares(),
                 3 * z.k + 3 * z.v + z.squares + 2 * z.decays + 2 * z.betas});
  out.push_back({"keys-sum", 0, 3 * z.k});
  out.push_back({"decays-sum", 0, 3 * z.decays});
  out.push_back({"cumsum-gradient", 0, 2 * z.decays});
  return out;
}

}  // namespace

std::vector<ScanKernel> kernels_of(const Scan& work) {
  if (work.rule == ScanRule::kSelective) return selective_kernels(work);
  if (work.rule != ScanRule::kStateSpace) return delta_kernels(work);
  const Sizes z(work);
  std::vector<ScanKernel> out;
  if (!work.backward) {
    add_states(z, z.element, out);
    out.push_back({"chunk-scan", z.by_states() + z.by_chunk(),
                   z.products() + 2 * z.x() + z.b() + z.sums() + z.element * z.states});
    return out;
  }
  add_states(z, kFp32Bytes, out);
  const double of_b = z.b() / z.element * kFp32Bytes;  // gradients of B or C, in fp32
  const double passed = 2 * z.element * z.states;
  out.push_back({"states-gradient", z.by_states(), z.x() + z.b() + kFp32Bytes * z.states});
  out.push_back({"state-passing-gradient", 0, 2 * kFp32Bytes * z.states + passed});
  out.push_back({"x-gradient", z.by_states() + z.by_chunk(),
                 3 * z.x() + z.b() + z.products() + z.sums() + z.element * z.states});
  out.push_back({"b-gradient", z.by_states(), z.x() + of_b + z.element * z.states});
  out.push_back({"c-gradient", z.by_states(), z.x() + of_b + z.element * z.states});
  out.push_back({"products-gradient", z.by_chunk(), 2 * z.x() + z.products()});
  for (const char* name : {"b-of-products", "c-of-products"}) {
    out.push_back({name, z.of_groups(), z.products() + of_b + 2 * z.b()});
  }
  out.push_back({"steps-gradient", z.by_chunk(), 2 * z.x() + z.products() + z.sums()});
  out.push_back({"cumsum-gradient", 0, 2 * z.sums() + z.steps * z.element});
  return out;
}

}  // namespace foretrain

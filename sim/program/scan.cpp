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

}  // namespace

std::vector<ScanKernel> kernels_of(const Scan& work) {
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

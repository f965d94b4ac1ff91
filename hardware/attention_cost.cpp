#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "hardware/gemm_formula.h"
#include "hardware/kernel_constants.h"
#include "hardware/local_cost.h"
#include "sim/program/context_pairs.h"
#include "sim/program/documents.h"

namespace foretrain {
namespace {

constexpr std::int64_t kKeyBlock = 128;  // keys of one step of the fused kernels
constexpr double kQueryBlock = 128;      // queries of one thread block of the fused kernels
// The benchmarks run 16384 tokens of 2048 elements: 15 to 19 pieces an SM, so the tail costs 3 %.
constexpr double kBenchmarkTail = 1.03;
constexpr double kShortLength = 0.75;  // below the shortest length the rate falls as length^0.75

/// Whether a query sees only so many keys before it.
bool slides(const Attention& work) {
  return (work.window > 0 && work.window < work.kv_len) || windows_gathered(work);
}

/// Whether blocks of queries see unequal shares of the keys: under a causal mask, but for windows
/// shorter than half of the length.
bool triangular(const Attention& work) {
  return work.causal && (!slides(work) || 2 * work.window > work.kv_len);
}

/// Query-key pairs that the mask leaves; those of the member with the most, for which others wait.
double pairs_of(const Attention& work) {
  if (windows_gathered(work)) return gathered_pairs(work).most;
  const auto q = static_cast<double>(work.q_len), kv = static_cast<double>(work.kv_len);
  const auto window = static_cast<double>(work.window);
  if (slides(work)) {
    return work.causal ? window * (q - std::min(q, window) / 2) : q * window;
  }
  return work.causal ? q * kv / 2 : q * kv;
}

double rate_on_curve(const AttentionConstants& c, const AttentionCurve& curve, double length) {
  if (length <= c.lengths.front()) {
    return curve.tflops.front() * std::pow(length / c.lengths.front(), kShortLength);
  }
  if (length >= c.lengths.back()) return curve.tflops.back();
  std::size_t i = 1;
  while (c.lengths[i] < length) ++i;
  const double at = std::log(length / c.lengths[i - 1]) / std::log(c.lengths[i] / c.lengths[i - 1]);
  return curve.tflops[i - 1] + at * (curve.tflops[i] - curve.tflops[i - 1]);
}

/// Keys that the fused kernel reads for a block of queries. With a window the block is a band of
/// window + 128 keys, of which the window is used.
double keys_of(const Attention& work) {
  if (!slides(work)) return static_cast<double>(work.kv_len);
  const std::int64_t all = windows_gathered(work) ? whole_length(work) : work.kv_len;
  return static_cast<double>(std::min(work.window + kKeyBlock, all));
}

/// Pairs that are computed, never more than without a window, over those that the mask leaves.
double wasted(const Attention& work) {
  if (!slides(work)) return 1;
  Attention whole = work;
  whole.window = 0;
  return std::min(keys_of(work) / static_cast<double>(work.window),
                  pairs_of(whole) / pairs_of(work));
}

/// Keys that any query reads. Of a member's two chunks under a window: theirs and those before.
std::int64_t keys_read(const Attention& work) {
  if (!windows_gathered(work)) return work.kv_len;
  return std::min(work.q_len + 2 * work.window, work.kv_len);
}

/// The curve of the nearest head dimension; narrower heads than any curve lose in proportion.
const AttentionCurve* curve_of(const AttentionConstants& c, const Attention& work,
                               AttentionKernel kernel) {
  const AttentionCurve* best = nullptr;
  for (const AttentionCurve& curve : c.curves) {
    if (curve.kernel != kernel || curve.backward != work.backward) continue;
    if (curve.causal != triangular(work)) continue;
    if (curve.narrow_values && work.value_width() >= work.head_dim) continue;
    const auto distance = [&work](const AttentionCurve& x) {
      return std::abs(
          std::log(static_cast<double>(x.head_dim) / static_cast<double>(work.head_dim)));
    };
    if (best == nullptr || distance(curve) < distance(*best)) best = &curve;
  }
  return best;
}

/// What a kernel computes at one rate: all of `like`, but that it is `pairs` query-key pairs, and
/// that its blocks hold so many times as many.
struct Span {
  Attention like;
  double pairs = 0;
  double padded = 1;
};

/// A document of its own. What is shorter than a block takes a block.
Span span_of(Attention one) {
  const double pairs = pairs_of(one);
  one.q_len = std::max(one.q_len, kKeyBlock);
  one.kv_len = std::max(one.kv_len, kKeyBlock);
  return {one, pairs, pairs_of(one) / pairs};
}

/// The whole attention, or one span for every document that the sequences pack: as an attention
/// over sequences of that length, or where keys of all members are gathered, over as many keys as
/// its queries see in the mean.
std::vector<Span> spans_of(const Attention& work) {
  if (work.documents.empty()) return {{work, pairs_of(work)}};
  std::vector<Span> out;
  if (work.part != ContextPart::kAll) {
    for (const Attention& one : by_document(work)) out.push_back(span_of(one));
    return out;
  }
  for (const DocumentPart& part : slowest_documents(work)) {
    Attention one = work;
    one.documents.clear();
    one.q_len = part.queries;
    const double keys = part.pairs / static_cast<double>(part.queries);
    // A block of queries and keys is computed whole; the mask leaves half of one.
    const double most = std::max(keys, static_cast<double>(kKeyBlock) / 2);
    one.kv_len = std::max<std::int64_t>(1, std::llround(most));
    const double rows = std::max(1.0, kQueryBlock / static_cast<double>(part.queries));
    out.push_back({one, part.pairs, rows * most / keys});
  }
  return out;
}

/// The longest piece over the mean one.
double longest_of(const Attention& work) { return triangular(work) && work.q_len > 1 ? 2 : 1; }

/// Time over what perfectly shared SMs would take, relative to the benchmarks that the curves come
/// from. A block of 128 queries is one piece of work; a causal mask makes the longest twice the
/// mean. In units of the mean piece: max(longest, pieces / S + 1/2) / (pieces / S).
double imbalance(const DeviceSpec& device, const Attention& work, const std::vector<Span>& spans) {
  double blocks = 0;
  double most = 0;  // keys of a query in the longest piece, and of all
  double sum = 0;
  for (const Span& span : spans) {
    const auto queries = static_cast<double>(span.like.q_len);
    blocks += std::ceil(queries / kQueryBlock);
    most = std::max(most, longest_of(span.like) * span.pairs * span.padded / queries);
    sum += span.pairs * span.padded;
  }
  const double share = static_cast<double>(work.batch * work.q_heads) * blocks / device.sm_count;
  const bool one = spans.size() == 1;
  const double longest = one ? longest_of(work) : most * static_cast<double>(work.q_len) / sum;
  return std::max(1.0, std::max(longest, share + 0.5) / share / kBenchmarkTail);
}

/// Rate of this device over that of the curves' device for what either draws; 1 where power does
/// not bound it or is not known.
double by_power(const DeviceSpec& device, const AttentionConstants& c) {
  const bool known = c.reference_power_w > 0 && device.power_w > 0;
  return known ? power_law(device.power_w, c.reference_power_w) : 1;
}

/// What the rate on the curve is read at, and what it is scaled by.
void explain_fused(const DeviceSpec& device, const Attention& work, const AttentionConstants& c,
                   const AttentionCurve& curve, std::ostream& steps) {
  if (curve.head_dim != work.head_dim) {
    steps << "heads of " << work.head_dim << ": nearest curve " << curve.head_dim << "\n";
  }
  if (slides(work)) {
    steps << "window " << work.window << ": a band of " << keys_of(work) << " keys, "
          << wasted(work) << " times what the mask leaves\n";
  } else if (static_cast<double>(work.kv_len) > c.lengths.back()) {
    steps << "longer than the curve, held at its end of " << c.lengths.back() << " keys\n";
  }
  if (const double factor = by_power(device, c); factor != 1) {
    steps << "curve of " << c.reference_power_w << " W, device of " << device.power_w
          << " W: times " << factor << "\n";
  }
  if (device.slowest != 1) {
    steps << "the slowest accelerator of the run: " << device.slowest << " of the mean rate\n";
  }
}

/// The kernel that a curve is of, and the rate over that of this kernel.
struct Known {
  AttentionKernel kernel = AttentionKernel::kFlash;
  double relative = 1;
};
Known known_kernel(const AttentionConstants& c, const Attention& work) {
  Known out{work.kernel, 1};
  for (const AttentionRelative& r : c.relatives) {
    if (r.kernel != out.kernel) continue;
    out.kernel = r.to;
    out.relative *= work.backward ? r.backward : r.forward;
  }
  return out;
}

/// TFLOP/s that the mask leaves, with enough pieces for all SMs.
double rate_of(const DeviceSpec& device, const AttentionConstants& c, const Attention& work,
               const AttentionCurve& curve, double relative) {
  const double peak = std::max(device.bf16_tflops, device.fp16_tflops);
  const auto whole = static_cast<double>(work.kv_len);
  double rate = rate_on_curve(c, curve, triangular(work) ? whole : std::min(keys_of(work), whole)) *
                peak / c.reference_tflops;
  rate *= relative * sustained_factor(device) * by_power(device, c) / wasted(work);
  if (work.dtype == DType::kFp8) rate *= work.backward ? c.fp8_backward : c.fp8_forward;
  if (work.head_dim < curve.head_dim && curve.head_dim <= 64) {
    rate *= static_cast<double>(work.head_dim) / static_cast<double>(curve.head_dim);
  }
  return rate;
}

Result<Cost> fused(const DeviceSpec& device, const Attention& work, std::ostream* steps) {
  const AttentionConstants& c = kernel_constants(device.architecture).attention;
  const auto [kernel, relative] = known_kernel(c, work);
  const std::vector<Span> spans = spans_of(work);
  const AttentionCurve* curve = nullptr;
  for (const Span& span : spans) {
    curve = curve_of(c, span.like, kernel);
    if (curve == nullptr) break;
  }
  const bool fp8 = work.dtype == DType::kFp8;
  const bool half = work.dtype == DType::kBf16 || work.dtype == DType::kFp16;
  if (curve == nullptr || peak_tflops(device, work.dtype) <= 0 || (!half && !fp8)) {
    const bool full = work.dtype == DType::kFp32 || work.dtype == DType::kTf32;
    return unsupported(
        std::string(name_of(work.kernel)) + " attention in " + std::string(name_of(work.dtype)) +
        " on " + device.name +
        (full ? ": fused attention needs fp16 or bf16 there; " : ": there is no such kernel; ") +
        "set kernels.attention to \"unfused\"");
  }
  const double idle = imbalance(device, work, spans);
  const auto heads = static_cast<double>(work.batch * work.q_heads);
  const auto keys = static_cast<double>(work.head_dim);
  const auto values = static_cast<double>(work.value_width());
  // Forward multiplies by keys and by values; backward three times by keys, twice by values.
  const double per_pair = work.backward ? 3 * keys + 2 * values : keys + values;
  double flops = 0;
  double seconds = 0;  // with enough pieces
  for (const Span& span : spans) {
    const AttentionCurve& own = *curve_of(c, span.like, kernel);
    const double part = 2 * heads * span.pairs * per_pair;
    flops += part;
    seconds += part * span.padded * idle / (rate_of(device, c, span.like, own, relative) * 1e12);
  }
  if (!work.documents.empty()) {  // fewer pairs never take longer
    Attention whole = work;
    whole.documents.clear();
    FT_ASSIGN(const Cost most, fused(device, whole, nullptr));
    seconds = std::min(seconds, most.compute.seconds());
  }
  const double element = bits_of(work.dtype) / 8.0;
  const double q_bytes = heads * static_cast<double>(work.q_len * work.head_dim) * element;
  const double kv_bytes = 2 * static_cast<double>(work.batch * work.kv_heads) *
                          static_cast<double>(keys_read(work) * work.head_dim) * element;
  const double bytes = work.backward ? 4 * q_bytes + 2 * kv_bytes : 2 * q_bytes + kv_bytes;

  Cost cost;
  cost.latency = Time::from_us(c.latency_us);
  cost.compute = bounded(seconds);
  cost.memory = bounded(bytes / (device.memory_gb_per_s * 1e9 *
                                 kernel_constants(device.architecture).memory.default_efficiency));
  cost.duration = cost.latency + max(cost.compute, cost.memory);
  cost.deviation = static_cast<float>(c.deviation);
  if (steps != nullptr) {
    explain_fused(device, spans.back().like, c, *curve, *steps);
    if (spans.size() > 1) *steps << spans.size() << " documents, each at the rate of its length\n";
    *steps << flops / 1e9 << " GFLOP at " << flops * idle / seconds / 1e12 << " TFLOP/s ("
           << name_of(kernel) << " curve of "
           << "head_dim " << curve->head_dim << "): " << cost.compute.us() << " us; memory "
           << cost.memory.us() << " us\n";
  }
  return cost;
}

struct Sum {
  double latency_s = 0, arithmetic_s = 0, passes_s = 0;
};

/// Adds one batched GEMM of an unfused attention.
Status add_gemm(const DeviceSpec& device, const Attention& work, std::int64_t m, std::int64_t n,
                std::int64_t k, Sum& sum) {
  Gemm gemm;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.batch = work.batch * work.q_heads;
  gemm.in = work.plain ? DType::kFp32 : work.dtype;
  gemm.out = work.dtype;
  const double elements = static_cast<double>(m) * static_cast<double>(k) +
                          static_cast<double>(n) * static_cast<double>(k) +
                          static_cast<double>(m) * static_cast<double>(n);
  const double moved =
      work.plain ? bits_of(work.dtype) / 8.0 * static_cast<double>(gemm.batch) * elements : 0;
  const GemmConstants& constants = kernel_constants(device.architecture).gemm;
  FT_ASSIGN(const Cost cost, product_cost(device, constants, gemm, moved, nullptr));
  sum.latency_s += cost.latency.seconds();
  sum.arithmetic_s += (cost.duration - cost.latency).seconds();
  return ok_status();
}

/// The matrices that an unfused attention, or a step of one, multiplies: rows of the scores times
/// heads, columns times heads.
std::vector<std::array<std::int64_t, 3>> products_of(const Attention& w) {
  const std::array<std::int64_t, 3> scores = {w.q_len, w.kv_len, w.head_dim};
  const std::array<std::int64_t, 3> rows = {w.q_len, w.head_dim, w.kv_len};
  const std::array<std::int64_t, 3> columns = {w.kv_len, w.head_dim, w.q_len};
  switch (w.step) {
    case AttentionStep::kWhole:
      if (w.backward) return {scores, columns, rows, columns};  // d P, d V, d Q, d K
      return {scores, rows};
    case AttentionStep::kScores:
    case AttentionStep::kProbabilityGradient:
      return {scores};
    case AttentionStep::kValues:
    case AttentionStep::kQueryGradient:
      return {rows};
    case AttentionStep::kValueGradient:
    case AttentionStep::kKeyGradient:
      return {columns};
    case AttentionStep::kSoftmax:
      return {};
  }
  return {};
}

Result<Cost> unfused(const DeviceSpec& device, const Attention& work, std::ostream* steps) {
  const MemoryConstants& memory = kernel_constants(device.architecture).memory;
  const double scores = static_cast<double>(work.batch * work.q_heads) *
                        static_cast<double>(work.q_len) * static_cast<double>(work.kv_len);
  const double element = bits_of(work.dtype) / 8.0;
  Sum sum;
  double bytes = 0;
  int passes = 0;
  for (const auto& [m, n, k] : products_of(work)) FT_TRY(add_gemm(device, work, m, n, k, sum));
  if (work.step == AttentionStep::kWhole || work.step == AttentionStep::kSoftmax) {
    // Softmax: scores in, probabilities out; backward d_probabilities, probabilities, d_scores.
    bytes = scores * (work.backward ? 3 : 2) * element;
    passes = 1;
    if (work.dropout > 0) bytes += scores * (2 * element + 1), ++passes;
    if (work.alibi)
      bytes += scores * element;  // the bias is added to the scores as they are scaled
  }
  bytes += static_cast<double>(work.more_bytes);
  passes += work.more_kernels;
  const double efficiency =
      memory.efficiency.at(static_cast<std::size_t>(KernelKind::kResidualAdd));
  sum.passes_s = bytes / (device.memory_gb_per_s * 1e9 * efficiency);
  sum.latency_s += passes * memory.latency_us * 1e-6;

  // The kernels follow each other: the whole is the sum, and the larger part is what yields.
  const double whole = sum.arithmetic_s + sum.passes_s;
  Cost cost;
  cost.latency = bounded(sum.latency_s);
  const bool arithmetic = sum.arithmetic_s > sum.passes_s;
  cost.compute = bounded(arithmetic ? whole : sum.arithmetic_s);
  cost.memory = bounded(arithmetic ? sum.passes_s : whole);
  cost.duration = cost.latency + max(cost.compute, cost.memory);
  cost.deviation = 0.15F;
  if (steps != nullptr) {
    *steps << "batched GEMMs " << sum.arithmetic_s * 1e6 << " us, " << passes
           << " passes over scores and heads " << sum.passes_s * 1e6 << " us\n";
  }
  return cost;
}

}  // namespace

Result<Cost> attention_cost(const DeviceSpec& device, const Attention& work, std::ostream* steps) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 31;
  for (const std::int64_t extent :
       {work.batch, work.q_heads, work.kv_heads, work.q_len, work.kv_len, work.head_dim}) {
    if (extent < 1 || extent > kLargest) {
      return input_error("attention with an extent of " + std::to_string(extent));
    }
  }
  return work.kernel == AttentionKernel::kUnfused ? unfused(device, work, steps)
                                                  : fused(device, work, steps);
}

}  // namespace foretrain

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "hardware/attention_rate.h"
#include "hardware/gemm_formula.h"
#include "hardware/kernel_constants.h"
#include "hardware/local_cost.h"
#include "sim/program/context_pairs.h"
#include "sim/program/documents.h"

namespace foretrain {
namespace {

std::int64_t key_block() { return shared_constants().key_block; }
double query_block() { return static_cast<double>(shared_constants().query_block); }

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

/// Keys that the fused kernel reads for a block of queries. With a window the block is a band of
/// window + 128 keys, of which the window is used.
double keys_of(const Attention& work) {
  if (!slides(work)) return static_cast<double>(work.kv_len);
  const std::int64_t all = windows_gathered(work) ? whole_length(work) : work.kv_len;
  return static_cast<double>(std::min(work.window + key_block(), all));
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
  one.q_len = std::max(one.q_len, key_block());
  one.kv_len = std::max(one.kv_len, key_block());
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
    const double most = std::max(keys, static_cast<double>(key_block()) / 2);
    one.kv_len = std::max<std::int64_t>(1, std::llround(most));
    const double rows = std::max(1.0, query_block() / static_cast<double>(part.queries));
    out.push_back({one, part.pairs, rows * most / keys});
  }
  return out;
}

/// Time of `spans`, of which each takes `seconds` shared perfectly by all SMs, relative to the
/// benchmarks that the curves come from. A block of 128 queries is one piece of work, and whole
/// ones bound the time from below: half of one is left over at the end, and the last of a causal
/// mask sees all keys, so that it is nearly twice the mean.
double shared_by_blocks(const DeviceSpec& device, const Attention& work,
                        const std::vector<Span>& spans, const std::vector<double>& seconds) {
  const auto heads = static_cast<double>(work.batch * work.q_heads);
  double total = 0, block = 0, longest = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto queries = static_cast<double>(spans[i].like.q_len);
    const double part = std::min(queries, query_block()) / queries;
    const double own = seconds[i] / heads * part * device.sm_count;
    total += seconds[i];
    block = std::max(block, own);
    longest = std::max(longest, own * (triangular(spans[i].like) ? 2 - part : 1));
  }
  return std::max(total, std::max(longest, total + block / 2) / shared_constants().attention_tail);
}

/// The same with less of a mask; none without one.
std::optional<Attention> with_more_pairs(const Attention& work) {
  Attention more = work;
  if (!work.documents.empty()) {
    more.documents.clear();
  } else if (slides(work)) {
    more.window = 0;
  } else if (triangular(work)) {
    more.causal = false;
  } else {
    return std::nullopt;
  }
  return more;
}

/// What the rate on the curve is read at, and what it is scaled by.
void explain_fused(const DeviceSpec& device, const Attention& work, const AttentionConstants& c,
                   std::ostream& steps) {
  const auto [keys, values] = padded_widths(c, work);
  if (keys != work.head_dim || values != work.value_width()) {
    steps << "heads of " << work.head_dim << " and values of " << work.value_width()
          << " padded to " << keys << " and " << values << "\n";
  }
  if (slides(work)) {
    steps << "window " << work.window << ": a band of " << keys_of(work) << " keys, "
          << wasted(work) << " times what the mask leaves\n";
  } else if (static_cast<double>(work.kv_len) > c.lengths.back()) {
    steps << "longer than the curve, held at its end of " << c.lengths.back() << " keys\n";
  }
  if (const double factor = rate_by_power(device, c); factor != 1) {
    steps << "curve of " << c.reference_power_w << " W, device of " << device.power_w
          << " W: times " << factor << "\n";
  }
  if (device.slowest != 1) {
    steps << "the slowest accelerator of the run: " << device.slowest << " of the mean rate\n";
  }
}

/// Seconds of a span with all SMs busy; nothing where its kernel has no curves.
std::optional<double> seconds_of(const DeviceSpec& device, const AttentionConstants& c,
                                 const Span& span) {
  const Attention& work = span.like;
  const auto [kernel, relative] = known_kernel(c, work.kernel, work.backward);
  const bool causal = triangular(work);
  const auto whole = static_cast<double>(work.kv_len);
  const double length = causal ? whole : std::min(keys_of(work), whole);
  const std::optional<double> pair = seconds_per_pair(c, work, kernel, causal, length);
  if (!pair) return pair;
  return *pair * static_cast<double>(work.batch * work.q_heads) * span.pairs * span.padded *
         wasted(work) / (relative * device_rate(device, c, work.backward));
}

Error no_such_kernel(const DeviceSpec& device, const Attention& work) {
  const bool full = work.dtype == DType::kFp32 || work.dtype == DType::kTf32;
  const AttentionConstants& c = kernel_constants(device.architecture).attention;
  const auto [newest, unused] = known_kernel(c, AttentionKernel::kFlash, work.backward);
  const auto keys = static_cast<double>(work.kv_len);
  const bool tiled = !full && seconds_per_pair(c, work, newest, triangular(work), keys).has_value();
  return unsupported(
      std::string(name_of(work.kernel)) + " attention in " + std::string(name_of(work.dtype)) +
      " on " + device.name +
      (full ? ": fused attention needs fp16 or bf16 there; " : ": there is no such kernel; ") +
      "set kernels.attention to " + (tiled ? "\"flash\" or " : "") + "\"unfused\"");
}

Result<Cost> fused(const DeviceSpec& device, const Attention& work, std::ostream* steps) {
  const KernelConstants& constants = kernel_constants(device.architecture);
  const AttentionConstants& c = constants.attention;
  const bool half = work.dtype == DType::kBf16 || work.dtype == DType::kFp16;
  if (!half || peak_tflops(device, work.dtype) <= 0) return no_such_kernel(device, work);
  const std::vector<Span> spans = spans_of(work);
  std::vector<double> parts;
  double pairs = 0;
  for (const Span& span : spans) {
    const std::optional<double> part = seconds_of(device, c, span);
    if (!part) return no_such_kernel(device, work);
    parts.push_back(*part);
    pairs += span.pairs;
  }
  const double busy = std::accumulate(parts.begin(), parts.end(), 0.0);
  double seconds = shared_by_blocks(device, work, spans, parts);
  if (const std::optional<Attention> more = with_more_pairs(work)) {  // fewer never take longer
    const Result<Cost> most = fused(device, *more, nullptr);
    if (most.ok()) seconds = std::min(seconds, most.value().compute.seconds());
  }
  const auto heads = static_cast<double>(work.batch * work.q_heads);
  const double element = bits_of(work.dtype) / 8.0;
  const double q_bytes = heads * static_cast<double>(work.q_len * work.head_dim) * element;
  const double kv_bytes = 2 * static_cast<double>(work.batch * work.kv_heads) *
                          static_cast<double>(keys_read(work) * work.head_dim) * element;
  const double bytes = work.backward ? 4 * q_bytes + 2 * kv_bytes : 2 * q_bytes + kv_bytes;

  Cost cost;
  cost.latency = Time::from_us(c.latency_us);
  cost.compute = bounded(seconds);
  cost.memory =
      bounded(bytes / (device.memory_gb_per_s * 1e9 * constants.memory.default_efficiency));
  cost.duration = cost.latency + max(cost.compute, cost.memory);
  cost.deviation = static_cast<float>(c.deviation);
  if (steps != nullptr) {
    explain_fused(device, spans.back().like, c, *steps);
    if (spans.size() > 1) *steps << spans.size() << " documents, each at the rate of its length\n";
    const auto keys = static_cast<double>(work.head_dim);
    const auto values = static_cast<double>(work.value_width());
    const double flops =
        2 * heads * pairs * (work.backward ? 3 * keys + 2 * values : keys + values);
    *steps << flops / 1e9 << " GFLOP at " << flops / busy / 1e12 << " TFLOP/s with all SMs busy, "
           << "blocks of " << query_block() << " queries on " << device.sm_count << " SMs: times "
           << seconds / busy << "\n"
           << "arithmetic " << cost.compute.us() << " us; memory " << bytes / 1e6 << " MB at "
           << device.memory_gb_per_s << " GB/s, of which " << constants.memory.default_efficiency
           << ": " << cost.memory.us() << " us\n"
           << constants.source("attention/curves");
  }
  return cost;
}

struct Sum {
  double latency_s = 0, arithmetic_s = 0, passes_s = 0;
};

/// Adds one batched GEMM of an unfused attention.
Status add_gemm(const DeviceSpec& device, const Attention& work, std::int64_t m, std::int64_t n,
                std::int64_t k, Sum& sum, std::ostream* steps) {
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
  if (steps != nullptr) {
    *steps << gemm.batch << " products of " << m << " x " << n << " x " << k << " in "
           << name_of(gemm.in) << ": " << cost.duration.us() << " us\n";
  }
  return ok_status();
}

/// The matrices that an unfused attention, or a step of one, multiplies: rows of the scores times
/// heads, columns times heads.
std::vector<std::array<std::int64_t, 3>> products_of(const Attention& w) {
  const std::int64_t q = w.q_len, kv = w.kv_len, keys = w.head_dim, values = w.value_width();
  switch (w.step) {
    case AttentionStep::kWhole:
      // d P, d V, d Q, d K
      if (w.backward) return {{q, kv, values}, {kv, values, q}, {q, keys, kv}, {kv, keys, q}};
      return {{q, kv, keys}, {q, values, kv}};
    case AttentionStep::kScores:
      return {{q, kv, keys}};
    case AttentionStep::kProbabilityGradient:
      return {{q, kv, values}};
    case AttentionStep::kValues:
      return {{q, values, kv}};
    case AttentionStep::kQueryGradient:
      return {{q, keys, kv}};
    case AttentionStep::kValueGradient:
      return {{kv, values, q}};
    case AttentionStep::kKeyGradient:
      return {{kv, keys, q}};
    case AttentionStep::kSoftmax:
      return {};
  }
  return {};
}

Result<Cost> unfused(const DeviceSpec& device, const Attention& work, std::ostream* steps) {
  const KernelConstants& constants = kernel_constants(device.architecture);
  const MemoryConstants& memory = constants.memory;
  const double scores = static_cast<double>(work.batch * work.q_heads) *
                        static_cast<double>(work.q_len) * static_cast<double>(work.kv_len);
  const double element = bits_of(work.dtype) / 8.0;
  Sum sum;
  double bytes = 0;
  int passes = 0;
  for (const auto& [m, n, k] : products_of(work)) {
    FT_TRY(add_gemm(device, work, m, n, k, sum, steps));
  }
  if (work.step == AttentionStep::kWhole || work.step == AttentionStep::kSoftmax) {
    // Softmax: scores in, probabilities out; backward d_probabilities, probabilities, d_scores.
    bytes = scores * (work.backward ? 3 : 2) * element;
    passes = 1;
    if (work.dropout > 0) bytes += scores * (2 * element + 1), ++passes;
    if (work.alibi)
      bytes += scores * element;  // the bias is added to the scores as they are scaled
  }
  bytes += static_cast<double>(work.more.bytes);
  passes += work.more.kernels;
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
  cost.deviation = static_cast<float>(shared_constants().unfused_deviation);
  if (steps != nullptr) {
    *steps << "batched GEMMs " << sum.arithmetic_s * 1e6 << " us, " << passes
           << " passes over scores and heads " << sum.passes_s * 1e6 << " us: " << bytes / 1e6
           << " MB at " << device.memory_gb_per_s << " GB/s, of which " << efficiency << "\n"
           << constants.source("gemm") << constants.source("memory/efficiency");
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

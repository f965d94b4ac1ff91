#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "hardware/gemm_formula.h"
#include "hardware/kernel_constants.h"
#include "hardware/local_cost.h"

namespace foretrain {
namespace {

constexpr double kMostProducts = 1e19;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Tensor cores read 16 bytes at a time of the dimension that lies contiguous in memory: m or k of
/// the first operand, k or n of the second, n of the result. Where a dimension is no multiple of
/// that, libraries have slower kernels, by how many bytes it is a multiple of.
double alignment_rate(const GemmConstants& c, const Gemm& work) {
  const std::int64_t first = work.transpose_a ? work.m : work.k;
  const std::int64_t second = work.transpose_b ? work.k : work.n;
  const std::int64_t elements = std::gcd(std::gcd(work.n, first), second);
  const std::int64_t bits = std::gcd(elements * bits_of(work.in), std::int64_t{128});
  if (bits == 128) return 1;
  if (work.in == DType::kFp32) return c.misaligned.fp32;
  return c.misaligned.tensor_cores[bits >= 64 ? 0 : bits >= 32 ? 1 : 2];
}

/// fp32 results of the parts of k.
double partial_bytes(const Gemm& work, std::int64_t splits) {
  const double results =
      static_cast<double>(work.batch) * static_cast<double>(work.m) * static_cast<double>(work.n);
  return splits > 1 ? static_cast<double>(splits + 1) * results * 4 : 0;
}

/// Elements of A and B that blocks of as many tiles as compute at once read, each row and column
/// once a block: the least over shapes of the block.
double block_reads(const DeviceSpec& device, const Gemm& work, const GemmEstimate& c) {
  const auto m = static_cast<double>(work.m), n = static_cast<double>(work.n);
  const std::int64_t high_most = std::min<std::int64_t>(device.sm_count, ceil_div(work.m, c.rows));
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t high = 1; high <= high_most; ++high) {
    const std::int64_t wide = device.sm_count / high;
    const auto down = static_cast<double>(ceil_div(work.m, high * c.rows));
    const auto across = static_cast<double>(ceil_div(work.n, wide * c.columns));
    least = std::min(least, m * across + n * down);
  }
  return static_cast<double>(work.batch) * static_cast<double>(work.k) * least;
}

/// Bytes through device memory, see local_cost.h.
double traffic(const DeviceSpec& device, const Gemm& work, const GemmEstimate& c) {
  const double in = bits_of(work.in) / 8.0, out = bits_of(work.out) / 8.0;
  const auto m = static_cast<double>(work.m), n = static_cast<double>(work.n),
             k = static_cast<double>(work.k), batch = static_cast<double>(work.batch);
  double reads = in * batch * (m * k + k * n);
  if (reads > device.l2_mib * kMiB) reads = in * block_reads(device, work, c);
  return reads + batch * m * n * out * (work.accumulate ? 2 : 1) + partial_bytes(work, c.splits);
}

/// What an epilogue moves beyond two bytes an element, which `prologue_k` holds: results of 32
/// bits, and results that are added to those before.
double epilogue_bytes(const Gemm& work) {
  const double out = bits_of(work.out) / 8.0 * (work.accumulate ? 2 : 1);
  return std::max(0.0, out - 2) * static_cast<double>(work.batch) * static_cast<double>(work.m) *
         static_cast<double>(work.n);
}

/// Output tiles of so many rows and columns. Products of unequal m round up each for itself.
std::int64_t tiles_of(const Gemm& work, const GemmTile& tile) {
  const std::int64_t wide = ceil_div(work.n, tile.columns);
  if (work.groups.empty() || work.transpose_a) {
    return ceil_div(work.m, tile.rows) * wide * work.batch;
  }
  std::int64_t high = 0;
  for (const std::int64_t tokens : work.groups) high += ceil_div(tokens, tile.rows);
  return high * wide;
}

/// Tiles' worth of what is computed: whole tiles, or where they lie on systolic arrays the rows and
/// columns padded to those.
double computed_tiles(const GemmConstants& c, const Gemm& work, const GemmTile& tile) {
  if (c.array == 0) return static_cast<double>(tiles_of(work, tile));
  const auto padded = [&c](std::int64_t x) { return ceil_div(x, c.array) * c.array; };
  std::int64_t rows = padded(work.m) * work.batch;
  if (!work.groups.empty() && !work.transpose_a) {
    rows = 0;
    for (const std::int64_t tokens : work.groups) rows += padded(tokens);
  }
  return static_cast<double>(rows) * static_cast<double>(padded(work.n)) /
         static_cast<double>(tile.rows * tile.columns);
}

/// The k of the deepest product, which bounds the others' time from below.
std::int64_t deepest(const Gemm& work) {
  if (work.groups.empty() || !work.transpose_a) return work.k;
  return *std::max_element(work.groups.begin(), work.groups.end());
}

/// A tile begins by waiting for memory and ends by writing what it made: `prologue_k` as fitted to
/// 16-bit products, and the same time, thus less k, where the arithmetic is slower.
double prologue_k(const DeviceSpec& device, const GemmConstants& c, DType type) {
  const double half =
      std::max(peak_tflops(device, DType::kFp16), peak_tflops(device, DType::kBf16));
  const double peak = peak_tflops(device, type);
  return c.prologue_k * (half > 0 ? std::min(1.0, peak / half) : 1);
}

GemmEstimate evaluate(const DeviceSpec& device, const GemmConstants& c, const Gemm& work,
                      const GemmTile& tile, std::int64_t splits, double rate, double moved) {
  GemmEstimate out{tile.rows, tile.columns, splits};
  out.tiles = tiles_of(work, tile) * splits;
  out.waves = ceil_div(out.tiles, device.sm_count);
  out.rate = rate * tile.relative;
  const double fill = computed_tiles(c, work, tile) * static_cast<double>(splits) / device.sm_count;
  const double waves =
      (1 - c.fractional_wave) * static_cast<double>(out.waves) + c.fractional_wave * fill;
  const double prologue = prologue_k(device, c, work.in);
  const auto depth = [prologue, splits](std::int64_t k) {
    return static_cast<double>(k) / static_cast<double>(splits) + prologue;
  };
  double passed = waves * depth(work.k);
  if (deepest(work) > work.k) passed = std::max(passed, depth(deepest(work)));
  const double area = 2.0 * static_cast<double>(tile.rows * tile.columns);
  out.compute_s = passed * area * device.sm_count / out.rate;
  const double bytes = moved > 0 ? moved + partial_bytes(work, splits) : traffic(device, work, out);
  const double bandwidth = device.memory_gb_per_s * 1e9;
  out.memory_s = bytes / (bandwidth * c.memory_efficiency);
  if (c.epilogue_efficiency > 0) {
    const double last = epilogue_bytes(work);
    out.compute_s += last / (bandwidth * c.epilogue_efficiency);
    if (moved <= 0) {
      const double share = std::min(1.0, c.epilogue_efficiency);
      out.memory_s += last / (bandwidth * share) - last / (bandwidth * c.memory_efficiency);
    }
  }
  out.latency_s = c.latency_us * 1e-6;
  return out;
}

double products_of(const Gemm& work) {
  return static_cast<double>(work.m) * static_cast<double>(work.n) *
         static_cast<double>(std::max<std::int64_t>(1, work.k)) * static_cast<double>(work.batch);
}

Status check_extents(const Gemm& work) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 31;
  for (const std::int64_t extent : {work.m, work.n, work.k, work.batch}) {
    if (extent < 0 || extent > kLargest) {
      return input_error("a GEMM with an extent of " + std::to_string(extent));
    }
  }
  if (products_of(work) > kMostProducts) {
    return input_error("a GEMM of more than 1e19 multiply-adds");
  }
  return ok_status();
}

void explain(const DeviceSpec& device, const GemmConstants& c, const Gemm& work,
             const GemmEstimate& best, const GemmCorrection& correction, const Cost& cost,
             std::ostream& steps) {
  steps << "tile " << best.rows << "x" << best.columns << ", k split by " << best.splits << ": "
        << best.tiles << " tiles, " << best.waves << " waves on " << device.sm_count << " SMs\n"
        << "compute " << best.compute_s * 1e6 << " us at " << best.rate / 1e12
        << " TFLOP/s sustained, of whole waves by " << 1 - c.fractional_wave << ", each tile "
        << prologue_k(device, c, work.in) << " of k longer for its begin and end; memory "
        << best.memory_s * 1e6 << " us\n";
  if (device.slowest != 1) {
    steps << "the slowest accelerator of the run: " << device.slowest << " of the mean rate\n";
  }
  if (const double rate = device.relative_rate.of(work.in); rate != 1) {
    steps << "relative_rate of the device: " << rate << "\n";
  }
  if (correction.factor != 1) {
    steps << "samples of configs/gemm/" << name_of(device.architecture) << ".json nearby: times "
          << correction.factor << ", " << name_of(correction.provenance) << "\n";
  }
  steps << "achieved " << flops_of(Work{work}) / cost.duration.seconds() / 1e12 << " TFLOP/s\n"
        << kernel_constants(device.architecture).source("gemm");
}

/// Whether a tile of `use` is one of products like `work`.
bool serves(TileUse use, const Gemm& work) {
  if (use == TileUse::kForward) return work.transpose_b && !work.transpose_a;
  return use == TileUse::kAny || work.in == DType::kFp32;
}

}  // namespace

double efficiency_of(const GemmConstants& c, DType type) {
  switch (type) {
    case DType::kFp32:
      return c.fp32;
    case DType::kTf32:
      return c.tf32;
    case DType::kBf16:
      return c.bf16;
    case DType::kFp16:
      return c.fp16;
    case DType::kFp8:
      return c.fp8;
    case DType::kFp4:
      return c.fp4;
    case DType::kInt8:  // of 16 bits: there is no public table
      return c.fp16 > 0 ? c.fp16 : c.bf16;
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUint8:
      return 0;
  }
  return 0;
}

GemmEstimate estimate_gemm(const DeviceSpec& device, const GemmConstants& c, const Gemm& work,
                           ClockState clock, double moved) {
  const double peak = peak_tflops(device, work.in) * 1e12;
  double rate = peak * efficiency_of(c, work.in);
  rate *= alignment_rate(c, work);
  rate *= clock == ClockState::kSustained ? sustained_factor(device, work.in)
                                          : device.relative_rate.of(work.in);
  if (work.transpose_a) rate *= c.weight_gradient;
  if (work.split_accumulator) rate *= c.split_accumulator;
  if (work.cutlass) rate *= c.cutlass;
  if (clock == ClockState::kBurst) {
    rate *= 1 + c.boost * std::exp(-2e-9 * products_of(work) / c.boost_gflop);
  }
  rate = std::min(rate, peak);
  const double split_below = shared_constants().split_below * device.sm_count;
  GemmEstimate best;
  for (const GemmTile& tile : c.tiles) {
    if (!serves(tile.use, work)) continue;
    const std::int64_t tiles = tiles_of(work, tile);
    for (const std::int64_t splits : c.splits) {
      if (splits > 1 && static_cast<double>(tiles) > split_below) continue;
      const GemmEstimate next = evaluate(device, c, work, tile, splits, rate, moved);
      if (best.tiles == 0 || next.busy_s() < best.busy_s()) best = next;
    }
  }
  return best;
}

Result<Cost> product_cost(const DeviceSpec& device, const GemmConstants& c, const Gemm& work,
                          double moved, std::ostream* steps) {
  FT_TRY(check_extents(work));
  if (work.m == 0 || work.n == 0 || work.batch == 0) return Cost{};
  if (peak_tflops(device, work.in) * efficiency_of(c, work.in) <= 0) {
    return unsupported("a GEMM in " + std::string(name_of(work.in)) + " on " + device.name);
  }
  const GemmEstimate best = estimate_gemm(device, c, work, ClockState::kSustained, moved);
  const GemmCorrection correction =
      moved > 0 ? GemmCorrection() : measured_correction(device, work);
  Cost cost;
  cost.latency = Time::from_us(c.latency_us);
  cost.tiles = best.tiles;
  cost.tile = bounded(best.compute_s * correction.factor / static_cast<double>(best.waves));
  cost.memory = bounded(best.memory_s * correction.factor);
  cost.duration = cost.latency + max(Time{best.waves * cost.tile.ps}, cost.memory);
  cost.provenance = correction.provenance;
  cost.deviation = static_cast<float>(c.deviation);
  if (steps != nullptr) explain(device, c, work, best, correction, cost, *steps);
  return cost;
}

namespace {

/// One after another: under contention their tiles are one product's.
void append(Cost& sum, const Cost& next) {
  const double tiles = static_cast<double>(sum.tiles) + static_cast<double>(next.tiles);
  if (tiles > 0) {
    sum.tile = Time::from_seconds((static_cast<double>(sum.tiles) * sum.tile.seconds() +
                                   static_cast<double>(next.tiles) * next.tile.seconds()) /
                                  tiles);
  }
  sum.tiles += next.tiles;
  sum.latency += next.latency;
  sum.duration += next.duration;
  sum.memory += next.memory;
  sum.provenance = std::max(sum.provenance, next.provenance);
  sum.deviation = std::max(sum.deviation, next.deviation);
}

/// The products [first, first + count) of a batch with tokens of their own.
Gemm round_of(const Gemm& work, std::int64_t first, std::int64_t count) {
  Gemm out = work;
  out.apart = false;
  out.batch = count;
  out.groups.assign(work.groups.begin() + first, work.groups.begin() + first + count);
  const std::int64_t sum = std::accumulate(out.groups.begin(), out.groups.end(), std::int64_t{0});
  (work.transpose_a ? out.k : out.m) = ceil_div(sum, count);
  return out;
}

/// Products one after another, or as many side by side as streams hold, round after round. Several
/// that fill the SMs follow each other without a gap, as one launch's tiles do.
Result<Cost> apart_cost(const DeviceSpec& device, const GemmConstants& c, const Gemm& work,
                        std::ostream* steps) {
  Gemm round = work;
  round.apart = false;
  round.batch = std::min(work.batch, c.at_once);
  FT_ASSIGN(Cost cost, product_cost(device, c, round, 0, steps));
  if (round.batch > 1 && cost.tiles >= device.sm_count) {
    round.batch = work.batch;
    return product_cost(device, c, round, 0, steps);
  }
  const std::int64_t full = work.batch / round.batch;
  const std::int64_t rounds = ceil_div(work.batch, round.batch);
  Cost last;
  round.batch = work.batch % round.batch;
  if (round.batch > 0) {
    FT_ASSIGN(last, product_cost(device, c, round, 0, nullptr));
  }
  const auto sum = [full](Time of_round, Time of_last) {
    return bounded(static_cast<double>(full) * of_round.seconds() + of_last.seconds());
  };
  const Time busy = sum(cost.duration - cost.latency, last.duration - last.latency);
  // Several streams hide what launches take.
  if (c.at_once == 1) cost.latency = sum(cost.latency, last.latency);
  cost.memory = sum(cost.memory, last.memory);
  cost.duration = cost.latency + busy;
  cost.rounds = static_cast<std::int32_t>(std::min<std::int64_t>(rounds, 1 << 20));
  if (steps != nullptr) {
    *steps << work.batch << " products, " << std::min(work.batch, c.at_once)
           << " at once: " << rounds << " rounds\n";
  }
  return cost;
}

/// `apart_cost` of products with tokens of their own. Beside a collective their waves are those of
/// equal products, as much longer as these ones are alone.
Result<Cost> uneven_cost(const DeviceSpec& device, const GemmConstants& c, const Gemm& work,
                         std::ostream* steps) {
  Cost sum;
  Time hidden;
  std::int64_t rounds = 0;
  for (std::int64_t at = 0; at < work.batch; at += c.at_once, ++rounds) {
    const Gemm round = round_of(work, at, std::min(c.at_once, work.batch - at));
    FT_ASSIGN(const Cost next, product_cost(device, c, round, 0, nullptr));
    append(sum, next);
    if (rounds > 0) hidden += next.latency;
  }
  if (c.at_once > 1 && sum.tiles >= rounds * device.sm_count) {
    return product_cost(device, c, round_of(work, 0, work.batch), 0, steps);
  }
  Gemm even = round_of(work, 0, work.batch);
  even.groups.clear();
  FT_ASSIGN(const Cost equal, apart_cost(device, c, even, nullptr));
  const double longer = (sum.duration - sum.latency).seconds() /
                        std::max(1e-12, (equal.duration - equal.latency).seconds());
  sum.tiles = equal.tiles;
  sum.rounds = equal.rounds;
  sum.tile = bounded(equal.tile.seconds() * std::max(1.0, longer));
  // Several streams hide what launches take.
  if (c.at_once > 1) {
    sum.latency = sum.latency - hidden;
    sum.duration = sum.duration - hidden;
  }
  if (steps != nullptr) {
    *steps << work.batch << " products of unequal size, " << std::min(work.batch, c.at_once)
           << " at once: " << rounds << " rounds\n";
  }
  return sum;
}

/// Of `beside` products that follow one another on several streams, so that where one leaves SMs
/// idle the next one's tiles run: an equal part of the product of all their rows, not less than its
/// own operands' way through memory and than what it takes alone over the number of streams, which
/// hold no more of them at once; not more than it takes alone.
Result<Cost> beside_cost(const DeviceSpec& device, const Gemm& work, std::ostream* steps) {
  Gemm all = alone(work);
  all.m *= work.beside;
  FT_ASSIGN(Cost cost, gemm_cost(device, alone(work), steps));
  FT_ASSIGN(const Cost whole, gemm_cost(device, all, nullptr));
  const Time own = cost.duration - cost.latency;
  const Time at_once = bounded(own.seconds() / work.streams);
  const Time part = bounded((whole.duration - whole.latency).seconds() / work.beside);
  const Time busy = std::min(own, max(max(part, at_once), cost.memory));
  cost.tiles = 0;
  cost.tile = Time{};
  cost.rounds = 1;
  cost.compute = busy;
  cost.duration = cost.latency + busy;
  if (steps != nullptr) {
    *steps << work.beside << " on " << work.streams
           << " streams, whose waves fill each other up: " << busy.us() << " us each\n";
  }
  return cost;
}

}  // namespace

Result<Cost> gemm_cost(const DeviceSpec& device, const Gemm& work, std::ostream* steps) {
  if (work.beside > 1) return beside_cost(device, work, steps);
  const GemmConstants& c = kernel_constants(device.architecture).gemm;
  if (work.apart && !work.groups.empty()) return uneven_cost(device, c, work, steps);
  if (work.apart && work.batch > 1) return apart_cost(device, c, work, steps);
  const std::vector<Gemm> gemms = gemms_of(work);
  FT_ASSIGN(Cost sum, product_cost(device, c, gemms.front(), 0, steps));
  for (std::size_t i = 1; i < gemms.size(); ++i) {
    FT_ASSIGN(const Cost next, product_cost(device, c, gemms[i], 0, steps));
    append(sum, next);
  }
  return sum;
}

}  // namespace foretrain

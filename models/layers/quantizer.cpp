#include "models/layers/quantizer.h"

#include <algorithm>
#include <array>

namespace foretrain {
namespace {

/// Matrices that are cast; of a kind of layer those that it has.
constexpr std::array<const char*, 12> kNames = {
    "attention.qkv",   "attention.q_down",     "attention.q_up", "attention.kv_down",
    "attention.kv_up", "attention.projection", "mlp.up",         "mlp.down",
    "moe.experts.up",  "moe.experts.down",     "moe.shared.up",  "moe.shared.down"};

struct Found {
  std::string name;
  Ref weight;
  std::int64_t rows = 0;
};

/// Every matrix of a layer that is cast, with its rows on this rank.
std::vector<Found> matrices_of(const ParameterLayouts& parameters) {
  std::vector<Found> out;
  const std::pair<const FrameLayout*, std::int16_t> places[] = {
      {&parameters.cut, kWeights},
      {&parameters.shared, kShared},
      {&parameters.experts, kExpertWeights}};
  for (const char* name : kNames) {
    for (const auto& [layout, frame] : places) {
      for (std::size_t b = 0; b < layout->buffers.size(); ++b) {
        const Buffer& buffer = layout->buffers[b];
        if (buffer.name != std::string(name) + ".weight") continue;
        Found found{name, {frame, static_cast<std::int16_t>(b), buffer.dtype, buffer.count}, 0};
        for (const Piece& piece : buffer.pieces) found.rows += piece.row_count;
        out.push_back(std::move(found));
      }
    }
  }
  return out;
}

}  // namespace

Quantizer::Quantizer(ProgramBuilder& builder, const Plan& plan, const LayerLayouts& layouts)
    : x_plan(plan), x_tensor(builder.group("tensor")) {
  if (!low()) return;
  std::int16_t buffer = 0;
  for (Found& found : matrices_of(layouts.parameters)) {
    Cast cast{found.name, found.weight, Ref{}, Ref{}, found.rows};
    cast.by_rows = cast.by_columns = found.weight;
    if (!plan.by_units()) {
      const auto copy = [&]() {
        return Ref{quantized_frame(layouts), buffer++, plan.precision.linear, found.weight.count};
      };
      if (!plan.precision.fp8_primary_weights) cast.by_rows = copy();
      if (plan.precision.keeps_copies()) {
        cast.by_columns = plan.precision.one_copy ? cast.by_rows : copy();
      }
    }
    x_casts.push_back(std::move(cast));
  }
}

const Quantizer::Cast* Quantizer::find(const Ref& weight) const {
  for (const Cast& cast : x_casts) {
    if (cast.weight.frame == weight.frame && cast.weight.buffer == weight.buffer) return &cast;
  }
  return nullptr;
}

Ref Quantizer::by_rows(const Ref& weight) const {
  const Cast* cast = find(weight);
  return cast == nullptr ? weight : cast->by_rows;
}

Ref Quantizer::by_columns(const Ref& weight) const {
  const Cast* cast = find(weight);
  return cast == nullptr ? weight : cast->by_columns;
}

Gemm Quantizer::typed(Gemm gemm, const Ref& weight, bool backward) const {
  const bool cast = backward ? x_plan.precision.keeps_copies() : low();
  if (cast && find(weight) != nullptr) gemm.in = x_plan.precision.linear;
  gemm.split_accumulator = backward && gemm.in == DType::kFp8;
  gemm.cutlass = gemm.split_accumulator && gemm.transpose_a && x_plan.precision.cutlass;
  return gemm;
}

void Quantizer::quantize(SegmentWriter& w, const std::string& name, const Ref& x, std::int64_t rows,
                         const Ref& by_rows, const Ref& by_columns) {
  if (!low()) return;
  std::vector<View> writes;
  for (const Ref& copy : {by_rows, by_columns}) {
    const bool low = copy.valid() && copy.dtype == x_plan.precision.linear;
    if (low && (writes.empty() || !(writes.front() == copy.view()))) writes.push_back(copy.view());
  }
  if (writes.empty()) return;
  const std::int64_t width = std::max<std::int64_t>(1, x.count / rows);
  const auto kernel = [&](KernelKind kind) {
    return kernel_of(kind, rows, width, x_plan.precision.compute);
  };
  std::vector<View> reads = {x.view()};
  if (x_plan.precision.current_scaling) {
    const Ref largest = local(name + " largest", DType::kFp32, 1);
    w.compute(name + ".largest", kernel(KernelKind::kLargest), reads, {largest.view()});
    reads.push_back(largest.view());
  }
  w.compute(name, kernel(KernelKind::kQuantize), std::move(reads), std::move(writes));
}

Quantizer::Copies Quantizer::gradient(SegmentWriter& w, const std::string& name, const Ref& weight,
                                      const Ref& d, std::int64_t rows) {
  if (!x_plan.precision.keeps_copies() || find(weight) == nullptr) return {d, d};
  const DType type = x_plan.precision.linear;
  const Ref by_rows = local(name + " d by rows", type, d.count);
  const Copies out = {
      by_rows, x_plan.precision.one_copy ? by_rows : local(name + " d by columns", type, d.count)};
  quantize(w, name + ".quantize_gradient", d, rows, out.rows, out.columns);
  return out;
}

Quantizer::Copies Quantizer::cast_own(SegmentWriter& w, const std::string& name, const Ref& d,
                                      std::int64_t rows) {
  if (!x_plan.precision.keeps_copies()) return {d, Ref()};
  const DType type = x_plan.precision.linear;
  Copies out = {local(name + " d by rows", type, d.count), Ref()};
  if (x_plan.precision.blocks) out.columns = local(name + " d own columns", type, d.count);
  quantize(w, name + ".quantize_gradient", d, rows, out.rows, out.columns);
  return out;
}

Ref Quantizer::all_columns(SegmentWriter& w, const std::string& name, const Copies& own,
                           const Ref& full, std::int64_t rows) {
  if (!x_plan.precision.keeps_copies() || x_plan.precision.one_copy) return full;
  const Ref out = local(name + " d by columns", full.dtype, full.count);
  if (own.columns.valid()) {
    w.collective(name + ".gather_columns", gather_of(out), {own.columns.view()}, {out.view()});
    return out;
  }
  turn(w, name + ".turn_gradient", full, rows, out);
  return out;
}

void Quantizer::turn(SegmentWriter& w, const std::string& name, const Ref& by_rows,
                     std::int64_t rows, const Ref& by_columns) const {
  if (!by_columns.valid() || by_columns == by_rows) return;
  w.compute(name,
            kernel_of(KernelKind::kQuantize, rows, by_rows.count / rows, x_plan.precision.compute),
            {by_rows.view()}, {by_columns.view()});
}

Quantizer::Copies Quantizer::gathered_gradient(SegmentWriter& w, const std::string& name,
                                               const Ref& d, std::int64_t rows) {
  const Copies own = cast_own(w, name, d, rows);
  const Ref full = local(name + " d gathered", own.rows.dtype, d.count * x_plan.tensor);
  w.collective(name + ".gather", gather_of(full), {own.rows.view()}, {full.view()});
  return {full, all_columns(w, name, own, full, rows * x_plan.tensor)};
}

void Quantizer::declare_weights(LayoutWriter& forward, LayoutWriter& backward) {
  if (!by_pass()) return;
  for (LayoutWriter* place : {&forward, &backward}) {
    for (Cast& cast : x_casts) {
      const auto copy = [&](const char* which) {
        return place->add(cast.name + which, BufferKind::kParameters, x_plan.precision.linear,
                          cast.weight.count);
      };
      cast.by_rows = x_plan.gathers_fp8() ? cast.weight : copy(" weights by rows");
      if (!x_plan.precision.keeps_copies()) continue;
      cast.by_columns = x_plan.precision.one_copy ? cast.by_rows : copy(" weights by columns");
    }
  }
}

void Quantizer::quantize_weights(SegmentWriter& w, bool forward, bool backward) {
  for (const Cast& cast : x_casts) {
    if (x_plan.precision.fp8_primary_weights) {
      if (backward) turn(w, cast.name + ".turn_weights", cast.weight, cast.rows, cast.by_columns);
      continue;
    }
    if (x_plan.gathers_fp8()) {
      // Of what the weight's buffer has room for half has come: 8 bits of each element.
      const Ref came{cast.weight.frame, cast.weight.buffer, DType::kFp8, cast.weight.count};
      const bool turns = backward && !x_plan.precision.one_copy;
      if (turns) turn(w, cast.name + ".turn_weights", came, cast.rows, cast.by_columns);
      continue;
    }
    quantize(w, cast.name + ".quantize_weights", cast.weight, cast.rows,
             forward ? cast.by_rows : Ref{}, backward ? cast.by_columns : Ref{});
  }
}

bool is_cast(const std::string& parameter) {
  return std::any_of(kNames.begin(), kNames.end(), [&parameter](const char* name) {
    return parameter == std::string(name) + ".weight";
  });
}

FrameLayout quantized_layout(const ParameterLayouts& parameters, const Precision& precision) {
  FrameLayout out;
  out.name = "quantized weights";
  for (const Found& found : matrices_of(parameters)) {
    const auto add = [&](const char* which) {
      out.buffers.push_back(buffer_of(found.name + which, BufferKind::kParameters, precision.linear,
                                      found.weight.count, true));
    };
    if (!precision.fp8_primary_weights) add(" by rows");
    if (precision.keeps_copies() && !precision.one_copy) add(" by columns");
  }
  return out;
}

}  // namespace foretrain

#include "models/layers/autocast.h"
#include "models/layers/layer.h"
#include "models/layers/quantizer.h"
#include "models/layers/tensor_grid.h"
#include "models/slots.h"
#include "sim/base/check.h"

#include <algorithm>

namespace foretrain {
namespace {

/// Rows of a vocabulary table: padded to a multiple for each of its parts (Megatron-LM: of 128).
std::int64_t padded_rows(const Parameter& p, const Plan& plan) {
  if (!p.is_table()) return p.rows;
  return round_up(p.rows, plan.loss.vocabulary_multiple * plan.vocabulary_parts());
}

/// How a parameter is cut: by the rank's place in one group, in another.
struct Cut {
  const char* rows_over = nullptr;
  const char* cols_over = nullptr;
  std::int64_t rows = 0, cols = 0;  ///< of one rank
  bool alike = false;               ///< others hold the same: it is computed in parts
};

Cut cut_of(const Parameter& p, const Plan& plan) {
  Cut out;
  std::int64_t row_parts = 1;
  std::int64_t col_parts = 1;
  if (plan.in_grid()) {
    const GridCut grid = grid_cut(p, plan);
    out.rows_over = grid.rows_over;
    out.cols_over = grid.cols_over;
    out.alike = !grid.matrix;
    row_parts = grid.row_parts;
    col_parts = grid.col_parts;
  } else {
    out.alike = p.split == Split::kNone;
    if (p.expert || p.split == Split::kRows) {
      out.rows_over = p.expert ? kExpertGroup : kTensorGroup;
      row_parts = p.expert ? plan.experts.expert : plan.tensor;
    }
    if (p.is_table() && plan.shares_vocabulary()) {
      out.rows_over = kVocabularyGroup;
      row_parts = plan.vocabulary_parts();
    }
    if (p.split == Split::kCols) {
      out.cols_over = p.expert ? kExpertTensorGroup : kTensorGroup;
      col_parts = p.expert ? plan.experts.tensor : plan.tensor;
    }
  }
  out.rows = padded_rows(p, plan) / row_parts;
  out.cols = p.cols / col_parts;
  return out;
}

/// Rows of the matrices that lie one above the other.
std::vector<std::int64_t> matrices_of(const Parameter& p) {
  if (!p.sections.empty()) return p.sections;
  return std::vector<std::int64_t>(static_cast<std::size_t>(p.parts), p.rows / p.parts);
}

/// The tensors that a rank's part of the parameter belongs to. Where a layer is computed in parts
/// (models/layers/co_shard.cpp) what each part multiplies with lies together: its rows of every
/// matrix, its columns. Rows of one matrix do so anyway.
std::vector<Piece> pieces_of(ProgramBuilder& builder, const std::string& name, const Parameter& p,
                             const Cut& cut, std::int64_t parts) {
  const std::vector<std::int64_t> matrices = matrices_of(p);
  const auto row_parts = static_cast<std::int32_t>(p.parts > 1 ? parts : 1);
  const auto col_parts = static_cast<std::int32_t>(p.split == Split::kCols ? parts : 1);
  std::vector<Piece> out;
  std::int64_t offset = 0;
  for (std::int32_t i = 0; i < std::max(row_parts, col_parts); ++i) {
    for (std::size_t matrix = 0; matrix < matrices.size(); ++matrix) {
      const std::string of_matrix = matrices.size() > 1 ? "." + std::to_string(matrix) : "";
      const std::int64_t rows = matrices[matrix];
      Piece piece;
      piece.tensor = builder.tensor(
          Tensor{name + "." + p.name + of_matrix, rows, p.cols, p.init, p.deviation});
      if (row_parts > 1) piece.row_part = {i, row_parts};
      if (col_parts > 1) piece.col_part = {i, col_parts};
      // A table's rows are padded; a matrix of several is cut as the whole is.
      piece.row_count = (matrices.size() > 1 ? rows * cut.rows / p.rows : cut.rows) / row_parts;
      piece.col_count = cut.cols / col_parts;
      piece.offset = offset;
      offset += piece.row_count * piece.col_count;
      if (cut.rows_over != nullptr) piece.rows_split_over = builder.group(cut.rows_over);
      if (cut.cols_over != nullptr) piece.cols_split_over = builder.group(cut.cols_over);
      out.push_back(piece);
    }
  }
  return out;
}

}  // namespace

ParameterLayouts parameter_layouts(ProgramBuilder& builder, const std::string& name,
                                   const std::vector<Parameter>& parameters, const Plan& plan,
                                   bool gradients) {
  ParameterLayouts out;
  out.cut.name = name + (gradients ? " gradients" : " weights");
  out.shared.name = name + (gradients ? " shared gradients" : " shared weights");
  out.experts.name = name + (gradients ? " expert gradients" : " expert weights");
  // A head that borrows the embedding's table has nothing else where that lies.
  const bool borrows = plan.persists() && parameters.front().name != "embedding.tokens" &&
                       std::any_of(parameters.begin(), parameters.end(),
                                   [](const Parameter& p) { return p.name == "embedding.tokens"; });
  const auto small = [&](const Parameter& p) {
    const Cut cut = cut_of(p, plan);
    const bool few = borrows || cut.rows * cut.cols <= plan.units.persist_elements;
    return few && !p.expert && !p.is_table();
  };
  out.small =
      plan.persists() && std::all_of(parameters.begin(), parameters.end(),
                                     [&small](const Parameter& p) { return p.expert || small(p); });
  for (const Parameter& p : parameters) {
    const Cut cut = cut_of(p, plan);
    const bool apart = plan.persists() ? !out.small && small(p) : cut.alike;
    Buffer buffer;
    buffer.name = p.name;
    buffer.kind = gradients ? BufferKind::kGradients : BufferKind::kParameters;
    const bool low = plan.precision.fp8_primary_weights && is_cast(p.name);
    buffer.dtype = gradients ? plan.local_gradients()
                   : low     ? plan.precision.linear
                             : plan.precision.compute;
    buffer.count = cut.rows * cut.cols;
    buffer.persistent = !gradients || !plan.contiguous_passes();
    if (!gradients) buffer.pieces = pieces_of(builder, name, p, cut, plan.recompute.parts);
    (p.expert ? out.expert_elements
     : apart  ? out.shared_elements
              : out.cut_elements) += buffer.count;
    (p.expert ? out.experts : apart ? out.shared : out.cut).buffers.push_back(std::move(buffer));
  }
  return out;
}

Ref parameter_ref(const ParameterLayouts& layouts, const std::string& name, std::int16_t cut_frame,
                  std::int16_t shared_frame) {
  const auto search = [&name](const FrameLayout& layout, std::int16_t frame) {
    for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
      if (layout.buffers[b].name != name) continue;
      return Ref{frame, static_cast<std::int16_t>(b), layout.buffers[b].dtype,
                 layout.buffers[b].count};
    }
    return Ref();
  };
  const Ref cut = search(layouts.cut, cut_frame);
  return cut.valid() ? cut : search(layouts.shared, shared_frame);
}

DropoutRates dropout_of(const Model& model, const Plan& plan) {
  const bool of_gpt =
      plan.attention == AttentionKernel::kUnfused && !model.is_latent() && !model.attention.sinks;
  const auto rate = [&plan, of_gpt](double of_model) {
    if (plan.dropout >= 0) return plan.dropout;
    if (of_model >= 0) return of_model;
    return of_gpt ? 0.1 : 0.0;
  };
  return {rate(model.hidden_dropout), rate(model.attention_dropout)};
}

Kernel norm_kernel(const Model& model, std::int64_t rows, std::int64_t cols, DType dtype,
                   bool backward) {
  Kernel kernel;
  kernel.kind = model.norm == Norm::kLayerNorm
                    ? (backward ? KernelKind::kLayerNormBackward : KernelKind::kLayerNorm)
                    : (backward ? KernelKind::kRmsNormBackward : KernelKind::kRmsNorm);
  kernel.rows = rows;
  kernel.cols = cols;
  kernel.dtype = dtype;
  return kernel;
}

std::vector<View> norm_reads(const Ref& input, const NormRefs& norm) {
  std::vector<View> reads = {input.view()};
  if (norm.weight.valid()) reads.push_back(norm.weight.view());
  if (norm.bias.valid()) reads.push_back(norm.bias.view());
  return reads;
}

std::vector<View> norm_gradient_reads(const Ref& d_out, const Ref& input, const Ref& statistics,
                                      const NormRefs& norm) {
  std::vector<View> reads = {d_out.view(), input.view(), statistics.view()};
  if (norm.weight.valid()) reads.push_back(norm.weight.view());
  return reads;
}

void add_gradients(const Plan& plan, const std::vector<Ref>& gradients, std::vector<View>& reads,
                   std::vector<View>& writes) {
  for (const Ref& gradient : gradients) {
    if (!gradient.valid()) continue;
    if (!plan.writes_fresh()) reads.push_back(gradient.view());
    writes.push_back(gradient.view());
  }
}

namespace {

/// `product` is a Gemm or a Convolution; `rows`: of its result.
template <typename Product>
void write_product(SegmentWriter& w, const Plan& plan, const std::string& name, Product product,
                   std::int64_t rows, const Ref& d, const Ref& in, const Ref& gradient) {
  SegmentWriter& target = w.of_weights();
  const std::string at = name + ".weight_gradient";
  const bool adds = product.accumulate || (!plan.writes_fresh() && !plan.adds_nothing);
  product.accumulate = adds && plan.fused_accumulation;
  product.out = plan.fused_accumulation ? plan.local_gradients() : plan.precision.compute;
  if (!adds || plan.fused_accumulation) {
    std::vector<View> reads = {d.view(), in.view()};
    if (product.accumulate) reads.push_back(gradient.view());
    target.compute(at, product, std::move(reads), {gradient.view()});
    return;
  }
  const Ref part = target.local().add(at, BufferKind::kActivations, product.out, gradient.count);
  const Kernel add = kernel_of(KernelKind::kAdd, rows, gradient.count / rows, product.out);
  target.compute(at, product, {d.view(), in.view()}, {part.view()});
  target.compute(name + ".accumulate", add, {gradient.view(), part.view()}, {gradient.view()});
}

}  // namespace

void write_weight_gradient(SegmentWriter& w, const Plan& plan, const std::string& name,
                           const Gemm& gemm, const Ref& d, const Ref& in, const Ref& gradient) {
  if (plan.precision.autocast) return write_narrow_gradient(w, plan, name, gemm, d, in, gradient);
  write_product(w, plan, name, gemm, gemm.m * gemm.batch, d, in, gradient);
}

void write_weight_gradient(SegmentWriter& w, const Plan& plan, const std::string& name,
                           const Convolution& work, const Ref& d, const Ref& in,
                           const Ref& gradient) {
  write_product(w, plan, name, work, work.out_channels, d, in, gradient);
}

Gemm forward_gemm(const Plan& plan, std::int64_t tokens, std::int64_t out, std::int64_t in) {
  return Gemm{
      tokens, out, in, 1, false, true, false, plan.precision.matrix, plan.precision.branch()};
}
Gemm input_gradient_gemm(const Plan& plan, std::int64_t tokens, std::int64_t out, std::int64_t in) {
  return Gemm{
      tokens, in, out, 1, false, false, false, plan.precision.matrix, plan.precision.branch()};
}
Gemm weight_gradient_gemm(const Plan& plan, std::int64_t tokens, std::int64_t out,
                          std::int64_t in) {
  return Gemm{
      out, in, tokens, 1, true, false, false, plan.precision.matrix, plan.precision.branch()};
}

}  // namespace foretrain

#include "executor/cuda/cudnn_attention.h"

#include <cmath>
#include <limits>

#include "executor/cuda/cudnn_api.h"

namespace foretrain {
namespace {

using Tensor = CudnnGraph::Tensor;

/// Sizes and strides of one run's tensors, in elements.
struct Layout {
  explicit Layout(const Attention& w)
      : dim(w.head_dim), length(w.q_len), group(w.q_heads / w.kv_heads) {
    const std::int64_t width = (w.q_heads + 2 * w.kv_heads) * dim;
    const std::int64_t out_width = w.q_heads * dim;
    const std::int64_t of_group = (group + 2) * dim;
    const bool whole = group == 1;
    outer = whole ? w.batch : w.kv_heads;
    heads = whole ? w.q_heads : group;
    kv_heads = whole ? w.q_heads : 1;
    q = {whole ? length * width : of_group, whole ? of_group : dim, width, 1};
    kv = {whole ? length * width : of_group, of_group, width, 1};
    out = {whole ? length * out_width : group * dim, dim, out_width, 1};
    scores = {outer, heads, length, length};
    rows = {outer, heads, length, 1};
    type = w.dtype == DType::kFp16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
  }
  Dims of_queries() const { return {outer, heads, length, dim}; }
  Dims of_keys() const { return {outer, kv_heads, length, dim}; }
  Dims of_keys_turned() const { return {outer, kv_heads, dim, length}; }
  static Dims turned(const Dims& strides) {
    return {strides[0], strides[1], strides[3], strides[2]};
  }

  std::int64_t dim, length, group;
  std::int64_t outer = 1, heads = 1, kv_heads = 1;
  Dims q{}, kv{}, out{}, scores{}, rows{};
  cudnnDataType_t type = CUDNN_DATA_BFLOAT16;
};

/// s = scale q k^T.
Tensor scaled_scores(CudnnGraph& g, const Layout& l, Tensor q, Tensor keys_turned, Tensor scale) {
  const Tensor raw = g.between(l.scores);
  g.matmul(q, keys_turned, raw);
  const Tensor scaled = g.between(l.scores);
  g.pointwise(CUDNN_POINTWISE_MUL, raw, scaled, scale);
  return scaled;
}

/// Scores of keys after the query become the lowest number.
Tensor masked(CudnnGraph& g, const Layout& l, bool causal, Tensor scores) {
  if (!causal) return scores;
  const Tensor row = g.between(l.scores, CUDNN_DATA_INT32);
  g.index(2, scores, row);
  const Tensor column = g.between(l.scores, CUDNN_DATA_INT32);
  g.index(3, scores, column);
  const Tensor seen = g.between(l.scores, CUDNN_DATA_BOOLEAN);
  g.pointwise(CUDNN_POINTWISE_CMP_GE, row, seen, column);
  const Tensor out = g.between(l.scores);
  g.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, out,
              g.constant(-std::numeric_limits<float>::max()), seen);
  return out;
}

/// p = e^(s - max) / sum, stats = max + ln sum; out = p v.
void build_forward(const Attention& w, const Layout& l, CudnnAttention& out) {
  CudnnGraph& g = out.graph;
  const auto scale = 1 / std::sqrt(static_cast<float>(l.dim));
  out.q = g.tensor(l.of_queries(), l.q, l.type);
  out.k = g.tensor(l.of_keys_turned(), Layout::turned(l.kv), l.type);
  out.v = g.tensor(l.of_keys(), l.kv, l.type);
  out.out = g.tensor(l.of_queries(), l.out, l.type);
  out.stats = g.tensor(l.rows, {l.heads * l.length, l.length, 1, 1}, CUDNN_DATA_FLOAT);
  const Tensor s = masked(g, l, w.causal, scaled_scores(g, l, out.q, out.k, g.constant(scale)));
  const Tensor top = g.between(l.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, s, top);
  const Tensor lowered = g.between(l.scores);
  g.pointwise(CUDNN_POINTWISE_SUB, s, lowered, top);
  const Tensor power = g.between(l.scores);
  g.pointwise(CUDNN_POINTWISE_EXP, lowered, power);
  const Tensor sum = g.between(l.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, power, sum);
  const Tensor logarithm = g.between(l.rows);
  g.pointwise(CUDNN_POINTWISE_LOG, sum, logarithm);
  g.pointwise(CUDNN_POINTWISE_ADD, top, out.stats, logarithm);
  const Tensor p = g.between(l.scores, l.type);
  g.pointwise(CUDNN_POINTWISE_DIV, power, p, sum);
  g.matmul(p, out.v, out.out);
}

/// Gradients of keys or values from scores turned: with several query heads a key head, their sum.
void turned_product(CudnnGraph& g, const Layout& l, Tensor scores, Tensor right, Tensor to) {
  const Dims strides = {l.heads * l.length * l.length, l.length * l.length, 1, l.length};
  const Tensor turned = g.between(l.scores, strides, l.type);
  g.turn(scores, turned);
  if (l.group == 1) return g.matmul(turned, right, to);
  const Tensor by_head = g.between(l.of_queries(), l.type);
  g.matmul(turned, right, by_head);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, by_head, to);
}

/// p = e^(s - stats), dv = p^T do, ds = scale p (do v^T - sum(do out)), dk = ds^T q, dq = ds k.
void build_backward(const Attention& w, const Layout& l, CudnnAttention& out) {
  CudnnGraph& g = out.graph;
  const Tensor scale = g.constant(1 / std::sqrt(static_cast<float>(l.dim)));
  const Dims of_rows = {l.heads * l.length, l.length, 1, 1};
  out.q = g.tensor(l.of_queries(), l.q, l.type);
  out.k = g.tensor(l.of_keys_turned(), Layout::turned(l.kv), l.type);
  out.v = g.tensor(l.of_keys_turned(), Layout::turned(l.kv), l.type);
  out.out = g.tensor(l.of_queries(), l.out, l.type);
  out.d_out = g.tensor(l.of_queries(), l.out, l.type);
  out.stats = g.tensor(l.rows, of_rows, CUDNN_DATA_FLOAT);
  out.d_q = g.tensor(l.of_queries(), l.q, l.type);
  out.d_k = g.tensor(l.of_keys(), l.kv, l.type);
  out.d_v = g.tensor(l.of_keys(), l.kv, l.type);
  out.sums = g.tensor(l.rows, of_rows, CUDNN_DATA_FLOAT);
  const Dims d_q_strides = {l.heads * l.length * l.dim, l.length * l.dim, l.dim, 1};
  out.d_q_sums = g.tensor(l.of_queries(), d_q_strides, CUDNN_DATA_FLOAT);
  out.sums_count = l.outer * l.heads * l.length;
  out.d_q_count = out.sums_count * l.dim;

  const Tensor products = g.between(l.of_queries());
  g.pointwise(CUDNN_POINTWISE_MUL, out.d_out, products, out.out);
  const Tensor dots = g.between(l.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, products, dots);
  g.pointwise(CUDNN_POINTWISE_MUL, dots, out.sums, g.constant(1));

  const Tensor scaled = scaled_scores(g, l, out.q, out.k, scale);
  const Tensor lowered = g.between(l.scores);
  g.pointwise(CUDNN_POINTWISE_SUB, scaled, lowered, out.stats);
  const Tensor p = g.between(l.scores);
  g.pointwise(CUDNN_POINTWISE_EXP, masked(g, l, w.causal, lowered), p);
  turned_product(g, l, p, out.d_out, out.d_v);

  const Tensor d_p = g.between(l.scores);
  g.matmul(out.d_out, out.v, d_p);
  const Tensor centred = g.between(l.scores);
  g.pointwise(CUDNN_POINTWISE_SUB, d_p, centred, out.sums);
  const Tensor weighted = g.between(l.scores);
  g.pointwise(CUDNN_POINTWISE_MUL, centred, weighted, p);
  const Tensor d_s = g.between(l.scores);
  g.pointwise(CUDNN_POINTWISE_MUL, weighted, d_s, scale);
  turned_product(g, l, d_s, out.q, out.d_k);

  const Tensor keys = g.between(l.of_keys(), l.kv, l.type);
  g.turn(out.k, keys);
  g.matmul(d_s, keys, out.d_q_sums);
  g.pointwise(CUDNN_POINTWISE_IDENTITY, out.d_q_sums, out.d_q);
}

}  // namespace

Result<std::unique_ptr<CudnnAttention>> build_cudnn_attention(const Attention& w,
                                                              cudnnHandle_t handle) {
  FT_TRY(open_cudnn());
  auto out = std::make_unique<CudnnAttention>();
  const Layout layout(w);
  w.backward ? build_backward(w, layout, *out) : build_forward(w, layout, *out);
  if (layout.group > 1) {
    out->runs = w.batch;
    out->qkv_step = w.q_len * (w.q_heads + 2 * w.kv_heads) * w.head_dim;
    out->out_step = w.q_len * w.q_heads * w.head_dim;
    out->stats_step = w.q_len * w.q_heads;
  }
  FT_TRY(out->graph.finish(handle));
  return out;
}

Result<std::unique_ptr<Cudnn>> Cudnn::create() {
  FT_TRY(open_cudnn());
  std::unique_ptr<Cudnn> out(new Cudnn());
  const cudnnStatus_t status = cudnn_api().create(&out->x_handle);
  if (status != CUDNN_STATUS_SUCCESS) return input_error("cuDNN: handle: " + text_of(status));
  return out;
}

Cudnn::~Cudnn() {
  x_made.clear();
  if (x_handle != nullptr) cudnn_api().destroy(x_handle);
}

Result<const CudnnAttention*> Cudnn::attention(const Attention& work) {
  std::unique_ptr<CudnnAttention>& known = x_made[text_of(Work{work})];
  if (known == nullptr) {
    FT_ASSIGN(auto made, build_cudnn_attention(work, x_handle));
    FT_TRY(made->graph.choose(x_handle));
    known = std::move(made);
  }
  return known.get();
}

std::size_t Cudnn::scratch_bytes(const CudnnAttention& made) {
  return made.graph.workspace_bytes() +
         static_cast<std::size_t>(made.sums_count + made.d_q_count) * sizeof(float) + 512;
}

Status Cudnn::run(const Attention& w, const CudnnAttention& made, const DeviceOperands& x,
                  void* scratch, cudaStream_t stream) {
  if (const cudnnStatus_t status = cudnn_api().set_stream(x_handle, stream);
      status != CUDNN_STATUS_SUCCESS) {
    return input_error("cuDNN: stream: " + text_of(status));
  }
  constexpr std::int64_t kBytes = 2;  // bf16 and fp16
  const std::int64_t group = w.q_heads / w.kv_heads;
  auto* const sums = static_cast<std::byte*>(scratch);
  auto* const d_q_sums = sums + (made.sums_count * 4 + 255) / 256 * 256;
  auto* const workspace = d_q_sums + (made.d_q_count * 4 + 255) / 256 * 256;
  for (std::int64_t run = 0; run < made.runs; ++run) {
    const auto heads = [&](const Operand& of) { return of.data + run * made.qkv_step * kBytes; };
    const auto rows = [&](const Operand& of) { return of.data + run * made.out_step * kBytes; };
    const auto statistics = [&](const Operand& of) { return of.data + run * made.stats_step * 4; };
    const Operand& qkv = x.reads[w.backward ? 1 : 0];
    const std::int64_t key = group * w.head_dim * kBytes;
    const std::int64_t value = key + w.head_dim * kBytes;
    std::map<CudnnGraph::Tensor, void*> memory = {
        {made.q, heads(qkv)}, {made.k, heads(qkv) + key}, {made.v, heads(qkv) + value}};
    if (!w.backward) {
      memory[made.out] = rows(x.writes[0]);
      memory[made.stats] = statistics(x.writes[1]);
    } else {
      memory[made.d_out] = rows(x.reads[0]);
      memory[made.out] = rows(x.reads[2]);
      memory[made.stats] = statistics(x.reads[3]);
      memory[made.d_q] = heads(x.writes[0]);
      memory[made.d_k] = heads(x.writes[0]) + key;
      memory[made.d_v] = heads(x.writes[0]) + value;
      memory[made.sums] = sums;
      memory[made.d_q_sums] = d_q_sums;
    }
    FT_TRY(made.graph.run(x_handle, memory, workspace));
  }
  return ok_status();
}

}  // namespace foretrain

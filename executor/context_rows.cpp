// What context parallelism moves between pieces of attention: keys and values in and out of packed
// qkv, partial results put together, heads exchanged for tokens.
#include <algorithm>
#include <cmath>

#include "executor/kernels.h"

namespace foretrain {
namespace {

/// How a row of packed qkv is cut: `groups` key-value heads, each its queries (`queries` elements),
/// then its key and value (`keys` elements).
struct Packed {
  std::int64_t groups = 0, queries = 0, keys = 0;
  std::int64_t width() const { return groups * (queries + keys); }
};

/// `keys`: elements of a token's keys and values.
Packed packed(std::int64_t width, std::int64_t keys, std::int64_t head_dim) {
  const std::int64_t groups = keys / (2 * head_dim);
  return {groups, (width - keys) / groups, 2 * head_dim};
}

/// Calls visit(offset in a row of qkv, offset in a row of keys, of queries) for every group.
template <typename Visit>
void each_group(const Packed& p, std::int64_t rows, Visit visit) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t g = 0; g < p.groups; ++g) {
      const std::int64_t at = r * p.width() + g * (p.queries + p.keys);
      visit(at, (r * p.groups + g) * p.keys, (r * p.groups + g) * p.queries);
    }
  }
}

/// reads: qkv; writes: its keys and values, in one array or in one each.
template <typename T>
void pack_keys(const Kernel& w, const Operands<T>& x) {
  const Packed p = packed(x.reads[0].count / w.rows, w.cols, w.head_dim);
  const std::size_t arrays = x.writes.size();
  const std::int64_t width = p.keys / static_cast<std::int64_t>(arrays);
  each_group(p, w.rows, [&](std::int64_t row, std::int64_t key, std::int64_t) {
    const T* from = x.in(0) + row + p.queries;
    for (std::size_t i = 0; i < arrays; ++i, from += width) {
      std::copy_n(from, width, x.out(i) + key * width / p.keys);
    }
  });
}

/// reads: keys and values in one array, or in one each of the tokens of all members; writes: this
/// member's into those of qkv.
template <typename T>
void unpack_keys(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const Packed p = packed(x.writes[0].count / w.rows, w.cols, w.head_dim);
  const std::size_t arrays = x.reads.size();
  const std::int64_t width = p.keys / static_cast<std::int64_t>(arrays);
  const std::int64_t own = arrays > 1 ? context.place(context.batch.context).index : 0;
  const std::int64_t before = own * w.rows * p.groups * width;
  each_group(p, w.rows, [&](std::int64_t row, std::int64_t key, std::int64_t) {
    T* to = x.out(0) + row + p.queries;
    for (std::size_t i = 0; i < arrays; ++i, to += width) {
      std::copy_n(x.in(i) + before + key * width / p.keys, width, to);
    }
  });
}

/// reads: qkv, queries; writes: qkv, to whose queries they are added.
template <typename T>
void add_queries(const Kernel& w, const Operands<T>& x) {
  const std::int64_t width = x.reads[0].count / w.rows;
  const Packed p = packed(width, width - w.cols, w.head_dim);
  each_group(p, w.rows, [&](std::int64_t row, std::int64_t, std::int64_t query) {
    for (std::int64_t c = 0; c < p.queries; ++c) x.out(0)[row + c] += x.in(1)[query + c];
  });
}

/// reads: out, log-sum-exp L, a part's out and l; writes: out, L. With M = log(e^L + e^l):
/// out = e^(L - M) out + e^(l - M) part.
template <typename T>
void merge(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const std::int64_t batch = context.batch.sequences;
  const std::int64_t length = w.rows / batch;
  const std::int64_t heads = w.cols / w.head_dim;
  for (std::int64_t row = 0; row < w.rows; ++row) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t statistic = (row / length * heads + h) * length + row % length;
      const T own = x.in(1)[statistic];
      const T part = x.in(3)[statistic];
      const T top = std::max(own, part);
      const T sum = top + std::log(std::exp(own - top) + std::exp(part - top));
      const T a = std::exp(own - sum);
      const T b = std::exp(part - sum);
      const std::int64_t at = row * w.cols + h * w.head_dim;
      for (std::int64_t c = at; c < at + w.head_dim; ++c) {
        x.out(0)[c] = a * x.in(0)[c] + b * x.in(2)[c];
      }
      x.out(1)[statistic] = sum;
    }
  }
}

/// Rows [token][part of the heads] to [part][token], or back.
template <typename T>
void split_heads(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const std::int64_t parts = context.among_parts(w.split_over).size;
  const std::int64_t width = w.cols / parts;
  const bool back = w.kind == KernelKind::kJoinHeads;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t p = 0; p < parts; ++p) {
      const std::int64_t by_tokens = r * w.cols + p * width;
      const std::int64_t by_parts = (p * w.rows + r) * width;
      std::copy_n(x.in(0) + (back ? by_parts : by_tokens), width,
                  x.out(0) + (back ? by_tokens : by_parts));
    }
  }
}

/// Rows [sequence][position] to [member][sequence][its tokens], or back.
template <typename T>
void split_sequence(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const std::int64_t members = context.among_parts(w.split_over).size;
  const std::int64_t batch = context.batch.sequences;
  const std::int64_t length = w.rows / batch;  // of what the members hold together
  const std::int64_t part = length / members;
  const bool back = w.kind == KernelKind::kJoinSequence;
  for (std::int64_t m = 0; m < members; ++m) {
    for (std::int64_t i = 0; i < batch * part; ++i) {
      const std::int64_t position =
          position_in_part(i % part, m, members, length, context.batch.documents);
      const std::int64_t whole = (i / part * length + position) * w.cols;
      const std::int64_t cut = (m * batch * part + i) * w.cols;
      std::copy_n(x.in(0) + (back ? cut : whole), w.cols, x.out(0) + (back ? whole : cut));
    }
  }
}

}  // namespace

template <typename T>
void run_context(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  switch (w.kind) {
    case KernelKind::kPackKeys:
      return pack_keys(w, x);
    case KernelKind::kUnpackKeys:
      return unpack_keys(w, context, x);
    case KernelKind::kAddQueries:
      return add_queries(w, x);
    case KernelKind::kMergeAttention:
      return merge(w, context, x);
    case KernelKind::kSplitHeads:
    case KernelKind::kJoinHeads:
      return split_heads(w, context, x);
    default:
      return split_sequence(w, context, x);
  }
}

template void run_context(const Kernel&, const OpContext&, const Operands<float>&);
template void run_context(const Kernel&, const OpContext&, const Operands<double>&);

}  // namespace foretrain

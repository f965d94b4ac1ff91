// The ends of a model: token and position tables, the loss over a vocabulary that may be cut. The
// mathematics is ends.cpp's. Rows of a table's gradient are added in the order of the tokens.
#pragma once

#include <cmath>
#include <limits>

#include "executor/cuda/token_links.h"
#include "executor/cuda/token_places.h"

namespace foretrain::device {

/// The local rows of a table that is cut along the vocabulary.
struct Slice {
  std::int64_t first = 0, count = 0;
  FT_DEVICE bool has(std::int64_t id) const { return id >= first && id < first + count; }
};
inline Slice slice_of(const Kernel& w, const OpContext& context, std::int64_t local) {
  return {context.place(w.split_over).index * local, local};
}

template <typename T>
struct Embedding {
  const T* table;
  const std::int64_t* tokens;
  T* out;
  std::int64_t cols;
  Slice slice;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const bool here = slice.has(tokens[r]);
    const T* row = table + (here ? tokens[r] - slice.first : 0) * cols;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      out[r * cols + c] = here ? row[c] : stored<T>(0.0F);
    }
  }
};

/// The first row of a token adds up all of them.
template <typename T, typename G>
struct EmbeddingBackward {
  const T* d;
  const std::int64_t* tokens;
  const std::int32_t* before;
  const std::int32_t* next;
  G* table;
  std::int64_t cols;
  Slice slice;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t first) const {
    if (before[first] >= 0 || !slice.has(tokens[first])) return;
    G* const row = table + (tokens[first] - slice.first) * cols;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      float sum = to_float(row[c]);
      for (std::int64_t r = first; r >= 0; r = next[r]) sum += to_float(d[r * cols + c]);
      row[c] = stored<G>(sum);
    }
  }
};

template <typename T>
struct PositionsAdd {
  const T* in;
  const T* table;
  T* out;
  std::int64_t cols;
  TokenPlaces places;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const T* row = table + places.position(r) * cols;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      out[r * cols + c] = stored<T>(to_float(in[r * cols + c]) + to_float(row[c]));
    }
  }
};

/// Team p: all rows whose position is p.
template <typename T, typename G>
struct PositionsGradient {
  const T* d;
  G* table;
  std::int64_t rows, cols;
  TokenPlaces places;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t p) const {
    const std::int64_t at = places.at_position(p);
    if (at < 0) return;
    const std::int64_t length = places.length;
    const std::int64_t begin = (at - places.first % length + length) % length;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      float sum = to_float(table[p * cols + c]);
      for (std::int64_t r = begin; r < rows; r += length) sum += to_float(d[r * cols + c]);
      table[p * cols + c] = stored<G>(sum);
    }
  }
};

template <typename T>
struct LossMax {
  const T* logits;
  float* out;
  std::int64_t cols, real;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    float top = -3.402823466e+38F;
    for (std::int64_t c = team.rank(); c < real; c += team.size()) {
      const float v = to_float(logits[r * cols + c]);
      top = v > top ? v : top;
    }
    top = team.max(top);
    if (team.rank() == 0) out[r] = top;
  }
};

template <typename T>
struct LossSumExp {
  const T* logits;
  const float* tops;
  const std::int64_t* labels;
  float* exponentials;
  float* sums;
  float* targets;
  std::int64_t cols, real;
  Slice slice;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const T* in = logits + r * cols;
    float* out = exponentials + r * cols;
    const float top = tops[r];
    float sum = 0;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float e = c < real ? std::exp(to_float(in[c]) - top) : 0.0F;
      out[c] = e;
      sum += e;
    }
    sum = team.sum(sum);
    if (team.rank() != 0) return;
    sums[r] = sum;
    targets[r] = slice.has(labels[r]) ? to_float(in[labels[r] - slice.first]) - top : 0.0F;
  }
};

struct LossMean {
  const float* targets;
  const float* sums;
  float* loss;
  std::int64_t rows;
  double tokens;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t) const {
    double sum = 0;
    for (std::int64_t r = team.rank(); r < rows; r += team.size()) {
      sum += std::log(static_cast<double>(sums[r])) - static_cast<double>(targets[r]);
    }
    sum = team.sum(sum);
    if (team.rank() == 0) *loss += static_cast<float>(sum / tokens);
  }
};

/// Without targets sums alone.
struct LossShift {
  const float* sums;
  const float* from;
  const float* to;
  const float* targets;
  const std::int64_t* labels;
  float* sums_out;
  float* targets_out;
  Slice slice;
  FT_DEVICE void operator()(std::int64_t r) const {
    const float up = from[r] - to[r];
    sums_out[r] = sums[r] * std::exp(up);
    if (targets != nullptr) targets_out[r] = slice.has(labels[r]) ? targets[r] + up : 0.0F;
  }
};

template <typename T>
struct LossInputGradient {
  const T* products;
  const T* of_labels;
  const float* sums;
  T* out;
  std::int64_t cols;
  float share;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const float scale = share / sums[r];
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const std::int64_t i = r * cols + c;
      out[i] = stored<T>(to_float(products[i]) * scale - to_float(of_labels[i]) * share);
    }
  }
};

template <typename T>
struct LossBackward {
  const float* exponentials;
  const float* sums;
  const std::int64_t* labels;
  T* out;
  std::int64_t cols;
  float share;
  Slice slice;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const float scale = share / sums[r];
    const std::int64_t label = slice.has(labels[r]) ? labels[r] - slice.first : -1;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float p = exponentials[r * cols + c] * scale;
      out[r * cols + c] = stored<T>(c == label ? p - share : p);
    }
  }
};

template <typename L>
void embedding_backward(L& launcher, const Kernel& w, const OpContext& context,
                        const DeviceOperands& x) {
  const Slice slice = slice_of(w, context, x.writes[0].count / w.cols);
  auto* const before = static_cast<std::int32_t*>(
      launcher.scratch(sizeof(std::int32_t) * static_cast<std::size_t>(kLinkArrays * w.rows)));
  std::int32_t* const next = before + w.rows;
  const auto* const tokens = x.in<std::int64_t>(1);
  link_tokens(launcher, tokens, w.rows, before);
  with_types(x.type_in(0), x.type_out(0), [&](auto work, auto gradients) {
    using T = typename decltype(work)::Type;
    using G = typename decltype(gradients)::Type;
    launcher.rows(w.rows, EmbeddingBackward<T, G>{x.in<T>(0), tokens, before, next, x.out<G>(0),
                                                  w.cols, slice});
  });
}

template <typename L>
void run_table(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  const TokenPlaces places = token_places(context, w.split_over, w.rows);
  if (w.kind == KernelKind::kPositionsGrad) {
    return with_types(x.type_in(0), x.type_out(0), [&](auto work, auto gradients) {
      using T = typename decltype(work)::Type;
      using G = typename decltype(gradients)::Type;
      launcher.rows(context.batch.length,
                    PositionsGradient<T, G>{x.in<T>(0), x.out<G>(0), w.rows, w.cols, places});
    });
  }
  with_type(x.type_out(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (w.kind == KernelKind::kPositionsAdd) {
      launcher.rows(w.rows, PositionsAdd<T>{x.in<T>(0), x.in<T>(1), x.out<T>(0), w.cols, places});
    } else {
      launcher.rows(w.rows, Embedding<T>{x.in<T>(0), x.in<std::int64_t>(1), x.out<T>(0), w.cols,
                                         slice_of(w, context, x.reads[0].count / w.cols)});
    }
  });
}

template <typename L>
void run_loss(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  if (w.kind == KernelKind::kLossMean) {
    return launcher.rows(1, LossMean{x.in<float>(0), x.in<float>(1), x.out<float>(0), w.rows,
                                     static_cast<double>(context.global_tokens())});
  }
  const float share = 1.0F / static_cast<float>(context.global_tokens());
  if (w.kind == KernelKind::kLossInput) {
    return with_type(x.type_in(0), [&](auto tag) {
      using T = typename decltype(tag)::Type;
      launcher.rows(w.rows, LossInputGradient<T>{x.in<T>(0), x.in<T>(1), x.in<float>(2),
                                                 x.out<T>(0), w.cols, share});
    });
  }
  const Slice slice = slice_of(w, context, w.cols);
  if (w.kind == KernelKind::kLossShift) {
    const bool targets = x.writes.size() > 1;
    return launcher.elements(
        w.rows,
        LossShift{x.in<float>(0), x.in<float>(1), x.in<float>(2),
                  targets ? x.in<float>(3) : nullptr, targets ? x.in<std::int64_t>(4) : nullptr,
                  x.out<float>(0), targets ? x.out<float>(1) : nullptr, slice});
  }
  const std::int64_t real =
      std::clamp<std::int64_t>(context.batch.vocabulary - slice.first, 0, w.cols);
  const bool backward = w.kind == KernelKind::kLossBackward;
  with_type(backward ? x.type_out(0) : x.type_in(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (w.kind == KernelKind::kLossMax) {
      launcher.rows(w.rows, LossMax<T>{x.in<T>(0), x.out<float>(0), w.cols, real});
    } else if (backward) {
      launcher.rows(w.rows, LossBackward<T>{x.in<float>(0), x.in<float>(1), x.in<std::int64_t>(2),
                                            x.out<T>(0), w.cols, share, slice});
    } else {
      launcher.rows(
          w.rows, LossSumExp<T>{x.in<T>(0), x.in<float>(1), x.in<std::int64_t>(2), x.out<float>(0),
                                x.out<float>(1), x.out<float>(2), w.cols, real, slice});
    }
  });
}

template <typename L>
void run_ends(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  if (w.kind == KernelKind::kEmbeddingBackward) {
    return embedding_backward(launcher, w, context, x);
  }
  const bool loss = w.kind >= KernelKind::kLossMax && w.kind <= KernelKind::kLossBackward;
  loss ? run_loss(launcher, w, context, x) : run_table(launcher, w, context, x);
}

}  // namespace foretrain::device

// The choice of experts for tokens, and its gradient. The mathematics, and what becomes of a token
// that finds no room, are experts.cpp's; so is every choice.
#pragma once

#include <cmath>
#include <limits>

#include "executor/cuda/token_places.h"

namespace foretrain::device {

/// Entries of a routing map.
inline constexpr std::uint8_t kNot = 0, kTaken = 1, kDropped = 2;

/// Team (expert, source): visits the tokens of a source that the expert takes, in their order.
/// `of.takes(e, t)` says which; `of.use(at, e, t, slot)` is told how many came before.
template <typename Of>
struct InOrder {
  Of of;
  std::int64_t sources, tokens;  ///< of a source
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t e = at / sources;
    const std::int64_t last = (at % sources + 1) * tokens;
    const std::int64_t share = (tokens + team.size() - 1) / team.size();
    const std::int64_t begin = at % sources * tokens + team.rank() * share;
    const std::int64_t end = begin + share < last ? begin + share : last;
    auto* const counts = reinterpret_cast<std::int32_t*>(team.shared());
    std::int32_t own = 0;
    for (std::int64_t t = begin; t < end; ++t) own += of.takes(e, t) ? 1 : 0;
    counts[team.rank()] = own;
    team.sync();
    std::int64_t slot = 0;
    for (std::int64_t w = 0; w < team.rank(); ++w) slot += counts[w];
    for (std::int64_t t = begin; t < end; ++t) {
      if (of.takes(e, t)) of.use(at, e, t, slot++);
    }
  }
};

template <typename L, typename Of>
void in_order(L& launcher, const Of& of, std::int64_t experts, std::int64_t sources,
              std::int64_t tokens) {
  launcher.rows(experts * sources, InOrder<Of>{of, sources, tokens}, kMostWorkers);
}

/// By expert, its place in the order of the layer and step.
struct DrawTurns {
  std::uint64_t key;
  std::int64_t experts;
  std::int32_t* turns;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t) const {
    auto* const order = reinterpret_cast<std::int32_t*>(team.shared());
    for (std::int64_t i = team.rank(); i < experts; i += team.size()) {
      order[i] = static_cast<std::int32_t>(i);
    }
    team.sync();
    for (std::int64_t i = experts - 1; i > 0 && team.rank() == 0; --i) {
      const double uniform = static_cast<double>(bits_at(key, i)) * 0x1.0p-53;
      const auto drawn = static_cast<std::int64_t>(uniform * static_cast<double>(i + 1));
      const std::int32_t kept = order[i];
      order[i] = order[drawn];
      order[drawn] = kept;
    }
    team.sync();
    for (std::int64_t i = team.rank(); i < experts; i += team.size()) {
      turns[order[i]] = static_cast<std::int32_t>(i);
    }
  }
};

/// A token's experts, and the softmax of their logits.
template <typename T>
struct Choose {
  const T* logits;
  const std::int32_t* turns;  ///< none: those of the largest logits
  float* scores;
  std::uint8_t* map;
  std::int64_t experts, top_k;
  TokenPlaces places;

  FT_DEVICE bool chosen(std::int64_t r, std::int64_t e) const {
    if (turns != nullptr) {
      const std::int64_t turn = places.token(r) * top_k % experts;
      return (turns[e] - turn + experts) % experts < top_k;
    }
    const T* const row = logits + r * experts;
    const float own = to_float(row[e]);
    std::int64_t before = 0;
    for (std::int64_t j = 0; j < experts; ++j) {
      const float v = to_float(row[j]);
      before += v > own || (v == own && j < e) ? 1 : 0;
    }
    return before < top_k;
  }
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const T* const row = logits + r * experts;
    const std::int64_t at = r * experts;
    float top = -3.402823466e+38F;
    for (std::int64_t e = team.rank(); e < experts; e += team.size()) {
      const bool takes = chosen(r, e);
      map[at + e] = takes ? kTaken : kNot;
      if (takes && to_float(row[e]) > top) top = to_float(row[e]);
    }
    top = team.max(top);
    float sum = 0;
    for (std::int64_t e = team.rank(); e < experts; e += team.size()) {
      if (map[at + e] != kNot) sum += std::exp(to_float(row[e]) - top);
    }
    sum = team.sum(sum);
    constexpr float kLeast = 1.175494351e-38F;  // chosen, so never zero
    for (std::int64_t e = team.rank(); e < experts; e += team.size()) {
      const float v = map[at + e] != kNot ? std::exp(to_float(row[e]) - top) / sum : 0.0F;
      scores[at + e] = map[at + e] != kNot && v < kLeast ? kLeast : v;
    }
  }
};

/// A token beyond the room of an expert is dropped there.
struct DropLate {
  std::uint8_t* map;
  std::int64_t experts, capacity;
  FT_DEVICE bool takes(std::int64_t e, std::int64_t t) const {
    return map[t * experts + e] == kTaken;
  }
  FT_DEVICE void use(std::int64_t, std::int64_t e, std::int64_t t, std::int64_t slot) const {
    if (slot >= capacity) map[t * experts + e] = kDropped;
  }
};

/// d logits of a token: `given` are d scores of all experts or, in their order, of its own.
template <typename T>
struct ChooseBackward {
  const float* given;
  const float* scores;
  const std::uint8_t* map;
  T* out;
  std::int64_t experts, width;

  FT_DEVICE float d_score(std::int64_t r, std::int64_t e) const {
    std::int64_t at = e;
    if (width != experts) {
      at = 0;
      for (std::int64_t j = 0; j < e; ++j) at += map[r * experts + j] != kNot ? 1 : 0;
    }
    return at < width ? given[r * width + at] : 0.0F;
  }
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    float mean = 0;
    for (std::int64_t e = team.rank(); e < experts; e += team.size()) {
      if (map[r * experts + e] != kNot) mean += scores[r * experts + e] * d_score(r, e);
    }
    mean = team.sum(mean);
    for (std::int64_t e = team.rank(); e < experts; e += team.size()) {
      const bool chosen = map[r * experts + e] != kNot;
      out[r * experts + e] =
          stored<T>(chosen ? scores[r * experts + e] * (d_score(r, e) - mean) : 0.0F);
    }
  }
};

/// Team: an expert.
struct CountTokens {
  const std::uint8_t* map;
  std::int64_t tokens, experts;
  std::int64_t* out;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t e) const {
    std::int64_t sum = 0;
    for (std::int64_t t = team.rank(); t < tokens; t += team.size()) {
      sum += map[t * experts + e] == kTaken ? 1 : 0;
    }
    sum = team.sum(sum);
    if (team.rank() == 0) out[e] = sum;
  }
};

template <typename L>
void route(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  const ExpertRows& to = w.rows_of;
  std::int32_t* turns = nullptr;
  if (to.choice == ExpertChoice::kInTurn) {
    const auto count = static_cast<std::size_t>(to.experts);
    turns = static_cast<std::int32_t*>(launcher.scratch(count * sizeof(std::int32_t)));
    launcher.rows(1, DrawTurns{context.key("order of experts"), to.experts, turns}, count);
  }
  auto* const map = x.out<std::uint8_t>(1);
  with_type(x.type_in(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    launcher.rows(w.rows, Choose<T>{x.in<T>(0), turns, x.out<float>(0), map, to.experts, to.top_k,
                                    token_places(context, w.split_over, w.rows)});
  });
  in_order(launcher, DropLate{map, to.experts, to.capacity}, to.experts, 1, w.rows);
}

template <typename L>
void run_route(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  if (w.kind == KernelKind::kRoute) return route(launcher, w, context, x);
  if (w.kind == KernelKind::kExpertCounts) {
    return launcher.rows(w.rows_of.experts, CountTokens{x.in<std::uint8_t>(0), w.rows,
                                                        w.rows_of.experts, x.out<std::int64_t>(0)});
  }
  with_type(x.type_out(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    launcher.rows(w.rows,
                  ChooseBackward<T>{x.in<float>(0), x.in<float>(1), x.in<std::uint8_t>(2),
                                    x.out<T>(0), w.rows_of.experts, x.reads[0].count / w.rows});
  });
}

}  // namespace foretrain::device

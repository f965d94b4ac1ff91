#include "models/plan/layout/partition.h"

#include <algorithm>
#include <limits>
#include <map>

#include "sim/base/check.h"

namespace foretrain {
namespace {

using Weight = std::int64_t;

std::int64_t sum_of(const std::vector<Parameter>& parameters) {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters) sum += p.count();
  return sum;
}

/// Weight of any run of items.
class Runs {
 public:
  explicit Runs(const std::vector<LayerWeights>& kinds) {
    for (const LayerWeights& kind : kinds) {
      std::vector<Weight>& before = x_before.emplace_back(std::vector<Weight>{0});
      const auto add = [&before](Weight item) { before.push_back(before.back() + item); };
      add(kind.embedding);
      for (const Weight layer : kind.layers) add(layer);
      add(kind.head);
    }
  }
  std::size_t count() const { return x_before.front().size() - 1; }
  Weight between(std::size_t begin, std::size_t end) const {
    Weight most = 0;
    for (const auto& before : x_before) most = std::max(most, before[end] - before[begin]);
    return most;
  }

 private:
  std::vector<std::vector<Weight>> x_before;  ///< by kind: sums of the items before each, of all
};

class Balancer {
 public:
  Balancer(const std::vector<LayerWeights>& kinds, std::size_t chunks)
      : x_runs(kinds), x_count(x_runs.count()), x_chunks(chunks) {
    FT_CHECK(chunks >= 1 && chunks <= x_count, "a chunk for every item at most");
    find_most();
    find_windows();
    find_lightest();
  }

  /// Where chunks begin, and the end.
  std::vector<std::size_t> cuts() const {
    const Weight least = value(0, 0);
    std::vector<std::size_t> out = {0};
    for (std::size_t c = 0; c < x_chunks; ++c) {
      const std::size_t begin = out.back();
      std::size_t end = furthest(begin, x_last[c + 1], x_most);
      while (between(begin, end) < least || value(c + 1, end) < least) --end;
      out.push_back(end);
    }
    return out;
  }

 private:
  Weight between(std::size_t begin, std::size_t end) const { return x_runs.between(begin, end); }

  /// Chunks as long as `bound` and an item for each of the others allow reach the end.
  bool fits(Weight bound) const {
    std::size_t at = 0;
    for (std::size_t left = x_chunks; left-- > 0;) at = furthest(at, x_count - left, bound);
    return at == x_count;
  }
  std::size_t furthest(std::size_t begin, std::size_t last, Weight bound) const {
    std::size_t end = begin + 1;
    while (end < last && between(begin, end + 1) <= bound) ++end;
    return end;
  }

  /// The heaviest chunk of the best cut, not less than any item.
  void find_most() {
    for (std::size_t i = 0; i < x_count; ++i) x_most = std::max(x_most, between(i, i + 1));
    Weight high = between(0, x_count);
    while (x_most < high) {
      const Weight middle = x_most + (high - x_most) / 2;
      const bool enough = fits(middle);
      (enough ? high : x_most) = enough ? middle : middle + 1;
    }
  }

  /// The cut after c chunks lies between where those before it reach at most and where those after
  /// it do, from the end; each of these places goes on to both ends.
  void find_windows() {
    x_first.assign(x_chunks + 1, x_count);
    x_last.assign(x_chunks + 1, 0);
    for (std::size_t c = 1; c <= x_chunks; ++c) {
      x_last[c] = furthest(x_last[c - 1], x_count - (x_chunks - c), x_most);
    }
    for (std::size_t c = x_chunks; c-- > 0;) {
      std::size_t begin = x_first[c + 1] - 1;
      while (begin > c && between(begin - 1, x_first[c + 1]) <= x_most) --begin;
      x_first[c] = begin;
    }
  }

  /// Of the chunks after a cut, the lightest at best.
  void find_lightest() {
    x_values.resize(x_chunks + 1);
    x_values.back() = {std::numeric_limits<Weight>::max()};
    for (std::size_t c = x_chunks; c-- > 0;) {
      for (std::size_t begin = x_first[c]; begin <= x_last[c]; ++begin) {
        Weight best = 0;
        for (std::size_t end = std::max(begin + 1, x_first[c + 1]); end <= x_last[c + 1]; ++end) {
          const Weight own = between(begin, end);
          if (own > x_most) break;
          best = std::max(best, std::min(own, value(c + 1, end)));
        }
        x_values[c].push_back(best);
      }
    }
  }
  Weight value(std::size_t c, std::size_t at) const { return x_values[c][at - x_first[c]]; }

  Runs x_runs;
  std::size_t x_count, x_chunks;
  Weight x_most = 0;
  std::vector<std::size_t> x_first, x_last;  ///< places of the cut after c chunks
  std::vector<std::vector<Weight>> x_values;
};

}  // namespace

LayerWeights parameter_weights(const Model& model, const Plan& plan) {
  LayerWeights out;
  std::map<LayerKind, std::int64_t> weights;
  for (const LayersOfKind& of : model.kinds(true)) {
    weights[of.kind] = sum_of(layer_parameters(model, of.kind));
  }
  for (std::int64_t l = 0; l < model.layers; ++l) {
    out.layers.push_back(weights.at(model.kind(l)));
  }
  if (plan.shares_vocabulary()) return out;
  out.embedding = sum_of(embedding_parameters(model));
  out.head =
      sum_of(head_parameters(model)) + sum_of(prediction_parameters(model)) +
      (model.predict_layers > 0 ? model.predict_layers * weights.at(model.kind(model.layers)) : 0);
  const bool apart = plan.stage_of(0) != plan.stage_of(plan.chunks() - 1);
  if (model.tied_embeddings && apart) out.head += embedding_parameters(model).front().count();
  return out;
}

std::vector<std::int64_t> balanced_layout(const std::vector<LayerWeights>& kinds,
                                          std::int64_t chunks) {
  const Balancer balancer(kinds, static_cast<std::size_t>(chunks));
  const std::vector<std::size_t> cuts = balancer.cuts();
  std::vector<std::int64_t> out;
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    out.push_back(static_cast<std::int64_t>(cuts[c + 1] - cuts[c]));
  }
  --out.front();
  --out.back();
  return out;
}

std::vector<std::int64_t> chunk_weights(const std::vector<LayerWeights>& kinds,
                                        const std::vector<std::int64_t>& layout) {
  const Runs runs(kinds);
  std::vector<std::int64_t> out;
  std::size_t begin = 0;
  std::size_t end = 1;  // behind the embedding
  for (std::size_t c = 0; c < layout.size(); ++c) {
    end += static_cast<std::size_t>(layout[c]) + (c + 1 == layout.size() ? 1 : 0);
    out.push_back(runs.between(begin, end));
    begin = end;
  }
  return out;
}

}  // namespace foretrain

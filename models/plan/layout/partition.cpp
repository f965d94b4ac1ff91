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
  Balancer(const std::vector<std::vector<LayerWeights>>& weights,
           const std::vector<std::size_t>& kind_of_chunk)
      : x_runs(weights.begin(), weights.end()),
        x_kind(kind_of_chunk),
        x_count(x_runs.front().count()),
        x_chunks(kind_of_chunk.size()) {
    FT_CHECK(x_chunks >= 1 && x_chunks <= x_count, "a chunk for every item at most");
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
      std::size_t end = furthest(c, begin, x_last[c + 1], x_most);
      while (between(c, begin, end) < least || value(c + 1, end) < least) --end;
      out.push_back(end);
    }
    return out;
  }

 private:
  Weight between(std::size_t c, std::size_t begin, std::size_t end) const {
    return x_runs[x_kind[c]].between(begin, end);
  }

  /// Places of a cut after so many chunks that leave each of the others an item.
  std::size_t lowest(std::size_t chunks) const { return chunks; }
  std::size_t highest(std::size_t chunks) const { return x_count - (x_chunks - chunks); }

  /// Where the cut after each chunk may lie so that no chunk before it is heavier than `bound`. A
  /// chunk may go further than is good: the next one takes an item at least, which may be too heavy
  /// for it alone.
  using Places = std::vector<std::vector<bool>>;
  Places reached(Weight bound) const {
    Places out(x_chunks + 1, std::vector<bool>(x_count + 1));
    out[0][0] = true;
    for (std::size_t c = 0; c < x_chunks; ++c) {
      std::size_t end = 0;  // of chunk c, beyond which it is too heavy
      std::size_t marked = 0;
      for (std::size_t begin = lowest(c); begin <= highest(c); ++begin) {
        if (!out[c][begin]) continue;
        end = std::max(end, begin);
        while (end < highest(c + 1) && between(c, begin, end + 1) <= bound) ++end;
        for (marked = std::max(marked, begin); marked < end; ++marked)
          out[c + 1][marked + 1] = true;
      }
    }
    return out;
  }
  bool fits(Weight bound) const { return reached(bound).back()[x_count]; }
  /// The end of chunk c, which takes one item at least.
  std::size_t furthest(std::size_t c, std::size_t begin, std::size_t last, Weight bound) const {
    std::size_t end = begin + 1;
    while (end < last && between(c, begin, end + 1) <= bound) ++end;
    return end;
  }

  /// The heaviest chunk of the best cut.
  void find_most() {
    Weight high = 0;
    for (std::size_t c = 0; c < x_chunks; ++c) high = std::max(high, between(c, 0, x_count));
    while (x_most < high) {
      const Weight middle = x_most + (high - x_most) / 2;
      const bool enough = fits(middle);
      (enough ? high : x_most) = enough ? middle : middle + 1;
    }
  }

  /// The cut after c chunks lies between where those after it reach at most, from the end, and
  /// where those before it do.
  void find_windows() {
    const Places places = reached(x_most);
    x_first.assign(x_chunks + 1, x_count);
    x_last.assign(x_chunks + 1, x_count);
    for (std::size_t c = 0; c <= x_chunks; ++c) {
      while (!places[c][x_last[c]]) --x_last[c];
    }
    for (std::size_t c = x_chunks; c-- > 0;) {
      std::size_t begin = x_first[c + 1] - 1;
      while (begin > lowest(c) && between(c, begin - 1, x_first[c + 1]) <= x_most) --begin;
      x_first[c] = begin;
    }
  }

  /// Of the chunks after a cut, the lightest at best; kImpossible where one is too heavy.
  void find_lightest() {
    x_values.resize(x_chunks + 1);
    x_values.back() = {std::numeric_limits<Weight>::max()};
    for (std::size_t c = x_chunks; c-- > 0;) {
      for (std::size_t begin = x_first[c]; begin <= x_last[c]; ++begin) {
        Weight best = kImpossible;
        for (std::size_t end = std::max(begin + 1, x_first[c + 1]); end <= x_last[c + 1]; ++end) {
          const Weight own = between(c, begin, end);
          if (own > x_most) break;
          best = std::max(best, std::min(own, value(c + 1, end)));
        }
        x_values[c].push_back(best);
      }
    }
  }
  Weight value(std::size_t c, std::size_t at) const { return x_values[c][at - x_first[c]]; }

  static constexpr Weight kImpossible = -1;

  std::vector<Runs> x_runs;         ///< by kind of chunk
  std::vector<std::size_t> x_kind;  ///< by chunk
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
  return balanced_layout({kinds}, std::vector<std::size_t>(static_cast<std::size_t>(chunks)));
}

std::vector<std::int64_t> balanced_layout(const std::vector<std::vector<LayerWeights>>& weights,
                                          const std::vector<std::size_t>& kind_of_chunk) {
  const Balancer balancer(weights, kind_of_chunk);
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

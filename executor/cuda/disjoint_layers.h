// Groups that share no member, so that one split makes all of them.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "sim/program/program.h"

namespace foretrain {

/// Indices of `groups` in layers: no two groups of a layer share a rank, and each is in the first
/// layer where that holds of it and those before it. The same on every rank.
inline std::vector<std::vector<std::size_t>> disjoint_layers(
    const std::vector<std::vector<RankId>>& groups) {
  std::vector<std::vector<std::size_t>> layers;
  std::vector<std::set<std::int32_t>> taken;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::size_t layer = 0;
    const auto meets = [&](const std::set<std::int32_t>& ranks) {
      for (const RankId rank : groups[g]) {
        if (ranks.contains(rank.value)) return true;
      }
      return false;
    };
    while (layer < layers.size() && meets(taken[layer])) ++layer;
    if (layer == layers.size()) {
      layers.emplace_back();
      taken.emplace_back();
    }
    layers[layer].push_back(g);
    for (const RankId rank : groups[g]) taken[layer].insert(rank.value);
  }
  return layers;
}

}  // namespace foretrain

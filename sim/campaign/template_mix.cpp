#include "sim/campaign/template_mix.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foretrain {
namespace {

constexpr std::size_t kNoTemplate = std::numeric_limits<std::size_t>::max();

/// Of so many nodes that are to hold so many pipelines: the highest sum of speeds, and what to do
/// with the next nodes. No template: one node stays idle, or none is left.
struct Cover {
  double speed = -1;  ///< below 0: it cannot be
  std::size_t next = kNoTemplate;
};

/// By nodes, then by pipelines that are still needed.
using Covers = std::vector<std::vector<Cover>>;

Covers covers_of(const std::vector<PipelineTemplate>& templates, std::size_t nodes,
                 std::size_t fewest) {
  Covers out(nodes + 1, std::vector<Cover>(fewest + 1));
  out[0][0].speed = 0;
  for (std::size_t n = 1; n <= nodes; ++n) {
    for (std::size_t needed = 0; needed <= fewest; ++needed) {
      Cover& cover = out[n][needed];
      cover.speed = out[n - 1][needed].speed;
      for (std::size_t t = 0; t < templates.size(); ++t) {
        const auto size = static_cast<std::size_t>(templates[t].nodes);
        if (size > n) continue;
        const Cover& rest = out[n - size][needed > 0 ? needed - 1 : 0];
        const double speed = rest.speed + 1 / templates[t].microbatch_s;
        if (rest.speed >= 0 && speed > cover.speed) cover = {speed, t};
      }
    }
  }
  return out;
}

/// The step of a mix whose pipelines share so many microbatches.
double step_of(const std::vector<PipelineTemplate>& templates,
               const std::vector<std::int64_t>& pipelines, double speed,
               std::int64_t microbatches) {
  const double even_s = static_cast<double>(microbatches) / speed;
  std::vector<std::int64_t> shares(templates.size(), 0);
  std::int64_t left = microbatches;
  double step_s = 0;
  for (std::size_t t = 0; t < templates.size(); ++t) {
    if (pipelines[t] == 0) continue;
    // Equal pipelines share equally: rounding takes no microbatch from them.
    shares[t] = static_cast<std::int64_t>(std::floor(even_s / templates[t].microbatch_s + 1e-9));
    left -= shares[t] * pipelines[t];
    step_s = std::max(step_s, static_cast<double>(shares[t]) * templates[t].microbatch_s);
  }
  while (left > 0) {
    std::size_t best = kNoTemplate;
    double best_s = std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < templates.size(); ++t) {
      const double end_s = static_cast<double>(shares[t] + 1) * templates[t].microbatch_s;
      if (pipelines[t] == 0 || end_s >= best_s) continue;
      best = t;
      best_s = end_s;
    }
    ++shares[best];
    left -= pipelines[best];
    step_s = std::max(step_s, best_s);
  }
  return step_s;
}

}  // namespace

std::vector<TemplateMix> template_mixes(const std::vector<PipelineTemplate>& templates,
                                        std::int64_t nodes, std::int64_t microbatches,
                                        std::int64_t fewest, std::int64_t most_missing) {
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(0, nodes));
  const auto needed = static_cast<std::size_t>(std::max<std::int64_t>(1, fewest));
  const Covers covers = covers_of(templates, most, needed);
  std::vector<TemplateMix> out;
  const std::size_t last = most - std::min(most, static_cast<std::size_t>(most_missing));
  for (std::size_t n = most; n > 0 && n >= last && covers[n][needed].speed > 0; --n) {
    TemplateMix mix;
    mix.pipelines.assign(templates.size(), 0);
    std::size_t at = n;
    for (std::size_t open = needed; at > 0;) {
      const std::size_t next = covers[at][open].next;
      if (next == kNoTemplate) {
        --at;
        continue;
      }
      ++mix.pipelines[next];
      ++mix.count;
      at -= static_cast<std::size_t>(templates[next].nodes);
      open -= open > 0 ? 1 : 0;
    }
    mix.step_s = step_of(templates, mix.pipelines, covers[n][needed].speed, microbatches);
    out.push_back(std::move(mix));
  }
  return out;
}

}  // namespace foretrain

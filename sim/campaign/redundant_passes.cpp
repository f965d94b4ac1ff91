#include "sim/campaign/redundant_passes.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace foretrain {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// A pass of the order of one forward, one backward.
struct Pass {
  bool forward = true;
  std::size_t microbatch = 0;
};

std::vector<Pass> order_of(std::size_t stage, std::size_t stages, std::size_t microbatches) {
  std::vector<Pass> out;
  const std::size_t ahead = std::min(microbatches, stages - stage);
  for (std::size_t m = 0; m < ahead; ++m) out.push_back({true, m});
  for (std::size_t m = 0; m < microbatches; ++m) {
    out.push_back({false, m});
    if (m + ahead < microbatches) out.push_back({true, m + ahead});
  }
  return out;
}

/// One node: its own passes in order, and what is left of the redundant ones.
struct Node {
  std::vector<Pass> order;
  std::size_t next = 0;
  double now = 0;
  std::vector<double> left;       ///< of the redundant pass of each microbatch
  std::vector<double> available;  ///< from when its input is there
  std::size_t oldest = 0;         ///< of those that are not done

  /// Waits until `to`, and does redundant passes meanwhile.
  void wait(double to) {
    while (now < to && oldest < left.size()) {
      const double from = std::max(now, available[oldest]);
      if (from >= to) break;
      const double done = std::min(left[oldest], to - from);
      left[oldest] -= done;
      now = from + done;
      if (left[oldest] > 0) break;
      ++oldest;
    }
    now = std::max(now, to);
  }
  /// What has to be done before the backward pass of a microbatch.
  void finish(std::size_t microbatch) {
    for (; oldest <= microbatch && oldest < left.size(); ++oldest) {
      now = std::max(now, available[oldest]) + left[oldest];
      left[oldest] = 0;
    }
  }
};

/// When passes end, by stage and microbatch; `kNever` where that is not known yet.
using Ends = std::vector<std::vector<double>>;

class Pipeline {
 public:
  Pipeline(const std::vector<NodePasses>& stages, std::size_t microbatches, bool redundant)
      : x_stages(stages),
        x_forward(stages.size(), std::vector<double>(microbatches, kNever)),
        x_backward(x_forward) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      Node node;
      node.order = order_of(s, stages.size(), microbatches);
      if (redundant) {
        const bool last = s + 1 == stages.size();
        node.left.assign(microbatches, stages[last ? 0 : s + 1].forward_s);
        node.available.assign(microbatches, last ? 0 : kNever);
      }
      x_nodes.push_back(std::move(node));
    }
  }

  double run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t s = 0; s < x_nodes.size(); ++s) {
        while (step(s)) moved = true;
      }
    }
    double out = 0;
    for (const Node& node : x_nodes) out = std::max(out, node.now);
    return out;
  }

 private:
  double ready(std::size_t s, const Pass& pass) const {
    if (pass.forward) return s == 0 ? 0 : x_forward[s - 1][pass.microbatch];
    if (s + 1 < x_nodes.size()) return x_backward[s + 1][pass.microbatch];
    return x_forward[s][pass.microbatch];
  }
  /// The node's next pass, if what it needs is known.
  bool step(std::size_t s) {
    Node& node = x_nodes[s];
    if (node.next == node.order.size()) return false;
    const Pass pass = node.order[node.next];
    const double from = ready(s, pass);
    if (from == kNever) return false;
    node.wait(from);
    if (!pass.forward) node.finish(pass.microbatch);
    node.now += pass.forward ? x_stages[s].forward_s : x_stages[s].backward_s;
    (pass.forward ? x_forward : x_backward)[s][pass.microbatch] = node.now;
    if (pass.forward && !node.left.empty() && s + 1 < x_nodes.size()) {
      node.available[pass.microbatch] = node.now;
    }
    ++node.next;
    return true;
  }

  const std::vector<NodePasses>& x_stages;
  std::vector<Node> x_nodes;
  Ends x_forward, x_backward;
};

}  // namespace

double pipeline_step(const std::vector<NodePasses>& stages, std::int64_t microbatches,
                     bool redundant) {
  return Pipeline(stages, static_cast<std::size_t>(microbatches), redundant).run();
}

double merged_step(const std::vector<NodePasses>& stages, std::int64_t microbatches) {
  double out = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    // The last node stands in for the first stage as well; the pipeline then ends where it begins,
    // which is taken as if the stages were neighbours.
    const std::size_t before = s == 0 ? stages.size() - 1 : s - 1;
    std::vector<NodePasses> left = stages;
    left[before].forward_s += stages[s].forward_s;
    left[before].backward_s += stages[s].backward_s;
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(s));
    out = std::max(out, pipeline_step(left, microbatches, false));
  }
  return out;
}

}  // namespace foretrain

#include "models/plan/layout/plan_layout.h"

#include <algorithm>
#include <numeric>

#include "models/plan/layout/partition.h"
#include "models/plan/plan_reading.h"

namespace foretrain {
namespace {

const std::vector<std::string>& partition_names() {
  static const std::vector<std::string> names = {"layers", "parameters", "profiled"};
  return names;
}

}  // namespace

std::vector<std::int64_t> even_layout(const Model& model, const Plan& plan) {
  const std::int64_t chunks = plan.chunks();
  const bool ends = !plan.shares_vocabulary();
  const std::int64_t predicted = model.layers % chunks == 0 || !ends ? 0 : 2 * model.predict_layers;
  std::vector<std::int64_t> out = default_layout(model.layers + predicted, chunks, ends);
  out.back() -= predicted;
  for (; out.back() < 0; ++out.back()) --*std::max_element(out.begin(), out.end() - 1);
  return out;
}

void derive_layout(JsonReader& run, const Model& model, Plan& plan) {
  const std::int64_t chunks = plan.chunks();
  if (plan.pipeline_layout.empty()) {
    if (chunks > model.layers + 2) {
      return run.fail("parallel/pipeline",
                      text(chunks) + " pipeline chunks for " + text(model.layers) + " layers");
    }
    if (chunks > 1 && plan.partition != Partition::kLayers && model.layers > kMostBalanced) {
      return run.fail("parallel/pipeline_partition",
                      "found \"" + name_of(plan.partition) + "\" of " + text(model.layers) +
                          " layers; at most " + text(kMostBalanced) +
                          " are balanced, use \"layers\"",
                      ErrorKind::kUnsupported);
    }
    plan.pipeline_layout = chunks > 1 && plan.partition == Partition::kParameters
                               ? balanced_layout({parameter_weights(model, plan)}, chunks)
                               : even_layout(model, plan);
  }
  const std::int64_t sum =
      std::accumulate(plan.pipeline_layout.begin(), plan.pipeline_layout.end(), std::int64_t{0});
  if (static_cast<std::int64_t>(plan.pipeline_layout.size()) == chunks && sum == model.layers) {
    return;
  }
  run.fail("parallel/pipeline_layout",
           "found " + text(static_cast<std::int64_t>(plan.pipeline_layout.size())) +
               " chunks with " + text(sum) + " layers, expected " + text(chunks) + " with " +
               text(model.layers));
}

bool can_scatter_messages(const Model& model, const Plan& p) {
  return !model.is_encoder_decoder() && !model.is_network() &&
         p.tokens() * model.hidden % p.tensor == 0;
}

void derive_messages(const Model& model, Plan& plan) {
  const bool can = can_scatter_messages(model, plan) && !plan.tensors.any();
  plan.scatter_gather = plan.scatter_gather && can;
}

std::string name_of(Partition partition) {
  return partition_names()[static_cast<std::size_t>(partition)];
}

}  // namespace foretrain

#include "models/plan/captured.h"

#include <string_view>
#include <utility>
#include <vector>

#include "models/architecture/model.h"
#include "models/plan/plan_reading.h"
#include "sim/program/builder.h"

namespace foretrain {
namespace {

/// By its name, in a layer with experts or without. Of a layer with experts the norm before the
/// router is the router's, as are shared experts, and permuting and counting the preprocessing's.
bool held(const Captured& captured, bool sparse, std::string_view name) {
  const auto within = [name](std::string_view module) { return name.starts_with(module); };
  if (within("attention.") || within("mamba.") || within("conv.")) return captured.attention;
  if (!sparse) return captured.mlp;
  if (captured.moe) return true;
  const bool routes = within("mlp.norm") || within("moe.rout") || within("moe.shared.");
  if (routes) return captured.router;
  const bool prepares = within("moe.counts") || within("moe.permute");
  return prepares && captured.preprocess;
}

}  // namespace

void derive_captured(JsonReader& run, bool by_layer, const Model& model, Captured& out) {
  if (out.any() && !by_layer) {
    run.fail("launch/graph_modules", "goes with cuda_graph layer alone");
  }
  if ((out.moe || out.router || out.preprocess) && !model.has_experts()) {
    run.fail("launch/graph_modules",
             "moe, moe_router and moe_preprocess are of layers with experts, and the model has "
             "none");
  }
  if (!by_layer) return;
  if (model.is_network() || model.is_encoder_decoder()) {
    run.fail("launch/cuda_graph",
             "layer is modelled for decoders and encoders; expected none or full",
             ErrorKind::kUnsupported);
  }
  if (!out.any()) out.attention = out.mlp = out.moe = true;
}

void capture(const Captured& captured, bool sparse, ProgramBuilder& builder, Segment& segment) {
  if (!captured.any()) return;
  std::vector<Op> out;
  bool inside = false;
  for (Op& op : segment.ops) {
    // What the host itself does or waits for ends a graph.
    op.captured = op.category != Category::kHost && held(captured, sparse, op.name);
    if (op.captured && !inside) {
      Op launch;
      launch.stream = builder.stream("compute");
      launch.work = builder.work(HostDelay{captured.launch});
      launch.name = "graph.launch";
      launch.category = Category::kHost;
      launch.phase = op.phase;
      out.push_back(std::move(launch));
    }
    inside = op.captured;
    out.push_back(std::move(op));
  }
  segment.ops = std::move(out);
}

}  // namespace foretrain

#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

/// Host time of one operation, which `Run` holds.
PlanKey dispatch_key(const std::string& name, double us) {
  return PlanKey::number("launch." + name, [](Request&, double) {}).range(0, 1e6).fallback_to(us);
}

void set_operations(const PlanKey& key, JsonReader& reader, Request& out) {
  const Json* json = reader.take(key.name);
  if (json == nullptr) return;
  Result<HostOperations> read =
      read_host_operations(*json, reader.source(), reader.pointer(key.name));
  if (!read.ok()) return reader.adopt(read.error());
  out.operations = std::move(read.value());
}

}  // namespace

PlanKeys launch_keys() {
  const Sets by_layer = {"launch.cuda_graph=layer"};
  return {
      PlanKey::choice<CudaGraph>("launch.cuda_graph", {"none", "layer", "full"},
                                 [](Request& r, auto v) { r.graph = v; })
          .fallback_to("none")
          .says("What CUDA graphs hold: nothing, parts of layers, the whole step.")
          .alias({"cuda_graphs", "enable_cuda_graph"}, ": none, layer, full")
          .probe("full")
          .probe("layer"),
      dispatch_key("dispatch_us", 38.0).says("Host time of one operation.").probe("50"),
      dispatch_key("compiled_dispatch_us", 12.0)
          .says("The same in compiled code.")
          .probe("50", {"kernels.compile=true"}),
      PlanKey::number("launch.checkpoint_us",
                      [](Request& r, double v) { r.checkpoint_time = Time::from_us(v); })
          .range(0, 1e9)
          .fallback_to(300.0)
          .says("Host time that recomputing a layer adds.")
          .probe("5000", {"recompute=full"}),
      dispatch_key("graph_dispatch_us", 2.0)
          .says("Time of one operation inside a graph.")
          .probe("50", {"launch.cuda_graph=full"}),
      PlanKey::number("launch.graph_launch_us",
                      [](Request& r, double v) { r.plan.captured.launch = Time::from_us(v); })
          .range(0, 1e6)
          .fallback_to(60.0)
          .says("Host time of launching a graph of cuda_graph layer.")
          .probe("500", by_layer),
      PlanKey::names("launch.graph_modules", {"attn", "mlp", "moe", "moe_router", "moe_preprocess"},
                     [](Request& r, std::size_t index) {
                       static constexpr bool Captured::*kModules[] = {
                           &Captured::attention, &Captured::mlp, &Captured::moe, &Captured::router,
                           &Captured::preprocess};
                       r.plan.captured.*kModules[index] = true;
                     })
          .else_("all")
          .says("What of a layer the graphs of cuda_graph layer hold.")
          .probe("[\"attn\"]", by_layer),
      PlanKey("launch.operations", KeyType::kAny, set_operations)
          .else_("one for each operation")
          .says("What an eager framework does for one operation of a kind, in operations: "
                "{\"attention\": 7} (sim/cost/host_operations.h).")
          .probe("{\"gemm\":200}"),
  };
}

}  // namespace foretrain

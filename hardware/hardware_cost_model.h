// Prices from a cluster's description and measured tables: what the engine asks through CostModel.
#pragma once

#include <memory>
#include <vector>

#include "hardware/cluster.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/host_operations.h"

namespace foretrain {

/// Multipliers are of a resource's rate: 2 makes it twice as fast. For "what if" and sensitivities.
struct PriceOptions {
  Time dispatch_per_kernel;  ///< host time to issue one operation at host_speed 1
  Time captured_dispatch;    ///< the same for those of a graph that is launched as one
  HostOperations host_operations;
  double compute_rate = 1;   ///< arithmetic
  double memory_rate = 1;    ///< device memory
  double scale_up_rate = 1;  ///< links within a node
  double network_rate = 1;   ///< NICs
  double host_rate = 1;      ///< PCIe, host memory, storage
  /// A message to another node crosses every level of the network, as the farthest does. Ranks of
  /// a long ring or pipeline are then alike wherever leaves and pods end; a step takes no less.
  bool far_messages = false;
};

/// All prices are analytic (Provenance::kAnalytic). NCCL's choice of algorithm does not change with
/// the multipliers. Unsupported work is an error of kind kUnsupported; placements of another model
/// are bugs.
std::unique_ptr<CostModel> make_cost_model(const Cluster& cluster, const PriceOptions& options);

/// Prices of a cluster of pools; `views` has a model for each view of them
/// (hardware/pools/pools.h).
std::unique_ptr<CostModel> make_pooled_cost_model(const Cluster& cluster,
                                                  std::vector<std::unique_ptr<CostModel>> views);

}  // namespace foretrain

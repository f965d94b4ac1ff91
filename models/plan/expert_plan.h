// The part of a plan that is about experts.
#pragma once

#include <string>
#include <vector>

#include "models/plan/plan.h"
#include "models/plan/violations.h"

namespace foretrain {

/// As a RUN names them, in the order of the enumerators.
inline const std::vector<std::string> kDispatcherNames = {"allgather", "alltoall", "deepep",
                                                          "hybridep"};
inline const std::vector<std::string> kRoutingNames = {"balanced", "natural", "capacity"};

/// configs/moe.json, read once.
struct MoeConstants {
  double load_spread = 0;  ///< of an expert, of the mean
  std::int32_t deepep_sms = 0, hybridep_sms = 0;
  /// Kernels of a router, forward and backward, that PyTorch runs and that is one piece.
  struct Launches {
    std::int32_t forward = 0, backward = 0;
  };
  Launches router, fused_router;
};
const MoeConstants& moe_constants();

/// Of the router that the plan has.
const MoeConstants::Launches& router_launches(const ExpertPlan& plan);

/// SMs with which a dispatcher's kernels carry what links do, and by default hold. That fewer carry
/// their part of it is taken. 0: other dispatchers.
std::int32_t enough_sms(Dispatcher dispatcher);

/// Expected tokens of the busiest of `ranks` ranks over the mean, where `experts` experts that no
/// one balances by force are spread over them: 1 + sigma z / sqrt(m) sqrt(1 - (m - 1) / (experts -
/// 1)), m experts a rank whose loads have a spread of sigma (`load_spread`) and a fixed sum, z the
/// expected largest of `ranks` normal variables (Blom 1958).
double natural_imbalance(std::int64_t experts, std::int64_t ranks);

/// Tokens of the busiest rank's experts, which every rank is taken to have, over those of the mean.
inline double busiest_load(const ExpertPlan& plan) {
  return plan.routing == Routing::kNatural ? plan.factor : 1;
}

/// Of the experts of the busiest rank, tokens over the mean; empty where `plan.load` is.
std::vector<double> busiest_loads(const ExpertPlan& plan);

struct ExpertRequest;

/// What `moe` asks for; the plan's degrees are known.
void derive_experts(JsonReader& run, const ExpertRequest& asked, const Model& model,
                    ExpertPlan& plan);

/// Modules of `recompute.modules` where the model has no such part.
void check_expert_modules(const Recompute& recompute, const Model& model, Violations& out);

/// Refuses degrees that do not divide and combinations that cannot be. The plan's data is known.
void check_expert_plan(const Model& model, const Plan& plan, Violations& out);

}  // namespace foretrain

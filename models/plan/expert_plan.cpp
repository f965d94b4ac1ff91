#include "models/plan/expert_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "models/plan/plan_reading.h"
#include "models/plan/request.h"
#include "sim/base/constants.h"

namespace foretrain {
namespace {

/// x with P(X < x) = p for a normal variable; 0.5 <= p < 1.
double normal_quantile(double p) {
  double low = 0;
  double high = 10;
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (std::erfc(-x / std::sqrt(2.0)) / 2 < p ? low : high) = x;
  }
  return low;
}

/// Shares s_i of the choices of the i-th most chosen expert as i^-exponent. They are dealt to the
/// ranks in turn: the i-th lies on rank i mod ranks.
std::vector<double> zipf(std::int64_t experts, std::int64_t ranks, double exponent) {
  std::vector<double> out(static_cast<std::size_t>(experts));
  const std::int64_t local = experts / ranks;
  for (std::int64_t i = 0; i < experts; ++i) {
    out[static_cast<std::size_t>(i % ranks * local + i / ranks)] =
        std::pow(static_cast<double>(i + 1), -exponent);
  }
  return out;
}

std::vector<double> read_shares(JsonReader& run, const Json& json, std::int64_t experts,
                                std::int64_t ranks) {
  std::vector<double> out;
  if (json.object() != nullptr) {
    JsonReader inner(json, run.source(), run.pointer("moe/load"));
    double exponent = 0;
    if (!inner.has("zipf")) inner.fail("zipf", "missing: the exponent of the shares");
    inner.read("zipf", exponent, JsonReader::Range{0, 10});
    run.adopt(inner.finish());
    return zipf(experts, ranks, exponent);
  }
  const std::string expected = "expected a share of the choices for each of the " + text(experts) +
                               " experts, or {\"zipf\": exponent}";
  if (json.array() == nullptr) {
    run.fail("moe/load", "found " + describe(json) + ", " + expected);
    return out;
  }
  for (const Json& item : *json.array()) {
    if (!item.is_number() || item.number() < 0 || item.number() > 1e9) {
      run.fail("moe/load", "found " + describe(item) + " in the list, " + expected);
      return {};
    }
    out.push_back(item.number());
  }
  if (static_cast<std::int64_t>(out.size()) != experts) {
    run.fail("moe/load",
             "found " + text(static_cast<std::int64_t>(out.size())) + " shares, " + expected);
  }
  return out;
}

/// `load`, as tokens of an expert over the mean; the factor of the busiest rank follows.
void derive_load(JsonReader& run, const ExpertRequest& asked, const Experts& e, ExpertPlan& plan) {
  if (e.count % plan.expert != 0) return;  // refused elsewhere
  if (plan.routing != Routing::kNatural || asked.imbalance) {
    return run.fail("moe/load", "is of routing \"natural\", in place of imbalance");
  }
  plan.load = read_shares(run, asked.load, e.count, plan.expert);
  const double sum = std::accumulate(plan.load.begin(), plan.load.end(), 0.0);
  if (run.failed()) return;
  if (sum <= 0) return run.fail("moe/load", "all shares are 0");
  const double most = static_cast<double>(e.count) / static_cast<double>(e.top_k);
  for (double& load : plan.load) {
    // To a billionth: equal shares are the mean to the row.
    load = std::round(load * static_cast<double>(e.count) / sum * 1e9) / 1e9;
    if (load <= most * 1.0001) continue;
    std::ostringstream message;
    message << "an expert has " << load << " times the mean, but as a token chooses " << e.top_k
            << " of " << e.count << " different experts, one has at most " << most << " times";
    return run.fail("moe/load", message.str());
  }
  const std::vector<double> busiest = busiest_loads(plan);
  plan.factor =
      std::accumulate(busiest.begin(), busiest.end(), 0.0) / static_cast<double>(busiest.size());
}

/// Keys of another routing than the plan's.
void check_routing_keys(JsonReader& run, const ExpertRequest& asked, Routing routing) {
  const bool balanced = routing == Routing::kBalanced;
  const char* const none = "routing \"balanced\" has none";
  if (asked.imbalance && routing != Routing::kNatural) {
    run.fail("moe/imbalance",
             balanced ? none
                      : "routing \"capacity\" reads capacity_factor; set moe.routing to "
                        "\"natural\"");
  }
  if (asked.capacity_factor && routing != Routing::kCapacity) {
    run.fail(
        "moe/capacity_factor",
        balanced ? none : "routing \"natural\" reads imbalance; set moe.routing to \"capacity\"");
  }
  if (balanced && !asked.load.is_null()) run.fail("moe/load", none);
}

}  // namespace

const MoeConstants& moe_constants() {
  static const MoeConstants constants = [] {
    const Json root = load_constants("moe.json");
    const Json& sms = member(root, "dispatcher_sms");
    const auto launches = [&root](const char* key) {
      const Json& of = member(root, key);
      return MoeConstants::Launches{count_at(of, "forward"), count_at(of, "backward")};
    };
    return MoeConstants{number_at(root, "load_spread"), count_at(sms, "deepep"),
                        count_at(sms, "hybridep"), launches("router_launches"),
                        launches("fused_router_launches")};
  }();
  return constants;
}

const MoeConstants::Launches& router_launches(const ExpertPlan& plan) {
  return plan.fused_router ? moe_constants().fused_router : moe_constants().router;
}

std::int32_t enough_sms(Dispatcher dispatcher) {
  if (dispatcher == Dispatcher::kDeepEp) return moe_constants().deepep_sms;
  return dispatcher == Dispatcher::kHybridEp ? moe_constants().hybridep_sms : 0;
}

double natural_imbalance(std::int64_t experts, std::int64_t ranks) {
  if (ranks <= 1 || experts <= 1) return 1;
  const auto all = static_cast<double>(experts);
  const auto n = static_cast<double>(ranks);
  const double own = std::max(1.0, all / n);
  const double spread = moe_constants().load_spread * std::sqrt((1 - (own - 1) / (all - 1)) / own);
  return 1 + spread * normal_quantile((n - 0.375) / (n + 0.25));
}

std::vector<double> busiest_loads(const ExpertPlan& plan) {
  const auto local = static_cast<std::int64_t>(plan.load.size()) / plan.expert;
  std::vector<double> out;
  double most = -1;
  for (std::int64_t rank = 0; rank < plan.expert && local > 0; ++rank) {
    const auto first = plan.load.begin() + rank * local;
    const double sum = std::accumulate(first, first + local, 0.0);
    if (sum <= most) continue;
    most = sum;
    out.assign(first, first + local);
  }
  return out;
}

void derive_experts(JsonReader& run, const ExpertRequest& asked, const Model& model,
                    ExpertPlan& plan) {
  if (!model.has_experts()) {
    if (asked.given) run.fail("moe", "the model has no experts");
    return;
  }
  const Experts& e = model.experts;
  // What training does unless told to force the balance.
  plan.routing = asked.routing.value_or(Routing::kNatural);
  const bool natural = plan.routing == Routing::kNatural;
  plan.factor = natural ? asked.imbalance.value_or(natural_imbalance(e.count, plan.expert))
                        : asked.capacity_factor.value_or(1);
  if (!plan.fused() && asked.sms) {
    run.fail("moe/dispatcher_sms",
             "is of dispatchers deepep and hybridep; others hold what NCCL does");
  }
  const std::int64_t enough = asked.given ? enough_sms(plan.dispatcher) : 0;
  plan.sms = static_cast<std::int32_t>(asked.sms.value_or(enough));
  check_routing_keys(run, asked, plan.routing);
  if (plan.routing != Routing::kBalanced && !asked.load.is_null()) {
    derive_load(run, asked, e, plan);
  }
}

void check_expert_modules(const Recompute& recompute, const Model& model, Violations& out) {
  if (recompute.latent_up && !model.is_latent()) {
    out.add("recompute/modules", "found \"mla_up_proj\", but the model's attention is not latent");
  }
  if (model.has_experts()) return;
  for (const auto& [is, name] :
       {std::pair(recompute.moe, "moe"), std::pair(recompute.expert_activation, "moe_act"),
        std::pair(recompute.shared_experts, "shared_experts")}) {
    if (!is) continue;
    out.add("recompute/modules",
            std::string("found \"") + name + "\", but the model has no experts");
  }
}

namespace {

/// Passes that hide each other's exchanges.
void check_paired(const Model& model, const Plan& plan, Violations& out) {
  if (!plan.overlap.passes) return;
  constexpr const char* kKey = "overlap/passes";
  if (!model.has_experts()) return out.add(kKey, "the model has no experts");
  // Without chunks a stage's pair would begin when its neighbour's ends: half of the time is lost.
  const bool alone = plan.schedule == Schedule::k1F1B && plan.pipeline == 1;
  if (!alone && (plan.schedule != Schedule::kInterleaved || plan.virtual_pipeline == 1)) {
    out.add(kKey,
            "pairs the passes of interleaved-1f1b with virtual_pipeline > 1, or of one stage; "
            "dualpipe pairs its own");
  }
  if (plan.experts.expert * plan.experts.tensor == 1) {
    out.add(kKey, "no tokens are exchanged: parallel.expert and expert_tensor are 1");
  }
  if (plan.pipeline > 1 && plan.microbatches() == plan.pipeline) {
    out.add(kKey, "with as many microbatches as stages, " + text(plan.pipeline) +
                      ", all forward passes come first: there are no pairs");
  }
  if (plan.by_units() || plan.offload.activation_layers > 0) {
    out.unsupported(kKey,
                    "with sharded gradients or parameters, or with activations on the host, is "
                    "not modelled yet");
  }
}

/// All tokens of all ranks choose among the experts of one.
double most_imbalance(const Experts& e, std::int64_t ranks) {
  const double chosen = static_cast<double>(std::min(e.top_k, e.count / ranks));
  return static_cast<double>(ranks) * chosen / static_cast<double>(e.top_k);
}

void check_imbalance(const Experts& e, const ExpertPlan& plan, Violations& out) {
  if (plan.routing != Routing::kNatural || e.count % plan.expert != 0) return;
  const double most = std::max(1.0, most_imbalance(e, plan.expert));
  if (plan.factor <= most * 1.0001) return;
  std::ostringstream message;
  message << "found " << plan.factor << ", but with " << text(plan.expert)
          << " ranks that share the experts the busiest has at most " << most << " times the mean";
  out.add("moe/imbalance", message.str());
}

/// Groups of shards hold all experts: each is made of ranks that follow each other in a stage, and
/// of whole groups of ranks that hold all experts together.
void check_groups(const Plan& plan, Violations& out) {
  if (plan.sharding == Sharding::kNone || plan.replicas() == 1) return;
  const std::int64_t group = plan.shards() * plan.tensor;
  const std::int64_t holders = plan.experts.expert * plan.experts.tensor;
  if (group % holders != 0) {
    out.add("sharding/group_size", text(plan.shards()) + " ranks x tensor " + text(plan.tensor) +
                                       " do not hold all experts: expected a multiple of expert " +
                                       text(plan.experts.expert) + " x expert_tensor " +
                                       text(plan.experts.tensor) + " = " + text(holders));
  }
  std::vector<std::string> order = plan.rank_order;
  std::erase(order, "pp");
  const auto at = [&order](const char* name) {
    return std::find(order.begin(), order.end(), name);
  };
  const bool whole = at("tp") < at("cp") || plan.context == 1 || plan.tensor == 1 ||
                     plan.shards() % plan.context == 0;
  if (order.back() == "dp" && whole) return;
  out.unsupported(
      "sharding/group_size",
      "with experts, groups of shards are modelled where the ranks of one follow each other: set "
      "parallel.rank_order to one with dp behind tp, cp and ep, such as tp-cp-ep-dp-pp");
}

/// Degrees that divide neither the ranks nor the model's experts.
void check_expert_degrees(const Model& model, const Plan& plan, Violations& out) {
  const std::int64_t expert = plan.experts.expert;
  const std::int64_t cut = plan.experts.tensor;
  const Experts& e = model.experts;
  const std::int64_t ranks = plan.accelerators / plan.pipeline;
  if (ranks % (expert * cut) != 0) {
    out.add("parallel/expert", "expert " + text(expert) + " x expert_tensor " + text(cut) +
                                   " does not divide the " + text(ranks) +
                                   " ranks of a pipeline stage");
  }
  if (e.count % expert != 0) {
    out.add("parallel/expert",
            text(expert) + " does not divide the model's " + text(e.count) + " experts");
  }
  if (e.width % cut != 0) {
    out.add("parallel/expert_tensor",
            text(cut) + " does not divide the experts' width " + text(e.width));
  }
  if (e.shared_width % plan.tensor != 0) {
    out.add("parallel/tensor", text(plan.tensor) + " does not divide the shared experts' width " +
                                   text(e.shared_width));
  }
}

/// The kernels that the way of experts is modelled with.
void check_expert_kernels(const Model& model, const Plan& plan, Violations& out) {
  const ExpertPlan& experts = plan.experts;
  if (experts.cast_first && (!experts.fused() || plan.precision.linear != DType::kFp8)) {
    out.add("moe/dispatch_dtype",
            "fp8 needs an fp8 precision, and moe.dispatcher deepep or hybridep, whose kernels "
            "carry it");
  }
  const bool plain =
      experts.dispatcher == Dispatcher::kAllToAll && experts.tensor == 1 && !plan.sequence;
  if (experts.masks && experts.routing == Routing::kCapacity &&
      (!plain || plan.precision.low() || plan.overlap.expert)) {
    out.unsupported("moe/gate",
                    "masks are modelled with moe.dispatcher alltoall, in 16 bits and more, without "
                    "parallel.sequence, parallel.expert_tensor and overlap.expert; set moe.gate to "
                    "indices for what this plan costs without them");
  }
  if (plan.tensor > 1 && !plan.sequence) {
    out.add("parallel/sequence",
            "experts with tensor parallelism need sequence parallelism: without it every tensor "
            "rank would send the same tokens");
  }
  if (model.predict_layers > 0 && model.tied_embeddings) {
    out.unsupported("model/num_nextn_predict_layers",
                    "multi-token prediction with tied embeddings is not modelled yet");
  }
  if (plan.attention == AttentionKernel::kUnfused && model.is_latent() && plan.context > 1) {
    out.unsupported("kernels/attention",
                    "unfused latent attention over context ranks is not modelled yet");
  }
}

}  // namespace

void check_expert_plan(const Model& model, const Plan& plan, Violations& out) {
  check_paired(model, plan, out);
  const ExpertPlan& experts = plan.experts;
  if (!model.has_experts()) {
    for (const auto& [key, degree] : {std::pair("parallel/expert", experts.expert),
                                      std::pair("parallel/expert_tensor", experts.tensor)}) {
      if (degree > 1) out.add(key, "found " + text(degree) + ": the model has no experts");
    }
    return;
  }
  check_expert_degrees(model, plan, out);
  check_expert_kernels(model, plan, out);
  check_imbalance(model.experts, experts, out);
  check_groups(plan, out);
  const Experts& e = model.experts;
  const double rows = static_cast<double>(plan.tokens()) * static_cast<double>(e.top_k) *
                      static_cast<double>(experts.expert * experts.tensor) * experts.factor;
  if (rows * static_cast<double>(std::max({model.hidden, 2 * e.width, e.count})) * 8 > 4e18) {
    out.add("batch", "one microbatch would send more than 4 EB to its experts");
  }
}

}  // namespace foretrain

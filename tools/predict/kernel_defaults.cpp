#include "tools/predict/kernel_defaults.h"

#include "hardware/local_cost.h"

namespace foretrain {
namespace {

/// Of an ordinary shape.
bool has_attention(const DeviceSpec& device, AttentionKernel kernel, DType type) {
  Attention work;
  work.q_len = work.kv_len = 1024;
  work.head_dim = 128;
  work.kernel = kernel;
  work.dtype = type;
  return attention_cost(device, work, nullptr).ok();
}

bool is_users_key(const Run& run, const char* pointer) {
  const auto origin = run.origins.find(pointer);
  return origin != run.origins.end() && is_users(origin->second);
}

/// What of the model's attention the release's fused kernels do not have; "" if they have all.
std::string lacking_kind(const Model& model, const Plan& plan) {
  if (plan.stored_scores.of_latent && model.is_latent()) return "latent attention";
  return plan.stored_scores.of_sinks && model.attention.sinks ? "attention sinks" : "";
}

/// Who says so.
std::string origin_above(const Run& run, std::string pointer) {
  while (!pointer.empty()) {
    const auto origin = run.origins.find(pointer);
    if (origin != run.origins.end()) return origin->second;
    pointer.resize(pointer.rfind('/'));
  }
  return "the run";
}

/// Scores are stored where no fused kernel of the release has the model's attention. Parts of
/// sequences on context ranks have no other kernel.
bool store_scores(Run& run, const Plan& plan, Json& kernels) {
  const std::string kind = lacking_kind(run.model, plan);
  if (kind.empty() || plan.context > 1) return false;
  kernels.set("attention", Json("unfused"));
  const std::string who = origin_above(run, "/kernels/fused_attention_lacks");
  run.origins["/kernels/attention"] = who;
  run.notes.push_back("kernels.attention: unfused, as " + who + " has no fused kernel for " + kind);
  return true;
}

/// The first device that has not this kernel; null: all have it.
const DeviceSpec* device_without(const Cluster& cluster, AttentionKernel kernel, DType type) {
  if (!has_attention(cluster.device, kernel, type)) return &cluster.device;
  for (const Cluster& pool : cluster.pools) {
    if (!has_attention(pool.device, kernel, type)) return &pool.device;
  }
  return nullptr;
}

}  // namespace

bool derive_attention(Run& run, const Plan& plan) {
  Json* const kernels = run.resolved.find("kernels");
  const DType type = plan.precision.compute;
  if (kernels == nullptr || run.model.is_network()) return false;
  if (is_users_key(run, "/kernels/attention")) return false;
  if (plan.attention == AttentionKernel::kUnfused) return false;
  if (store_scores(run, plan, *kernels)) return true;
  if (is_users_key(run, "/kernels/flash")) return false;
  const DeviceSpec* const lacks = device_without(run.cluster, plan.attention, type);
  if (lacks == nullptr) return false;
  const char* const instead =
      device_without(run.cluster, AttentionKernel::kFlash, type) == nullptr ? "flash" : "unfused";
  kernels->set("attention", Json(instead));
  kernels->set("flash", Json("newest"));
  run.origins["/kernels/attention"] = run.origins["/kernels/flash"] = "device";
  run.notes.push_back("kernels.attention: " + lacks->name + " has no " +
                      std::string(name_of(plan.attention)) + " in " + std::string(name_of(type)) +
                      ", which " + run.system + " has by default; taken as " + instead);
  return true;
}

}  // namespace foretrain

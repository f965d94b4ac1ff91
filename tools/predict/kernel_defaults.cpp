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

}  // namespace

bool derive_attention(Run& run, const Plan& plan) {
  Json* const kernels = run.resolved.find("kernels");
  const DeviceSpec& device = run.cluster.device;
  const DType type = plan.precision.compute;
  if (kernels == nullptr || run.model.is_network()) return false;
  if (is_users_key(run, "/kernels/attention") || is_users_key(run, "/kernels/flash")) return false;
  if (plan.attention == AttentionKernel::kUnfused) return false;
  if (has_attention(device, plan.attention, type)) return false;
  const char* const instead =
      has_attention(device, AttentionKernel::kFlash, type) ? "flash" : "unfused";
  kernels->set("attention", Json(instead));
  kernels->set("flash", Json("newest"));
  run.origins["/kernels/attention"] = run.origins["/kernels/flash"] = "device";
  run.notes.push_back("kernels.attention: " + device.name + " has no " +
                      std::string(name_of(plan.attention)) + " in " + std::string(name_of(type)) +
                      ", which " + run.system + " has by default; taken as " + instead);
  return true;
}

}  // namespace foretrain

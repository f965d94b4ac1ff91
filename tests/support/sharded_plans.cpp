#include "models/plan/plan_sharding.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// States, parameters or activations outside of the device.
void draw_offload(Rng& rng, Plan& p) {
  Offload& o = p.offload;
  if (rng.below(3) == 0) o.activation_layers = rng.below(6);
  if (rng.below(2) == 0) return;
  o.optimizer = rng.below(2) == 0 ? Memory::kHost : Memory::kStorage;
  p.units.narrow_shards = true;
  const bool parameters = p.sharding == Sharding::kParameters && rng.below(2) == 0;
  if (parameters) o.parameters = rng.below(2) == 0 ? Memory::kHost : Memory::kStorage;
  o.delayed_update = !parameters && rng.below(2) == 0;
}

/// Units that travel in fewer bits, and a second copy of them. What is drawn later does not depend
/// on it.
void draw_narrow(Rng rng, Plan& p) {
  Units& u = p.units;
  const auto divisor = [&rng](std::int64_t whole, std::int64_t least) {
    std::int64_t out = least + rng.below(whole - least + 1);
    while (whole % out != 0) out = least + rng.below(whole - least + 1);
    return out;
  };
  if (p.offload.states()) return;
  if (p.sharding == Sharding::kParameters) {
    u.quantized_gathers = rng.below(3) == 0;
    if (p.shards() > 1 && rng.below(2) == 0) u.secondary = divisor(p.shards(), 2);
  }
  if (p.replicas() > 1 || rng.below(3) > 0) return;
  u.quantized_reduction = true;
  p.buckets.inner_group = divisor(p.shards(), 1);
}

/// Offloaded states of which a share stays on the device. What is drawn later does not depend on
/// it.
void draw_placement(Rng rng, Offload& o) {
  o.pageable = rng.below(2) == 0;
  if (o.optimizer == Memory::kDevice || o.delayed_update || rng.below(2) == 0) return;
  o.device_share = 0.25 * static_cast<double>(1 + rng.below(4));
  if (rng.below(2) == 0) o.page = 512;
}

/// Gathers in two levels. What is drawn later does not depend on it.
void draw_levels(Rng rng, Plan& p) {
  Units& u = p.units;
  const bool goes = p.sharding == Sharding::kParameters && !u.quantized_gathers && u.secondary == 0;
  if (!goes || rng.below(2) == 0) return;
  u.inner_group = 1 + rng.below(p.shards());
  if (u.inner_group == p.shards() || p.shards() % u.inner_group != 0) u.inner_group = 1;
}

/// Units that travel in chunks, or by parameters. What is drawn later does not depend on it.
void draw_chunks(Rng rng, const Model& model, Plan& p) {
  Units& u = p.units;
  const bool tied = model.tied_embeddings && p.stage_of(0) != p.stage_of(p.chunks() - 1);
  const bool goes = !u.quantized_gathers && !u.casts_shards && !u.quantized_reduction &&
                    u.secondary == 0 && u.inner_group == 1 && !tied;
  if (p.sharding != Sharding::kParameters || rng.below(2) == 0) return;
  const bool chunks = rng.below(2) == 0 && goes;
  (chunks ? u.chunk_elements : u.gather_elements) = std::int64_t{1} << (6 + rng.below(8));
}

/// Small parameters that stay gathered. What is drawn later does not depend on it.
void draw_small(Rng rng, Units& u) {
  if (rng.below(2) == 0) u.persist_elements = std::int64_t{1} << rng.below(16);
}

/// Parameters that stay until they are needed again, and gathers ahead by elements. What is drawn
/// later does not depend on it.
void draw_reuse(Rng rng, Units& u) {
  if (rng.below(2) == 0) u.reuse_elements = std::int64_t{1} << (10 + rng.below(12));
  if (rng.below(3) == 0) u.live_elements = std::int64_t{1} << (8 + rng.below(12));
}

}  // namespace

void draw_offloaded_buckets(Rng rng, const Model& model, Plan& p) {
  if (p.offload.activation_layers > 0 && rng.below(2) == 0) {
    p.offload.activations = Memory::kStorage;
  }
  if (p.by_units() || p.precision.fp8_primary_weights || rng.below(2) == 0) return;
  const Offload before = p.offload;
  p.offload.optimizer = rng.below(2) == 0 ? Memory::kHost : Memory::kStorage;
  p.offload.delayed_update = rng.below(3) == 0;
  p.offload.pageable = rng.below(3) == 0;
  if (!found_by(check_offload, model, p).empty()) p.offload = before;
}

Drawn draw_sharded_plan(Rng& rng) {
  Drawn out = draw_plan(rng);
  const auto coin = [&rng] { return rng.below(2) == 0; };
  Plan& p = out.plan;
  p.sharding = rng.below(4) == 0 ? Sharding::kGradients : Sharding::kParameters;
  p.overlap.tensor_slices = 1;
  p.buckets = GradientBuckets();
  p.sums_after_pass = false;
  if (p.directions() == 2 || p.shares_vocabulary()) {
    p.schedule = p.virtual_pipeline > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
    fit_schedule(out.model, p);
  }
  std::int64_t group = 1 + rng.below(p.data);
  while (p.data % group != 0 || (group == 1 && p.data > 1)) group = 1 + rng.below(p.data);
  p.shard_group = coin() ? 0 : group;
  Units& u = p.units;
  u.layers = 1 + rng.below(3);
  u.reshard = rng.below(3) > 0;
  u.reshard_last = coin();
  u.forward_prefetch = coin();
  u.backward_prefetch = static_cast<Prefetch>(rng.below(3));
  u.gathers_in_flight = rng.below(4);
  u.narrow_shards = coin();
  u.reduce_each = rng.below(3) > 0;
  u.reduce = coin() ? DType::kFp32 : DType::kBf16;
  draw_offload(rng, p);
  draw_narrow(rng, p);
  draw_small(rng, p.units);
  draw_reuse(rng, p.units);
  draw_levels(rng, p);
  draw_placement(rng, p.offload);
  p.buckets.averages = Rng(rng).below(2) == 0;
  const bool on_one_stage = p.stage_of(0) == p.stage_of(p.chunks() - 1);
  const bool unlike = on_one_stage ? p.splits_backward() : p.updates_on_host();
  if (unlike) out.model.tied_embeddings = false;
  fit_autocast(out.model, p);
  draw_chunks(rng, out.model, p);
  return out;
}

}  // namespace foretrain

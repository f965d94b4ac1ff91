#include "models/layers/optimizer.h"
#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

PlanKey time_key(const std::string& name, Time Plan::*member, double most = 1e12) {
  return PlanKey::number("host." + name,
                         [member](Request& r, double us) { r.plan.*member = Time::from_us(us); })
      .range(0, most)
      .fallback_to(0);
}

}  // namespace

PlanKeys host_keys() {
  return {
      time_key("data_us", &Plan::data_time)
          .says("Host time of each microbatch where it is loaded.")
          .probe("100000"),
      time_key("loader_us", &Plan::loader_time)
          .says("Time of each microbatch in workers beside the host, which prepare the next step's "
                "meanwhile.")
          .probe("10000000"),
      time_key("pass_us", &Plan::pass_time)
          .says("Host time of each pass of a microbatch through a chunk.")
          .probe("100000"),
      time_key("step_us", &Plan::step_time)
          .says("Host time of a step, beside launches.")
          .probe("1000"),
      time_key("update_us", &Plan::update_time, 1e6)
          .says("Host time of each parameter tensor where the optimizer works tensor by tensor "
                "(docs/prices.md).")
          .probe("10000", {"kernels.optimizer=adam"})
          .idle(if_host_updates(
              with(kShardedGradients, {"kernels.optimizer=adam", "offload.optimizer=cpu"})))
          .idle_if([](const KeyContext& c) { return !loops_over_tensors(c.plan.optimizer); },
                   "kernels of kernels.optimizer update lists of tensors"),
      time_key("scatter_us", &Plan::scatter_time, 1e6)
          .says("Host time of each parameter and rank in the reduction of sharded parameters "
                "(DeepSpeed's views).")
          .probe("1000", kSharded)
          .idle(if_not_parameters(kShardedGradients))
          .idle_if([](const KeyContext& c) { return c.plan.units.quantized_reduction; },
                   "gradients.reduce_dtype is int4",
                   with(kSharded, {"gradients.reduce_dtype=int4"})),
      PlanKey::choice<HostWaits>("host.synchronize", {"none", "forward", "transfers", "passes"},
                                 [](Request& r, auto v) { r.plan.host_waits = v; })
          .fallback_to("none")
          .says("Where the host waits for the device beside what a step needs.")
          .probe("passes", {"launch.dispatch_us=1000"})
          .idle_if([](const KeyContext& c) { return c.plan.spreads_vocabulary(); },
                   "with the vocabulary spread over stages no host waits for its stage's passes",
                   {"schedule=1f1b-vocab-1"}),
  };
}

}  // namespace foretrain

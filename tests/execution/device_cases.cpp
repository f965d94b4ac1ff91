// The small models and plans that devices train against the host.
#include "models/lower.h"
#include "tests/execution/device_plans.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Model device_sized(Model m) {
  m.layers = 2;
  m.hidden = 48;
  m.heads = 4;
  m.kv_heads = m.kv_heads < m.heads ? 2 : 4;
  m.head_dim = 12;
  m.intermediate = 40;
  m.vocabulary = 90;
  if (m.positions > 0) m.positions = 80;
  return m;
}

Plan tiny_plan(const Model& model, PlanDegrees degrees, AttentionKernel attention, double dropout) {
  Plan plan = small_plan(model, degrees, 2);
  plan.global_batch = 4 * degrees.data;
  plan.micro_batch = 2;
  plan.sequence_length = 75;  // more than two tiles, and no multiple of one
  plan.precision.compute = plan.precision.gradients = plan.precision.matrix = DType::kFp32;
  plan.precision.linear = DType::kFp32;
  plan.precision.master = false;
  plan.units.reduce = DType::kFp32;
  plan.attention = attention;
  plan.dropout = dropout;
  plan.clip_norm = 0.3;
  return plan;
}

}  // namespace

std::vector<DeviceCase> single_rank_cases() {
  std::vector<DeviceCase> out;
  const auto add = [&out](const char* name, const Model& model, AttentionKernel attention,
                          double dropout) {
    out.push_back({name, model, tiny_plan(model, {}, attention, dropout)});
  };
  Model gpt = device_sized(small_gpt());
  add("gpt flash dropout", gpt, AttentionKernel::kFlash, 0.1);
  add("gpt unfused", gpt, AttentionKernel::kUnfused, 0);
  gpt.tied_embeddings = gpt.embedding_norm = true;
  add("gpt tied unfused dropout", gpt, AttentionKernel::kUnfused, 0.2);
  Model llama = device_sized(small_llama());
  add("llama flash", llama, AttentionKernel::kFlash, 0);
  add("llama unfused dropout", llama, AttentionKernel::kUnfused, 0.1);
  llama.qk_norm = llama.biases.qkv = true;
  llama.sliding_window = 37;
  add("llama window qk-norm flash dropout", llama, AttentionKernel::kFlash, 0.1);
  add("llama window qk-norm unfused", llama, AttentionKernel::kUnfused, 0);
  for (const Activation activation : {Activation::kRelu, Activation::kRelu2}) {
    Model alibi = device_sized(small_gpt());
    alibi.position = Position::kAlibi;
    alibi.positions = 0;
    alibi.parallel_residual = true;
    alibi.shared_norm = activation == Activation::kRelu2;
    alibi.biases.norm = false;
    alibi.activation = activation;
    add("alibi flash", alibi, AttentionKernel::kFlash, 0);
    add("alibi unfused", alibi, AttentionKernel::kUnfused, 0);
  }
  DeviceCase again = out.front();
  again.name = "gpt recomputed, master copy";
  again.plan.recompute.layer = true;
  again.plan.precision.master = true;
  out.push_back(again);
  return out;
}

std::vector<DeviceCase> cudnn_cases() {
  std::vector<DeviceCase> out;
  for (DeviceCase one : single_rank_cases()) {
    one.name += ", cudnn";
    one.model.head_dim = 64;
    one.plan.attention = AttentionKernel::kCudnn;
    if (!check_device_executable(lowered(one, DType::kBf16)).ok()) continue;
    for (const std::int64_t group : {1, 2}) {
      one.model.kv_heads = one.model.heads / group;
      out.push_back(one);
    }
  }
  return out;
}

std::vector<DeviceCase> drawn_cases(std::uint64_t seed, int count) {
  Rng rng(seed);
  const std::vector<DeviceCase> all = single_rank_cases();
  std::vector<DeviceCase> out;
  for (int i = 0; i < count; ++i) {
    DeviceCase one =
        all[static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(all.size())))];
    Model& m = one.model;
    m.head_dim = 4 * (1 + rng.below(32));
    m.hidden = 4 * (4 + rng.below(70));
    m.intermediate = 4 * (1 + rng.below(80));
    m.vocabulary = 20 + rng.below(2000);
    one.plan.sequence_length = 2 + rng.below(150);
    if (m.positions > 0) m.positions = one.plan.sequence_length + rng.below(9);
    if (m.sliding_window > 0) m.sliding_window = 1 + rng.below(one.plan.sequence_length);
    one.name += ", head " + std::to_string(m.head_dim) + " hidden " + std::to_string(m.hidden) +
                " mlp " + std::to_string(m.intermediate) + " vocabulary " +
                std::to_string(m.vocabulary) + " sequence " +
                std::to_string(one.plan.sequence_length);
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<DeviceCase> many_rank_cases() {
  std::vector<DeviceCase> out;
  for (const bool sequence : {false, true}) {
    const Model gpt = device_sized(small_gpt());
    Plan plan = tiny_plan(gpt, {2, 1, 1, 1}, AttentionKernel::kFlash, 0.1);
    plan.sequence_length = 76;
    plan.sequence = sequence;
    out.push_back({sequence ? "gpt sequence 2" : "gpt tensor 2", gpt, plan});
  }
  const Model llama = device_sized(small_llama());
  Plan plan = tiny_plan(llama, {2, 1, 1, 2}, AttentionKernel::kUnfused, 0);
  plan.sequence_length = 76;
  plan.sharding = Sharding::kOptimizer;
  out.push_back({"llama tensor 2 data 2, ZeRO-1", llama, plan});
  plan.sharding = Sharding::kParameters;
  out.push_back({"llama tensor 2 data 2, ZeRO-3", llama, plan});
  plan.units.gather_elements = plan.bucket_elements = 5'000;
  out.push_back({"llama tensor 2 data 2, ZeRO-3 by parameters", llama, plan});
  Plan copied = plan;
  copied.sharding = Sharding::kOptimizer;
  copied.units.gather_elements = 0;
  copied.precision.master = copied.copies_master_to_model = true;
  out.push_back({"llama tensor 2 data 2, ZeRO-1, weights copied back", llama, copied});
  Model deep = device_sized(small_gpt());
  deep.layers = 4;
  deep.tied_embeddings = true;
  plan = tiny_plan(deep, {1, 2, 1, 2}, AttentionKernel::kFlash, 0.1);
  plan.global_batch = 16;
  plan.sharding = Sharding::kOptimizer;
  plan.bucket_elements = 5'000;
  plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
  plan.schedule = Schedule::k1F1B;
  out.push_back({"gpt pipeline 2 data 2, overlapped buckets", deep, plan});
  plan = tiny_plan(deep, {1, 2, 2, 1}, AttentionKernel::kFlash, 0);
  plan.global_batch = 8;
  plan.schedule = Schedule::kInterleaved;
  out.push_back({"gpt pipeline 2 x 2", deep, plan});
  deep.tied_embeddings = false;
  plan = tiny_plan(deep, {1, 2, 1, 1}, AttentionKernel::kFlash, 0);
  plan.global_batch = 8;
  plan.schedule = Schedule::kVocabulary1;
  out.push_back({"gpt pipeline 2, Vocab-1", deep, plan});
  plan.schedule = Schedule::kVocabulary2;
  out.push_back({"gpt pipeline 2, Vocab-2", deep, plan});
  plan = tiny_plan(deep, {2, 1, 1, 1}, AttentionKernel::kFlash, 0.1);
  plan.micro_batch = 2;
  plan.global_batch = 8;
  plan.overlap.tensor_slices = 2;
  out.push_back({"gpt tensor 2 in slices", deep, plan});
  plan = tiny_plan(deep, {2, 1, 1, 1}, AttentionKernel::kFlash, 0.1);
  plan.recompute.parts = 2;
  out.push_back({"gpt tensor 2 in parts", deep, plan});
  plan = tiny_plan(deep, {1, 2, 1, 1}, AttentionKernel::kFlash, 0.1);
  plan.global_batch = 4;
  plan.schedule = Schedule::k3F1B;
  plan.forwards = 3;
  out.push_back({"gpt pipeline 2, recycling", deep, plan});
  return out;
}

namespace {

Model device_moe() {
  Model m = device_sized(small_moe());
  m.experts = Experts{8, 2, 20, 12, 1, 1, false};
  return m;
}

/// Experts of 76 tokens a sequence, which experts share evenly.
Plan expert_plan(const Model& model, PlanDegrees degrees, ExpertPlan experts) {
  Plan plan = tiny_plan(model, degrees, AttentionKernel::kFlash, 0);
  plan.sequence_length = 76;
  plan.sequence = plan.tensor > 1;
  plan.experts = experts;
  return plan;
}

}  // namespace

std::vector<DeviceCase> expert_cases() {
  std::vector<DeviceCase> out;
  Model model = device_moe();
  const auto add = [&](const std::string& name, Routing routing, double factor) {
    out.push_back({"experts " + name, model,
                   expert_plan(model, {}, {1, 1, Dispatcher::kAllToAll, routing, factor})});
  };
  add("balanced", Routing::kBalanced, 1);
  add("with room for all", Routing::kCapacity, 4);
  add("that drop tokens", Routing::kCapacity, 0.7);
  out.back().plan.recompute.layer = true;
  add("gathered", Routing::kBalanced, 1);
  out.back().plan.experts.dispatcher = Dispatcher::kAllGather;
  add("gathered, that drop tokens", Routing::kCapacity, 0.7);
  out.back().plan.experts.dispatcher = Dispatcher::kAllGather;
  out.back().plan.experts.single_kernel = true;
  model.experts.shared_width = 0;
  add("without shared ones, in one kernel", Routing::kBalanced, 1);
  out.back().plan.experts.single_kernel = true;
  return out;
}

std::vector<DeviceCase> expert_rank_cases() {
  struct Case {
    PlanDegrees degrees;
    std::int64_t expert, cut;
  };
  std::vector<DeviceCase> out;
  const Model model = device_moe();
  for (const Case& c : {Case{{1, 1, 1, 2}, 2, 1}, Case{{2, 1, 1, 1}, 2, 1},
                        Case{{1, 1, 1, 2}, 1, 2}, Case{{2, 1, 1, 2}, 2, 2}}) {
    for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather}) {
      const bool gathers = dispatcher == Dispatcher::kAllGather;
      const Routing routing = gathers == (c.cut > 1) ? Routing::kBalanced : Routing::kCapacity;
      ExpertPlan experts{c.expert, c.cut, dispatcher, routing,
                         routing == Routing::kBalanced ? 1.0 : 0.8};
      experts.single_kernel = gathers;
      out.push_back({"experts on " + std::to_string(c.expert) + ", cut by " +
                         std::to_string(c.cut) + ", tensor " + std::to_string(c.degrees.tensor) +
                         (gathers ? ", gathered" : ""),
                     model, expert_plan(model, c.degrees, experts)});
      if (c.degrees.data > 1 && gathers) out.back().plan.sharding = Sharding::kOptimizer;
    }
  }
  return out;
}

std::vector<DeviceCase> offload_cases(std::int64_t ranks) {
  std::vector<DeviceCase> out;
  Model model = device_sized(small_llama());
  model.layers = 3;
  for (const Sharding sharding :
       {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    for (const Memory states : {Memory::kHost, Memory::kStorage}) {
      for (const Memory parameters : {Memory::kDevice, Memory::kHost, Memory::kStorage}) {
        if (parameters != Memory::kDevice && sharding != Sharding::kParameters) continue;
        Plan plan = tiny_plan(model, {1, 1, 1, ranks}, AttentionKernel::kFlash, 0.1);
        plan.sharding = sharding;
        plan.units.narrow_shards = true;
        plan.units.reduce_each = parameters != Memory::kHost;
        plan.precision.master = states == Memory::kHost;
        plan.offload.optimizer = states;
        plan.offload.parameters = parameters;
        plan.offload.activation_layers = 2;
        plan.offload.activations = states;
        out.push_back({"states in " + std::string(name_of(states)) + ", parameters in " +
                           std::string(name_of(parameters)) + ", ZeRO-" +
                           std::to_string(static_cast<int>(sharding)),
                       model, plan});
      }
    }
  }
  return out;
}

std::vector<DeviceCase> context_cases() {
  struct Case {
    PlanDegrees degrees;  ///< data: the ranks of the context group too
    std::int64_t context, inner = 1;
  };
  std::vector<DeviceCase> out;
  for (const Case& c : {Case{{1, 1, 1, 2}, 2}, Case{{1, 1, 1, 4}, 4}, Case{{2, 1, 1, 2}, 2},
                        Case{{1, 1, 1, 4}, 4, 2}}) {
    for (const ContextExchange exchange :
         {ContextExchange::kRing, ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
      if (c.inner > 1 && exchange != ContextExchange::kRing) continue;
      for (const Model& wide : {small_gpt(), small_llama(), small_moe()}) {
        Model model = device_sized(wide);
        model.heads = 8;
        model.kv_heads = wide.positions > 0 ? 8 : 4;
        model.head_dim = 8;
        if (c.context * c.degrees.tensor > 4) model.kv_heads = 8;
        const bool llama = wide.positions == 0 && !wide.has_experts();
        if (llama && exchange != ContextExchange::kRing) model.sliding_window = 27;
        if (model.has_experts()) {
          model.experts = Experts{4, 2, 20, 12, 1, 1, false};
          model.position = Position::kAlibi;
        }
        Plan plan = tiny_plan(model, c.degrees, AttentionKernel::kFlash, 0.1);
        plan.context = c.context;
        plan.context_inner = c.inner;
        plan.context_exchange = exchange;
        plan.sequence_length = 80;
        plan.global_batch = plan.micro_batch * plan.batch_ranks() * 2;
        plan.sequence = plan.tensor > 1;
        plan.recompute.attention = exchange != ContextExchange::kRing;
        plan.experts.routing = Routing::kBalanced;
        out.push_back({model.type + ", context " + std::to_string(c.context) + " in " +
                           std::to_string(c.inner) + ", tensor " + std::to_string(plan.tensor) +
                           ", exchange " + std::to_string(static_cast<int>(exchange)),
                       model, plan});
      }
    }
  }
  return out;
}

std::vector<DeviceCase> grid_cases() {
  struct Grid {
    TensorMode mode;
    std::int64_t tensor, depth;
  };
  std::vector<DeviceCase> out;
  for (const Grid& grid : {Grid{TensorMode::k2D, 4, 1}, Grid{TensorMode::k25D, 2, 2},
                           Grid{TensorMode::k25D, 8, 2}, Grid{TensorMode::k3D, 8, 1}}) {
    for (Model model : {device_sized(small_gpt()), device_sized(small_llama())}) {
      model.intermediate = 48;
      model.embedding_norm = model.positions > 0;
      for (const AttentionKernel attention : {AttentionKernel::kFlash, AttentionKernel::kUnfused}) {
        Plan plan = tiny_plan(model, {grid.tensor, 1, 1, 1}, attention, 0.1);
        plan.tensor_mode = grid.mode;
        plan.tensor_depth = grid.depth;
        plan.sequence_length = 40;
        plan.micro_batch = plan.token_parts();
        plan.global_batch = plan.micro_batch * 2;
        plan.recompute.norm = attention == AttentionKernel::kUnfused;
        model.tied_embeddings = attention == AttentionKernel::kFlash;
        out.push_back({model.type + ", " + std::string(name_of(grid.mode)) + " on " +
                           std::to_string(grid.tensor),
                       model, plan});
      }
    }
  }
  return out;
}

}  // namespace foretrain

#include "tests/execution/device_plans.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <thread>

#include "executor/thread_run.h"
#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

constexpr int kSteps = 3;

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

Plan tiny_plan(const Model& model, Degrees degrees, AttentionKernel attention, double dropout) {
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

/// By rank, tensor and layer.
using Weights = std::map<std::string, std::vector<double>>;

template <typename ValuesOf>
void collect(const std::vector<TensorSlice>& slices, std::size_t rank, const ValuesOf& values_of,
             Weights& out) {
  for (const TensorSlice& slice : slices) {
    std::vector<double>& to =
        out[std::to_string(rank) + " " + slice.tensor->name + " " + std::to_string(slice.layer)];
    const auto values = values_of(slice.owner);
    to.clear();
    for (std::int64_t i = slice.begin; i < slice.end; ++i) {
      to.push_back(static_cast<double>(values[slice.element + i]));
    }
  }
}

struct Outcome {
  std::vector<double> losses;
  Weights before, after;
};

Outcome on_host(const Workload& workload) {
  Outcome out;
  const auto run = ThreadRun<float>::create(workload, options_for_tests());
  EXPECT_TRUE(run.ok()) << run.error().message;
  if (!run.ok()) return out;
  const auto read = [&](Weights& to) {
    for (std::size_t r = 0; r < run.value()->ranks().size(); ++r) {
      HostMemory<float>& memory = run.value()->ranks()[r]->memory();
      collect(
          memory.slices(), r, [&](FrameId frame) { return memory.values(frame); }, to);
    }
  };
  read(out.before);
  for (int step = 0; step < kSteps; ++step) {
    const Result<double> loss = run.value()->step();
    EXPECT_TRUE(loss.ok()) << loss.error().message;
    if (!loss.ok()) return out;
    out.losses.push_back(loss.value());
  }
  read(out.after);
  return out;
}

using Ranks = std::vector<std::unique_ptr<DeviceRank>>;

/// Every rank in a thread of its own.
bool all(const Ranks& ranks, const std::function<Status(DeviceRank&)>& act) {
  std::vector<Status> results(ranks.size(), ok_status());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] { results[r] = act(*ranks[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  bool good = true;
  for (const Status& status : results) {
    if (status.ok()) continue;
    ADD_FAILURE() << status.error().message;
    good = false;
  }
  return good;
}

Outcome on_device(const Workload& workload, const MakeDevice& make, bool graphs) {
  Outcome out;
  const auto transport = make_thread_transport(workload);
  Ranks ranks;
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    auto device = make(workload, RankId(r), *transport);
    if (!device.ok()) {
      ADD_FAILURE() << device.error().message;
      return out;
    }
    HostOptions options = options_for_tests();
    options.graphs = graphs;
    ranks.push_back(std::make_unique<DeviceRank>(workload, RankId(r), *transport, options,
                                                 std::move(device).value()));
  }
  const auto read = [&](Weights& to) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      collect(
          ranks[r]->layout().slices(), r,
          [&](FrameId frame) {
            auto values = ranks[r]->values(frame);
            EXPECT_TRUE(values.ok());
            return values.ok() ? std::move(values).value() : std::vector<float>();
          },
          to);
    }
  };
  if (!all(ranks, [](DeviceRank& rank) { return rank.set_up(); })) return out;
  read(out.before);
  for (int step = 0; step < kSteps; ++step) {
    if (!all(ranks, [](DeviceRank& rank) { return rank.step(); })) return out;
    for (const auto& rank : ranks) {
      if (std::isnan(rank->loss())) continue;
      out.losses.push_back(rank->loss());
      break;
    }
  }
  read(out.after);
  return out;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

void expect_close(const Outcome& host, const Outcome& device, const DeviceTolerance& tolerance) {
  ASSERT_EQ(host.losses.size(), device.losses.size());
  for (std::size_t s = 0; s < host.losses.size(); ++s) {
    EXPECT_NEAR(device.losses[s] / host.losses[s], 1.0, tolerance.loss) << "loss of step " << s;
  }
  ASSERT_EQ(host.after.size(), device.after.size());
  for (const auto& [name, values] : host.after) {
    const std::vector<double>& other = device.after.at(name);
    ASSERT_EQ(values.size(), other.size()) << name;
    const double least = 1e-4 * std::sqrt(static_cast<double>(values.size()));
    const double moved = std::max(least, distance(values, host.before.at(name)));
    const double size = distance(values, std::vector<double>(values.size(), 0.0));
    EXPECT_LE(distance(values, other), tolerance.weights * moved + tolerance.rounding * size)
        << name << ", moved " << moved;
  }
}

}  // namespace

HostOptions options_for_tests() {
  HostOptions options;
  options.training.learning_rate = 0.01;
  options.training.epsilon = 1e-3;
  options.check = true;
  return options;
}

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
  llama.qk_norm = llama.qkv_bias = true;
  llama.sliding_window = 37;
  add("llama window qk-norm flash dropout", llama, AttentionKernel::kFlash, 0.1);
  add("llama window qk-norm unfused", llama, AttentionKernel::kUnfused, 0);
  for (const Activation activation : {Activation::kRelu, Activation::kRelu2}) {
    Model alibi = device_sized(small_gpt());
    alibi.position = Position::kAlibi;
    alibi.positions = 0;
    alibi.parallel_residual = true;
    alibi.norm_bias = false;
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
  return out;
}

Workload lowered(const DeviceCase& device_case, DType type) {
  Plan plan = device_case.plan;
  if (type != DType::kFp32) {
    plan.precision.compute = plan.precision.matrix = plan.precision.linear = type;
    plan.precision.master = true;
  }
  return lower(device_case.model, plan);
}

void expect_trains_like_host(const DeviceCase& device_case, DType type, const MakeDevice& make,
                             const DeviceTolerance& tolerance, bool graphs) {
  SCOPED_TRACE(device_case.name);
  const Workload reference = lower(device_case.model, device_case.plan);
  const Workload workload = lowered(device_case, type);
  const Status well_formed = verify(workload);
  ASSERT_TRUE(well_formed.ok()) << well_formed.error().message;
  const Status possible = check_device_executable(workload);
  ASSERT_TRUE(possible.ok()) << possible.error().message;
  expect_close(on_host(reference), on_device(workload, make, graphs), tolerance);
}

}  // namespace foretrain

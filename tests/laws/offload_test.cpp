// Does offloading move what the papers count, keep what they keep, and work beside the passes?
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

constexpr std::int64_t kRanks = 4;

/// Every unit divides among the ranks without padding.
Model model_here() {
  Model model = small_llama();
  model.vocabulary = 1024;
  return model;
}

Plan plan_here(Sharding sharding, std::int64_t microbatches) {
  Plan plan = small_plan(model_here(), {1, 1, 1, kRanks}, microbatches);
  plan.sharding = sharding;
  plan.units.reduce = plan.precision.gradients = DType::kBf16;
  plan.units.narrow_shards = true;
  plan.offload.optimizer = Memory::kHost;
  return plan;
}

/// Parameters, up to whole 128s of every rank.
std::int64_t in_buckets() {
  constexpr std::int64_t kEach = kRanks * 128;
  return (parameter_count(model_here()) + kEach - 1) / kEach * kEach;
}

Workload lowered(const Plan& plan) {
  Workload out = lower(model_here(), plan);
  const Status status = verify(out);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return out;
}

/// Bytes of copies by op name.
std::map<std::string, Bytes> copied(const Workload& workload) {
  std::map<std::string, Bytes> out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const auto* copy = std::get_if<Copy>(&program.works[op.work.index()]);
      if (copy != nullptr) out[op.name] += copy->bytes;
    }
  }
  return out;
}

/// Persistent bytes outside of the device.
std::map<Memory, Bytes> held(const Workload& workload) {
  std::map<Memory, Bytes> out;
  const Program& program = workload.programs[0];
  for (const Frame& frame : program.frames) {
    if (frame.alias_of.valid()) continue;
    for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
      if (buffer.persistent) out[buffer.memory] += buffer.bytes();
    }
  }
  return out;
}

struct Times {
  Time first_copy{INT64_MAX}, last_backward, first_update{INT64_MAX}, last_load;
};

Times times_of(const Plan& plan) {
  const Workload workload = lowered(plan);
  TestPrices prices(plain_rates());
  const Result<Replayed> result = replay_all(workload, prices, false);
  EXPECT_TRUE(result.ok()) << result.error().message;
  Times out;
  const Program& program = workload.programs[0];
  for (const OpTimes& t : result.value().sink.of(0)) {
    const Call& call = program.calls[static_cast<std::size_t>(t.call)];
    const Op& op = program.segments[call.segment.index()].ops[static_cast<std::size_t>(t.op)];
    if (op.phase == Phase::kBackward) out.last_backward = max(out.last_backward, t.end);
    if (op.name == "gradients.to_host" && t.start < out.first_copy) out.first_copy = t.start;
    if (op.name == "optimizer.adam" && t.start < out.first_update) out.first_update = t.start;
    if (op.name == "parameters.load") out.last_load = max(out.last_load, t.end);
  }
  return out;
}

// ZeRO-Offload (arXiv 2101.06840, section 3): of P parameters a rank sends the gradients of its
// part and gets back its weights, 2 P / d bytes each way; the host keeps 12 P / d of states and the
// gradients, the device weights alone.
TEST(Offload, StatesAndGradients) {
  const std::int64_t own = parameter_count(model_here()) / kRanks;
  for (const Sharding sharding : {Sharding::kGradients, Sharding::kParameters}) {
    for (const std::int64_t microbatches : {1, 3}) {
      const Workload workload = lowered(plan_here(sharding, microbatches));
      const auto bytes = copied(workload);
      EXPECT_EQ(bytes.at("gradients.to_host"), microbatches * 2 * own);
      EXPECT_EQ(bytes.at("parameters.load"), 2 * own);
      EXPECT_EQ(held(workload)[Memory::kHost], (12 + 2) * own);
      const BytesByKind device = persistent_bytes(workload.programs[0]);
      EXPECT_EQ(device[static_cast<std::size_t>(BufferKind::kOptimizer)], 0);
      EXPECT_EQ(device[static_cast<std::size_t>(BufferKind::kGradients)], 0);
    }
  }
}

// ZeRO-1: the device adds up all gradients, of which the rank's part leaves once a step.
TEST(Offload, StatesOfAShardedOptimizer) {
  const std::int64_t all = in_buckets();
  for (const bool overlaps : {false, true}) {
    for (const std::int64_t microbatches : {1, 3}) {
      Plan plan = plan_here(Sharding::kOptimizer, microbatches);
      plan.overlap.gradient_reduce = overlaps;
      plan.bucket_elements = all / 4;
      const Workload workload = lowered(plan);
      const auto bytes = copied(workload);
      EXPECT_EQ(bytes.at("gradients.to_host"), 2 * all / kRanks);
      EXPECT_EQ(bytes.at("parameters.load"), 2 * all / kRanks);
      EXPECT_EQ(held(workload)[Memory::kHost], (12 + 2) * all / kRanks);
      const BytesByKind device = persistent_bytes(workload.programs[0]);
      EXPECT_EQ(device[static_cast<std::size_t>(BufferKind::kOptimizer)], 0);
      EXPECT_EQ(device[static_cast<std::size_t>(BufferKind::kGradients)], 2 * all);
      plan.offload.optimizer = Memory::kStorage;
      EXPECT_EQ(copied(lowered(plan)).at("optimizer.read"), 12 * all / kRanks);
      EXPECT_EQ(copied(lowered(plan)).at("optimizer.write"), 12 * all / kRanks);
    }
  }
}

// ZeRO-2 in contiguous buckets: every microbatch's part leaves, and the device keeps none.
TEST(Offload, StatesOfContiguousBuckets) {
  const std::int64_t own = in_buckets() / kRanks;
  for (const std::int64_t microbatches : {1, 3}) {
    Plan plan = plan_here(Sharding::kGradients, microbatches);
    const Bytes in_units = held(lowered(plan))[Memory::kDevice];
    plan.buckets.cut = Bucketing::kContiguous;
    plan.bucket_elements = 300'000;  // more than any parameter has
    const Workload workload = lowered(plan);
    const auto bytes = copied(workload);
    EXPECT_EQ(bytes.at("gradients.to_host"), microbatches * 2 * own);
    EXPECT_EQ(bytes.at("parameters.load"), 2 * own);
    EXPECT_EQ(held(workload)[Memory::kHost], (12 + 2) * own);
    // Beside the bucket and what all tensor ranks hold: norms.
    EXPECT_LT(held(workload)[Memory::kDevice] - in_units - 2 * plan.bucket_elements, own / 100);
  }
}

// One data rank without sharding: all gradients leave, each layer's with its backward pass.
TEST(Offload, StatesOfOneRank) {
  const Model model = model_here();
  Plan plan = small_plan(model, {1, 1, 1, 1}, 2);
  plan.precision.gradients = DType::kBf16;
  plan.offload.optimizer = Memory::kHost;
  plan.overlap.gradient_reduce = true;
  const Workload workload = lowered(plan);
  const std::int64_t all = parameter_count(model);
  EXPECT_EQ(copied(workload).at("gradients.to_host"), 2 * all);
  EXPECT_EQ(copied(workload).at("parameters.load"), 2 * all);
  EXPECT_EQ(held(workload)[Memory::kHost], (12 + 2) * all);
  const Program& program = workload.programs[0];
  const auto copies = std::count_if(program.calls.begin(), program.calls.end(), [&](const Call& c) {
    return program.segments[c.segment.index()].name == "gradients to the host";
  });
  EXPECT_EQ(copies, model.layers + 2);  // the output matrix, the layers, what lies before them
  EXPECT_LT(times_of(plan).first_copy, times_of(plan).last_backward);
}

// ZeRO-Infinity (arXiv 2104.07857): offloaded shards are copied in before every gather, each rank
// its own part, and new weights stay on the host. Units are gathered in both passes, the root once.
TEST(Offload, Parameters) {
  Plan plan = plan_here(Sharding::kParameters, 1);
  plan.offload.parameters = Memory::kHost;
  const Workload workload = lowered(plan);
  const Model model = model_here();
  std::int64_t layer = 0;
  for (const Parameter& p : layer_parameters(model)) layer += p.count();
  const std::int64_t all = parameter_count(model);
  const auto bytes = copied(workload);
  EXPECT_EQ(bytes.at("parameters.from_host"), 2 * (all + model.layers * layer) / kRanks);
  EXPECT_EQ(bytes.count("parameters.load"), 0U);
  EXPECT_EQ(held(workload)[Memory::kHost], (12 + 2 + 2) * all / kRanks);
}

// States in storage are read and written once a step, 12 P / d bytes each.
TEST(Offload, Storage) {
  Plan plan = plan_here(Sharding::kParameters, 1);
  plan.offload.optimizer = Memory::kStorage;
  const Workload workload = lowered(plan);
  const std::int64_t own = parameter_count(model_here()) / kRanks;
  const auto bytes = copied(workload);
  EXPECT_EQ(bytes.at("optimizer.read"), 12 * own);
  EXPECT_EQ(bytes.at("optimizer.write"), 12 * own);
  EXPECT_EQ(held(workload)[Memory::kStorage], 12 * own);
}

// Angel-PTM: a share of the layers stays on the device, 16 bytes a parameter that the host then
// does not keep, and neither their gradients nor their weights are copied. At 1 nothing is
// offloaded.
TEST(Offload, SharesStayOnTheDevice) {
  const Model model = model_here();
  std::int64_t layer = 0;
  for (const Parameter& p : layer_parameters(model)) layer += p.count();
  const std::int64_t all = parameter_count(model);
  for (const Memory parameters : {Memory::kDevice, Memory::kHost}) {
    for (const std::int64_t layers : {0, 2, 7, 8}) {
      Plan plan = plan_here(Sharding::kParameters, 2);
      plan.offload.parameters = parameters;
      plan.offload.device_share = static_cast<double>(layers) / static_cast<double>(model.layers);
      const std::int64_t stays = layers == model.layers ? all : layers * layer;
      const Workload workload = lowered(plan);
      auto held_bytes = held(workload);
      const bool shards = parameters == Memory::kHost;
      EXPECT_EQ(held_bytes[Memory::kHost], (14 + (shards ? 2 : 0)) * (all - stays) / kRanks);
      EXPECT_EQ(held_bytes[Memory::kDevice] - 8,
                (14 * stays + 2 * (shards ? stays : all)) / kRanks);
      auto bytes = copied(workload);
      EXPECT_EQ(bytes["gradients.to_host"], 2 * 2 * (all - stays) / kRanks);
      EXPECT_EQ(bytes["parameters.load"], shards ? 0 : 2 * (all - stays) / kRanks);
    }
  }
}

// Two tensors may share a page: of each memory the last one alone is not full, and what is empty
// neither travels nor is updated.
TEST(Offload, StatesFillPages) {
  constexpr Bytes kPage = 1 << 16;
  const auto in_pages = [](Bytes bytes) { return (bytes + kPage - 1) / kPage * kPage; };
  const Bytes own = parameter_count(model_here()) / kRanks;
  for (const Memory where : {Memory::kHost, Memory::kStorage}) {
    Plan plan = plan_here(Sharding::kParameters, 1);
    plan.offload.optimizer = where;
    const auto without = copied(lowered(plan));
    plan.offload.page = kPage;
    const Workload workload = lowered(plan);
    EXPECT_EQ(copied(workload), without);
    // Gradients are at the host.
    ASSERT_NE(12 * own % kPage, 0);
    const bool together = where == Memory::kHost;
    EXPECT_EQ(held(workload)[where], in_pages((together ? 12 + 2 : 12) * own));
    EXPECT_EQ(held(workload)[Memory::kHost], in_pages((together ? 12 + 2 : 2) * own));
  }
}

// Gradients leave beside the backward pass. The update waits for the norm of all of them; delayed,
// it runs beside the passes, and what it made is loaded after them.
TEST(Offload, WorksBesideThePasses) {
  for (const Sharding sharding : {Sharding::kOptimizer, Sharding::kGradients}) {
    Plan plan = plan_here(sharding, 1);
    plan.overlap.gradient_reduce = true;
    plan.bucket_elements = 100'000;
    const Times now = times_of(plan);
    EXPECT_LT(now.first_copy, now.last_backward);
    EXPECT_GE(now.first_update, now.last_backward);
    plan.offload.delayed_update = true;
    const Times delayed = times_of(plan);
    EXPECT_LT(delayed.first_update, delayed.last_backward);
    EXPECT_GT(delayed.last_load, delayed.last_backward);
    const bool units = sharding == Sharding::kGradients;
    EXPECT_EQ(held(lowered(plan))[Memory::kHost],
              (12 + 2 + 2) * (units ? parameter_count(model_here()) : in_buckets()) / kRanks);
  }
}

// With shards on the host too passes read the old weights there while it makes new ones, which take
// their place at the end: no copy in memory, one to storage.
TEST(Offload, LateUpdatesOfOffloadedShards) {
  const std::int64_t own = parameter_count(model_here()) / kRanks;
  for (const Memory memory : {Memory::kHost, Memory::kStorage}) {
    for (const bool narrow : {true, false}) {
      Plan plan = plan_here(Sharding::kParameters, 2);
      plan.offload.optimizer = plan.offload.parameters = memory;
      plan.precision.master = narrow;
      auto now = copied(lowered(plan));
      plan.offload.delayed_update = true;
      const Workload late = lowered(plan);
      auto copies = copied(late);
      EXPECT_EQ(copies["parameters.from_host"], now["parameters.from_host"]);
      EXPECT_EQ(copies["parameters.load"], memory == Memory::kStorage ? 2 * own : 0);
      EXPECT_EQ(now["parameters.load"], 0);
      const Times times = times_of(plan);
      EXPECT_LT(times.first_update, times.last_backward);
      EXPECT_GE(times.last_load, times.last_backward);
    }
  }
}

// What the first layers keep, with their inputs, goes out and comes back once a microbatch; the
// device keeps it no longer.
TEST(Offload, Activations) {
  const Model model = model_here();
  Plan plan = small_plan(model, {1, 1, 1, 1}, 2);
  const Bytes before = memory_peak(lowered(plan).programs[0]).saved;
  plan.offload.activation_layers = model.layers / 2;
  const Workload workload = lowered(plan);
  const Bytes moved = copied(workload).at("activations.copy");
  const Bytes after = memory_peak(workload.programs[0]).saved;
  EXPECT_EQ(moved % (2 * 2 * model.layers / 2), 0);
  const Bytes layer = moved / (2 * 2 * model.layers / 2);
  EXPECT_EQ(memory_peak(workload.programs[0], Memory::kHost).bytes, layer * (model.layers / 2));
  // All but those of one layer, on their way, are away when the last layers compute.
  EXPECT_LE(after, before - layer * (model.layers / 2 - 2));
  plan.recompute.layer = true;
  const Bytes input = 2 * plan.tokens() * model.hidden;
  EXPECT_EQ(copied(lowered(plan)).at("activations.copy"), 2 * 2 * model.layers / 2 * input);
}

// What goes on to storage passes through the host, each time once: the host has room for one
// layer's at a time, storage keeps all.
TEST(Offload, StoredActivations) {
  const Model model = model_here();
  Plan plan = small_plan(model, {1, 1, 1, 1}, 2);
  plan.offload.activation_layers = model.layers / 2;
  const Workload on_host = lowered(plan);
  const Bytes moved = copied(on_host).at("activations.copy");
  const Bytes kept = memory_peak(on_host.programs[0], Memory::kHost).bytes;
  plan.offload.activations = Memory::kStorage;
  const Workload stored = lowered(plan);
  EXPECT_EQ(copied(stored).at("activations.copy"), moved);
  EXPECT_EQ(copied(stored).at("activations.store"), moved);
  EXPECT_EQ(memory_peak(stored.programs[0], Memory::kStorage).bytes, kept);
  EXPECT_LE(memory_peak(stored.programs[0], Memory::kHost).bytes, 2 * kept / (model.layers / 2));
}

// What a layer keeps is on the device until compute has waited for its copy to the host, after the
// next layer's pass: the one behind that does not begin before, however slow copies are.
TEST(OffloadedActivations, LiveUntilTheyAreCopied) {
  Plan plan = plan_here(Sharding::kOptimizer, 1);
  plan.offload.optimizer = Memory::kDevice;
  plan.offload.activation_layers = model_here().layers;
  const Workload workload = lowered(plan);
  const Program& program = workload.programs[0];
  for (const std::int64_t slower : {1, 10'000}) {
    Rates rates = plain_rates();
    rates.copies = slower;
    TestPrices prices(rates);
    const Result<Replayed> result = replay_all(workload, prices, false);
    ASSERT_TRUE(result.ok()) << result.error().message;
    std::map<std::int32_t, Time> copied;  // to the host, by layer
    std::map<std::int32_t, Time> began;   // forward passes
    for (const OpTimes& t : result.value().sink.of(0)) {
      const Call& call = program.calls[static_cast<std::size_t>(t.call)];
      const Segment& segment = program.segments[call.segment.index()];
      if (segment.name == "keep on the host") copied[call.layer] = max(copied[call.layer], t.end);
      if (segment.name != "layer forward") continue;
      const auto known = began.emplace(call.layer, t.start).first;
      known->second = std::min(known->second, t.start);
    }
    ASSERT_EQ(copied.size(), static_cast<std::size_t>(model_here().layers));
    for (std::int32_t layer = 0; layer + 2 < model_here().layers; ++layer) {
      EXPECT_GE(began.at(layer + 2), copied.at(layer)) << layer;
    }
  }
}

// However slow storage is, no layer has left the device before the one two before it is stored; and
// what comes back is read before the layer behind it begins, while an earlier one computes.
TEST(StoredActivations, WaitForRoomAndAreReadAhead) {
  Plan plan = plan_here(Sharding::kOptimizer, 1);
  plan.offload.optimizer = Memory::kDevice;
  plan.offload.activation_layers = model_here().layers;
  plan.offload.activations = Memory::kStorage;
  const Workload workload = lowered(plan);
  const Program& program = workload.programs[0];
  for (const std::int64_t slower : {1, 50}) {
    Rates rates = plain_rates();
    rates.storage = slower;
    TestPrices prices(rates);
    const Result<Replayed> result = replay_all(workload, prices, false);
    ASSERT_TRUE(result.ok()) << result.error().message;
    std::map<std::string, std::map<std::int32_t, Times>> times;  // by segment and layer
    for (const OpTimes& t : result.value().sink.of(0)) {
      const Call& call = program.calls[static_cast<std::size_t>(t.call)];
      Times& one = times[program.segments[call.segment.index()].name][call.layer];
      one.first_copy = std::min(one.first_copy, t.start);
      one.last_load = max(one.last_load, t.end);
    }
    const auto layers = static_cast<std::int32_t>(model_here().layers);
    ASSERT_EQ(times["write to storage"].size(), static_cast<std::size_t>(layers));
    for (std::int32_t layer = 0; layer + 2 < layers; ++layer) {
      EXPECT_GT(times["keep on the host"].at(layer + 2).last_load,
                times["write to storage"].at(layer).last_load)
          << layer;
      EXPECT_GE(times["read from storage"].at(layer).first_copy,
                times["layer backward"].at(layer + 2).first_copy);
      EXPECT_GT(times["load from the host"].at(layer).last_load,
                times["read from storage"].at(layer).last_load);
      if (slower > 1) continue;
      EXPECT_LT(times["read from storage"].at(layer).first_copy,
                times["layer backward"].at(layer + 1).first_copy);
    }
  }
}

// Of layers that are computed again only the inputs travel: there is room for two of them too.
TEST(StoredActivations, InputsAloneWaitForRoom) {
  Plan plan = plan_here(Sharding::kOptimizer, 1);
  plan.offload.optimizer = Memory::kDevice;
  plan.offload.activation_layers = model_here().layers;
  plan.offload.activations = Memory::kStorage;
  plan.recompute.layer = true;
  const Workload workload = lowered(plan);
  Rates rates = plain_rates();
  rates.storage = 500;
  TestPrices prices(rates);
  const Result<Replayed> result = replay_all(workload, prices, false);
  ASSERT_TRUE(result.ok()) << result.error().message;
  std::map<std::int32_t, Time> kept;
  std::map<std::int32_t, Time> stored;
  for (const OpTimes& t : result.value().sink.of(0)) {
    const Program& program = workload.programs[0];
    const Call& call = program.calls[static_cast<std::size_t>(t.call)];
    const std::string& name = program.segments[call.segment.index()].name;
    if (name == "keep on the host") kept[call.layer] = t.end;
    if (name == "write to storage") stored[call.layer] = t.end;
  }
  const auto layers = static_cast<std::int32_t>(model_here().layers);
  ASSERT_EQ(stored.size(), static_cast<std::size_t>(layers));
  for (std::int32_t layer = 0; layer + 2 < layers; ++layer) {
    EXPECT_GT(kept.at(layer + 2), stored.at(layer)) << layer;
  }
}

/// Copies between device and host that are pageable, and the waits for them, by op name.
std::map<std::string, std::pair<int, int>> pageable_copies(const Workload& workload) {
  std::map<std::string, std::pair<int, int>> out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    const std::vector<Op>& ops = program.segments[call.segment.index()].ops;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const auto* copy = std::get_if<Copy>(&program.works[ops[i].work.index()]);
      if (copy == nullptr || !copy->pageable) continue;
      ++out[ops[i].name].first;
      const bool waits = i + 1 < ops.size() && ops[i + 1].stream == ops[i].stream &&
                         program.works[ops[i + 1].work.index()] == Work(HostSync{});
      if (waits) ++out[ops[i].name].second;
    }
  }
  return out;
}

// What lies in the host's memory without being pinned is copied as often and as much, each time the
// host waits; activations and what storage keeps are not of it.
TEST(PageableMemory, HoldsTheHostUp) {
  for (const Sharding level : {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    const bool stays = level == Sharding::kParameters;
    const Memory parameters = stays ? Memory::kHost : Memory::kDevice;
    Plan plan = plan_here(level, 2);
    plan.offload.parameters = parameters;
    plan.offload.activation_layers = 1;
    const Workload pinned = lowered(plan);
    EXPECT_TRUE(pageable_copies(pinned).empty());
    plan.offload.pageable = true;
    const Workload pageable = lowered(plan);
    EXPECT_EQ(copied(pageable), copied(pinned));
    const auto waits = pageable_copies(pageable);
    EXPECT_EQ(waits.size(), 2U);
    EXPECT_EQ(waits.count("gradients.to_host"), 1U);
    EXPECT_EQ(waits.count(stays ? "parameters.from_host" : "parameters.load"), 1U);
    for (const auto& [name, counts] : waits) {
      EXPECT_GT(counts.first, 0) << name;
      EXPECT_EQ(counts.second, counts.first) << name;
    }
    plan.offload.optimizer = Memory::kStorage;
    if (stays) plan.offload.parameters = Memory::kStorage;
    EXPECT_TRUE(pageable_copies(lowered(plan)).empty());
  }
}

}  // namespace
}  // namespace foretrain

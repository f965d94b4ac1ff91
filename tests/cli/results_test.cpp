// What the command answers: whole, consistent, repeatable, and moved by every field of a RUN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sim/base/json.h"
#include "tests/cli/run_command.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

TEST(Result, HasEveryPromisedKey) {
  const Json json = simulated(small_place(), "run.json");
  for (const char* path : {"iteration_time_s",
                           "iteration_time_interval_s",
                           "tokens_per_s",
                           "tokens_per_s_per_accelerator",
                           "model_tflops_per_accelerator",
                           "mfu",
                           "hfu",
                           "memory/peak_gib",
                           "memory/capacity_gib",
                           "memory/fits",
                           "memory/by_kind_gib/parameters",
                           "memory/by_kind_gib/gradients",
                           "memory/by_kind_gib/optimizer",
                           "memory/by_kind_gib/activations",
                           "memory/by_kind_gib/communication",
                           "memory/by_kind_gib/workspace",
                           "memory/by_kind_gib/framework",
                           "memory/peak_rank",
                           "breakdown_s/host",
                           "breakdown_s/data",
                           "sensitivity",
                           "provenance/measured",
                           "provenance/interpolated",
                           "provenance/analytic",
                           "simulation/ranks",
                           "simulation/ranks_simulated",
                           "simulation/operations",
                           "simulation/events",
                           "simulation/wall_s",
                           "simulation/seed",
                           "simulation/revision",
                           "simulation/config_hash",
                           "schema"}) {
    EXPECT_FALSE(at(json, path).is_null()) << path;
  }
}

TEST(Result, ThePartsAddUp) {
  const Json json = simulated(small_place(), "run.json");
  const double step = at(json, "iteration_time_s").number();
  const auto sum_of = [&json](const char* path) {
    const Json parts = at(json, path);
    double sum = 0;
    for (const auto& [name, part] : *parts.object()) {
      EXPECT_GE(part.number(), 0) << path << "/" << name;
      sum += part.number();
    }
    return sum;
  };
  EXPECT_GT(step, 0);
  EXPECT_NEAR(sum_of("breakdown_s") / step, 1, 1e-9);
  EXPECT_NEAR(sum_of("provenance"), 1, 1e-9);
  EXPECT_NEAR(sum_of("memory/by_kind_gib") / at(json, "memory/peak_gib").number(), 1, 1e-9);
  EXPECT_NEAR(at(json, "tokens_per_s").number() * step / (16 * 512), 1, 1e-9);
}

// Data that is prepared while the device computes costs nothing; what is longer shows as such.
TEST(Result, DataThatIsTheBottleneckShowsAsSuch) {
  const auto with_data = [](double us) {
    const std::string data = "host.data_us=" + std::to_string(us);
    return simulated(small_place(), "run.json",
                     {"parallel.pipeline=1", "parallel.virtual_pipeline=1", "schedule=1f1b", data});
  };
  const Json quick = with_data(0);
  EXPECT_EQ(at(quick, "breakdown_s/data").number(), 0);
  const double step = at(quick, "iteration_time_s").number();
  const Json slow = with_data(1e6 * step);
  const double waits = at(slow, "breakdown_s/data").number();
  const double slow_step = at(slow, "iteration_time_s").number();
  EXPECT_GT(waits, 0.5 * slow_step);
  EXPECT_NEAR((slow_step - waits) / step, 1, 0.02);
}

// Workers prepare the next step's data beside this one: the step takes the longer of both.
TEST(Result, DataFromWorkersIsWaitedForWhereItTakesLonger) {
  const auto with_loader = [](double us) {
    return simulated(small_place(), "run.json",
                     {"parallel.pipeline=1", "parallel.virtual_pipeline=1", "schedule=1f1b",
                      "host.data_us=0", "host.loader_us=" + std::to_string(us)});
  };
  const Json none = with_loader(0);
  const double step = at(none, "iteration_time_s").number();
  constexpr double kMicrobatches =
      16 / 2 / 4;  // of a rank: sequences over their number, data ranks
  EXPECT_EQ(at(with_loader(1e6 * 0.9 * step / kMicrobatches), "iteration_time_s").number(), step);
  const Json slow = with_loader(1e6 * 3 * step / kMicrobatches);
  EXPECT_NEAR(at(slow, "iteration_time_s").number() / step, 3, 1e-6);
  EXPECT_NEAR(at(slow, "breakdown_s/data").number() / step, 2, 0.05);
  EXPECT_NEAR(at(slow, "sensitivity/data loading").number() / step, 3 - 3 / 1.1, 0.01);
}

TEST(Result, IsTheSameTwice) {
  Json first = simulated(small_place(), "run.json");
  Json second = simulated(small_place(), "run.json");
  for (Json* json : {&first, &second}) json->find("simulation")->set("wall_s", 0);
  EXPECT_EQ(dump_json(first), dump_json(second));
}

TEST(Result, FullSaysWhatFoldedSays) {
  const std::vector<std::string> sets = {"cluster.accelerators=16"};
  // The gains are left out of a full simulation.
  const std::vector<std::string> apart = {"simulation", "sensitivity"};
  const Json folded = simulated(small_place(), "run.json", sets);
  const Json full = simulated(small_place(), "run.json", sets, {"--full"});
  EXPECT_EQ(dump_json(without(folded, apart)), dump_json(without(full, apart)));
  EXPECT_EQ(at(full, "simulation/ranks_simulated").number(), 16);
  EXPECT_LT(at(folded, "simulation/ranks_simulated").number(), 16);
}

TEST(Result, ScoreDoesNotDependOnThreads) {
  Workplace& place = small_place();
  std::string rows;
  for (int i = 0; i < 4; ++i) {
    rows += std::string(i == 0 ? "[" : ",") + R"({"id": "row)" + std::to_string(i) +
            R"(", "source": "none", "trust": "A", "group": "g", "run": )" + kSmallRun +
            R"(, "measured": {"step_time_s": 0.0)" + std::to_string(i + 1) + "}}";
  }
  place.write("rows.json", rows + "]");
  const CommandResult one = place.run({"score", "rows.json", "--json", "-", "--threads", "1"});
  const CommandResult two = place.run({"score", "rows.json", "--json", "-", "--threads", "2"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.err + two.err, "");
  EXPECT_EQ(one.out, two.out);
  const Result<Json> json = parse_json(one.out, "stdout");
  ASSERT_TRUE(json.ok());
  const Json all = at(json.value(), "rows");
  ASSERT_TRUE(all.array() != nullptr);
  EXPECT_EQ(all.array()->size(), 4U);
}

struct Field {
  const char* set;
  std::vector<std::string> base = {};  ///< overrides of both runs, where the field matters
};

void PrintTo(const Field& field, std::ostream* out) { *out << field.set; }

class Fields : public testing::TestWithParam<Field> {};

TEST_P(Fields, MovesTheResult) {
  const Workplace& place = small_place();
  std::vector<std::string> sets = GetParam().base;
  const Json base = simulated(place, "run.json", sets);
  sets.emplace_back(GetParam().set);
  const Json other = simulated(place, "run.json", sets);
  // A note alone is no effect.
  const std::vector<std::string> apart = {"simulation", "notes"};
  EXPECT_NE(dump_json(without(base, apart)), dump_json(without(other, apart))) << GetParam().set;
  const std::vector<std::string> arguments = with_sets({"show", "run.json"}, sets);
  std::string pointer = "/" + sets.back().substr(0, sets.back().find('='));
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  EXPECT_EQ(place.run(arguments).err.find(pointer + " has no effect"), std::string::npos);
}

const std::vector<std::string> kSharded = {"sharding.level=parameters", "parallel.pipeline=1"};

const std::vector<std::string> kOffloaded = {"sharding.level=parameters", "parallel.pipeline=1",
                                             "offload.optimizer=cpu"};
const std::vector<std::string> kWholeParameters = {
    "sharding.level=none", "parallel.pipeline=1", "parallel.tensor=1",
    "gradients.bucketing=parameters", "gradients.bucket_mib=5"};

// Whose gradients have 16 bits without a pipeline.
const std::vector<std::string> kDeepSpeed = {"system=deepspeed", "sharding.level=none",
                                             "parallel.pipeline=1", "parallel.tensor=1"};

const std::vector<std::string> kUntied = {"model.preset=gpt3-125m",
                                          "model.tie_word_embeddings=false"};
const std::vector<std::string> kExperts = {"model.preset=deepseek-v2", "model.num_hidden_layers=4",
                                           "parallel.pipeline=1", "parallel.tensor=1",
                                           "parallel.expert=8"};

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

/// Where launches do not hide in which order the passes stand.
std::vector<std::string> automatic(const char* keys) {
  return {"parallel.pipeline=4", "parallel.tensor=1", "batch.global=32", "launch.dispatch_us=1",
          std::string("schedule={\"name\":\"zb-auto\"") + keys + "}"};
}

const Field kFields[] = {
    {"system=deepspeed"},
    {"model=gpt3-350m"},
    {"cluster.preset=dgx-h100"},
    {"parallel.tensor=1"},
    {"parallel.tensor_mode=2d", {"parallel.tensor=4", "parallel.sequence=false"}},
    {"parallel.tensor_depth=4",
     {"parallel.tensor=4", "parallel.tensor_mode=2.5d", "batch.micro=4"}},
    {"parallel.pipeline=1"},
    {"parallel.virtual_pipeline=2"},
    {"parallel.sequence=false"},
    {"parallel.rank_order=tp-pp-dp", {"cluster.accelerators=16"}},
    {"parallel.pipeline_layout=[5,7]"},
    {"parallel.pipeline_partition=parameters", {"parallel.pipeline=4"}},
    {"parallel.pipeline_partition=profiled",
     {"parallel.pipeline=4", "parallel.pipeline_partition=parameters"}},
    {"sharding.level=none"},
    {"gradients.dtype=compute"},
    {"gradients.dtype=fp32-in-pipelines", {"parallel.pipeline=1"}},
    {"gradients.accumulation=after-pass"},
    {"gradients.flat_update=true", {"gradients.dtype=compute"}},
    {"gradients.unscale=with-clipping", {"precision=fp16"}},
    {"gradients.unscale=none",
     {"precision=fp16", "gradients.unscale=with-clipping", "gradients.clip_norm=0"}},
    {"gradients.unscale=none",
     {"precision=fp16", "kernels.autocast=true", "parallel.tensor=1", "parallel.pipeline=1"}},
    {"gradients.average=before"},
    {"kernels.weights_copy=fused"},
    {"gradients.check_nan=true"},
    {"parallel.keep_outputs=true", {"parallel.pipeline=2", "recompute=full"}},
    {"parallel.scatter_gather=true", {"parallel.pipeline=2", "parallel.sequence=false"}},
    {"allocator.expandable_segments=true"},
    {"allocator.kind=planned"},
    {"allocator.context_gib=1.5"},
    {"allocator.record_stream=true", kSharded},
    {"gradients.reduction=all-reduce"},
    {"gradients.reduction=reduce"},
    {"gradients.bucket_elements=10000000"},
    {"gradients.bucket_elements_per_rank=100000000", {"gradients.bucket_elements=1000000"}},
    {"gradients.clip_norm=0"},
    {"gradients.bucketing=ready", kWholeParameters},
    {"gradients.bucketing=contiguous", {"gradients.bucket_elements=10000000"}},
    {"gradients.bucket_mib=20", kWholeParameters},
    {"gradients.first_bucket_mib=90", kWholeParameters},
    {"gradients.bucket_copy=true", kWholeParameters},
    {"gradients.no_sync=false",
     {"sharding.level=none", "parallel.pipeline=1", "parallel.tensor=1", "batch.global=64"}},
    {"gradients.inner_group=2", kWholeParameters},
    {"gradients.compression=fp16", kWholeParameters},
    {"gradients.compression=onebit", kWholeParameters},
    {"gradients.compression=onebit", kDeepSpeed},
    {"gradients.compression=powersgd",
     with(kDeepSpeed, {"gradients.bucketing=parameters", "gradients.bucket_mib=5",
                       "gradients.compression_rank=4"})},
    {"gradients.compression_rank=8",
     {"sharding.level=none", "parallel.pipeline=1", "parallel.tensor=1",
      "gradients.bucketing=parameters", "gradients.bucket_mib=5", "gradients.compression=powersgd",
      "gradients.compression_rank=4"}},
    {"gradients.cycle_us=1000", kWholeParameters},
    {"batch.global=32"},
    {"batch.micro=1"},
    {"batch.sequence=1024"},
    {"batch.target_sequence=64",
     {"model=t5-small", "parallel.tensor=1", "parallel.pipeline=1", "batch.global=64"}},
    {"precision=fp32", {"kernels.attention=unfused"}},
    {"precision=tf32", {"kernels.attention=unfused", "precision=fp32"}},
    {"precision={\"compute\":\"bf16\",\"gradients\":\"compute\"}"},
    {"precision={\"compute\":\"bf16\",\"master_weights\":false}"},
    {"recompute=selective", {"kernels.attention=unfused"}},
    {"recompute=full"},
    {"recompute={\"modules\":[\"layernorm\"]}"},
    {"recompute={\"modules\":[\"mlp\"]}"},
    {"recompute={\"modules\":[\"layer\"],\"layers\":1}", {"recompute=full"}},
    {"recompute={\"modules\":[\"layer\"],\"layer_period\":2}", {"recompute=full"}},
    {"recompute={\"co_shard\":2}"},
    {"recompute={\"co_shard\":6}", {"recompute={\"co_shard\":2}", "parallel.tensor=1"}},
    {"schedule=3f1b"},
    {"schedule={\"name\":\"3f1b\",\"forwards\":2}", {"schedule=3f1b"}},
    {"schedule=gpipe"},
    {"schedule=1f1b", {"schedule=gpipe"}},
    {"schedule=zb-h2"},
    {"schedule=zb-v"},
    {"schedule=zb-auto"},
    {"schedule=dualpipe", kUntied},
    {"schedule=dualpipev"},
    {"schedule=chimera", kUntied},
    {"schedule=bfs"},
    {"schedule={\"name\":\"zb-auto\",\"activations\":7}", automatic("")},
    {"schedule={\"name\":\"zb-auto\",\"transfer_us\":1}", automatic("")},
    {"schedule={\"name\":\"zb-auto\",\"activations\":7,\"weight_share\":0.2}",
     automatic(",\"activations\":7")},
    {"schedule={\"name\":\"zb-auto\",\"activations\":7,\"forward_us\":3}",
     automatic(",\"activations\":7")},
    {"schedule={\"name\":\"zb-auto\",\"activations\":3,\"weight_gradients_us\":4}",
     automatic(",\"activations\":3,\"weight_gradients_us\":1")},
    {"schedule={\"name\":\"zb-v\",\"input_gradients_us\":3}",
     with(automatic(""), {"schedule=zb-v"})},
    {"schedule={\"name\":\"zb-auto\",\"activations\":5,\"input_gradients_us\":0.2}",
     automatic(",\"activations\":5,\"input_gradients_us\":2")},
    {"overlap.tensor_backward=false"},
    {"overlap.tensor=true"},
    {"overlap.tensor_streams=1", {"overlap.tensor=true"}},
    {"overlap.tensor_copy_engines=false", {"overlap.tensor=true"}},
    {"overlap.tensor_slices=2", {"parallel.sequence=false", "batch.micro=2"}},
    {"overlap.expert=true", kExperts},
    {"overlap.passes=true", with(kExperts, {"batch.global=64"})},
    {"moe.routing=balanced", kExperts},
    {"moe.imbalance=2", kExperts},
    {"moe.load={\"zipf\":0.3}", kExperts},
    {"moe.capacity_factor=1.5", with(kExperts, {"moe.routing=capacity"})},
    {"moe.dispatcher=allgather", kExperts},
    {"moe.dispatcher=deepep", kExperts},
    {"moe.dispatcher_sms=32", with(kExperts, {"cluster.preset=dgx-h100", "moe.dispatcher=deepep",
                                              "overlap.passes=true", "batch.global=64"})},
    {"moe.dispatch_dtype=fp8",
     with(kExperts, {"cluster.preset=dgx-h100", "precision=fp8", "moe.dispatcher=deepep"})},
    {"kernels.early_stop=true", {"recompute=full"}},
    {"recompute={\"modules\":[\"layer\"],\"keep\":[\"qkv\"]}", {"recompute=full"}},
    {"recompute={\"modules\":[\"layer\"],\"block_layers\":2}", {"recompute=full"}},
    {"recompute={\"modules\":[\"layer\"],\"early\":true}", {"recompute=full"}},
    {"kernels.grouped_gemm=single", with(kExperts, {"cluster.preset=dgx-b200"})},
    {"overlap.pipeline=true", {"launch.dispatch_us=1"}},
    {"overlap.head_deferral=2"},
    {"overlap.post_validation=true"},
    {"overlap.gradient_reduce=false"},
    {"overlap.parameter_gather=false"},
    {"overlap.parameter_gather=auto",
     {"overlap.gradient_reduce=false", "overlap.parameter_gather=true"}},
    {"kernels.attention=unfused"},
    {"kernels.attention_products=plain", {"kernels.attention=unfused"}},
    {"kernels.optimizer=adam"},
    {"kernels.optimizer=lamb"},
    {"kernels.optimizer=sgd"},
    {"kernels.optimizer=adam8bit"},
    {"kernels.optimizer=adafactor", {"sharding.level=none"}},
    {"kernels.flash=flash1"},
    {"kernels.fusion=eager"},
    {"kernels.fusion=norms", {"model=llama-3-8b"}},
    {"kernels.autocast=true", {"parallel.tensor=1"}},
    {"kernels.autocast=\"auto\"", {"parallel.tensor=1"}},
    {"kernels.projections=separate"},
    {"kernels.selective=operations", {"model=llama-3-8b", "recompute=selective"}},
    {"recompute={\"modules\":[\"operations\"]}", {"model=llama-3-8b"}},
    {"kernels.loss=parallel"},
    {"kernels.loss=torch"},
    {"kernels.compile=true"},
    {"launch.compiled_dispatch_us=50", {"kernels.compile=true"}},
    {"parallel.context=2"},
    {"batch.documents=128"},
    {"parallel.context_inner=2", {"parallel.context=4", "parallel.pipeline=1"}},
    {"kernels.context=allgather", {"parallel.context=2"}},
    {"kernels.context=alltoall", {"parallel.context=2"}},
    {"kernels={\"context\":\"ring_self\",\"attention\":\"unfused\"}", {"parallel.context=2"}},
    {"precision=fp8", {"cluster.preset=dgx-h100"}},
    {"kernels.amax_reduction=none", {"cluster.preset=dgx-h100", "precision=fp8"}},
    {"kernels.fp8_copies=one", {"cluster.preset=dgx-h100", "precision=fp8"}},
    {"kernels.fp8_weights=false", {"cluster.preset=dgx-h100", "precision=fp8"}},
    {"kernels.fp8_weights=true", {"cluster.preset=dgx-h100", "precision=fp8", "system=megascale"}},
    {"kernels.fp8_weights=\"auto\"",
     {"cluster.preset=dgx-h100", "precision=fp8", "system=megascale"}},
    {"kernels.fp8_recipe=current", {"cluster.preset=dgx-h100", "precision=fp8"}},
    {"kernels.fp8_weight_gradient=cutlass", {"cluster.preset=dgx-h100", "precision=fp8-blockwise"}},
    {"sharding.level=gradients", {"parallel.pipeline=1"}},
    {"sharding.level=parameters", {"parallel.pipeline=1"}},
    {"sharding.group_size=2", kSharded},
    {"sharding.unit_layers=3", kSharded},
    {"sharding.reshard_after_forward=false", kSharded},
    {"sharding.reshard_last_unit=false", kSharded},
    {"sharding.inner_group=2", kSharded},
    {"cluster.host_memory_gib=64", kOffloaded},
    {"cluster.storage_gb_per_s=3", {"offload.optimizer=nvme"}},
    {"cluster.storage_write_gb_per_s=3", with(kOffloaded, {"offload.optimizer=nvme"})},
    {"offload.device_share=0.5", kOffloaded},
    {"offload.device_share=\"auto\"", kOffloaded},
    {"offload.page_mib=16", kOffloaded},
    {"offload.pageable=true", kOffloaded},
    {"sharding.persist_elements=10000", kSharded},
    {"sharding.reuse_elements=1000000000", kSharded},
    {"sharding.forward_prefetch=true", with(kSharded, {"launch.dispatch_us=5"})},
    {"sharding.backward_prefetch=post", kSharded},
    {"sharding.live_elements=1000000000", with(kSharded, {"launch.dispatch_us=5"})},
    {"sharding.gathers_in_flight=1",
     {"sharding.level=parameters", "parallel.pipeline=1", "sharding.forward_prefetch=true",
      "launch.dispatch_us=1"}},
    {"sharding.shard_dtype=compute", kSharded},
    {"sharding.chunk_elements=2000000", kSharded},
    {"sharding.gather_dtype=int8", kSharded},
    {"sharding.gather_dtype=fp8",
     with(kSharded, {"cluster.preset=dgx-h100", "precision=fp8", "kernels.fp8_recipe=current"})},
    {"sharding.secondary_group=4", kSharded},
    {"gradients.reduce_dtype=int4", kSharded},
    {"sharding.copy_out=true", kSharded},
    {"gradients.inner_group=2", with(kSharded, {"gradients.reduce_dtype=int4"})},
    {"gradients.reduce=last-microbatch", kSharded},
    {"gradients.blocking=true", kSharded},
    {"gradients.reduce_dtype=compute", kSharded},
    {"gradients.accumulation=separate"},
    {"offload.optimizer=cpu", kSharded},
    {"offload.optimizer=nvme", kOffloaded},
    {"offload.parameters=cpu", kOffloaded},
    {"offload.delayed_update=true", kOffloaded},
    {"offload.delayed_update=true", with(kOffloaded, {"offload.parameters=cpu"})},
    {"offload.activation_layers=2"},
    {"offload.activations=nvme", {"offload.activation_layers=2"}},
    {"offload.optimizer=cpu"},
    {"offload.optimizer=nvme", {"offload.optimizer=cpu"}},
    {"offload.delayed_update=true", {"offload.optimizer=cpu"}},
    {"offload.pageable=true", {"offload.optimizer=cpu"}},
    {"launch.cuda_graph=full"},
    {"launch.cuda_graph=layer"},
    {"launch.graph_launch_us=500", {"launch.cuda_graph=layer"}},
    {"launch.graph_modules=[\"attn\"]", {"launch.cuda_graph=layer"}},
    {"launch.dispatch_us=50"},
    {"launch.checkpoint_us=5000", {"recompute=full"}},
    {"launch.operations={\"gemm\":200}"},
    {"launch.graph_dispatch_us=50", {"launch.cuda_graph=full"}},
    {"host.data_us=100000"},
    {"host.loader_us=10000000"},
    {"host.pass_us=100000"},
    {"host.step_us=1000"},
    {"host.update_us=10000", {"kernels.optimizer=adam"}},
    {"host.synchronize=passes", {"launch.dispatch_us=1000"}},
    {"dropout=0.1"},
    {"cluster.network.nic_gbit_per_s=50", {"cluster.accelerators=16"}},
    {"cluster.network.nics_per_node=1", {"cluster.accelerators=16"}},
    {"cluster.network.fabric=efa", {"cluster.accelerators=16"}},
    {"cluster.network.latency_us=50", {"cluster.accelerators=16"}},
    {"cluster.accelerators_per_node=4"},
    {"cluster.rate_spread=0.05"},
};
std::vector<Field> fields() {
  std::vector<Field> out;
  for (std::size_t i = 0; i < std::size(kFields); i += std::size_t{cases(1, 4)}) {
    out.push_back(kFields[i]);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Each, Fields, testing::ValuesIn(fields()));

/// A rate that a cluster's description holds, and where it can limit.
// 16-bit convolutions copy what comes channels first, unless a compiler lays images out.
TEST(Result, ImagesChannelsFirstTakeLonger) {
  const Workplace& place = small_place();
  if (!place.has("images.json")) {
    place.write("images.json", R"({"model": "resnet-50", "batch": {"micro": 32},
        "cluster": {"preset": "dgx-1v", "accelerators": 8}, "precision": "fp16"})");
  }
  const auto seconds = [&place](const std::vector<std::string>& sets) {
    return at(simulated(place, "images.json", sets), "iteration_time_s").number();
  };
  const std::string first = "kernels.image_layout=channels-first";
  EXPECT_GT(seconds({first}), 1.1 * seconds({}));
  EXPECT_EQ(seconds({first, "kernels.compile=true"}), seconds({"kernels.compile=true"}));
  EXPECT_EQ(seconds({first, "precision=fp32"}), seconds({"precision=fp32"}));
}

}  // namespace
}  // namespace foretrain

// Keys without an effect: named on stderr, and really without one.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

struct Idle {
  std::string set;
  std::string why;
  std::vector<std::string> base = {};  ///< beside kSmallRun, in which nothing is sharded
};

void PrintTo(const Idle& idle, std::ostream* out) { *out << idle.set; }

std::string pointer_of(const std::string& set) {
  std::string out = "/" + set.substr(0, set.find('='));
  std::replace(out.begin(), out.end(), '.', '/');
  return out;
}

class IdleKeys : public testing::TestWithParam<Idle> {};

TEST_P(IdleKeys, AreNamedAndMoveNothing) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const std::string pointer = pointer_of(GetParam().set);
  std::vector<std::string> arguments =
      with_sets({"simulate", "run.json", "--json", "-"}, GetParam().base);
  const CommandResult base = place.run(arguments);
  arguments.insert(arguments.end(), {"--set", GetParam().set});
  const CommandResult other = place.run(arguments);
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(base.err.find(pointer), std::string::npos) << base.err;
  EXPECT_NE(other.err.find("foretrain: warning: run.json: " + pointer + " has no effect"),
            std::string::npos)
      << other.err;
  EXPECT_NE(other.err.find(GetParam().why + "\n"), std::string::npos) << other.err;
  const std::vector<std::string> apart = {"simulation", "notes", "accelerator"};
  EXPECT_EQ(dump_json(without(parse_json(base.out, "base").value(), apart)),
            dump_json(without(parse_json(other.out, "other").value(), apart)));
  arguments.emplace_back("--quiet");
  EXPECT_EQ(place.run(arguments).err, "");
}

const std::vector<std::string> kGradients = {"sharding.level=gradients", "parallel.pipeline=1"};
const std::vector<std::string> kOneRank = {"parallel.tensor=1", "parallel.pipeline=1"};
const char* const kNotParameters = "sharding.level is not parameters";
const char* const kNotByUnits = "sharding.level is neither gradients nor parameters";

const std::vector<std::string> kMixture = {"model=qwen3-30b-a3b", "parallel.tensor=1",
                                           "parallel.pipeline=1", "parallel.expert=8"};

const Idle kIdle[] = {
    {"moe.gate=masks", "moe.routing is not capacity", kMixture},
    {"moe.min_capacity=64", "moe.routing is not capacity", kMixture},
    {"parallel.pipeline_partition=profiled", "parallel.pipeline is 1", {"parallel.pipeline=1"}},
    {"sharding.gathers_in_flight=5", kNotParameters},
    {"sharding.gathers_in_flight=5", kNotParameters, kGradients},
    {"sharding.persist_elements=10000", kNotParameters},
    {"sharding.persist_elements=10000", kNotParameters, kGradients},
    {"sharding.chunk_elements=10000", kNotParameters, kGradients},
    {"sharding.gather_elements=10000", kNotParameters, kGradients},
    {"sharding.gather_elements=10000",
     "parameters are gathered by units with sharding.secondary_group",
     {"sharding.level=parameters", "sharding.secondary_group=2"}},
    {"gradients.bucket_elements=10000000",
     "parameters are gathered by units with sharding.inner_group",
     {"sharding.level=parameters", "parallel.pipeline=1", "sharding.gather_elements=10000",
      "sharding.inner_group=2"}},
    {"gradients.bucket_elements=10000000",
     "sharding.gather_elements is 0",
     {"sharding.level=parameters", "parallel.pipeline=1"}},
    {"host.scatter_us=10", kNotParameters, kGradients},
    {"host.scatter_us=10",
     "gradients.reduce_dtype is int4",
     {"sharding.level=parameters", "parallel.pipeline=1", "gradients.reduce_dtype=int4"}},
    {"sharding.reuse_elements=10000", kNotParameters},
    {"sharding.reuse_elements=10000", kNotParameters, kGradients},
    {"sharding.reuse_elements=10000",
     "sharding.reshard_after_forward is false",
     {"sharding.level=parameters", "parallel.pipeline=1", "sharding.reshard_after_forward=false"}},
    {"sharding.reuse_elements=10000",
     "in a pipeline other microbatches run before the backward pass",
     {"sharding.level=parameters", "model=llama-3-8b"}},
    {"sharding.forward_prefetch=true", kNotParameters},
    {"sharding.forward_prefetch=true", kNotParameters, kGradients},
    {"sharding.backward_prefetch=none", kNotParameters},
    {"sharding.backward_prefetch=none", kNotParameters, kGradients},
    {"sharding.reshard_after_forward=false", kNotParameters},
    {"sharding.reshard_after_forward=false", kNotParameters, kGradients},
    {"sharding.reshard_last_unit=false", kNotParameters, kGradients},
    {"sharding.shard_dtype=compute", kNotParameters},
    {"sharding.shard_dtype=compute", kNotParameters, kGradients},
    {"sharding.unit_layers=3", kNotByUnits},
    {"sharding.reshard_in_pipeline=false", kNotByUnits},
    {"sharding.reshard_in_pipeline=false", "parallel.pipeline is 1", kGradients},
    {"gradients.reduce=every-microbatch", kNotByUnits},
    {"gradients.reduce=last-microbatch", kNotByUnits},
    {"gradients.blocking=true", kNotByUnits},
    {"gradients.blocking=true",
     "one rank holds all gradients",
     {"sharding.level=parameters", "parallel.pipeline=1", "parallel.tensor=4",
      "cluster.accelerators=4"}},
    {"overlap.gradient_reduce=true",
     "the gradients of sharded units are reduced beside the passes, and waited for with "
     "gradients.blocking",
     {"sharding.level=parameters", "parallel.pipeline=1"}},
    {"overlap.gradient_reduce=false",
     "the gradients of sharded units are reduced beside the passes, and waited for with "
     "gradients.blocking",
     {"sharding.level=parameters", "parallel.pipeline=1"}},
    {"kernels.fusion=norms", "the model has no rotary embedding and no gated activation"},
    {"gradients.reduce_dtype=compute",
     "gradients are of the type that computes",
     {"gradients.dtype=compute"}},
    {"sharding.copy_out=true", kNotParameters},
    {"allocator.record_stream=true", kNotByUnits},
    {"allocator.record_stream=true",
     "allocator.kind is planned",
     {"sharding.level=parameters", "parallel.pipeline=1", "allocator.kind=planned"}},
    {"sharding.live_elements=10000", kNotParameters, {"sharding.reshard_in_pipeline=false"}},
    {"sharding.backward_prefetch=none",
     "sharding.live_elements is above 0",
     {"sharding.level=parameters", "parallel.pipeline=1", "sharding.live_elements=10000"}},
    {"sharding.live_elements=10000", kNotParameters},
    {"sharding.forward_prefetch=true",
     "sharding.live_elements is above 0",
     {"sharding.level=parameters", "parallel.pipeline=1", "sharding.live_elements=10000"}},
    {"gradients.reduction=all-reduce", "sharding.level is not optimizer", {"sharding.level=none"}},
    {"gradients.reduction=all-reduce", "sharding.level is not optimizer", kGradients},
    {"gradients.flat_update=true", "gradients are fp32"},
    {"gradients.flat_update=true",
     "sharding.level is neither none nor optimizer",
     {"sharding.level=gradients", "parallel.pipeline=1", "gradients.dtype=compute"}},
    {"gradients.unscale=none", "losses are scaled in fp16 alone"},
    {"kernels.weights_copy=fused",
     "no fp32 copies of the weights are kept",
     {"precision=fp32", "kernels.attention=unfused"}},
    {"kernels.weights_copy=fused",
     "the host writes both as it updates",
     {"sharding.level=gradients", "parallel.pipeline=1", "offload.optimizer=cpu"}},
    {"gradients.unscale=none",
     "the host takes the scale out as it updates",
     {"sharding.level=gradients", "parallel.pipeline=1", "precision=fp16",
      "offload.optimizer=cpu"}},
    {"gradients.average=before",
     "one rank holds all gradients",
     {"parallel.pipeline=1", "parallel.tensor=4", "cluster.accelerators=4"}},
    {"gradients.average=before",
     "gradients.reduce_dtype is int4",
     {"sharding.level=parameters", "parallel.pipeline=1", "gradients.reduce_dtype=int4"}},
    {"gradients.accumulation=separate",
     "the gradients of every microbatch are reduced on their own",
     {"sharding.level=parameters", "parallel.pipeline=1"}},
    {"gradients.accumulation=fused",
     "the gradients of every microbatch are reduced on their own",
     {"sharding.level=gradients", "parallel.pipeline=1", "gradients.bucketing=contiguous"}},
    {"gradients.check_nan=true", "sharding.level is neither none nor optimizer", kGradients},
    {"gradients.check_nan=true",
     "gradients.bucketing is contiguous",
     {"gradients.bucketing=contiguous", "gradients.bucket_elements=10000000"}},
    {"gradients.bucket_elements=10000000", "sharding.level is neither none nor optimizer",
     kGradients},
    {"gradients.bucket_elements=10000000",
     "overlap.gradient_reduce is false",
     {"overlap.gradient_reduce=false"}},
    {"gradients.bucket_elements_per_rank=1000000",
     "overlap.gradient_reduce is false",
     {"overlap.gradient_reduce=false"}},
    {"gradients.bucket_elements=10000000",
     "gradients.bucketing is not ranges",
     {"sharding.level=none", "gradients.bucketing=ready", "gradients.bucket_mib=5"}},
    {"sharding.unit_layers=3",
     "gradients.bucketing is contiguous",
     {"sharding.level=gradients", "parallel.pipeline=1", "gradients.bucketing=contiguous"}},
    {"gradients.bucketing=contiguous",
     "contiguous buckets are of decoders without experts whose optimizer is sharded over more than "
     "one rank, each microbatch's gradients only without a pipeline (docs/plans.md)",
     {"sharding.level=none"}},
    {"gradients.bucket_mib=5", "gradients.bucketing is ranges"},
    {"gradients.first_bucket_mib=5", "gradients.bucketing is ranges"},
    {"gradients.compression=bf16", "gradients are of that type", {"gradients.dtype=compute"}},
    {"gradients.compression_rank=4",
     "gradients.compression is not powersgd",
     {"sharding.level=none"}},
    {"gradients.flat_update=true",
     "the host updates the parameters itself",
     {"offload.optimizer=cpu", "gradients.dtype=compute"}},
    {"offload.activations=nvme", "offload.activation_layers is 0"},
    {"offload.page_mib=4", "offload.optimizer is none", kGradients},
    {"offload.pageable=true", "offload.optimizer is not cpu", kGradients},
    {"offload.activation_layers=100",
     "beyond the 6 layers of a stage",
     {"offload.activation_layers=6"}},
    {"host.synchronize=passes",
     "with the vocabulary spread over stages no host waits for its stage's passes",
     {"schedule=1f1b-vocab-1"}},
    {"host.update_us=100", "kernels of kernels.optimizer update lists of tensors"},
    {"host.update_us=100",
     "the host updates the parameters itself",
     {"sharding.level=gradients", "parallel.pipeline=1", "kernels.optimizer=adam",
      "offload.optimizer=cpu"}},
    {"overlap.expert=true", "the model has no shared experts"},
    {"overlap.parameter_gather=true",
     "sharded parameters are gathered for passes that need them",
     {"sharding.level=parameters", "parallel.pipeline=1"}},
    {"overlap.parameter_gather=true", "sharding.level is none", {"sharding.level=none"}},
    {"overlap.pipeline=false", "parallel.pipeline is 1", kOneRank},
    {"overlap.tensor=true", "parallel.tensor is 1", kOneRank},
    {"overlap.tensor_backward=false", "parallel.tensor is 1", kOneRank},
    {"parallel.sequence=true", "parallel.tensor is 1", kOneRank},
    {"parallel.keep_outputs=true", "parallel.pipeline is 1", kOneRank},
    {"parallel.scatter_gather=true", "parallel.pipeline is 1", kOneRank},
    {"cluster.device.clock_mhz=1000",
     "prices rest on rates that were reached, whatever the clock was: peaks and bandwidth move "
     "them"},
    {"cluster.network.fabric=efa", "the job has one node"},
    {"cluster.network.latency_us=50", "the job has one node"},
    {"cluster.network.nic_gbit_per_s=50", "the job has one node"},
    {"cluster.network.nics_per_node=1", "the job has one node"},
    {"cluster.network.nodes_per_leaf=1", "the job has one node"},
    {"cluster.network.oversubscription=4", "the job has one node"},
    {"cluster.network.oversubscription=4",
     "all nodes of the job lie below one leaf",
     {"cluster.accelerators=32"}},
    {"cluster.network.topology=slingshot-dragonfly", "the job has one node"},
    {"cluster.network.sharp=true", "the job has one node"},
    {"cluster.network.sharp=true", "the job is one slice", {"cluster.preset=tpu-v5p"}},
    {"cluster.network.sharp=true",
     "SHARP is InfiniBand's",
     {"cluster.accelerators=32", "cluster.network.fabric=ethernet"}},
    {"cluster.network.sharp=true",
     "it is NCCL's to use",
     {"cluster.preset=mi300x", "cluster.accelerators=32"}},
    {"kernels.amax_reduction=stage", "there are no delayed scales of fp8"},
    {"kernels.fp8_copies=one", "nothing is in fp8 with one scale for a matrix"},
    {"kernels.fp8_weights=auto", "nothing is in fp8 with one scale for a matrix"},
    {"kernels.fp8_weights=auto",
     "the plan is not one that it is modelled for",
     {"cluster.preset=dgx-h100", "precision=fp8", "gradients.bucketing=parameters",
      "gradients.bucket_mib=1", "sharding.level=none"}},
    {"kernels.autocast=true",
     "the precision is not one of 16 bits",
     {"precision=fp32", "kernels.attention=unfused"}},
    {"kernels.autocast=auto", "the plan is not one that it is modelled for"},
    {"gradients.dtype=compute",
     "under kernels.autocast parameters and gradients are fp32",
     {"parallel.tensor=1", "kernels.autocast=true"}},
    {"kernels.early_stop=true", "nothing is computed again"},
    {"recompute.early=true",
     "parallel.pipeline is 1",
     {"parallel.pipeline=1", "recompute={\"modules\":[\"layer\"]}"}},
    {"kernels.image_layout=channels-first", "the model has no convolutions"},
    {"kernels.attention_products=plain", "kernels.attention is not unfused"},
    {"kernels.attention_products=plain",
     "fp32 has no tensor cores",
     {"precision=fp32", "kernels.attention=unfused"}},
    {"allocator.context_gib=1", "TPUs have no CUDA", {"cluster.preset=tpu-v5p"}},
    {"kernels.grouped_gemm=single", "the model has no experts"},
};
INSTANTIATE_TEST_SUITE_P(Each, IdleKeys, testing::ValuesIn(kIdle));

// Systems set what other levels and models need.
TEST(IdleKeysOf, SystemsAreNotNamed) {
  const Workplace place;
  place.write("run.json", R"({"model": "gpt3-125m",
      "cluster": {"preset": "dgx-a100-80gb", "accelerators": 8}})");
  const Json listed =
      parse_json(place.run({"list", "systems", "--json", "-"}).out, "systems").value();
  ASSERT_NE(listed.find("systems"), nullptr);
  ASSERT_GT(listed.find("systems")->array()->size(), 10U);
  for (const Json& system : *listed.find("systems")->array()) {
    const CommandResult shown =
        place.run({"show", "run.json", "--set", "system=" + *system.string()});
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    EXPECT_EQ(shown.err, "");
  }
}

TEST(IdleKeysOf, RunsAreNamedByEveryVerb) {
  const Workplace place;
  place.write("run.json", R"({"model": {"model_type": "llama", "num_hidden_layers": 1,
      "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 128},
      "cluster": {"preset": "host", "accelerators": 1}, "precision": "fp32",
      "kernels": {"attention": "unfused"},
      "batch": {"sequence": 16}, "parallel": {"keep_outputs": true}})");
  const std::string line =
      "foretrain: warning: run.json: /parallel/keep_outputs has no effect: parallel.pipeline is "
      "1\n";
  const std::vector<std::vector<std::string>> verbs = {
      {"show", "run.json"},
      {"simulate", "run.json"},
      {"execute", "run.json", "--steps", "2"},
      {"validate", "run.json", "--steps", "2", "--seconds-per-op", "0.001"}};
  for (const std::vector<std::string>& verb : verbs) {
    const CommandResult result = place.run(verb);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(result.err.starts_with(line)) << verb[0] << ": " << result.err;
  }
}

// Dispatchers of CUDA are priced elsewhere as if they were there, which a note says.
TEST(IdleKeysOf, DispatchersOfCudaAreNotedElsewhere) {
  const Workplace place;
  place.write("run.json", R"({"model": "mixtral-8x7b", "parallel": {"expert": 8},
      "cluster": {"preset": "mi300x", "accelerators": 8}, "batch": {"sequence": 4096}})");
  const auto notes = [&place](const std::vector<std::string>& sets) {
    return dump_json(at(simulated(place, "run.json", sets), "notes"));
  };
  const std::string note = "moe.dispatcher deepep: its kernels are CUDA's";
  EXPECT_NE(notes({"moe.dispatcher=deepep"}).find(note), std::string::npos);
  EXPECT_EQ(notes({}).find("moe.dispatcher"), std::string::npos);
  EXPECT_EQ(notes({"moe.dispatcher=deepep", "cluster.preset=dgx-h100"}).find("CUDA's"),
            std::string::npos);
}

// A default that asks for nothing is no mistake.
TEST(IdleKeysOf, DefaultsAreNotNamed) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const CommandResult shown = place.run({"show", "run.json", "--set", "sharding.persist_elements=0",
                                         "--set", "parallel.keep_outputs=false", "--set",
                                         "offload.page_mib=0", "--set", "overlap.expert=null"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_EQ(shown.err, "");
}

}  // namespace
}  // namespace foretrain

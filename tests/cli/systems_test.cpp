// Is a training system data? Its file selects mechanisms; what it selects shows in the Program.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tests/cli/run_command.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

constexpr const char* kRun =
    R"({"model": "gpt2", "cluster": {"preset": "dgx-a100-80gb", "accelerators": 4},
        "batch": {"global": 8, "micro": 1, "sequence": 512}})";

constexpr const char* kPipelined =
    R"({"model": "gpt2", "cluster": {"preset": "dgx-a100-80gb", "accelerators": 8},
        "parallel": {"tensor": 2, "pipeline": 2},
        "batch": {"global": 8, "micro": 1, "sequence": 512}})";

/// Kinds of collective in the listing of rank 0's Program, without repetition of neighbours.
std::vector<std::string> communication(const Workplace& place,
                                       const std::vector<std::string>& sets) {
  std::vector<std::string> command = {"show", "run.json", "--program", "0"};
  for (const std::string& set : sets) {
    command.emplace_back("--set");
    command.push_back(set);
  }
  const CommandResult shown = place.run(command);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  std::vector<std::string> out;
  std::istringstream lines(shown.out);
  for (std::string line; std::getline(lines, line);) {
    for (const char* kind : {"all-reduce", "all-gather", "reduce-scatter"}) {
      if (line.find(kind) == std::string::npos || line.find("group") == std::string::npos) continue;
      if (out.empty() || out.back() != kind) out.emplace_back(kind);
    }
  }
  return out;
}

bool has(const std::vector<std::string>& list, const char* what) {
  return std::find(list.begin(), list.end(), what) != list.end();
}

class Shipped : public testing::TestWithParam<std::string> {};

TEST_P(Shipped, RunIsPredicted) {
  const Workplace place;
  const Json out = simulated(place, GetParam(), {});
  EXPECT_GT(at(out, "iteration_time_s").number(), 0);
}

/// All of a release build, under a sanitizer some.
std::vector<std::string> simulated_runs() {
  std::vector<std::string> out;
  const std::filesystem::path folder = std::string(FORETRAIN_SOURCE_DIR) + "/configs/runs";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") out.push_back(entry.path().stem().string());
  }
  std::sort(out.begin(), out.end());
  std::vector<std::string> taken;
  for (std::size_t i = cases(0, 1); i < out.size(); i += std::size_t{cases(1, 4)})
    taken.push_back(out[i]);
  return taken;
}
INSTANTIATE_TEST_SUITE_P(Runs, Shipped, testing::ValuesIn(simulated_runs()));

// Nothing but a file makes a system: this one shards parameters, in eager PyTorch.
TEST(Systems, AFileIsASystem) {
  const Workplace place;
  place.write("run.json", kRun);
  place.write("mine.json", R"({"name": "mine", "description": "made of what is there",
      "sources": {}, "defaults": {"sharding": {"level": "parameters", "forward_prefetch": true},
      "kernels": {"fusion": "eager", "loss": "torch"}}})");
  const Json base = simulated(place, "run.json", {"kernels.fusion=eager", "kernels.loss=torch"});
  const Json mine = simulated(place, "run.json", {"system=mine.json"});
  EXPECT_NE(at(base, "iteration_time_s").number(), at(mine, "iteration_time_s").number());
  EXPECT_LT(at(at(mine, "memory"), "peak_gib").number(),
            at(at(base, "memory"), "peak_gib").number());
  const std::vector<std::string> moved = communication(place, {"system=mine.json"});
  EXPECT_TRUE(has(moved, "all-gather"));
  EXPECT_TRUE(has(moved, "reduce-scatter"));
}

// Defaults of one architecture come after the system's own and before the RUN's.
TEST(Systems, DifferByArchitecture) {
  const Workplace place;
  place.write("run.json", kRun);
  place.write("mine.json", R"({"name": "mine", "description": "as above", "sources": {},
      "defaults": {"gradients": {"clip_norm": 2}},
      "architectures": {"hopper": {"gradients": {"clip_norm": 3}}, "volta": {}}})");
  const auto clip = [&](const char* cluster, const char* set) {
    const CommandResult shown = place.run({"show", "run.json", "--set", "system=mine.json", "--set",
                                           cluster, "--set", set, "--json", "-"});
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    const Json json = parse_json(shown.out, "show").value();
    return at(at(at(json, "run"), "gradients"), "clip_norm").number();
  };
  const CommandResult whole = place.run({"show", "mine.json"});
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_NE(whole.out.find("hopper"), std::string::npos) << whole.out;
  EXPECT_EQ(clip("cluster.preset=dgx-h100", "name=a"), 3);
  EXPECT_EQ(clip("cluster.preset=dgx-a100-80gb", "name=a"), 2);
  EXPECT_EQ(clip("cluster.preset=dgx-h100", "gradients.clip_norm=4"), 4);
  const auto refused = [&](const char* file, const char* place_in_it) {
    place.write("wrong.json", file);
    const CommandResult wrong = place.run({"simulate", "run.json", "--set", "system=wrong.json"});
    EXPECT_EQ(wrong.exit_code, 1) << file;
    EXPECT_NE(wrong.err.find(place_in_it), std::string::npos) << wrong.err;
    EXPECT_NE(wrong.err.find("system wrong.json"), std::string::npos) << wrong.err;
  };
  refused(R"({"defaults": 5})", "/defaults: found 5");
  refused(R"({"architectures": {"hopper": 5}})", "/architectures/hopper: found 5");
  refused(R"({"architectures": []})", "/architectures: found");
  refused(R"({"architectures": {"volta": {"recomputed": 1}}})", "/architectures/volta/recomputed");
  refused(R"({"defaults": {"cluster": {}}})", "/defaults/cluster");
  refused(R"({"lacks": "sharding"})", "/lacks: found");
  refused(R"({"lacks": ["offload", 5]})", "/lacks/1: found 5");
  refused(R"({"lacks": ["shading.level"]})", "did you mean \"sharding\"?");
  refused(R"({"defaults": {"kernels": {"flash": "flash9"}}})", "/kernels/flash");
  place.write("wrong.json", R"({"architectures": {"hoper": {}}})");
  const CommandResult wrong = place.run({"simulate", "run.json", "--set", "system=wrong.json"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.err.find("/architectures/hoper"), std::string::npos) << wrong.err;
  EXPECT_NE(wrong.err.find("hopper"), std::string::npos) << wrong.err;
}

// Megatron-LM's collectives of a backward pass run beside GEMMs where launches keep their order.
TEST(Systems, MegatronOverlapsBackwardBeforeBlackwell) {
  const Workplace place;
  place.write("run.json", kRun);
  const auto gain = [&](const char* cluster) {
    const auto time = [&](std::vector<std::string> sets) {
      for (const char* set : {"parallel.tensor=4", "model=llama-3-8b", "batch.sequence=4096"}) {
        sets.emplace_back(set);
      }
      sets.emplace_back(cluster);
      return at(simulated(place, "run.json", sets), "iteration_time_s").number();
    };
    return time({}) / time({"overlap.tensor_backward=true"});
  };
  EXPECT_EQ(gain("cluster.preset=dgx-h100"), 1);
  EXPECT_GT(gain("cluster.preset=dgx-b200"), 1);
}

// DeepSpeed cuts sequences by Ulysses alone; without a context nothing is said of it.
TEST(Systems, CutSequencesAsTheyDo) {
  const Workplace place;
  place.write("run.json", kRun);
  const auto with = [&place](std::vector<std::string> command, const char* set) {
    for (const char* each : {"system=deepspeed", "parallel.context=2", set}) {
      command.insert(command.end(), {"--set", each});
    }
    return place.run(command);
  };
  const std::vector<std::string> show = {"show", "run.json", "--program", "0"};
  EXPECT_NE(with(show, "batch.micro=1").out.find("all-to-all group"), std::string::npos);
  const CommandResult ring = with({"simulate", "run.json"}, "kernels.context=ring");
  EXPECT_NE(ring.out.find("deepspeed has no kernels.context=ring"), std::string::npos) << ring.out;
  const CommandResult none = with({"simulate", "run.json"}, "parallel.context=1");
  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_EQ(none.out.find("kernels.context"), std::string::npos) << none.out;
}

// How gradients and parameters travel in each system, as its documentation says.
TEST(Systems, MoveGradientsAsTheyDo) {
  const Workplace place;
  place.write("run.json", kRun);
  for (const char* system : {"composer", "torchtitan", "pytorch-fsdp", "maxtext"}) {
    const auto moved = communication(place, {std::string("system=") + system});
    EXPECT_TRUE(has(moved, "all-gather")) << system;
    EXPECT_TRUE(has(moved, "reduce-scatter")) << system;
  }
  for (const char* system : {"megatron-lm", "megascale", "megatron-llama", "alpa"}) {
    const auto moved = communication(place, {std::string("system=") + system});
    EXPECT_TRUE(has(moved, "reduce-scatter")) << system;
    EXPECT_TRUE(has(moved, "all-gather")) << system;
  }
  // ZeRO-1 of DeepSpeed and nnScaler reduces whole buckets to everyone, then gathers what was
  // updated.
  for (const char* system : {"system=deepspeed", "system=nnscaler"}) {
    const auto zero = communication(place, {system, "sharding.level=optimizer"});
    EXPECT_TRUE(has(zero, "all-reduce")) << system;
    EXPECT_TRUE(has(zero, "all-gather")) << system;
    EXPECT_FALSE(has(zero, "reduce-scatter")) << system;
  }
  // Plain data parallelism reduces and gathers nothing.
  const auto plain = communication(place, {"system=gpipe"});
  EXPECT_TRUE(has(plain, "all-reduce"));
  EXPECT_FALSE(has(plain, "all-gather"));
  for (const char* system :
       {"pytorch-ddp", "transformers", "horovod", "lightseq", "mindnlp", "colossal-ai"}) {
    const auto reduced = communication(place, {std::string("system=") + system});
    EXPECT_EQ(reduced, std::vector<std::string>{"all-reduce"}) << system;
  }
  for (const char* system : {"fairscale", "angel-ptm"}) {
    const auto moved = communication(place, {std::string("system=") + system});
    EXPECT_TRUE(has(moved, "all-gather")) << system;
    EXPECT_TRUE(has(moved, "reduce-scatter")) << system;
  }
}

/// How often `what` stands in the listing of rank 0's Program.
std::int64_t occurrences(const Workplace& place, const std::string& system, const char* what) {
  const CommandResult shown = place.run({"show", "run.json", "--program", "0", "--set",
                                         "system=" + system, "--set", "offload.device_share=0"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  std::int64_t count = 0;
  for (std::size_t at = shown.out.find(what); at != std::string::npos;
       at = shown.out.find(what, at + 1)) {
    ++count;
  }
  return count;
}

// What sets each system apart from plain data parallelism.
TEST(Systems, HaveTheirOwnMechanisms) {
  const Workplace place;
  place.write("run.json", kRun);
  // DDP: a bucket's copy stands before its all-reduce; a coordinator is Horovod's alone.
  EXPECT_GT(occurrences(place, "pytorch-ddp", " gradients.copy "), 1);
  EXPECT_EQ(occurrences(place, "pytorch-ddp", "pause "), 0);
  EXPECT_GT(occurrences(place, "horovod", "coordinator: coordinator.cycle"), 1);
  EXPECT_GT(occurrences(place, "horovod", "coordinator.ready"), 2);
  // LightSeq updates what is in 16 bits; Angel-PTM works on the host.
  EXPECT_EQ(occurrences(place, "lightseq", "master weights"), 0);
  EXPECT_GT(occurrences(place, "angel-ptm", "parameters.from_host"), 1);
  EXPECT_GT(occurrences(place, "angel-ptm", "on the host"), 1);
}

// The host lets memory of gathers go when it holds one back: a tighter limit on them needs no more.
TEST(Systems, ATighterLimitOnGathersNeedsNoMore) {
  const Workplace place;
  place.write("run.json", kRun);
  double before = 0;
  for (int limit = 1; limit < 5; ++limit) {
    const Json result = simulated(place, "run.json",
                                  {"system=pytorch-fsdp", "model=gpt3-1.3b",
                                   "sharding.gathers_in_flight=" + std::to_string(limit)});
    const double now = at(result, "memory/reserved_gib").number();
    EXPECT_GE(now, before) << limit;
    before = now;
  }
}

// What a system does with gradients that every rank holds whole gives way where the RUN shards
// them, with a note; what the RUN itself asks for does not.
TEST(Systems, BucketsGiveWayToShards) {
  const Workplace place;
  place.write("run.json", kRun);
  for (const char* level : {"optimizer", "gradients", "parameters"}) {
    for (const char* system : {"transformers", "pytorch-ddp", "colossal-ai", "horovod"}) {
      const Json result =
          simulated(place, "run.json",
                    {std::string("system=") + system, std::string("sharding.level=") + level});
      const std::string notes = dump_json(at(result, "notes"));
      EXPECT_NE(notes.find("gradients.bucketing, bucket_copy"), std::string::npos) << notes;
      EXPECT_NE(notes.find(std::string("left out with sharding.level ") + level), std::string::npos)
          << notes;
    }
    const CommandResult own =
        place.run({"simulate", "run.json", "--set", "system=transformers", "--set",
                   std::string("sharding.level=") + level, "--set", "gradients.bucket_copy=true"});
    EXPECT_NE(own.exit_code, 0);
    EXPECT_NE(own.err.find("/gradients/bucket_copy"), std::string::npos) << own.err;
  }
  const Json plain = simulated(place, "run.json", {"system=transformers", "sharding.level=none"});
  EXPECT_EQ(dump_json(at(plain, "notes")).find("left out"), std::string::npos);
}

// A precision's name says what computes; what else a system sets of it stays.
TEST(Systems, KeepTheRestOfAPrecision) {
  const Workplace place;
  place.write("run.json", kRun);
  const auto with = [&place](const std::string& system, const std::string& precision) {
    std::vector<std::string> sets = {"system=" + system};
    if (!precision.empty()) sets.push_back("precision=" + precision);
    return without(simulated(place, "run.json", sets), {"simulation"});
  };
  const auto states = [](const Json& result) {
    return at(result, "memory/by_kind_gib/optimizer").number();
  };
  EXPECT_EQ(dump_json(with("lightseq", "fp16")), dump_json(with("lightseq", "")));
  EXPECT_NEAR(states(with("lightseq", "int8")), states(with("lightseq", "")), 1e-6);
  EXPECT_NEAR(states(with("lightseq", R"({"master_weights":true})")),
              1.5 * states(with("lightseq", "bf16")), 1e-6);
  // And the other way round: fields of it leave what the system computes in.
  const Json fp32 = with("transformers", "");
  EXPECT_EQ(at(fp32, "model_tflops_per_accelerator"),
            at(with("transformers", R"({"gradients":"fp32"})"), "model_tflops_per_accelerator"));
  const CommandResult shown =
      place.run({"show", "run.json", "--set", "system=lightseq", "--set", "precision=bf16"});
  EXPECT_NE(shown.out.find("precision.compute                        \"bf16\"   (--set)"),
            std::string::npos)
      << shown.out;
  EXPECT_NE(shown.out.find("false   (system lightseq)"), std::string::npos) << shown.out;
}

// What `auto` decides is the same for whoever lowers the run: here all states have room.
TEST(Systems, PlaceStatesAlike) {
  const Workplace place;
  place.write("run.json", kRun);
  const auto program = [&place](const char* share) {
    return place.run({"show", "run.json", "--program", "0", "--set", "system=angel-ptm", "--set",
                      std::string("offload.device_share=") + share});
  };
  EXPECT_EQ(program("1").exit_code, 0);
  EXPECT_TRUE(program("\"auto\"").out == program("1").out);
  EXPECT_FALSE(program("0").out == program("1").out);
  const Json placed = simulated(place, "run.json", {"system=angel-ptm"});
  const Json all = simulated(place, "run.json", {"system=angel-ptm", "offload.device_share=1"});
  EXPECT_EQ(at(placed, "iteration_time_s"), at(all, "iteration_time_s"));
}

// Where tensor ranks keep whole activations they all-reduce them; Megatron-LM scatters them. Alpa's
// and Colossal-AI's layers are computed again, nnScaler's are not; Colossal-AI's hosts wait for
// transfers.
TEST(Systems, KeepActivationsAsTheyDo) {
  const Workplace place;
  place.write("run.json", kPipelined);
  for (const char* system : {"alpa", "colossal-ai", "nnscaler"}) {
    EXPECT_GT(occurrences(place, system, "all-reduce group 0"), 0) << system;
    EXPECT_EQ(occurrences(place, system, "reduce-scatter group 0"), 0) << system;
  }
  EXPECT_GT(occurrences(place, "megatron-lm", "reduce-scatter group 0"), 0);
  EXPECT_GT(occurrences(place, "alpa", "recomputed"), 0);
  EXPECT_GT(occurrences(place, "colossal-ai", "recomputed"), 0);
  EXPECT_EQ(occurrences(place, "nnscaler", "recomputed"), 0);
  EXPECT_GT(occurrences(place, "colossal-ai", "host waits"), 0);
  EXPECT_EQ(occurrences(place, "alpa", "host waits"), 0);
}

// A note tells of a system on devices that it does not run on; all shipped files say which they
// are.
TEST(Systems, SayWhoseDevicesTheyRunOn) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-8b", "cluster": {"preset": "tpu-v5p",
      "accelerators": 64}, "batch": {"micro": 1, "sequence": 512}})");
  const auto noted = [&place](const std::string& system) {
    const CommandResult run =
        place.run({"simulate", "run.json", "--no-advice", "--set", "system=" + system});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out.find(system + " does not run on tpu-v5p") != std::string::npos;
  };
  EXPECT_TRUE(noted("torchtitan"));
  EXPECT_FALSE(noted("maxtext"));
  for (const auto& file :
       std::filesystem::directory_iterator(FORETRAIN_SOURCE_DIR "/configs/systems")) {
    const Json system = read_json_file(file.path().string()).value();
    EXPECT_NE(system.find("devices"), nullptr) << file.path();
  }
  place.write("own.json", R"({"devices": ["nvidia", "intel"], "defaults": {}})");
  const CommandResult bad = place.run({"simulate", "run.json", "--set", "system=own.json"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.err.find("/devices: found"), std::string::npos) << bad.err;
}

// An eager framework's host takes longer than one whose layers are few kernels.
TEST(Systems, DifferInHostTime) {
  const Workplace place;
  place.write("run.json", kRun);
  const auto step = [&place](const std::string& system) {
    return at(simulated(place, "run.json",
                        {"system=" + system, "precision=fp16", "batch.micro=1", "batch.sequence=64",
                         "batch.global=4"}),
              "iteration_time_s")
        .number();
  };
  EXPECT_LT(step("lightseq"), step("transformers"));
  EXPECT_LT(step("transformers"), step("mindnlp"));
}

}  // namespace
}  // namespace foretrain

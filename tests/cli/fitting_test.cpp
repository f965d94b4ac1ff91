// Is what `simulate` says would make a run fit true, sorted, and bounded?
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

/// 20 bytes of states for each of 1.3 G parameters on every rank, and the activations of 16
/// sequences.
constexpr const char* kTooBig =
    R"({"model": "gpt3-1.3b", "cluster": {"preset": "dgx-a100-40gb", "accelerators": 8},
        "sharding": {"level": "none"}, "batch": {"global": 128, "micro": 16, "sequence": 2048}})";

std::vector<Json> changes_of(const Json& result) {
  const Json* found = result.find("would_fit");
  if (found == nullptr) return {};
  const Json changes = at(*found, "changes");
  return changes.array() == nullptr ? std::vector<Json>() : *changes.array();
}

// A network's images in smaller microbatches, as many in all.
TEST(Fitting, NetworksOfLayers) {
  const Workplace place;
  place.write("run.json", R"({"model": "resnet-50", "batch": {"micro": 512},
      "cluster": {"preset": "dgx-1v", "accelerators": 8}, "precision": "fp32"})");
  const std::vector<Json> changes = changes_of(simulated(place, "run.json", {}));
  ASSERT_GE(changes.size(), 1U);
  const Json sets = at(changes[0], "set");
  EXPECT_EQ(sets.array()->front(), Json("batch.micro=128"));
  EXPECT_EQ(sets.array()->back(), Json("batch.global=4096"));
}

// 16 bytes of fp32 states and gradients a parameter, in halves, on two ranks of one host.
TEST(Fitting, HostsHaveRoomToo) {
  const Workplace place;
  place.write("run.json", R"({"model": "gpt3-1.3b", "system": "deepspeed",
      "cluster": {"preset": "dgx-a100-40gb", "accelerators": 2}, "sharding": {"level": "gradients"},
      "offload": {"optimizer": "cpu"}, "batch": {"micro": 1, "sequence": 1024}})");
  const auto fits = [&](const std::string& gib) {
    const std::vector<std::string> sets = {"cluster.host_memory_gib=" + gib};
    const Json memory = at(simulated(place, "run.json", sets), "memory");
    EXPECT_NEAR(at(memory, "host_capacity_gib").number(), std::stod(gib) / 2, 1e-9);
    EXPECT_LT(at(memory, "peak_gib").number(), at(memory, "capacity_gib").number());
    return at(memory, "fits") == Json(true);
  };
  const Json memory = at(simulated(place, "run.json", {}), "memory");
  const double node = 2 * at(memory, "host_gib").number();
  EXPECT_GT(node, 16);
  EXPECT_TRUE(fits(std::to_string(1.01 * node)));
  EXPECT_FALSE(fits(std::to_string(0.99 * node)));
  const CommandResult said =
      place.run({"simulate", "run.json", "--set", "cluster.host_memory_gib=4"});
  EXPECT_NE(said.out.find("GiB of 2.0: DOES NOT FIT"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("were there room for it, which there is not"), std::string::npos);
  EXPECT_NE(said.out.find("--set offload.optimizer=none\n"), std::string::npos) << said.out;
}

std::vector<std::string> sets_of(const Json& change) {
  std::vector<std::string> out;
  const Json list = at(change, "set");
  for (const Json& set : *list.array()) out.push_back(*set.string());
  return out;
}

constexpr const char* kThirteenBillion =
    R"({"model": "llama-2-13b", "system": "deepspeed", "sharding": {"level": "gradients"},
        "cluster": {"preset": "dgx-a100-80gb", "accelerators": 1}, "recompute": "full",
        "batch": {"global": 1, "micro": 1, "sequence": 2048}})";

// ZeRO-Offload's case: the only way to train on one device, at many times the time of a step that
// there is no room for.
TEST(Fitting, NothingElseFitsSoSlowStepsCount) {
  const Workplace place;
  place.write("run.json", kThirteenBillion);
  const Json base = simulated(place, "run.json", {"cluster.host_memory_gb_per_s=50"});
  const std::vector<Json> changes = changes_of(base);
  ASSERT_FALSE(changes.empty());
  EXPECT_EQ(sets_of(changes.front()), std::vector<std::string>{"offload.optimizer=cpu"});
  EXPECT_GT(at(changes.front(), "iteration_time_s").number(),
            3 * at(base, "iteration_time_s").number());
}

// Storage is tried where the host is what has too little memory, and nowhere else.
TEST(Fitting, StorageWhereHostsAreTooSmall) {
  const Workplace place;
  place.write("run.json", kThirteenBillion);
  const std::vector<std::string> base = {"sharding.level=parameters",
                                         "cluster.preset=dgx-a100-40gb", "cluster.accelerators=4",
                                         "batch.global=4"};
  const auto stored = [&](const char* gib) {
    std::vector<std::string> sets = base;
    sets.push_back(std::string("cluster.host_memory_gib=") + gib);
    std::vector<std::vector<std::string>> out;
    for (const Json& change : changes_of(simulated(place, "run.json", sets))) {
      const std::vector<std::string> all = sets_of(change);
      const bool any = std::any_of(all.begin(), all.end(),
                                   [](const std::string& set) { return set.ends_with("=nvme"); });
      if (any) out.push_back(all);
    }
    return out;
  };
  EXPECT_TRUE(stored("2048").empty());
  const std::vector<std::vector<std::string>> found = stored("100");
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front(), std::vector<std::string>{"offload.optimizer=nvme"});
  std::vector<std::string> applied = base;
  applied.insert(applied.end(), {"cluster.host_memory_gib=100", "offload.optimizer=nvme"});
  const Json other = simulated(place, "run.json", applied);
  EXPECT_EQ(at(other, "memory/fits"), Json(true));
  EXPECT_GT(at(other, "memory/storage_gib").number(), 0);
}

// What layers keep goes on to storage where it is the host that has too little memory for it.
TEST(Fitting, StoresActivationsWhereHostsAreTooSmall) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-8b", "parallel": {"tensor": 8},
      "cluster": {"preset": "dgx-a100-40gb", "accelerators": 8, "storage_gb_per_s": 20},
      "offload": {"activation_layers": 32},
      "batch": {"global": 1, "micro": 1, "sequence": 65536}})");
  const auto stores = [&](const char* gib) {
    const std::vector<std::string> sets = {std::string("cluster.host_memory_gib=") + gib};
    const std::vector<Json> changes = changes_of(simulated(place, "run.json", sets));
    return std::any_of(changes.begin(), changes.end(), [](const Json& change) {
      return sets_of(change) == std::vector<std::string>{"offload.activations=nvme"};
    });
  };
  EXPECT_TRUE(stores("60"));
  EXPECT_FALSE(stores("1024"));
}

// A node's drives hold 12 bytes of states for each of a node's parameters, or the plan does not
// fit.
TEST(Fitting, StorageHasRoomOrNot) {
  const Workplace place;
  place.write("run.json", kThirteenBillion);
  const auto with = [&place](const std::string& tb) {
    return simulated(place, "run.json", {"offload.optimizer=nvme", "cluster.storage_tb=" + tb});
  };
  const Json memory = at(with("0.17"), "memory");
  EXPECT_NEAR(at(memory, "storage_gib").number() * 1.073741824e-3, 12 * 13.0159e-3, 1e-4);
  EXPECT_NEAR(at(memory, "storage_capacity_gib").number(), 0.17e12 / (1 << 30), 1e-6);
  EXPECT_EQ(at(memory, "fits"), Json(true));
  EXPECT_EQ(at(with("0.15"), "memory/fits"), Json(false));
  const CommandResult said = place.run({"simulate", "run.json", "--set", "offload.optimizer=nvme",
                                        "--set", "cluster.storage_tb=0.15"});
  EXPECT_NE(said.out.find("in storage for each rank 145.46 GiB of 139.7: DOES NOT FIT"),
            std::string::npos)
      << said.out;
}

// Not only quarters of a stage: about as few layers are computed again as leave 3 % of the memory.
TEST(Fitting, TakesAsFewLayersAsFit) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-70b", "cluster": {"preset": "dgx-a100-80gb",
      "accelerators": 64}, "system": "deepspeed", "sharding": {"level": "parameters"},
      "batch": {"global": 128, "micro": 1, "sequence": 8192}})");
  std::int64_t layers = 0;
  for (const Json& change : changes_of(simulated(place, "run.json", {}))) {
    const Json sets = at(change, "set");
    const std::string set = *sets.array()->front().string();
    const std::size_t found = set.find("\"layers\":");
    if (found != std::string::npos) layers = std::stoll(set.substr(found + 9));
  }
  ASSERT_GT(layers, 0);
  const auto leaves_room = [&](std::int64_t count) {
    const Json result =
        simulated(place, "run.json",
                  {"recompute={\"modules\":[\"layer\"],\"layers\":" + std::to_string(count) + "}"});
    return at(result, "memory/peak_gib").number() <=
           0.97 * at(result, "memory/capacity_gib").number();
  };
  EXPECT_TRUE(leaves_room(layers));
  EXPECT_FALSE(leaves_room(layers - 4));  // fragments jump by GiB
  EXPECT_NE(layers % 20, 0);              // no quarter of 80
}

// Every change that `simulate` tells fits and takes as long as told; --no-advice tells none.
TEST(Fitting, TellsWhatIsFaster) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "parallel": {"tensor": 4}, "recompute": "full",
      "batch": {"global": 16, "micro": 1, "sequence": 8192}})");
  const Json result = simulated(place, "run.json", {});
  EXPECT_EQ(result.find("would_fit"), nullptr);
  const Json changes = at(at(result, "faster"), "changes");
  ASSERT_GE(changes.array()->size(), 2U);
  const double most = 0.98 * at(result, "iteration_time_s").number();
  std::vector<std::string> keys;
  for (const Json& change : *changes.array()) {
    std::vector<std::string> sets;
    const Json told = at(change, "set");
    for (const Json& set : *told.array()) sets.push_back(*set.string());
    const Json again = simulated(place, "run.json", sets);
    EXPECT_EQ(at(again, "iteration_time_s"), at(change, "iteration_time_s"));
    EXPECT_EQ(at(at(again, "memory"), "peak_gib"), at(change, "peak_gib"));
    EXPECT_EQ(at(at(again, "memory"), "fits"), Json(true));
    keys.push_back(sets.front().substr(0, sets.front().find('=')));
  }
  EXPECT_LE(at(changes.array()->front(), "iteration_time_s").number(), most);
  EXPECT_NE(std::find(keys.begin(), keys.end(), "recompute"), keys.end());
  const CommandResult plain =
      place.run({"simulate", "run.json", "--no-advice", "--quiet", "--json", "-"});
  EXPECT_EQ(parse_json(plain.out, "stdout").value().find("faster"), nullptr);
  EXPECT_NE(place.run({"simulate", "run.json"}).out.find("Faster, one change at a time"),
            std::string::npos);
}

// For sweeps: the same prediction without what it takes many more to find.
TEST(Fitting, NoAdviceLeavesOnlyAdviceOut) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "batch": {"global": 8, "micro": 1, "sequence": 8192}})");
  const CommandResult plain =
      place.run({"simulate", "run.json", "--no-advice", "--quiet", "--json", "-"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  const Json without = parse_json(plain.out, "stdout").value();
  const Json with = simulated(place, "run.json", {});
  EXPECT_NE(with.find("would_fit"), nullptr);
  EXPECT_EQ(without.find("would_fit"), nullptr);
  EXPECT_TRUE(at(without, "sensitivity").object()->empty());
  EXPECT_EQ(at(without, "iteration_time_s"), at(with, "iteration_time_s"));
  EXPECT_EQ(at(without, "memory"), at(with, "memory"));
}

// Of four stages the first keeps most on the host, whichever has the highest peak on the device.
TEST(Fitting, HostsHoldWhatAllTheirRanksKeep) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "parallel": {"pipeline": 4}, "batch": {"global": 32, "micro": 1,
      "sequence": 8192}})");
  double last = 0;
  for (int layers = 1; layers <= 8; ++layers) {
    const std::string set = "offload.activation_layers=" + std::to_string(layers);
    const double host = at(simulated(place, "run.json", {set}), "memory/host_gib").number();
    EXPECT_NEAR(host, last + host / layers, 1e-6 * host) << layers;
    last = host;
  }
}

// Long sequences are cut among more ranks: half of the tokens keep half of the activations.
TEST(Fitting, LongSequencesAreCut) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
      "accelerators": 16}, "parallel": {"tensor": 4}, "batch": {"global": 16, "micro": 1,
      "sequence": 65536}})");
  const std::vector<Json> changes = changes_of(simulated(place, "run.json", {}));
  const auto cuts = [](const Json& change) {
    const Json sets = at(change, "set");
    return *sets.array() == Json::Array{Json("parallel.context=2")};
  };
  EXPECT_TRUE(std::any_of(changes.begin(), changes.end(), cuts));
}

TEST(Fitting, WhatIsSaidIsTrue) {
  const Workplace place;
  place.write("run.json", kTooBig);
  const Json base = simulated(place, "run.json", {});
  ASSERT_EQ(at(at(base, "memory"), "fits"), Json(false));
  const std::vector<Json> changes = changes_of(base);
  ASSERT_GE(changes.size(), 2U);
  double before = 0;
  for (const Json& change : changes) {
    const double seconds = at(change, "iteration_time_s").number();
    EXPECT_GE(seconds, before);
    before = seconds;
  }
  // Applied, the best and the worst fit, in the time said.
  for (const std::size_t which : {std::size_t{0}, changes.size() - 1}) {
    const Json& change = changes[which];
    const Json other = simulated(place, "run.json", sets_of(change));
    EXPECT_EQ(at(at(other, "memory"), "fits"), Json(true));
    EXPECT_EQ(at(other, "iteration_time_s"), at(change, "iteration_time_s"));
    EXPECT_EQ(at(at(other, "memory"), "peak_gib"), at(change, "peak_gib"));
    EXPECT_TRUE(other.find("would_fit") == nullptr);
  }
}

// A group that is too small for its states is the first thing to change; so is what of plain data
// parallelism's buckets stands in the way of sharding.
TEST(Fitting, WidensGroupsAndLeavesBuckets) {
  const Workplace place;
  place.write("groups.json", R"({"model": "mixtral-8x7b", "cluster": {"preset": "dgx-h100",
      "accelerators": 32}, "system": "pytorch-fsdp", "sharding": {"level": "parameters",
      "group_size": 8}, "batch": {"global": 32, "micro": 1, "sequence": 4096}})");
  const std::vector<Json> wider = changes_of(simulated(place, "groups.json", {}));
  ASSERT_FALSE(wider.empty());
  EXPECT_EQ(*at(wider.front(), "set").array()->front().string(), "sharding.group_size=null");
  place.write("buckets.json", R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "system": "transformers", "precision": "bf16",
      "kernels": {"attention": "flash"}, "batch": {"global": 8, "micro": 1, "sequence": 4096}})");
  const std::vector<std::string> ways[] = {
      {},
      {"gradients.no_sync=false", "batch.global=16"},
      {"gradients.compression=powersgd", "gradients.compression_rank=2"}};
  for (const std::vector<std::string>& way : ways) {
    const std::vector<Json> sharded = changes_of(simulated(place, "buckets.json", way));
    const bool some = std::any_of(sharded.begin(), sharded.end(), [](const Json& change) {
      return at(change, "set").array()->front().string()->starts_with("sharding.level=");
    });
    EXPECT_TRUE(some) << (way.empty() ? "" : way.front());
  }
  place.write("weights.json", R"({"model": "llama-3-70b", "cluster": {"preset": "dgx-h100",
      "accelerators": 32}, "parallel": {"tensor": 2}, "precision": "fp8",
      "kernels": {"fp8_weights": true}, "batch": {"global": 32, "micro": 1, "sequence": 1024}})");
  const std::vector<Json> apart = changes_of(simulated(place, "weights.json", {}));
  const bool parameters = std::any_of(apart.begin(), apart.end(), [](const Json& change) {
    return at(change, "set").array()->front() == Json("sharding.level=parameters");
  });
  EXPECT_TRUE(parameters);
}

// The least that a device needs is what the run fits on, and not much less.
TEST(Fitting, SaysHowMuchIsNeeded) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "system": "pytorch-fsdp", "recompute": "full",
      "batch": {"global": 24, "micro": 3, "sequence": 8192}})");
  const auto with = [&place](double gib) {
    return simulated(place, "run.json", {"cluster.device.memory_gib=" + std::to_string(gib)});
  };
  const Json small = with(30);
  const double least = at(small, "memory/least_gib").number();
  EXPECT_EQ(at(small, "memory/fits"), Json(false));
  EXPECT_GT(least, at(small, "memory/allocated_gib").number());
  EXPECT_LT(least, at(small, "memory/peak_gib").number());
  EXPECT_EQ(at(with(least + 0.01), "memory/fits"), Json(true));
  EXPECT_EQ(at(with(least - 0.1), "memory/fits"), Json(false));
  // There the allocator gives segments back; a graph has its memory since it was captured.
  const std::string just = "cluster.device.memory_gib=" + std::to_string(least + 0.01);
  const Json eager = simulated(place, "run.json", {just});
  const Json captured = simulated(place, "run.json", {just, "launch.cuda_graph=full"});
  EXPECT_GT(at(eager, "memory/allocator_retries").number(), 0);
  EXPECT_EQ(at(captured, "memory/allocator_retries").number(), 0);
  const CommandResult shown =
      place.run({"simulate", "run.json", "--set", "cluster.device.memory_gib=30"});
  EXPECT_NE(shown.out.find("DOES NOT FIT, at least "), std::string::npos) << shown.out;
}

// A system file says what its system has nothing for: that is no advice, and named.
TEST(Fitting, OffersWhatTheSystemHas) {
  const Workplace place;
  place.write("run.json", kTooBig);
  const auto lacking = [&place](const char* system) {
    const Json result = simulated(place, "run.json", {std::string("system=") + system});
    for (const Json& change : changes_of(result)) {
      const Json sets = at(change, "set");
      for (const Json& set : *sets.array()) {
        if (std::string(system) == "megatron-lm") continue;
        EXPECT_FALSE(set.string()->starts_with("parallel.")) << *set.string();
        EXPECT_FALSE(set.string()->starts_with("sharding.level=parameters")) << *set.string();
      }
    }
    return dump_json(at(at(result, "would_fit"), "lacking"));
  };
  EXPECT_EQ(lacking("megatron-lm"), "[]");
  EXPECT_NE(lacking("horovod").find("\"sharding\""), std::string::npos);
  const std::string of_ddp = lacking("pytorch-ddp");
  EXPECT_NE(of_ddp.find("\"sharding.level=gradients\""), std::string::npos) << of_ddp;
  EXPECT_NE(of_ddp.find("\"parallel.tensor\""), std::string::npos) << of_ddp;
  EXPECT_EQ(of_ddp.find("\"sharding\""), std::string::npos) << of_ddp;
  const CommandResult shown = place.run({"simulate", "run.json", "--set", "system=horovod"});
  EXPECT_NE(shown.out.find("not tried, as horovod has none of it: sharding, "), std::string::npos)
      << shown.out;
  const auto note = [&place](const char* set) {
    return place.run({"simulate", "run.json", "--set", "system=pytorch-ddp", "--set", set}).out;
  };
  const std::string of_tensor = "Note: pytorch-ddp has no parallel.tensor: ";
  EXPECT_NE(note("parallel.tensor=2").find(of_tensor), std::string::npos);
  EXPECT_EQ(note("parallel.tensor=1").find(of_tensor), std::string::npos);
}

// FSDP moves states to the host with the parameters or not at all, and nothing to storage.
TEST(Fitting, WhatASystemHasTogether) {
  const Workplace place;
  place.write("run.json", kThirteenBillion);
  const std::vector<std::string> base = {"system=pytorch-fsdp",
                                         "sharding.level=parameters",
                                         "cluster.preset=dgx-a100-40gb",
                                         "cluster.accelerators=4",
                                         "batch.global=4",
                                         "cluster.host_memory_gib=150"};
  const Json fits = at(simulated(place, "run.json", base), "would_fit");
  EXPECT_NE(dump_json(at(fits, "lacking")).find("optimizer without offload.parameters"),
            std::string::npos);
  const Json changes = at(fits, "changes");
  for (const Json& change : *changes.array()) {
    for (const std::string& set : sets_of(change)) {
      EXPECT_FALSE(set.ends_with("=nvme")) << set;
      if (set.starts_with("offload.optimizer")) {
        EXPECT_NE(dump_json(at(change, "set")).find("offload.parameters=cpu"), std::string::npos);
      }
    }
  }
  const auto notes = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets = base;
    sets.insert(sets.end(), more.begin(), more.end());
    sets.back() += "0";  // memory for all of it
    return dump_json(at(simulated(place, "run.json", sets), "notes"));
  };
  const std::string apart = "pytorch-fsdp has no offload.optimizer without offload.parameters";
  const std::string memory = "cluster.host_memory_gib=150";
  EXPECT_NE(notes({"offload.optimizer=cpu", memory}).find(apart), std::string::npos);
  EXPECT_EQ(notes({"offload.optimizer=cpu", "offload.parameters=cpu", memory}).find(apart),
            std::string::npos);
}

TEST(Fitting, IsPrinted) {
  const Workplace place;
  place.write("run.json", kTooBig);
  const CommandResult shown = place.run({"simulate", "run.json"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_NE(shown.out.find("DOES NOT FIT"), std::string::npos);
  EXPECT_NE(shown.out.find("Would fit, of "), std::string::npos);
  EXPECT_NE(shown.out.find("batch.micro="), std::string::npos);
}

Json scored(const Workplace& place, const std::string& run, const std::string& measured) {
  place.write("rows.json",
              R"([{"id": "row", "source": "none", "trust": "A", "group": "g", "run": )" + run +
                  R"(, "measured": )" + measured + "}]");
  const CommandResult result = place.run({"score", "rows.json", "--json", "-"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Result<Json> json = parse_json(result.out, "stdout");
  return json.ok() ? at(json.value(), "rows").array()->front() : Json();
}

// A measured run fitted: one that could not have is predicted with what would have made it fit, and
// says so; one whose memory alone was measured, or that fits, as given.
TEST(Fitting, MeasuredRunsFitted) {
  const Workplace place;
  std::string large = kTooBig;
  large.replace(large.find("\"none\""), 6, "\"optimizer\"");
  place.write("large.json", large);
  const Json row = scored(place, large, R"({"step_time_s": 10})");
  const Json* assumed = row.find("assumed");
  ASSERT_NE(assumed, nullptr) << dump_json(row);
  ASSERT_EQ(assumed->array()->size(), 1U);
  const std::string set = *assumed->array()->front().string();
  EXPECT_TRUE(set.rfind("recompute=", 0) == 0 || set.rfind("offload.activation", 0) == 0) << set;
  const Json changed = simulated(place, "large.json", {set});
  EXPECT_LE(at(changed, "memory/peak_gib").number(),
            1.05 * at(changed, "memory/capacity_gib").number());
  EXPECT_EQ(at(row, "predicted/step_time_s"), at(changed, "iteration_time_s"));

  const Json memory = scored(place, large, R"({"peak_memory_gib": 70})");
  EXPECT_EQ(memory.find("assumed"), nullptr);
  std::string fits = large;
  fits.replace(fits.find("\"micro\": 16"), 11, "\"micro\": 1");
  EXPECT_EQ(scored(place, fits, R"({"step_time_s": 10})").find("assumed"), nullptr);
}

// What the system does where nothing is said comes first, faster changes or not.
TEST(Fitting, MeasuredRunsDidWhatTheirSystemDoes) {
  const Workplace place;
  std::string run = kTooBig;
  run.replace(run.find("\"none\""), 6, "\"parameters\"");
  run.insert(run.rfind('}'), R"(, "system": "maxtext", "recompute": "none")");
  const Json row = scored(place, run, R"({"step_time_s": 10})");
  const Json* assumed = row.find("assumed");
  ASSERT_NE(assumed, nullptr) << dump_json(row);
  EXPECT_EQ(*assumed->array()->front().string(), "recompute=\"full\"");
}

// A run that nothing of this helps says so, after a bounded number of tries.
TEST(Fitting, MayNotExist) {
  const Workplace place;
  place.write("run.json",
              R"({"model": "gpt3-175b", "cluster": {"preset": "dgx-1v", "accelerators": 1}})");
  const Json result = simulated(place, "run.json", {"precision=fp16", "kernels.attention=unfused"});
  EXPECT_TRUE(changes_of(result).empty());
  const double tried = at(at(result, "would_fit"), "tried").number();
  EXPECT_GT(tried, 0);
  EXPECT_LE(tried, 140);
}

}  // namespace
}  // namespace foretrain

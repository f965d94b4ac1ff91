// Does every shipped device, cluster and fabric read, and does every field of it say where it is
// from?
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "hardware/cluster.h"
#include "hardware/collective_cost.h"
#include "hardware/kernel_constants.h"
#include "hardware/local_cost.h"
#include "hardware/presets.h"
#include "sim/base/assets.h"

namespace foretrain {
namespace {

using Sources = std::map<std::string, std::string>;

/// Every leaf below `pointer` has a source of its own or of something around it.
void expect_sources(const Json& json, const std::string& pointer, const Sources& sources,
                    const std::string& preset) {
  static const std::set<std::string> remarks = {"/schema", "/name", "/sources", "/figures_changed"};
  if (remarks.contains(pointer)) return;
  const auto own = sources.find(pointer);
  if (own != sources.end()) {
    EXPECT_FALSE(own->second.empty()) << preset << pointer;
    return;
  }
  const Json::Object* object = json.object();
  if (object == nullptr) {
    ADD_FAILURE() << preset << ": " << pointer
                  << " has no entry in \"sources\"; name the document, or write \"from memory\"";
    return;
  }
  for (const auto& [key, value] : *object) {
    expect_sources(value, pointer + "/" + key, sources, preset);
  }
}

void expect_all_sources(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const Json file = load_preset(folder, name, "test", "").value().json;
    ASSERT_NE(file.find("schema"), nullptr) << name;
    EXPECT_EQ(*file.find("name")->string(), name);
    const Sources sources = preset_sources(folder, name);
    expect_sources(file, "", sources, folder + "/" + name);
    // And no source of a field that is not there.
    for (const auto& [pointer, text] : sources) {
      if (pointer == "/peaks") continue;
      const std::size_t slash = pointer.find('/', 1);
      const Json* field = file.find(pointer.substr(1, slash - 1));
      if (field != nullptr && slash != std::string::npos) {
        field = field->find(pointer.substr(slash + 1));
      }
      EXPECT_NE(field, nullptr) << folder << "/" << name << ": a source for " << pointer;
    }
  }
}

TEST(Presets, EveryFieldSaysWhereItIsFrom) {
  expect_all_sources("devices", device_preset_names());
  expect_all_sources("clusters", cluster_preset_names());
  expect_all_sources("fabrics", fabric_preset_names());
}

/// Of a file of constants. What its name says of it, `architecture`, has no source.
void expect_constants_sources(const std::string& path) {
  Json file = load_constants(path);
  const Json* all = file.find("sources");
  ASSERT_NE(all, nullptr) << path;
  Sources sources;
  for (const auto& [key, text] : *all->object()) {
    ASSERT_NE(text.string(), nullptr) << path << ": " << key;
    sources["/" + key] = *text.string();
    const Json* field = &file;
    for (std::size_t begin = 0; begin <= key.size() && field->object() != nullptr;) {
      const std::size_t end = std::min(key.find('/', begin), key.size());
      field = field->find(key.substr(begin, end - begin));
      ASSERT_NE(field, nullptr) << path << ": a source for " << key;
      begin = end + 1;
    }
  }
  file.erase("architecture");
  expect_sources(file, "", sources, path);
}

TEST(Presets, EveryConstantSaysWhereItIsFrom) {
  for (const char* path : {"nccl.json", "mesh.json", "torus.json", "memory.json", "moe.json"}) {
    expect_constants_sources(path);
  }
  for (const std::string& name : preset_names("kernels")) {
    expect_constants_sources("kernels/" + name + ".json");
  }
  for (const std::string& name : preset_names("gemm")) {  // one source of all its rows
    EXPECT_FALSE(member(load_constants("gemm/" + name + ".json"), "source").string()->empty());
  }
}

TEST(Presets, EveryDataFileSaysWhenItsFiguresWereLastChanged) {
  static const std::regex month("20[0-9]{2}-(0[1-9]|1[0-2])");
  int files = 0;
  for (const Asset& asset : assets()) {
    const std::string path(asset.path);
    const std::string folder = path.substr(0, path.find('/'));
    static const std::set<std::string> facts = {"models", "model_types", "runs", "systems",
                                                "schemas"};
    if (facts.contains(folder)) continue;
    ++files;
    const Json file = load_constants(path);
    if (folder == "profiles") {  // the day on which the machine was measured
      const Json* date = member(file, "machine").find("date");
      ASSERT_TRUE(date != nullptr && date->string() != nullptr) << path;
      EXPECT_TRUE(std::regex_match(date->string()->substr(0, 7), month)) << path;
      continue;
    }
    const Json* changed = file.find("figures_changed");
    ASSERT_NE(changed, nullptr) << path << ": \"figures_changed\", as \"2026-11\", is missing";
    ASSERT_NE(changed->string(), nullptr) << path;
    EXPECT_TRUE(std::regex_match(*changed->string(), month)) << path << *changed->string();
  }
  EXPECT_GT(files, 100);
}

TEST(Presets, TheNamesThatRunsRelyOnAreThere) {
  const std::vector<std::string> names = cluster_preset_names();
  for (const char* name :
       {"dgx-1v",      "dgx-2",       "dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100",
        "dgx-h200",    "dgx-b200",    "dgx-b300",      "gb200-nvl72",   "gb300-nvl72",
        "hgx-h800",    "aws-p3",      "aws-p4d",       "aws-p5",        "grand-teton-h100-96gb",
        "mi300x",      "mi355x",      "l40s",          "tpu-v3",        "tpu-v4",
        "tpu-v5e",     "tpu-v5p",     "tpu-v6e",       "tpu-v7x",       "ascend-910b",
        "host",        "frontier",    "hgx-a800",      "hgx-h20",       "cloudmatrix-384",
        "aws-p3dn",    "aws-p4de",    "aws-p5e",       "aws-p5en",      "azure-nd-a100-v4",
        "aws-p6-b200", "gcp-a3-high", "gcp-a3-mega",   "pcie-a100",     "azure-nd-h100-v5",
        "pcie-h100"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
}

TEST(Presets, EveryFabricReads) {
  for (const std::string& name : fabric_preset_names()) {
    Topology topology;
    double latency_us = -1;
    const Status status = read_topology(Json(name), "test", "", topology, latency_us);
    ASSERT_TRUE(status.ok()) << status.error().message;
    EXPECT_GE(latency_us, 0) << name;
    // What is printed reads back equal.
    Topology again;
    Json json = to_json(topology);
    if (topology.kind == TopologyKind::kTorus) {
      for (const char* key : {"dims", "wrap"}) json.set(key, nullptr);
    }
    ASSERT_TRUE(read_topology(json, "test", "", again, latency_us).ok()) << dump_json(json);
    EXPECT_EQ(again, topology) << name;
  }
}

// Every device multiplies, copies and reduces on every cluster of it: no constants are missing.
TEST(Presets, EveryClusterPricesItsWork) {
  for (const std::string& name : cluster_preset_names()) {
    const Cluster cluster = read_cluster(Json(name), "test", "").value();
    const DeviceSpec& device = cluster.device;
    Gemm gemm;
    gemm.m = gemm.n = gemm.k = 1024;
    gemm.in = gemm.out = device.bf16_tflops > 0 ? DType::kBf16 : DType::kFp16;
    const Result<Cost> product = gemm_cost(device, gemm, nullptr);
    ASSERT_TRUE(product.ok()) << product.error().message;
    const double flops = 2.0 * 1024 * 1024 * 1024;
    EXPECT_LE(flops / product.value().duration.seconds() / 1e12, peak_tflops(device, gemm.in));
    Kernel kernel;
    kernel.kind = KernelKind::kAdam;
    kernel.bytes = 1 << 28;
    EXPECT_GT(kernel_cost(device, kernel, nullptr).value().duration, Time{}) << name;
    Copy copy;
    copy.bytes = 1 << 28;
    const Time pinned = copy_cost(cluster, 1, copy, nullptr).value().duration;
    EXPECT_GT(pinned, Time{}) << name;
    copy.pageable = true;
    EXPECT_GT(copy_cost(cluster, 1, copy, nullptr).value().duration, pinned) << name;
    if (device.architecture == Architecture::kCpu || device.bf16_tflops <= 0) continue;
    Attention attention;
    attention.q_heads = attention.kv_heads = 16;
    attention.q_len = attention.kv_len = 4096;
    attention.head_dim = 128;
    EXPECT_TRUE(attention_cost(device, attention, nullptr).ok()) << name;
  }
}

}  // namespace
}  // namespace foretrain

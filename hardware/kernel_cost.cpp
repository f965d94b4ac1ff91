#include <algorithm>
#include <string>

#include "hardware/kernel_constants.h"
#include "hardware/local_cost.h"

namespace foretrain {
namespace {

constexpr double kPcieEfficiency = 0.88;  // 55.4 of 63 GB/s, stas00/ml-engineering network
constexpr double kCopyStartUs = 5;        // from memory
/// Of the rate of pinned pages: 1/2.4 on a GTX 280 (cs.virginia.edu/~mwb7w/cuda_support,
/// memory_management_overhead); for later devices from memory.
constexpr double kPageable = 0.42;
constexpr double kStorageStartUs = 100;  // from memory
// CPU-Adam, 2.57 s for 10e9 parameters on a DGX-2 (arXiv 2101.06840, table 4, from memory), 28
// bytes each, of the 256 GB/s of its memory's channels.
constexpr double kHostEfficiency = 0.426;

std::int32_t ranks_of_node(const Cluster& cluster) {
  return std::min(cluster.accelerators, cluster.accelerators_per_node);
}

/// Of the host's memory for each accelerator of a node, all at once.
double host_memory_share(const Cluster& cluster, double host_rate) {
  return cluster.host_memory_gb_per_s * host_rate / ranks_of_node(cluster);
}

/// Of the uplink that accelerators share, when all that the job has on it copy at once.
double pcie_share(const Cluster& cluster, double host_rate) {
  return cluster.device.pcie_gb_per_s * kPcieEfficiency * host_rate /
         std::min(ranks_of_node(cluster), cluster.accelerators_per_pcie_switch);
}

Cost untiled(double latency_us, double compute_s, double memory_s, double deviation) {
  Cost cost;
  cost.latency = Time::from_us(latency_us);
  cost.compute = bounded(compute_s);
  cost.memory = bounded(memory_s);
  cost.duration = cost.latency + max(cost.compute, cost.memory);
  cost.deviation = static_cast<float>(deviation);
  return cost;
}

void explain_roofline(const Cost& cost, std::ostream* steps) {
  if (steps == nullptr) return;
  *steps << "latency " << cost.latency.us() << " us; arithmetic " << cost.compute.us()
         << " us; memory " << cost.memory.us() << " us\n";
}

}  // namespace

Result<Cost> kernel_cost(const DeviceSpec& device, const Kernel& work, std::ostream* steps) {
  if (work.bytes < 0 || work.flops < 0 || work.launches < 1) {
    return input_error("a " + std::string(name_of(work.kind)) + " kernel of negative size");
  }
  const MemoryConstants& c = kernel_constants(device.architecture).memory;
  const double rate =
      device.memory_gb_per_s * 1e9 * c.efficiency.at(static_cast<std::size_t>(work.kind));
  if (work.flops > 0 && device.fp32_tflops <= 0) {
    return unsupported("arithmetic of " + std::string(name_of(work.kind)) + ": " + device.name +
                       " has no fp32_tflops");
  }
  const double compute =
      work.flops == 0
          ? 0
          : static_cast<double>(work.flops) / (device.fp32_tflops * 1e12 * c.arithmetic_efficiency);
  const Cost cost = untiled(c.latency_us * work.launches, compute,
                            static_cast<double>(work.bytes) / rate, c.deviation);
  explain_roofline(cost, steps);
  return cost;
}

Result<Cost> opaque_cost(const DeviceSpec& device, const Opaque& work, std::ostream* steps) {
  if (work.bytes < 0 || work.flops < 0) return input_error(work.name + ": a negative size");
  const KernelConstants& c = kernel_constants(device.architecture);
  const double peak = peak_tflops(device, work.dtype);
  const double efficiency = work.dtype == DType::kFp32  ? c.gemm.fp32
                            : work.dtype == DType::kFp8 ? c.gemm.fp8
                                                        : c.gemm.bf16;
  if (work.flops > 0 && peak * efficiency <= 0) {
    return unsupported(work.name + " in " + std::string(name_of(work.dtype)) + " on " +
                       device.name);
  }
  const double compute =
      work.flops == 0 ? 0 : static_cast<double>(work.flops) / (peak * 1e12 * efficiency);
  const Cost cost = untiled(c.memory.latency_us, compute,
                            static_cast<double>(work.bytes) /
                                (device.memory_gb_per_s * 1e9 * c.memory.default_efficiency),
                            0.3);
  explain_roofline(cost, steps);
  return cost;
}

Result<Cost> host_work_cost(const Cluster& cluster, double host_rate, const Opaque& work,
                            std::ostream* steps) {
  const double rate = host_memory_share(cluster, host_rate) * kHostEfficiency;
  Cost cost;
  cost.duration = bounded(static_cast<double>(work.bytes) / (rate * 1e9));
  cost.deviation = 0.3F;
  if (steps != nullptr) *steps << rate << " GB/s of host memory for each accelerator\n";
  return cost;
}

Result<Cost> copy_cost(const Cluster& cluster, double host_rate, const Copy& work,
                       std::ostream* steps) {
  if (work.bytes < 0) return input_error("a copy of negative bytes");
  if (work.bytes == 0) return Cost{};
  const DeviceSpec& device = cluster.device;
  const double pcie = pcie_share(cluster, host_rate);
  const auto touches = [&work](Memory memory) { return work.from == memory || work.to == memory; };
  double rate = 0, start = kCopyStartUs;
  if (work.from == Memory::kDevice && work.to == Memory::kDevice) {
    rate = device.memory_gb_per_s *
           kernel_constants(device.architecture).memory.default_efficiency / 2;
  } else if (touches(Memory::kStorage)) {
    const bool writes = work.to == Memory::kStorage;
    rate = writes ? cluster.storage_writes() : cluster.storage_gb_per_s;
    if (touches(Memory::kDevice)) rate = std::min(rate, pcie);
    start = kStorageStartUs;
  } else if (touches(Memory::kDevice)) {
    rate =
        std::min(pcie, host_memory_share(cluster, host_rate)) * (work.pageable ? kPageable : 1.0);
  } else {
    rate = host_memory_share(cluster, host_rate) / 2;
  }
  if (rate <= 0) {
    return unsupported("a copy to the host: device " + device.name +
                       " has no pcie_gb_per_s; set it in its file or as cluster.device of the RUN");
  }
  Cost cost;
  cost.latency = Time::from_us(start);
  cost.duration = cost.latency + bounded(static_cast<double>(work.bytes) / (rate * 1e9));
  if (touches(Memory::kDevice)) {
    const double streams = work.from == work.to ? 2 : 1;
    const double used = streams * static_cast<double>(work.bytes) / cost.duration.seconds();
    cost.memory_share =
        static_cast<std::int32_t>(std::min(1.0, used / (device.memory_gb_per_s * 1e9)) * kWhole);
  }
  cost.deviation = 0.1F;
  if (steps != nullptr) *steps << "start " << start << " us, then " << rate << " GB/s\n";
  return cost;
}

}  // namespace foretrain

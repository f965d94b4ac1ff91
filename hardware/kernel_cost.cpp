#include <algorithm>
#include <string>

#include "hardware/kernel_constants.h"
#include "hardware/local_cost.h"
#include "sim/program/scan.h"

namespace foretrain {
namespace {

std::int32_t ranks_of_node(const Cluster& cluster) {
  return std::min(cluster.accelerators, cluster.accelerators_per_node);
}

/// Of the host's memory for each accelerator of a node, all at once.
double host_memory_share(const Cluster& cluster, double host_rate) {
  return cluster.host_memory_gb_per_s * host_rate / ranks_of_node(cluster);
}

/// Of the uplink that accelerators share, when all that the job has on it copy at once.
double pcie_share(const Cluster& cluster, double host_rate) {
  return cluster.device.pcie_gb_per_s * shared_constants().pcie_efficiency * host_rate /
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

/// What a memory-bound kernel moves and computes, and at which part of the device's rates.
struct Roofline {
  double bytes = 0, memory_efficiency = 1;
  double flops = 0, tflops = 0, arithmetic_efficiency = 1;
};

void explain_roofline(const DeviceSpec& device, const Roofline& r, const Cost& cost,
                      std::ostream& steps) {
  steps << "latency " << cost.latency.us() << " us; memory " << r.bytes / 1e6 << " MB at "
        << device.memory_gb_per_s << " GB/s, of which " << r.memory_efficiency << ": "
        << cost.memory.us() << " us";
  if (r.flops > 0) {
    steps << "; arithmetic " << r.flops / 1e9 << " GFLOP at " << r.tflops << " TFLOP/s, of which "
          << r.arithmetic_efficiency << ": " << cost.compute.us() << " us";
  }
  steps << "\n" << kernel_constants(device.architecture).source("memory/efficiency");
}

/// A pass that loads one element at a time is bound by instructions where memory is fast.
double unvectorized_seconds(const DeviceSpec& device, const Kernel& work) {
  const double clocks = kernel_constants(device.architecture).memory.unvectorized_clocks;
  if (work.between.unvectorized_passes == 0 || clocks == 0 || device.clock_mhz <= 0) return 0;
  const double elements =
      static_cast<double>(work.rows * work.cols) * work.between.unvectorized_passes;
  return elements * clocks / (device.sm_count * device.clock_mhz * 1e6);
}

}  // namespace

Result<Cost> kernel_cost(const DeviceSpec& device, const Kernel& work, std::ostream* steps) {
  if (work.bytes < 0 || work.flops < 0 || work.launches < 1) {
    return input_error("a " + std::string(name_of(work.kind)) + " kernel of negative size");
  }
  const MemoryConstants& c = kernel_constants(device.architecture).memory;
  const auto kind = static_cast<std::size_t>(work.kind);
  const double efficiency = c.efficiency.at(kind);
  const double latency_us = c.start_us.at(kind) + c.latency_us * (work.launches - 1);
  const double rate = device.memory_gb_per_s * 1e9 * efficiency;
  if (work.flops > 0 && device.fp32_tflops <= 0) {
    return unsupported("arithmetic of " + std::string(name_of(work.kind)) + ": " + device.name +
                       " has no fp32_tflops");
  }
  const double compute =
      work.flops == 0
          ? 0
          : static_cast<double>(work.flops) / (device.fp32_tflops * 1e12 * c.arithmetic_efficiency);
  // What unvectorized passes take longer than their bytes.
  const double unvectorized = unvectorized_seconds(device, work);
  const double of_them =
      static_cast<double>(work.rows * work.cols * work.between.unvectorized_bytes) / rate;
  const double longer = std::max(0.0, unvectorized - of_them);
  const Cost cost =
      untiled(latency_us, compute, static_cast<double>(work.bytes) / rate + longer, c.deviation);
  if (steps != nullptr && longer > 0) {
    *steps << work.between.unvectorized_passes
           << " passes load one element at a time: " << unvectorized * 1e6 << " us instead of "
           << of_them * 1e6 << " us\n"
           << kernel_constants(device.architecture).source("memory/unvectorized_clocks");
  }
  if (steps != nullptr) {
    explain_roofline(device,
                     {static_cast<double>(work.bytes), efficiency, static_cast<double>(work.flops),
                      device.fp32_tflops, c.arithmetic_efficiency},
                     cost, *steps);
  }
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
                            shared_constants().opaque_deviation);
  if (steps != nullptr) {
    explain_roofline(device,
                     {static_cast<double>(work.bytes), c.memory.default_efficiency,
                      static_cast<double>(work.flops), peak, efficiency},
                     cost, *steps);
  }
  return cost;
}

Result<Cost> scan_cost(const DeviceSpec& device, const Scan& work, std::ostream* steps) {
  const KernelConstants& c = kernel_constants(device.architecture);
  const double efficiency = work.dtype == DType::kFp32 ? c.gemm.fp32 : c.gemm.bf16;
  const double peak = peak_tflops(device, work.dtype) * 1e12 * efficiency;
  if (peak <= 0) {
    return unsupported("a scan in " + std::string(name_of(work.dtype)) + " on " + device.name);
  }
  const double scalar = device.fp32_tflops * 1e12 * c.memory.arithmetic_efficiency;
  const double rate =
      device.memory_gb_per_s * 1e9 * c.memory.scans.at(static_cast<std::size_t>(work.rule));
  Cost cost;
  for (const ScanKernel& kernel : kernels_of(work)) {
    const Time compute = bounded(kernel.flops / (kernel.scalar && scalar > 0 ? scalar : peak));
    const Time memory = bounded(kernel.bytes / rate);
    cost.latency += Time::from_us(c.memory.latency_us);
    cost.compute += compute;
    cost.memory += memory;
    cost.duration += Time::from_us(c.memory.latency_us) + max(compute, memory);
    if (steps != nullptr) {
      *steps << kernel.name << ": " << kernel.flops / 1e9 << " GFLOP " << compute.us() << " us, "
             << kernel.bytes / 1e6 << " MB " << memory.us() << " us\n";
    }
  }
  cost.deviation = static_cast<float>(shared_constants().opaque_deviation);
  return cost;
}

Result<Cost> host_work_cost(const Cluster& cluster, double host_rate, const Opaque& work,
                            std::ostream* steps) {
  const double rate = host_memory_share(cluster, host_rate) * shared_constants().host_efficiency;
  Cost cost;
  cost.duration = bounded(static_cast<double>(work.bytes) / (rate * 1e9));
  cost.deviation = static_cast<float>(shared_constants().host_deviation);
  if (steps != nullptr) *steps << rate << " GB/s of host memory for each accelerator\n";
  return cost;
}

Result<Cost> copy_cost(const Cluster& cluster, double host_rate, const Copy& work,
                       std::ostream* steps) {
  if (work.bytes < 0) return input_error("a copy of negative bytes");
  if (work.bytes == 0) return Cost{};
  const SharedConstants& shared = shared_constants();
  const DeviceSpec& device = cluster.device;
  const double pcie = pcie_share(cluster, host_rate);
  const auto touches = [&work](Memory memory) { return work.from == memory || work.to == memory; };
  double rate = 0, start = shared.copy_start_us;
  if (work.from == Memory::kDevice && work.to == Memory::kDevice) {
    rate = device.memory_gb_per_s *
           kernel_constants(device.architecture).memory.default_efficiency / 2;
  } else if (touches(Memory::kStorage)) {
    const bool writes = work.to == Memory::kStorage;
    rate = writes ? cluster.storage_writes() : cluster.storage_gb_per_s;
    if (touches(Memory::kDevice)) rate = std::min(rate, pcie);
    start = shared.storage_start_us;
  } else if (touches(Memory::kDevice)) {
    rate = std::min(pcie, host_memory_share(cluster, host_rate)) *
           (work.pageable ? shared.pageable : 1.0);
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
  cost.deviation = static_cast<float>(shared.copy_deviation);
  if (steps != nullptr) *steps << "start " << start << " us, then " << rate << " GB/s\n";
  return cost;
}

}  // namespace foretrain

// Trains small plans on a device and on the host and compares: what the tests with and without a
// GPU share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/cuda/device_rank.h"
#include "executor/thread_run.h"
#include "models/plan/plan.h"

namespace foretrain {

using MakeDevice =
    std::function<Result<std::unique_ptr<Device>>(const Workload&, RankId, Transport&)>;

struct DeviceCase {
  std::string name;
  Model model;
  Plan plan;  ///< in fp32
};

/// Small models of every kind of layer, on one rank.
std::vector<DeviceCase> single_rank_cases();
/// Those of them, with heads of 64, that cuDNN's attention takes in bf16 and fp16.
std::vector<DeviceCase> cudnn_cases();
/// The same with drawn sizes.
std::vector<DeviceCase> drawn_cases(std::uint64_t seed, int count);
/// Plans of two and four ranks.
std::vector<DeviceCase> many_rank_cases();
/// Experts in every form on one rank, and on two and four.
std::vector<DeviceCase> expert_cases();
std::vector<DeviceCase> expert_rank_cases();
/// States, parameters and what layers keep in memory of the host and in storage.
std::vector<DeviceCase> offload_cases(std::int64_t ranks);
/// Sequences that two and four ranks share, in every exchange.
std::vector<DeviceCase> context_cases();
/// Layers that are cut by rows and columns.
std::vector<DeviceCase> grid_cases();

/// How far a device may be from the host: of the loss, of how far training moved the weights, and
/// of the weights themselves where they are stored in fewer bits.
struct DeviceTolerance {
  double loss = 1e-5, weights = 1e-3, rounding = 0;
};
inline constexpr DeviceTolerance kBf16Tolerance{0.005, 0.15, 0x1.0p-9};
inline constexpr DeviceTolerance kFp16Tolerance{0.001, 0.05, 0x1.0p-12};

/// The Workload of a case with its matrices and activations in `type`.
Workload lowered(const DeviceCase& device_case, DType type);

/// Three steps of the plan, with its matrices and activations in `type`.
void expect_trains_like_host(const DeviceCase& device_case, DType type, const MakeDevice& make,
                             const DeviceTolerance& tolerance, bool graphs = false);

/// A large epsilon: Adam divides by the gradient's size, so where a gradient is zero but for
/// rounding (the bias of the keys, say) a small one would blow rounding up to whole updates.
HostOptions options_for_tests();

}  // namespace foretrain

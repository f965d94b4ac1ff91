// What a RUN asks of its plan, before anything follows from it: `derive_plan` makes a Plan of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/plan/plan.h"
#include "models/plan/plan_precision.h"
#include "models/plan/plan_sharding.h"

namespace foretrain {

/// The name of `precision`, or its `compute`.
enum class NamedPrecision : std::uint8_t {
  kFp32,
  kTf32,
  kFp16,
  kBf16,
  kFp8,
  kFp8Blockwise,
  kMxfp8,
  kNvfp4,
  kInt8,
};
/// The name of `recompute`, which stands in place of its keys.
enum class NamedRecompute : std::uint8_t { kNone, kSelective, kFull };
enum class Fp8Recipe : std::uint8_t { kDelayed, kCurrent, kTensorwise, kRowwise, kBlockwise };
/// The newest flash attention of the device, or one of a generation.
enum class FlashKernel : std::uint8_t { kNewest, kFlash2, kFlash1, kTriton };
/// Names of `launch.cuda_graph`.
enum class CudaGraph : std::uint8_t { kNone, kLayer, kFull };

/// Keys of `schedule` where it is an object, and its text where it is none.
struct ScheduleRequest {
  std::string text;
  bool as_object = false;
  std::optional<Schedule> name;
  std::optional<std::int64_t> forwards;
  std::optional<double> activations, weight_share;
  std::optional<double> forward_us, input_gradients_us, weight_gradients_us, transfer_us;
};

/// Keys of `moe`.
struct ExpertRequest {
  bool tensor_follows = false;  ///< as many ranks cut an expert as cut a layer
  bool given = false;
  std::optional<Routing> routing;
  std::optional<double> imbalance, capacity_factor;
  std::optional<std::int64_t> sms;
  Json load;
};

/// Fields of `plan` that keys set as they are stand there already.
struct Request {
  Plan plan;
  std::string rank_order = "tp-cp-ep-dp-pp";
  std::optional<bool> sequence;
  GradientKeys gradients;
  std::int64_t accumulation = 1;  ///< microbatches of a rank, where no global batch is given
  struct {
    Json documents, stages;
  } lists;  ///< not read yet
  NamedPrecision precision = NamedPrecision::kBf16;
  std::optional<bool> compute_gradients, master;
  NamedRecompute recompute = NamedRecompute::kNone;
  ScheduleRequest schedule;
  Asked pipeline_overlap = Asked::kYes, parameter_gather = Asked::kNo;
  AttentionKernel attention = AttentionKernel::kFlash;
  FlashKernel flash = FlashKernel::kNewest;
  bool compile = false, channels_first = false, plain_products = false, cutlass = false;
  bool one_copy = false, selective_by_operations = false;
  std::optional<ContextExchange> context_exchange;
  std::optional<Fp8Recipe> recipe;
  Asked autocast = Asked::kNo, fp8_primary_weights = Asked::kNo;
  ExpertRequest experts;
  CudaGraph graph = CudaGraph::kNone;
  Time checkpoint_time;
  HostOperations operations;
};

}  // namespace foretrain

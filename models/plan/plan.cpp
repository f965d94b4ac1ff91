#include "models/plan/plan.h"

#include <algorithm>

#include "models/plan/documents.h"
#include "models/plan/expert_plan.h"
#include "models/plan/keys/keys.h"
#include "models/plan/layout/plan_layout.h"
#include "models/plan/layout/plan_stages.h"
#include "models/plan/plan_network.h"
#include "models/plan/plan_precision.h"
#include "models/plan/plan_reading.h"
#include "models/plan/plan_recompute.h"
#include "models/plan/plan_schedule.h"
#include "models/plan/plan_sharding.h"
#include "models/plan/plan_tensor.h"
#include "models/plan/violations.h"

namespace foretrain {
namespace {

const std::vector<std::string>& dimensions() {
  static const std::vector<std::string> all = {"cp", "dp", "ep", "pp", "tp"};
  return all;
}

/// Works out what follows from a request: first what the plan is, then what it cannot be.
class PlanDeriver {
 public:
  PlanDeriver(JsonReader& reader, const Request& request, const Model& model)
      : x_reader(reader), x_request(request), x_model(model), x_plan(request.plan) {}

  Result<Plan> derive(std::int64_t accelerators) {
    x_plan.accelerators = accelerators;
    derive_tensors(x_request.lists.stages, x_plan);
    if (x_request.experts.tensor_follows) {
      x_plan.experts.tensor = x_model.has_experts() ? x_plan.tensor : 1;
    }
    derive_order();
    derive_sequence();
    derive_gradient_types();
    derive_schedule(x_reader, x_request.schedule, x_plan);
    derive_overlap();
    derive_kernels();
    derive_recompute(x_request, x_model, x_plan);
    x_reader.adopt(derive_stages(x_request.lists.stages, x_reader.source(), x_model, x_plan));
    derive_experts(x_reader, x_request.experts, x_model, x_plan.experts);
    derive_launch();
    check_request();
    FT_TRY(status());
    derive_degrees();
    FT_TRY(status());
    derive_documents(x_request.lists.documents, x_plan, x_violations);
    check_network(x_model, x_plan, x_violations);
    FT_TRY(status());
    derive_rest();
    check();
    FT_TRY(status());
    derive_passes(x_reader, x_model, x_plan);
    derive_layout(x_reader, x_model, x_plan);
    check_stages(x_model, x_plan, x_violations);
    FT_TRY(status());
    FT_TRY(check_own_stages());
    return x_plan;
  }

 private:
  // --- What follows ---
  void derive_order() {
    const std::string& order = x_request.rank_order;
    std::size_t at = 0;
    while (at <= order.size()) {
      const std::size_t dash = std::min(order.find('-', at), order.size());
      x_plan.rank_order.push_back(order.substr(at, dash - at));
      at = dash + 1;
    }
    std::vector<std::string> sorted = x_plan.rank_order;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::string> all = dimensions();
    // cp and ep may be left out: they are 1 here.
    for (const char* optional : {"cp", "ep"}) {
      if (std::find(sorted.begin(), sorted.end(), optional) == sorted.end()) {
        std::erase(all, optional);
      }
    }
    if (sorted == all) return;
    refuse("parallel/rank_order",
           "found \"" + order + "\", expected tp, cp, ep, dp and pp once each, joined by \"-\"");
  }

  void derive_sequence() {
    Plan& p = x_plan;
    if (p.tensor == 1 && p.tensor_depth == 1) p.tensor_mode = TensorMode::k1D;
    const bool usual = !p.in_grid() && !x_model.is_encoder_decoder() && x_model.ends.masked == 0 &&
                       x_model.ends.classes == 0;
    p.tensors.sequence = p.tensors.any() && x_request.sequence.value_or(usual);
    p.sequence = p.tensor > 1 && x_request.sequence.value_or(usual);
    if (x_model.is_network()) p.sequence_length = 1;
    if (x_model.ends.patch > 0) p.sequence_length = x_model.positions;
  }

  void derive_gradient_types() {
    Plan& p = x_plan;
    if (p.buckets.first_bytes == 0) p.buckets.first_bytes = p.buckets.bytes;
    const bool narrow = x_request.compute_gradients.value_or(false);
    derive_compute(x_request.precision, p.precision);
    if (x_request.master) p.precision.master = *x_request.master;
    using Stored = GradientKeys::Stored;
    const Stored stored = x_request.gradients.stored;
    const bool adds_up = p.pipeline > 1 && p.precision.compute == DType::kBf16;
    const bool wide =
        x_request.compute_gradients
            ? !narrow
            : stored == Stored::kFp32 || (stored == Stored::kFp32InPipelines && adds_up);
    p.precision.gradients = wide ? DType::kFp32 : p.precision.compute;
  }

  void derive_overlap() {
    Overlap& o = x_plan.overlap;
    const auto asked = [](Asked what, bool modelled) {
      return what == Asked::kWhereModelled ? modelled : what == Asked::kYes;
    };
    o.pipeline = asked(x_request.pipeline_overlap, x_plan.chunks() > x_plan.pipeline);
    o.parameter_gather = asked(x_request.parameter_gather, o.gradient_reduce);
  }

  void derive_kernels() {
    Plan& p = x_plan;
    p.attention = attention_of(x_request);
    p.stored_scores.plain_products =
        x_request.plain_products && p.attention == AttentionKernel::kUnfused;
    if (x_request.context_exchange) p.context_exchange = *x_request.context_exchange;
    if (x_request.compile) p.fusion = Fusion::kCompiled;
    // XLA and Inductor assign the layouts of convolutions themselves, by what the device reads.
    p.channels_first = x_request.channels_first && !x_request.compile;
    derive_recipe(x_reader, x_request, p.precision);
  }

  void derive_launch() {
    Plan& p = x_plan;
    if (x_request.graph == CudaGraph::kNone) p.checkpoint_time = x_request.checkpoint_time;
    const bool eager = x_request.graph != CudaGraph::kFull && p.fusion != Fusion::kCompiled;
    if (eager) p.host_operations = x_request.operations;
    derive_captured(x_reader, x_request.graph == CudaGraph::kLayer, x_model, p.captured);
    const bool on_device = p.offload.optimizer == Memory::kDevice;
    if (on_device && p.offload.device_share < 0) p.offload.device_share = 0;
  }

  void derive_degrees() {
    Plan& p = x_plan;
    const std::int64_t ranks = model_ranks(p) * p.context;
    std::string degrees = "tensor " + tensor_text(p);
    if (!p.tensors.any()) degrees += " x pipeline " + text(p.pipeline);
    if (p.context > 1) degrees += " x context " + text(p.context);
    if (ranks > p.accelerators) {
      refuse("parallel", degrees + " needs " + text(ranks) + " accelerators, the cluster has " +
                             text(p.accelerators));
    } else if (p.accelerators % ranks != 0) {
      refuse("parallel", degrees + " = " + text(ranks) + " does not divide " +
                             text(p.accelerators) + " accelerators");
    } else {
      p.data = p.accelerators / model_ranks(p);
      const std::int64_t ranks_batch = p.micro_batch * p.batch_ranks();
      if (p.global_batch == 0) p.global_batch = ranks_batch * x_request.accumulation;
    }
  }

  void derive_rest() {
    Plan& p = x_plan;
    derive_autocast(x_request.autocast, x_model, p, x_violations);
    const GradientKeys& gradients = x_request.gradients;
    if (const std::int64_t each = gradients.bucket_elements_per_rank; each > 0) {
      p.bucket_elements = std::max(p.bucket_elements, each * p.data);
    }
    widen_buckets(x_model, p);
    p.units.reduce = gradients.reduced_as_compute ? p.precision.compute : DType::kFp32;
    if (p.pipeline > 1 && !p.units.reshard_in_pipeline) {
      p.units.reshard = p.units.reduce_each = false;
    }
    derive_buckets(x_model, p);
    derive_fp8_primary_weights(x_request.fp8_primary_weights, x_model, p, x_violations);
    // A host that waited for its stage's passes would not reach what other stages wait for.
    if (p.spreads_vocabulary()) p.host_waits = HostWaits::kNone;
    derive_messages(x_model, p);
    derive_accumulation(x_model, gradients, p);
    derive_compression(p);
    derive_chunks(x_model, p);
    using Unscale = GradientKeys::Unscale;
    const bool clips = gradients.unscale == Unscale::kClipping && p.clip_norm > 0;
    p.unscales =
        p.precision.branch() == DType::kFp16 && !clips && gradients.unscale != Unscale::kNone;
    if (p.chunks() == 1) p.recompute.early = false;  // nothing arrives
    if (p.offload.states()) p.units.narrow_shards = true;
  }

  // --- What cannot be ---
  void refuse(const char* place, const std::string& message, ErrorKind kind = ErrorKind::kInput) {
    x_violations.add(place, message, kind);
  }

  /// All that has been refused until now.
  Status status() {
    for (const Violation& one : x_violations.all()) {
      x_reader.fail(one.key, one.message, one.kind);
    }
    return x_reader.status();
  }

  /// A stage with a level or a tensor degree of its own is what a plan with these would have there:
  /// what follows from them, such as the way of the buckets, must be alike.
  Status check_own_stages() {
    for (std::size_t stage = 0; stage < x_plan.stages.size(); ++stage) {
      const auto number = static_cast<std::int64_t>(stage);
      const Sharding level = x_plan.stages[stage].sharding.value_or(x_plan.sharding);
      const std::int64_t degree = tensor_of(x_plan, number);
      if (level == x_plan.sharding && degree == x_plan.tensor) continue;
      Request request = x_request;
      for (Json& one : std::get<Json::Array>(request.lists.stages.value)) {
        for (const char* key : {"sharding", "tensor", "layers"}) one.erase(key);
      }
      request.plan.sharding = level;
      request.plan.tensor = degree;
      request.plan.pipeline_layout = x_plan.pipeline_layout;
      request.plan.partition = Partition::kLayers;
      FT_ASSIGN(
          const Plan all,
          PlanDeriver(x_reader, request, x_model).derive(degree * x_plan.pipeline * x_plan.data));
      Plan one = plan_of_stage(all, number);
      const Plan own = plan_of_stage(x_plan, number);
      one.accelerators = own.accelerators;
      one.tensors = own.tensors;
      one.partition = own.partition;
      one.scatter_gather = own.scatter_gather;
      if (one == own) continue;
      return Error{x_reader.source() + ": /pipeline_stages/" + text(number) + ": " +
                       (level == x_plan.sharding ? "tensor" : "sharding") +
                       " of this stage would change how gradients are added up or travel, which is "
                       "not modelled beside stages of another " +
                       (level == x_plan.sharding ? "degree" : "level"),
                   ErrorKind::kUnsupported};
    }
    return ok_status();
  }

  /// What keys do not go with each other, whatever follows.
  void check_request() {
    const Plan& p = x_plan;
    if (p.tensor_depth > 1 && p.tensor_mode != TensorMode::k25D) {
      refuse("parallel/tensor_depth", "needs tensor_mode 2.5d");
    }
    if (p.partition != Partition::kLayers && !p.pipeline_layout.empty()) {
      refuse("parallel/pipeline_partition", "found \"" + name_of(p.partition) +
                                                "\", which works out the pipeline_layout that is "
                                                "given as well; leave one of them out");
    }
    if (p.target_length > 0 && !x_model.is_encoder_decoder()) {
      refuse("batch/target_sequence", "needs a model with an encoder and a decoder");
    }
    if (x_request.context_exchange && p.context == 1) {
      refuse("kernels/context", "needs parallel.context > 1");
    }
    check_expert_modules(p.recompute, x_model, x_violations);
    if (p.virtual_pipeline > 4096) {
      refuse("parallel/virtual_pipeline",
             "found " + text(p.virtual_pipeline) + ", expected at most 4096");
    }
  }

  void check() {
    const Plan& p = x_plan;
    check_context();
    check_batch();
    check_masked();
    // `check_stages` asks about every stage's own degree.
    if (!p.tensors.any()) check_tensor(x_model, p, x_violations);
    for (const auto rules : {check_documents, check_precision, check_schedule, check_recompute,
                             check_sharding, check_offload, check_expert_plan}) {
      rules(x_model, p, x_violations);
    }
    check_kernels();
  }

  void check_kernels() {
    const bool factored = x_plan.optimizer == Optimizer::kAdafactor;
    if (factored && (x_plan.sharding != Sharding::kNone || x_model.has_experts())) {
      refuse("kernels/optimizer",
             "adafactor keeps rows and columns of whole matrices: set sharding.level to none and "
             "use no experts",
             ErrorKind::kUnsupported);
    }
  }

  void check_inner() {
    const Plan& p = x_plan;
    if (p.context_exchange != ContextExchange::kRing) {
      refuse("parallel/context_inner", "heads are exchanged within a ring: kernels.context ring");
    } else if (p.context % p.context_inner != 0 || p.context == p.context_inner) {
      refuse("parallel/context_inner", text(p.context_inner) + " of context " + text(p.context) +
                                           " leaves no ring of several equal groups");
    }
  }

  void check_context() {
    const Plan& p = x_plan;
    if (p.context_inner > 1) check_inner();
    if (p.context == 1) return;
    if (std::find(p.rank_order.begin(), p.rank_order.end(), "cp") == p.rank_order.end()) {
      refuse("parallel/rank_order", "lacks cp, which is " + text(p.context));
    }
    const bool rows = p.context_exchange == ContextExchange::kRingSelf;
    if (rows && p.sequence_length % p.context != 0) {
      refuse("batch/sequence",
             text(p.sequence_length) + " tokens are not a multiple of context " + text(p.context));
    }
    if (!rows && p.sequence_length % (2 * p.context) != 0) {
      refuse("batch/sequence", text(p.sequence_length) + " tokens are not a multiple of twice " +
                                   "context " + text(p.context) + ", as balanced chunks need");
    }
    if (!rows && p.attention == AttentionKernel::kUnfused) {
      refuse("kernels/attention",
             "context parallelism needs fused attention, but for kernels.context ring_self");
    }
    if (rows && p.attention != AttentionKernel::kUnfused) {
      refuse("kernels/attention",
             "kernels.context ring_self stores whole rows of scores; set kernels.attention to "
             "unfused");
    }
    const bool windowed = x_model.sliding_window > 0 && x_model.sliding_window < p.sequence_length;
    if (windowed && (rows || p.context_exchange == ContextExchange::kRing)) {
      refuse("parallel/context",
             "a ring does not attend within sliding windows; set kernels.context to allgather or "
             "alltoall" +
                 std::string(rows ? ", with fused attention" : ""),
             ErrorKind::kUnsupported);
    }
  }

  void check_batch() {
    const Plan& p = x_plan;
    if (p.global_batch % (p.micro_batch * p.batch_ranks()) != 0) {
      refuse("batch/global", text(p.global_batch) + " sequences are not a multiple of micro " +
                                 text(p.micro_batch) + " x data-parallel " + text(p.batch_ranks()));
    }
    const double longest =
        static_cast<double>(p.tokens()) *
        std::max(1.0, static_cast<double>(p.target()) / static_cast<double>(p.sequence_length));
    const double largest = 8.0 * longest *
                           static_cast<double>(std::max(
                               {x_model.vocabulary, x_model.hidden * 8, x_model.intermediate * 2}));
    const double scores = longest * static_cast<double>(std::max(p.sequence_length, p.target())) *
                          static_cast<double>(x_model.heads) * 32.0;  // as eager attention moves
    if (largest > 4e18 || (p.attention == AttentionKernel::kUnfused && scores > 4e18)) {
      refuse("batch", "one microbatch would need more than 4 EB");
    }
    if (x_model.positions > 0 && p.sequence_length > x_model.positions) {
      refuse("batch/sequence", text(p.sequence_length) + " is longer than the model's " +
                                   text(x_model.positions) + " positions");
    }
    // The passes of a stage are listed, with some 20 bytes each.
    constexpr std::int64_t kMostPasses = 100'000'000;
    if (p.microbatches() * x_model.layers / p.pipeline > kMostPasses / p.forwards) {
      refuse("batch/global", text(p.microbatches()) + " microbatches through " +
                                 text(x_model.layers / p.pipeline) +
                                 " layers of a stage are more than a hundred million layer passes");
    }
    const auto passes = static_cast<double>((p.forwards + 1) * p.chunks_of_stage());
    const double waits =
        ((p.data_time + p.loader_time).seconds() + passes * p.pass_time.seconds()) *
        static_cast<double>(p.microbatches());
    if (waits + p.step_time.seconds() > 1e6) {
      refuse("host", "a step would wait more than 11 days for its host");
    }
  }

  void check_masked() {
    if (x_model.ends.masked > x_plan.sequence_length) {
      refuse("batch/sequence", text(x_plan.sequence_length) + " tokens are fewer than the " +
                                   text(x_model.ends.masked) +
                                   " that the model predicts of a sequence");
    }
    if (x_model.ends.masked > 0 && x_model.ends.classes == 0 &&
        (x_plan.sequence || x_plan.context > 1)) {
      refuse(x_plan.sequence ? "parallel/sequence" : "parallel/context",
             "the head of masked tokens is not modelled with sequence or context parallelism; "
             "model.max_predictions_per_seq 0 predicts every token",
             ErrorKind::kUnsupported);
    }
    if (x_model.ends.classes > 0 && (x_plan.sequence || x_plan.context > 1)) {
      refuse(
          x_plan.sequence ? "parallel/sequence" : "parallel/context",
          "a head of classes is not modelled with sequence or context parallelism: set " +
              std::string(x_plan.sequence ? "parallel.sequence to false" : "parallel.context to 1"),
          ErrorKind::kUnsupported);
    }
    const bool rows = x_plan.context_exchange == ContextExchange::kRingSelf;
    if (x_model.bidirectional && x_plan.context > 1 && !rows) {
      refuse("parallel/context",
             "is modelled for causal attention, and for any with kernels.context ring_self",
             ErrorKind::kUnsupported);
    }
  }

  JsonReader& x_reader;
  const Request& x_request;
  const Model& x_model;
  Plan x_plan;
  Violations x_violations;
};

}  // namespace

Result<Plan> read_plan(const Json& run, const std::string& source, const Model& model,
                       std::int64_t accelerators) {
  JsonReader reader(run, source, "");
  Request request;
  request.plan.global_batch = 0;  // one microbatch for every data-parallel rank
  read_request(reader, request);
  reader.take("campaign");  // of many steps: no step depends on it
  FT_TRY(reader.finish());
  return PlanDeriver(reader, request, model).derive(accelerators);
}

const std::vector<std::string>& plan_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> out;
    for (const KeySection& section : run_sections()) {
      if (!section.name.empty()) out.push_back(section.name);
    }
    out.emplace_back("dropout");
    out.emplace_back("pipeline_stages");
    return out;
  }();
  return keys;
}

}  // namespace foretrain

#include "models/plan/plan.h"

#include <algorithm>

#include "models/layers/optimizer.h"
#include "models/plan/documents.h"
#include "models/plan/expert_plan.h"
#include "models/plan/plan_layout.h"
#include "models/plan/plan_network.h"
#include "models/plan/plan_precision.h"
#include "models/plan/plan_reading.h"
#include "models/plan/plan_recompute.h"
#include "models/plan/plan_schedule.h"
#include "models/plan/plan_sharding.h"
#include "models/plan/plan_tensor.h"

namespace foretrain {
namespace {

using IntRange = JsonReader::IntRange;
constexpr IntRange kDegree{1, 1 << 20};

const std::string kNotYet = "is not modelled yet";

class PlanReader {
 public:
  PlanReader(const Json& run, const std::string& source, const Model& model)
      : x_reader(run, source, ""), x_model(model) {}

  Result<Plan> read(std::int64_t accelerators) {
    x_plan.accelerators = accelerators;
    for (const char* key : {"name", "model", "cluster", "system", "profile"}) x_reader.ignore(key);
    read_parallel();
    read_states();
    read_batch();
    read_precision();
    read_schedule(x_reader, x_plan);
    read_overlap();
    read_kernels();
    read_recompute(x_reader, x_selective == 1, x_model, x_plan);
    read_others();
    FT_TRY(x_reader.finish());
    check();
    FT_TRY(x_reader.finish());
    return x_plan;
  }

 private:
  template <typename Body>
  void nested(const char* key, Body body) {
    const Json* json = x_reader.take(key);
    if (json == nullptr) return;
    JsonReader reader(*json, x_reader.source(), x_reader.pointer(key));
    body(reader);
    x_reader.adopt(reader.finish());
  }

  void later(JsonReader& reader, const char* key, bool used) {
    if (!used) return;
    const Json* found = reader.take(key);
    reader.fail(key, (found == nullptr ? "" : "found " + describe(*found) + ", which ") + kNotYet,
                ErrorKind::kUnsupported);
  }

  void read_parallel() {
    nested("parallel", [this](JsonReader& r) {
      r.read("tensor", x_plan.tensor, kDegree);
      r.read("pipeline", x_plan.pipeline, kDegree);
      r.read("virtual_pipeline", x_plan.virtual_pipeline, kDegree);
      r.read("context", x_plan.context, kDegree);
      r.read("context_inner", x_plan.context_inner, kDegree);
      r.read("expert", x_plan.experts.expert, kDegree);
      r.read("expert_tensor", x_plan.experts.tensor, kDegree);
      x_plan.sequence = x_plan.tensor > 1 && !x_model.is_encoder_decoder() && x_model.masked == 0;
      r.read("sequence", x_plan.sequence);
      if (x_plan.tensor == 1) x_plan.sequence = false;
      read_tensor_mode(r, x_plan);
      std::string order = "tp-cp-ep-dp-pp";
      r.read("rank_order", order);
      read_order(r, order);
      r.read("keep_outputs", x_plan.keep_outputs);
      r.read("scatter_gather", x_plan.scatter_gather);
      read_layout(r, x_plan);
    });
  }

  void read_order(JsonReader& reader, const std::string& order) {
    std::size_t at = 0;
    while (at <= order.size()) {
      const std::size_t dash = std::min(order.find('-', at), order.size());
      x_plan.rank_order.push_back(order.substr(at, dash - at));
      at = dash + 1;
    }
    std::vector<std::string> sorted = x_plan.rank_order;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::string> all = {"cp", "dp", "ep", "pp", "tp"};
    // cp and ep may be left out: they are 1 here.
    for (const char* optional : {"cp", "ep"}) {
      if (std::find(sorted.begin(), sorted.end(), optional) == sorted.end()) {
        std::erase(all, optional);
      }
    }
    if (sorted != all) {
      reader.fail(
          "rank_order",
          "found \"" + order + "\", expected tp, cp, ep, dp and pp once each, joined by \"-\"");
    }
  }

  void read_states() {
    nested("sharding", [this](JsonReader& r) { read_sharding(r, x_plan); });
    nested("gradients", [this](JsonReader& r) { read_gradients(r, x_plan, x_gradients); });
  }

  void read_batch() {
    nested("batch", [this](JsonReader& r) {
      x_plan.global_batch = 0;  // one microbatch for every data-parallel rank, once that is known
      r.read("global", x_plan.global_batch, kAnyCount);
      r.read("micro", x_plan.micro_batch, IntRange{1, 1 << 20});
      r.read("sequence", x_plan.sequence_length, IntRange{1, 1 << 26});
      if (x_model.is_network()) x_plan.sequence_length = 1;
      r.read("target_sequence", x_plan.target_length, IntRange{1, 1 << 26});
      if (r.has("target_sequence") && !x_model.is_encoder_decoder()) {
        r.fail("target_sequence", "needs a model with an encoder and a decoder");
      }
      read_documents(r, x_plan);
    });
  }

  void read_precision() {
    static const std::vector<std::string> names = {"fp32",          "tf32",  "fp16",  "bf16", "fp8",
                                                   "fp8-blockwise", "mxfp8", "nvfp4", "int8"};
    const Json* json = x_reader.take("precision");
    if (json == nullptr) return;
    int compute = 3;
    if (json->object() != nullptr) {
      nested("precision", [&](JsonReader& r) {
        r.read_choice("compute", compute, names);
        set_compute(compute);
        int gradients = x_plan.precision.gradients == DType::kFp32 ? 0 : 1;
        r.read_choice("gradients", gradients, {"fp32", "compute"});
        x_plan.precision.gradients = gradients == 0 ? DType::kFp32 : x_plan.precision.compute;
        r.read("master_weights", x_plan.precision.master);
        later(r, "optimizer_states", r.has("optimizer_states"));
        later(r, "communication", r.has("communication"));
      });
      return;
    }
    x_reader.read_choice("precision", compute, names);
    set_compute(compute);
  }

  void set_compute(int choice) {
    static const DType types[] = {DType::kFp32, DType::kFp32, DType::kFp16, DType::kBf16};
    Precision& p = x_plan.precision;
    constexpr int kInt8 = 8;
    p.compute = types[choice == kInt8 ? 2 : std::min(choice, 3)];
    p.matrix = choice == 1 ? DType::kTf32 : p.compute;
    p.linear = choice < 4 ? p.matrix : choice == 7 ? DType::kFp4 : DType::kFp8;
    if (choice == kInt8) p.linear = DType::kInt8;
    p.blocks = choice > 4 && choice != kInt8;
    p.current_scaling = choice == 7;  // nvfp4's blocks have a scale of the whole tensor above them
    p.master = choice > 1;
    using Stored = GradientKeys::Stored;
    const bool adds_up = x_plan.pipeline > 1 && p.compute == DType::kBf16;
    const bool wide = x_gradients.stored == Stored::kFp32 ||
                      (x_gradients.stored == Stored::kFp32InPipelines && adds_up);
    p.gradients = wide ? DType::kFp32 : p.compute;
  }

  void read_overlap() {
    nested("overlap", [this](JsonReader& r) {
      read_tensor_overlap(r, x_plan.overlap);
      Asked messages = x_plan.overlap.pipeline ? Asked::kYes : Asked::kNo;
      read_asked(r, "pipeline", messages);
      const bool in_turns = messages == Asked::kWhereModelled;
      x_plan.overlap.pipeline =
          in_turns ? x_plan.chunks() > x_plan.pipeline : messages == Asked::kYes;
      r.read("gradient_reduce", x_plan.overlap.gradient_reduce);
      Asked gather = Asked::kNo;
      read_asked(r, "parameter_gather", gather);
      const bool with_gradients = gather == Asked::kWhereModelled;
      x_plan.overlap.parameter_gather =
          with_gradients ? x_plan.overlap.gradient_reduce : gather == Asked::kYes;
      r.read("expert", x_plan.overlap.expert);
      r.read("passes", x_plan.overlap.passes);
      r.read("post_validation", x_plan.overlap.post_validation);
      r.read("head_deferral", x_plan.overlap.head_deferral, IntRange{0, 1'000'000'000});
    });
  }

  void read_kernels() {
    nested("kernels", [this](JsonReader& r) {
      int attention = 0;
      r.read_choice("attention", attention, {"flash", "cudnn", "unfused"});
      x_plan.attention = static_cast<AttentionKernel>(attention);
      int flash = 0;
      r.read_choice("flash", flash, {"newest", "flash2", "flash1", "triton"});
      if (attention == 0 && flash > 0) {
        x_plan.attention =
            static_cast<AttentionKernel>(static_cast<int>(AttentionKernel::kFlash2) + flash - 1);
      }
      if (r.has("context") && x_plan.context == 1) r.fail("context", "needs parallel.context > 1");
      r.read_enum("context", x_plan.context_exchange,
                  {"ring", "allgather", "alltoall", "ring_self"});
      r.read_choice("selective", x_selective, {"attention", "operations"});
      int projections = 0;
      r.read_choice("projections", projections, {"packed", "separate"});
      x_plan.separate_projections = projections == 1;
      int layout = 0;
      r.read_choice("image_layout", layout, {"channels-last", "channels-first"});
      r.read("early_stop", x_plan.recompute.early_stop);
      int products = 0;
      r.read_choice("attention_products", products, {"tensor-cores", "plain"});
      x_plan.plain_products = products == 1 && x_plan.attention == AttentionKernel::kUnfused;
      r.read_enum("fusion", x_plan.fusion, {"fused", "eager", "norms"});
      r.read_enum("loss", x_plan.loss, {"fused", "parallel", "torch"});
      int grouped = 0;
      r.read_choice("grouped_gemm", grouped, {"streams", "single"});
      x_plan.experts.single_kernel = grouped == 1;
      bool compile = false;
      r.read("compile", compile);
      if (compile) x_plan.fusion = Fusion::kCompiled;
      // XLA and Inductor assign the layouts of convolutions themselves, by what the device reads.
      x_plan.channels_first = layout == 1 && !compile;
      read_recipe(r, x_plan.precision);
      read_asked(r, "autocast", x_autocast);
      read_asked(r, "fp8_weights", x_low_weights);
      read_optimizer(r, x_plan);
    });
  }

  void read_others() {
    read_expert_plan(x_reader, x_model, x_plan.experts);
    nested("offload", [this](JsonReader& r) { read_offload(r, x_plan.offload); });
    nested("launch", [this](JsonReader& r) {
      int graph = 0;
      double us = 0;
      r.read_choice("cuda_graph", graph, {"none", "layer", "full"});
      r.read("checkpoint_us", us, JsonReader::Range{0, 1e9});
      if (graph == 0) x_plan.checkpoint_time = Time::from_us(us);
      read_captured(r, graph == 1, x_model, x_plan.captured);
      r.read("dispatch_us", us, JsonReader::Range{0, 1e6});
      r.read("compiled_dispatch_us", us, JsonReader::Range{0, 1e6});
      r.read("graph_dispatch_us", us, JsonReader::Range{0, 1e6});
      read_operations(r, graph != 2 && x_plan.fusion != Fusion::kCompiled);
    });
    nested("host", [this](JsonReader& r) {
      const auto read_time = [&r](const char* key, Time& time, double most = 1e12) {
        double us = 0;
        r.read(key, us, JsonReader::Range{0, most});
        time = Time::from_us(us);
      };
      read_time("data_us", x_plan.data_time);
      read_time("loader_us", x_plan.loader_time);
      read_time("pass_us", x_plan.pass_time);
      read_time("step_us", x_plan.step_time);
      read_time("update_us", x_plan.update_time, 1e6);
      read_time("scatter_us", x_plan.scatter_time, 1e6);
      r.read_enum("synchronize", x_plan.host_waits, {"none", "forward", "transfers", "passes"});
    });
    nested("allocator", [this](JsonReader& r) {
      int kind = 0;
      r.read_choice("kind", kind, {"caching", "planned"});
      r.read("expandable_segments", x_plan.expandable_segments);
      r.read("record_stream", x_plan.records_streams);
      r.read("context_gib", x_plan.context_gib, JsonReader::Range{0, 1e3});
      x_plan.planned_memory = kind == 1;
    });
    x_reader.read("dropout", x_plan.dropout, JsonReader::Range{0, 1});
  }

  void read_operations(JsonReader& launch, bool eager) {
    const Json* json = launch.take("operations");
    if (json == nullptr) return;
    Result<HostOperations> read =
        read_host_operations(*json, launch.source(), launch.pointer("operations"));
    if (!read.ok()) return launch.adopt(read.error());
    if (eager) x_plan.host_operations = std::move(read.value());
  }

  // --- What cannot be ---
  void refuse(const char* place, const std::string& message, ErrorKind kind = ErrorKind::kInput) {
    x_reader.fail(place, message, kind);
  }

  void check() {
    Plan& p = x_plan;
    const std::int64_t ranks = p.tensor * p.pipeline * p.context;
    std::string degrees = "tensor " + text(p.tensor) + " x pipeline " + text(p.pipeline);
    if (p.context > 1) degrees += " x context " + text(p.context);
    if (ranks > p.accelerators) {
      return refuse("parallel", degrees + " needs " + text(ranks) +
                                    " accelerators, the cluster has " + text(p.accelerators));
    }
    if (p.accelerators % ranks != 0) {
      return refuse("parallel", degrees + " = " + text(ranks) + " does not divide " +
                                    text(p.accelerators) + " accelerators");
    }
    p.data = p.accelerators / (p.tensor * p.pipeline);
    if (p.global_batch == 0) p.global_batch = p.micro_batch * p.batch_ranks();
    if (const std::optional<Refusal> no = refused_network(x_model, p)) {
      return refuse(no->place, no->message, no->kind);
    }
    check_context();
    if (const auto no = settle_autocast(x_autocast, x_model, p)) {
      return refuse(no->place, no->message, no->kind);
    }
    if (const std::int64_t each = x_gradients.bucket_elements_per_rank; each > 0) {
      p.bucket_elements = std::max(p.bucket_elements, each * p.data);
    }
    p.units.reduce = x_gradients.reduced_as_compute ? p.precision.compute : DType::kFp32;
    if (p.pipeline > 1 && !p.units.reshard_in_pipeline) {
      p.units.reshard = p.units.reduce_each = false;
    }
    settle_buckets(x_model, p);
    if (const auto no = settle_low_weights(x_low_weights, x_model, p)) {
      return refuse(no->place, no->message, no->kind);
    }
    check_batch();
    check_masked();
    const auto check = [this](const std::optional<Refusal>& no) {
      if (no) refuse(no->place, no->message, no->kind);
    };
    if (const auto no = refused_documents(x_model, p)) {
      return refuse(no->place, no->message, no->kind);
    }
    check(refused_tensor(x_model, p));
    check(refused_precision(x_model, p));
    check_pipeline();
    settle_accumulation(x_model, x_gradients, p);
    settle_compression(p);
    settle_chunks(x_model, p);
    const bool clips = x_gradients.unscale == GradientKeys::Unscale::kClipping && p.clip_norm > 0;
    p.unscales = p.precision.branch() == DType::kFp16 && !clips &&
                 x_gradients.unscale != GradientKeys::Unscale::kNone;
    check(refused_recompute(x_model, p));
    if (p.chunks() == 1) p.recompute.early = false;  // nothing arrives
    check(refused_sharding(x_model, p));
    if (x_plan.offload.states()) p.units.narrow_shards = true;
    check(refused_offload(x_model, p));
    check_kernels();
    check_expert_plan(x_reader, x_model, x_plan);
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
    const bool inner = p.context_inner > 1;
    if (x_model.kv_heads % (p.tensor * p.head_ranks()) != 0) {
      refuse(inner ? "parallel/context_inner" : "parallel/context",
             text(p.head_ranks()) + " x tensor " + text(p.tensor) +
                 " does not divide the model's key-value heads " + text(x_model.kv_heads) +
                 ", as an exchange of heads needs");
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
    // A pass of a layer takes about 10 kB of Program.
    constexpr std::int64_t kMostPasses = 1'000'000;
    if (p.microbatches() * x_model.layers / p.pipeline > kMostPasses / p.forwards) {
      refuse("batch/global", text(p.microbatches()) + " microbatches through " +
                                 text(x_model.layers / p.pipeline) +
                                 " layers of a stage are more than a million layer passes");
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
    if (x_model.masked > x_plan.sequence_length) {
      refuse("batch/sequence", text(x_plan.sequence_length) + " tokens are fewer than the " +
                                   text(x_model.masked) + " that the model predicts of a sequence");
    }
    if (x_model.masked > 0 && (x_plan.sequence || x_plan.context > 1)) {
      refuse(x_plan.sequence ? "parallel/sequence" : "parallel/context",
             "the head of masked tokens is not modelled with sequence or context parallelism; "
             "model.max_predictions_per_seq 0 predicts every token",
             ErrorKind::kUnsupported);
    }
    const bool rows = x_plan.context_exchange == ContextExchange::kRingSelf;
    if (x_model.bidirectional && x_plan.context > 1 && !rows) {
      refuse("parallel/context",
             "is modelled for causal attention, and for any with kernels.context ring_self",
             ErrorKind::kUnsupported);
    }
  }

  void check_pipeline() {
    Plan& p = x_plan;
    if (p.virtual_pipeline > 4096) {
      return refuse("parallel/virtual_pipeline",
                    "found " + text(p.virtual_pipeline) + ", expected at most 4096");
    }
    check_schedule(x_reader, x_model, p);
    if (x_reader.failed()) return;
    settle_layout(x_reader, x_model, p);
    settle_messages(x_model, p);
  }

  JsonReader x_reader;
  const Model& x_model;
  Plan x_plan;
  GradientKeys x_gradients;
  Asked x_autocast = Asked::kNo;
  Asked x_low_weights = Asked::kNo;
  int x_selective = 0;  ///< what `recompute` selective means
};

}  // namespace

Result<Plan> read_plan(const Json& run, const std::string& source, const Model& model,
                       std::int64_t accelerators) {
  return PlanReader(run, source, model).read(accelerators);
}

const std::vector<std::string>& plan_keys() {
  static const std::vector<std::string> keys = {"parallel",  "sharding",  "gradients", "batch",
                                                "precision", "recompute", "schedule",  "overlap",
                                                "kernels",   "moe",       "offload",   "launch",
                                                "host",      "allocator", "dropout"};
  return keys;
}

}  // namespace foretrain

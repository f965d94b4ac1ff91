#include "models/plan/keys/keys.h"

namespace foretrain {

namespace {

void set_layout(const PlanKey& key, JsonReader& reader, Request& out) {
  const Json* json = reader.take(key.name);
  if (json == nullptr) return;
  if (json->array() == nullptr) {
    return reader.fail(
        key.name, "found " + describe(*json) + ", expected a list with the layers of every chunk");
  }
  for (const Json& item : *json->array()) {
    const auto* layers = std::get_if<std::int64_t>(&item.value);
    if (layers == nullptr || *layers < 0 || static_cast<double>(*layers) > kMostCount) {
      return reader.fail(key.name, "found " + describe(item) + ", expected whole numbers");
    }
    out.plan.pipeline_layout.push_back(*layers);
  }
}

void read_expert_tensor(const PlanKey& key, JsonReader& reader, Request& out) {
  const Json* json = reader.take(key.name);
  out.experts.tensor_follows = json != nullptr && *json == Json("auto");
  if (out.experts.tensor_follows) return;
  const JsonReader::IntRange range{static_cast<std::int64_t>(key.low),
                                   static_cast<std::int64_t>(key.high)};
  reader.read(key.name, out.plan.experts.tensor, range);
}

bool scatters_nothing(const KeyContext& c) {
  return !c.plan.scatter_gather && c.asks("parallel", "scatter_gather", Json(true));
}

Sets vocabulary_of(int words) {
  return {R"(model={"model_type":"llama","num_hidden_layers":4,"hidden_size":64,)"
          R"("num_attention_heads":4,"intermediate_size":128,"vocab_size":)" +
          std::to_string(words) + "}"};
}

/// Padded as asked, as Megatron-LM pads or not at all, tables have the same rows.
bool needs_no_rows(const KeyContext& c) {
  const auto rows = [&c](std::int64_t multiple) {
    return round_up(c.model.vocabulary, multiple * c.plan.vocabulary_parts());
  };
  return c.model.is_network() || rows(c.plan.loss.vocabulary_multiple) == rows(128);
}

}  // namespace

PlanKeys parallel_keys() {
  constexpr double kMostDegree = 1 << 20;
  const auto degree = [](const std::string& path, PlanKey::Setter<std::int64_t> set) {
    return PlanKey::count(path, std::move(set)).range(1, kMostDegree);
  };
  return {
      degree("parallel.tensor", [](Request& r, auto v) { r.plan.tensor = v; })
          .fallback_to(1)
          .says("Ranks that cut every layer among them.")
          .alias({"tp", "tp_size", "tensor_parallel", "tensor_parallel_size",
                  "tensor_parallel_degree", "tensor_model_parallel_size"})
          .probe("1"),
      PlanKey::choice<TensorMode>("parallel.tensor_mode", {"1d", "2d", "2.5d", "3d"},
                                  [](Request& r, auto v) { r.plan.tensor_mode = v; })
          .fallback_to("1d")
          .says("The shape of the grid of tensor ranks (docs/plans.md).")
          .probe("2d", {"parallel.tensor=4", "parallel.sequence=false"}),
      degree("parallel.tensor_depth", [](Request& r, auto v) { r.plan.tensor_depth = v; })
          .fallback_to(1)
          .says("Layers of the grid of tensor_mode 2.5d.")
          .probe("4", {"parallel.tensor=4", "parallel.tensor_mode=2.5d", "batch.micro=4"}),
      degree("parallel.pipeline", [](Request& r, auto v) { r.plan.pipeline = v; })
          .fallback_to(1)
          .says("Stages that hold the layers one after the other.")
          .alias({"pp", "pp_size", "pipeline_parallel_size", "pipeline_parallel_degree",
                  "pipeline_model_parallel_size"})
          .probe("1"),
      degree("parallel.virtual_pipeline", [](Request& r, auto v) { r.plan.virtual_pipeline = v; })
          .fallback_to(1)
          .says("Chunks of layers of every stage.")
          .alias({"vpp", "virtual_pp_degree", "virtual_pipeline_model_parallel_size"})
          .alias({"num_layers_per_virtual_pipeline_stage"},
                 ", the chunks of a rank: num_layers / pipeline / what this says")
          .probe("2"),
      degree("parallel.context", [](Request& r, auto v) { r.plan.context = v; })
          .fallback_to(1)
          .says("Ranks that cut every sequence among them.")
          .alias({"cp", "cp_size", "context_parallel_size", "context_parallel_degree"})
          .alias({"sequence_parallel_size"}, ", and kernels.context alltoall for Ulysses")
          .probe("2"),
      degree("parallel.context_inner", [](Request& r, auto v) { r.plan.context_inner = v; })
          .else_("1")
          .says("Neighbours in a ring of context ranks that exchange heads; keys go around among "
                "groups of them (kernels.context ring).")
          .probe("2", {"parallel.context=4", "parallel.pipeline=1"}),
      degree("parallel.expert", [](Request& r, auto v) { r.plan.experts.expert = v; })
          .fallback_to(1)
          .says("Ranks that share the experts of a layer.")
          .alias({"ep", "ep_size", "expert_model_parallel_size", "expert_parallel_degree"})
          .probe("4", {"model.preset=deepseek-v2", "model.num_hidden_layers=4",
                       "parallel.pipeline=1", "parallel.tensor=1", "parallel.expert=8"}),
      PlanKey("parallel.expert_tensor", KeyType::kCount, read_expert_tensor)
          .range(1, kMostDegree)
          .auto_too()
          .fallback_to(1)
          .says("Ranks that cut every expert among them; auto: as many as parallel.tensor.")
          .alias({"etp", "expert_tensor_parallel_size"})
          .probe("2", {"model.preset=deepseek-v2", "model.num_hidden_layers=4",
                       "parallel.pipeline=1", "parallel.tensor=1", "parallel.expert=4"}),
      PlanKey::flag("parallel.sequence", [](Request& r, bool v) { r.sequence = v; })
          .else_("tensor > 1 in tensor_mode 1d, but for encoder-decoders and heads of masked "
                 "tokens")
          .says("Tensor ranks hold parts of the tokens between the linears.")
          .alias({"sequence_parallel"}, ": true or false")
          .probe("false")
          .idle(if_no_tensor(kOneRankOfTwo, "true")),
      PlanKey::text("parallel.rank_order", [](Request& r, const auto& v) { r.rank_order = v; })
          .fallback_to("tp-cp-ep-dp-pp")
          .says("The dimensions of the ranks, the fastest first.")
          .probe("tp-pp-dp", {"cluster.accelerators=16"}),
      PlanKey::choice<Partition>("parallel.pipeline_partition",
                                 {"layers", "parameters", "profiled"},
                                 [](Request& r, auto v) { r.plan.partition = v; })
          .fallback_to("layers")
          .says("What chunks have alike where no pipeline_layout is given: the number of layers, "
                "of parameters, or the time of their passes.")
          .probe("parameters", {"parallel.pipeline=4"})
          .probe("profiled", {"parallel.pipeline=4", "parallel.pipeline_partition=parameters"})
          .idle(if_no_pipeline()),
      formerly(
          "parallel.keep_outputs",
          PlanKey::flag("parallel.retain_outputs",
                        [](Request& r, bool v) { r.plan.retain_outputs = v; })
              .fallback_to(false)
              .says("A stage lets go of what it sent only after that microbatch's backward pass.")
              .probe("true", {"parallel.pipeline=2", "recompute=full"})
              .idle(if_no_pipeline())),
      PlanKey::flag("parallel.scatter_gather",
                    [](Request& r, bool v) { r.plan.scatter_gather = v; })
          .fallback_to(false)
          .says("Without sequence, tensor ranks send a part each of what they hold alike.")
          .probe("true", {"parallel.pipeline=2", "parallel.sequence=false"})
          .idle(if_no_pipeline())
          .idle(if_no_tensor({"parallel.tensor=1"}))
          .idle_if([](const KeyContext& c) { return c.plan.shard() > 1; },
                   "tensor ranks hold parts of the residual stream anyway")
          .idle_if(scatters_nothing,
                   "it is modelled for decoders and encoders whose tokens x hidden_size tensor "
                   "divides, and where stages have one tensor degree",
                   {R"(model={"model_type":"llama","num_hidden_layers":4,"hidden_size":32,)"
                    R"("num_attention_heads":3,"head_dim":16,"intermediate_size":48,)"
                    R"("vocab_size":384})",
                    "parallel.tensor=3", "parallel.sequence=false", "cluster.accelerators=6"}),
      PlanKey::count("parallel.vocabulary_multiple",
                     [](Request& r, auto v) { r.plan.loss.vocabulary_multiple = v; })
          .range(1, 1 << 16)
          .fallback_to(128)
          .says("A rank's rows of the tables of embedding and head are padded to a multiple of it; "
                "1: as the model has them (docs/explanation/gemm-prices.md).")
          .probe("1", vocabulary_of(1000))
          .idle_if(needs_no_rows, "the vocabulary needs no more rows", vocabulary_of(8192), "64"),
      PlanKey("parallel.pipeline_layout", KeyType::kAny, set_layout)
          .else_("by pipeline_partition")
          .says("Layers of every chunk, chunk-major: a list.")
          .probe("[5,7]"),
  };
}

}  // namespace foretrain

#include "models/plan/keys/keys.h"

namespace foretrain {

namespace {

bool global_is_given(const KeyContext& c) {
  const Json* batch = c.resolved.find("batch");
  const Json* global = batch == nullptr ? nullptr : batch->find("global");
  return global != nullptr && !global->is_null();
}

}  // namespace

PlanKeys batch_keys() {
  return {
      PlanKey::count("batch.global", [](Request& r, auto v) { r.plan.global_batch = v; })
          .else_("one microbatch for every data-parallel rank")
          .says("Sequences of a step.")
          .alias({"gbs", "global_batch_size", "global_train_batch_size", "train_batch_size"})
          .alias({"batch_size"}, ", or batch.micro of one rank's pass")
          .probe("32"),
      PlanKey::count("batch.accumulation", [](Request& r, auto v) { r.accumulation = v; })
          .range(1, 1e6)
          .else_("1")
          .says("Microbatches of a data-parallel rank, where batch.global is not given.")
          .alias({"gradient_accumulation", "gradient_accumulation_steps", "num_microbatches"})
          .probe("4", {R"(batch={"micro":2,"sequence":512})"})
          .idle_if(global_is_given, "batch.global is given"),
      PlanKey::count("batch.micro", [](Request& r, auto v) { r.plan.micro_batch = v; })
          .range(1, 1 << 20)
          .fallback_to(1)
          .says("Sequences of a microbatch.")
          .alias({"device_train_microbatch_size", "mbs", "micro_batch", "micro_batch_size",
                  "per_device_train_batch_size", "train_micro_batch_size_per_gpu"})
          .alias({"local_batch_size"}, ", or with a pipeline batch.global / data ranks")
          .alias({"per_device_batch_size"}, ": that times tensor x context")
          .probe("1"),
      PlanKey::count("batch.sequence", [](Request& r, auto v) { r.plan.sequence_length = v; })
          .range(1, 1 << 26)
          .fallback_to(2048)
          .says("Tokens of a sequence.")
          .alias({"max_seq_len", "max_seq_length", "seq_len", "seq_length", "sequence_length"})
          .probe("1024"),
      PlanKey::count("batch.target_sequence", [](Request& r, auto v) { r.plan.target_length = v; })
          .range(1, 1 << 26)
          .else_("as many")
          .says("Tokens of the decoder's sequences of an encoder-decoder.")
          .probe("64",
                 {"model=t5-small", "parallel.tensor=1", "parallel.pipeline=1", "batch.global=64"}),
      PlanKey("batch.documents", KeyType::kAny,
              [](const PlanKey& key, JsonReader& reader, Request& out) {
                if (const Json* json = reader.take(key.name)) out.lists.documents = *json;
              })
          .else_("one")
          .says("Every sequence packs several documents, with attention inside each alone: tokens "
                "of one, or a list of the lengths of all.")
          .probe("128")
          .idle_if([](const KeyContext& c) { return c.model.is_network(); },
                   "a model of layers has no attention",
                   {"model=resnet-50", "parallel.tensor=1", "parallel.pipeline=1",
                    R"(batch={"global":64})"})
          .idle_if([](const KeyContext& c) { return c.plan.documents.empty(); },
                   "one document fills a sequence", {}, "512"),
  };
}

}  // namespace foretrain

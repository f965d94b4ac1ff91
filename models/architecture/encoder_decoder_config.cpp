#include <array>
#include <utility>

#include "models/architecture/model_config.h"

namespace foretrain {
namespace {

void read_t5(JsonReader& reader, Model& m) {
  reader.require("d_kv", "the size of a head");
  reader.read("d_kv", m.head_dim, kConfigSize);
  reader.read("relative_attention_num_buckets", m.relative_buckets,
              JsonReader::IntRange{0, 1 << 20});
  reader.read("dropout_rate", m.hidden_dropout, JsonReader::Range{0, 1});
  m.attention_dropout = m.hidden_dropout;
  int form = 0;
  reader.read_choice("feed_forward_proj", form, {"relu", "gelu", "gated-gelu", "gated-silu"});
  constexpr std::array kForms = {Activation::kRelu, Activation::kGelu, Activation::kGeglu,
                                 Activation::kSwiglu};
  m.activation = kForms.at(static_cast<std::size_t>(form));
}

/// The other stack's sizes, which must be the encoder's.
void read_same(JsonReader& reader, const char* key, std::int64_t size) {
  std::int64_t other = size;
  reader.read(key, other, kConfigSize);
  if (other == size) return;
  reader.fail(key,
              "found " + std::to_string(other) + ", the encoder has " + std::to_string(size) +
                  ": stacks that differ in more than their depth are not modelled",
              ErrorKind::kUnsupported);
}

/// The decoder's object: its depth, and sizes that must be the encoder's.
void read_decoder(JsonReader& reader, Model& m) {
  const Json* json = reader.take("decoder");
  if (json == nullptr) return;
  JsonReader nested(*json, reader.source(), reader.pointer("decoder"));
  nested.read("num_hidden_layers", m.decoder_layers, kConfigSize);
  const std::pair<const char*, std::int64_t> same[] = {
      {"hidden_size", m.hidden},    {"num_attention_heads", m.heads},
      {"head_dim", m.head_dim},     {"num_key_value_heads", m.kv_heads},
      {"vocab_size", m.vocabulary}, {"intermediate_size", m.intermediate}};
  for (const auto& [key, size] : same) read_same(nested, key, size);
  for (const std::string& key : nested.unknown()) nested.take(key);
  reader.adopt(nested.finish());
}

}  // namespace

void read_encoder_decoder(bool relative, bool parts, JsonReader& reader, Model& m) {
  m.encoder_layers = m.decoder_layers = m.layers;
  if (parts) {
    read_decoder(reader, m);
  } else if (relative) {
    m.relative_buckets = 32;
    reader.read("num_decoder_layers", m.decoder_layers, kConfigSize);
    read_t5(reader, m);
  } else {
    reader.read("decoder_layers", m.decoder_layers, kConfigSize);
    read_same(reader, "decoder_attention_heads", m.heads);
    read_same(reader, "decoder_ffn_dim", m.intermediate);
    bool shared = true;
    reader.read("share_encoder_decoder_embeddings", shared);
    if (!shared) {
      reader.fail("share_encoder_decoder_embeddings",
                  "found false; a table for each stack is not modelled", ErrorKind::kUnsupported);
    }
  }
  if (!parts) m.kv_heads = m.heads;
  m.layers = m.encoder_layers + 1 + 2 * m.decoder_layers;
}

}  // namespace foretrain

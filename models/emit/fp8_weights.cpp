// Weights that are kept in fp8 alone (Megatron-LM's --fp8-param-gather; Transformer Engine's
// fp8_model_init): the matrices of layers that linears read in fp8 have no 16-bit values. The
// update casts the fp32 copy of a rank's shard, what is gathered has 8 bits an element, and where a
// product needs the other order a layer's matrices are turned once a step, before their first use.
// Embeddings, the head, norms, biases and routers stay in 16 bits.
//
// A chunk's parameters are one array all the same, where Megatron-LM has an array for each type.
// Ranks share the bytes of a bucket in equal parts, and of gradients and states its elements: of a
// bucket with both types these are not quite the same elements. Left out: the largest values of a
// shard and their reduction over the ranks before it is cast (a few kilobytes a step), and a second
// launch for each bucket.
#include "models/emit/frames.h"
#include "models/emit/update.h"
#include "models/holdings/byte_map.h"
#include "sim/base/check.h"

namespace foretrain {

void ByteMap::add(std::int64_t elements, Bytes bytes) {
  const End last = empty() ? End{} : x_ends.back();
  if (elements > 0) x_ends.push_back({last.elements + elements, last.bytes + bytes});
}

Bytes ByteMap::at(std::int64_t element) const {
  End begin;
  for (const End& end : x_ends) {
    if (element < end.elements) {
      const double share = static_cast<double>(element - begin.elements) /
                           static_cast<double>(end.elements - begin.elements);
      return begin.bytes + static_cast<Bytes>(share * static_cast<double>(end.bytes - begin.bytes));
    }
    begin = end;
  }
  FT_CHECK(element == begin.elements, "an element behind the end of a map");
  return begin.bytes;
}

namespace {

Bytes bytes_of_all(const FrameLayout& layout) {
  Bytes out = 0;
  for (const Buffer& buffer : layout.buffers) out += buffer.bytes();
  return out;
}

}  // namespace

/// Of a chunk's parameters, in the order of models/holdings/chunk.h; `head_table` says whether the
/// head has a matrix of its own there.
void map_weights(Stage& stage, Chunk& chunk, bool head_table) {
  if (!stage.plan.precision.fp8_primary_weights) return;
  const auto add = [&chunk](const FrameLayout& layout, std::int64_t elements) {
    chunk.weights.add(elements, bytes_of_all(layout));
  };
  const ParameterLayouts& embedding = stage.holds.embedding.parameters;
  const ParameterLayouts& head = stage.holds.head.parameters;
  if (chunk.has_embedding) add(embedding.shared, embedding.shared_elements);
  for (std::int64_t l = 0; l < chunk.layers; ++l) {
    const ParameterLayouts& layer = kind_of(stage, chunk, l).parameters;
    add(layer.shared, layer.shared_elements);
  }
  if (chunk.has_head) add(head.shared, head.shared_elements);
  if (chunk.has_embedding) add(embedding.cut, embedding.cut_elements);
  for (std::int64_t l = 0; l < chunk.layers; ++l) {
    const ParameterLayouts& layer = kind_of(stage, chunk, l).parameters;
    add(layer.cut, layer.cut_elements);
  }
  if (head_table) add(head.cut, head.cut_elements);
}

/// Of the experts of `owner`'s layers.
void map_expert_weights(Stage& stage, Chunk& experts, const Chunk& owner) {
  if (!stage.plan.precision.fp8_primary_weights) return;
  for (std::int64_t l = 0; l < owner.layers; ++l) {
    const ParameterLayouts& layer = kind_of(stage, owner, l).parameters;
    experts.weights.add(layer.expert_elements, bytes_of_all(layer.experts));
  }
}

/// The byte of a chunk's parameters at which an element lies.
Bytes weight_byte(Stage& stage, const Chunk& chunk, std::int64_t element) {
  if (chunk.weights.empty()) return bytes_of(stage.plan.precision.compute, element);
  if (element >= chunk.filled) return chunk.weight_bytes;
  return chunk.weights.at(element);
}

/// A bucket's parameters, in which all ranks' parts are equal.
View weights_of(Stage& stage, std::int16_t frame, const Chunk& chunk, const Bucket& bucket) {
  const Bytes parts = chunk.weights.empty() ? 1 : bucket.holders.shards;
  const auto edge = [&](std::int64_t element) {
    return weight_byte(stage, chunk, element) / parts * parts;
  };
  const Bytes begin = edge(bucket.begin);
  return View{frame, kOnlyBuffer, begin, edge(bucket.end) - begin, 1, GroupSlot()};
}

View own_weights(Stage& stage, std::int16_t frame, const Chunk& chunk, const Bucket& bucket) {
  if (chunk.weights.empty()) return shard_view(stage, frame, bucket, stage.plan.precision.compute);
  const View all = weights_of(stage, frame, chunk, bucket);
  if (!sharded(stage, bucket.holders)) return all;
  return shard_of(all, bucket.holders.shards, stage.builder.group(bucket.holders.shard_group));
}

/// The buffer that they lie in, padded to `elements`.
Buffer weight_buffer(Stage& stage, Chunk& chunk, std::int64_t elements) {
  const char* name = "parameters";
  const DType type = stage.plan.precision.compute;
  if (chunk.weights.empty()) return buffer_of(name, BufferKind::kParameters, type, elements, true);
  const Bytes padding = bytes_of(type, elements - chunk.filled);
  const Bytes unit = sharded(stage, chunk.holders) ? chunk.holders.shards : 1;
  chunk.weight_bytes = round_up(chunk.weights.bytes() + padding, unit);
  return buffer_of(name, BufferKind::kParameters, DType::kUint8, chunk.weight_bytes, true);
}

}  // namespace foretrain

// Which of the model's heads and of the run's sequences an attention has: slopes and dropout masks
// follow from them.
#pragma once

#include <algorithm>
#include <cmath>

#include "executor/operands.h"

namespace foretrain {

class AttentionPlace {
 public:
  AttentionPlace(const Attention& work, const OpContext& context)
      : x_dropout(work.dropout),
        x_key(context.key("attention dropout")),
        x_length(std::max(work.q_len, context.batch.length)),
        x_first_sequence(context.first_sequence() + work.first_sequence +
                         context.place(work.sequences_split_over).index * work.batch) {
    Place place = context.place(work.heads_split_over);
    place = {place.index * work.head_parts + work.head_part, place.size * work.head_parts};
    const bool by_heads = work.part == ContextPart::kHeads;
    const Place cut = context.place(by_heads ? context.batch.context : work.heads_over);
    place = {place.index * cut.size + cut.index, place.size * cut.size};
    x_first_head = place.index * work.q_heads;
    x_all_heads = place.size * work.q_heads;
  }

  /// Tokens of a sequence.
  std::int64_t length() const { return x_length; }
  /// 2^(-8 (h + 1) / H), Press et al. 2022.
  template <typename T>
  T slope(std::int64_t head) const {
    const auto heads = static_cast<T>(x_all_heads);
    return std::exp2(T(-8) * static_cast<T>(x_first_head + head + 1) / heads);
  }
  /// Whether dropout leaves a probability. `query` and `key` are positions in the sequence.
  bool kept(std::int64_t sequence, std::int64_t head, std::int64_t query, std::int64_t key) const {
    const std::int64_t line = (x_first_sequence + sequence) * x_all_heads + x_first_head + head;
    const std::int64_t row = line * x_length + query;
    return uniform_at(x_key, row * x_length + key) >= x_dropout;
  }

 private:
  double x_dropout;
  std::uint64_t x_key;
  std::int64_t x_length, x_first_sequence, x_first_head = 0, x_all_heads = 0;
};

}  // namespace foretrain

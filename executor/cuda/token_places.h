// Where the rows of a rank's tokens stand: what OpContext says of them, for functors.
#pragma once

#include "executor/cuda/device_view.h"

namespace foretrain::device {

struct TokenPlaces {
  std::int64_t first = 0;   ///< of row 0 among the tokens of the microbatch that the rank shares
  std::int64_t length = 1;  ///< tokens of a sequence that the rank holds
  std::int64_t whole = 1;   ///< tokens of a sequence
  std::int64_t member = 0, members = 1;  ///< of the ranks that share a sequence
  std::int64_t first_sequence = 0;       ///< of this microbatch in the global batch

  /// Position of token i of the part that a member holds.
  FT_DEVICE std::int64_t in_part(std::int64_t i, std::int64_t of) const {
    if (members == 1) return i;
    const std::int64_t chunk = whole / (2 * members);
    return (i < chunk ? of : 2 * members - 1 - of) * chunk + i % chunk;
  }
  /// The token of this rank's part at a position, -1 where another member holds it.
  FT_DEVICE std::int64_t at_position(std::int64_t position) const {
    if (members == 1) return position;
    const std::int64_t chunk = whole / (2 * members);
    const std::int64_t at = position / chunk;
    if (at == member) return position % chunk;
    return at == 2 * members - 1 - member ? chunk + position % chunk : -1;
  }
  /// Of row r.
  FT_DEVICE std::int64_t position(std::int64_t r) const {
    return in_part((first + r) % length, member);
  }
  /// Its place in the global batch.
  FT_DEVICE std::int64_t token(std::int64_t r) const {
    return (first_sequence + (first + r) / length) * whole + position(r);
  }
};

/// The rank's `rows` tokens; the members of `split_over` share the microbatch's.
inline TokenPlaces token_places(const OpContext& context, GroupSlot split_over, std::int64_t rows) {
  const Place part = context.place(context.batch.context);
  TokenPlaces out;
  out.first = context.place(split_over).index * rows;
  out.length = context.length();
  out.whole = context.batch.length;
  out.member = part.index;
  out.members = part.size;
  out.first_sequence = context.first_sequence();
  return out;
}

}  // namespace foretrain::device

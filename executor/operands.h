// What a host kernel is given: memory for the views of its op, and where the op stands.
//
// T is the type that fp32 buffers are stored in: float, or double for tests of the mathematics.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "executor/random.h"
#include "sim/program/program.h"

namespace foretrain {

/// A view in memory. `begin`: its first element within the buffer that owns it.
struct Operand {
  std::byte* data = nullptr;
  std::int64_t count = 0, begin = 0;  ///< elements
  const Buffer* buffer = nullptr;     ///< the owner
};

/// Elements of 4 bytes that a value takes.
template <typename T>
inline constexpr std::size_t kWidth = std::is_same_v<T, double> ? 2 : 1;

template <typename T>
struct Operands {
  std::vector<Operand> reads, writes;

  /// Whether operand i of the writes is read as well.
  bool reads_back(std::size_t i) const {
    return std::any_of(reads.begin(), reads.end(),
                       [&](const Operand& read) { return read.data == writes[i].data; });
  }
  const T* in(std::size_t i) const { return reinterpret_cast<const T*>(reads[i].data); }
  T* out(std::size_t i) const { return reinterpret_cast<T*>(writes[i].data); }
  const std::int64_t* ids(std::size_t i) const {
    return reinterpret_cast<const std::int64_t*>(reads[i].data);
  }
  const std::uint8_t* flags_in(std::size_t i) const {
    return reinterpret_cast<const std::uint8_t*>(reads[i].data);
  }
  std::int64_t* ids_out(std::size_t i) const {
    return reinterpret_cast<std::int64_t*>(writes[i].data);
  }
  std::uint8_t* flags_out(std::size_t i) const {
    return reinterpret_cast<std::uint8_t*>(writes[i].data);
  }
};

/// A rank's place in a group.
struct Place {
  std::int64_t index = 0, size = 1;
};

/// How the executor trains; part of no Program because it costs no time.
struct Training {
  std::uint64_t seed = 1;
  std::int64_t first_step = 0;  ///< steps that a loaded state had done
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
};

/// Position in a sequence of `length` of token i of the part that a member holds: chunks m and
/// 2n-1-m of 2n.
inline std::int64_t position_in_part(std::int64_t i, std::int64_t member, std::int64_t members,
                                     std::int64_t length) {
  if (members == 1) return i;
  const std::int64_t chunk = length / (2 * members);
  return (i < chunk ? member : 2 * members - 1 - member) * chunk + i % chunk;
}

/// The same where each of `documents`, whose lengths have the ratios of these, is so cut.
std::int64_t position_in_part(std::int64_t i, std::int64_t member, std::int64_t members,
                              std::int64_t length, const std::vector<std::int64_t>& documents);

/// One run of a collective: elements of its array, and where a member's operands begin.
struct CollectiveRun {
  std::int64_t count = 0, send = 0, receive = 0;
};

inline std::vector<CollectiveRun> runs_of(const Collective& work, std::int64_t members) {
  if (work.runs.empty()) return {{work.count, 0, 0}};
  const bool gathers = work.kind == CollectiveKind::kAllGather;
  std::vector<CollectiveRun> out;
  std::int64_t begin = 0;
  for (const std::int64_t run : work.runs) {
    const std::int64_t own = begin / members;
    out.push_back({run, gathers ? own : begin, gathers ? begin : own});
    begin += run;
  }
  return out;
}

struct OpContext {
  Batch batch;
  Training training;
  std::int64_t step = 0;
  std::int32_t layer = -1, microbatch = -1;
  const Op* op = nullptr;
  const std::vector<Place>* places = nullptr;  ///< by group slot

  Place place(GroupSlot slot) const { return slot.valid() ? (*places)[slot.index()] : Place{}; }
  /// Of the ranks that exchange what a context-parallel op names, else of all that share sequences.
  Place among_parts(GroupSlot slot) const { return place(slot.valid() ? slot : batch.context); }
  /// Tokens of a sequence, and of a microbatch, that this rank holds.
  std::int64_t length() const { return batch.length / place(batch.context).size; }
  std::int64_t tokens() const { return batch.sequences * length(); }
  std::int64_t global_tokens() const {
    return batch.sequences * batch.length * batch.microbatches * place(batch.split_over).size;
  }
  /// First sequence of this microbatch in the global batch.
  std::int64_t first_sequence() const {
    const Place data = place(batch.split_over);
    return (microbatch * data.size + data.index) * batch.sequences;
  }
  /// Position in its sequence of token i of the part that a context-parallel member holds.
  std::int64_t position_in_part(std::int64_t i, std::int64_t member) const {
    if (batch.contiguous) return member * length() + i;
    return foretrain::position_in_part(i, member, place(batch.context).size, batch.length,
                                       batch.documents);
  }
  /// A token, by its place in the microbatch's sequences.
  struct Token {
    std::int64_t sequence = 0, position = 0;
  };
  /// Row r of the rank's `rows` tokens; the members of `split_over` share the microbatch's.
  Token token(GroupSlot split_over, std::int64_t rows, std::int64_t r) const {
    const std::int64_t at = place(split_over).index * rows + r;
    return {at / length(), position_in_part(at % length(), place(batch.context).index)};
  }
  /// The same by its place in the global batch.
  std::int64_t global_token(GroupSlot split_over, std::int64_t rows, std::int64_t r) const {
    const Token at = token(split_over, rows, r);
    return (first_sequence() + at.sequence) * batch.length + at.position;
  }
  /// Where `count` elements of a view lie in the array of which its buffer is a part.
  std::vector<Buffer::Part> parts_of(const Operand& view, std::int64_t count) const {
    const Buffer& buffer = *view.buffer;
    if (buffer.shards == 1) return {{0, view.begin, count}};
    std::vector<Buffer::Part> out;
    for (const Buffer::Part& part : buffer.parts(place(buffer.shard_group).index)) {
      const std::int64_t begin = std::max(view.begin, part.at);
      const std::int64_t end = std::min(view.begin + count, part.at + part.count);
      if (begin >= end) continue;
      out.push_back({begin - view.begin, part.first + begin - part.at, end - begin});
    }
    return out;
  }
  /// The key of random draws of this op's purpose.
  std::uint64_t key(std::string_view purpose) const {
    std::uint64_t out = mix(training.seed, purpose);
    out = mix(out, static_cast<std::uint64_t>(step));
    return mix(out, static_cast<std::uint64_t>(static_cast<std::int64_t>(layer)));
  }
};

inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kRopeBase = 10'000;

}  // namespace foretrain

// The ops of one stream as they ran, in a few bytes each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/engine/replay.h"

namespace foretrain {

/// Ops in the order in which they ran. Of each it keeps what is not told by the one before: how
/// many calls later it is, its number in the segment, the gap in front of it, how long it waited
/// for partners and how long it took, seven bits of a number a byte.
class OpLog {
 public:
  struct Entry {
    std::int32_t call = 0, op = 0;
    Time begin, start, end;
    /// Whether it was issued before op `other_op` of call `other_call`.
    bool before(std::int32_t other_call, std::int32_t other_op) const {
      return call != other_call ? call < other_call : op < other_op;
    }
  };

  void push(const OpTimes& times) {
    ++x_count;
    put(static_cast<std::uint64_t>(std::int64_t{times.call} - x_last.call));
    put(static_cast<std::uint64_t>(times.op));
    put(static_cast<std::uint64_t>((times.begin - x_last.end).ps));
    put(static_cast<std::uint64_t>((times.start - times.begin).ps));
    put(static_cast<std::uint64_t>((times.end - times.start).ps));
    x_last.call = times.call;
    x_last.end = times.end;
  }
  std::size_t count() const { return x_count; }

  /// Reads a log, which must outlive it, from its begin on.
  class Reader {
   public:
    explicit Reader(const OpLog& log) : x_at(log.x_bytes.data()), x_end(x_at + log.x_bytes.size()) {
      next();
    }
    /// The present one; none at the end.
    const Entry* get() const { return x_done ? nullptr : &x_entry; }
    void next() {
      x_done = x_at == x_end;
      if (x_done) return;
      x_entry.call += static_cast<std::int32_t>(take());
      x_entry.op = static_cast<std::int32_t>(take());
      x_entry.begin = x_entry.end + Time{static_cast<std::int64_t>(take())};
      x_entry.start = x_entry.begin + Time{static_cast<std::int64_t>(take())};
      x_entry.end = x_entry.start + Time{static_cast<std::int64_t>(take())};
    }
    /// That of an op which none that was asked for before follows; none if it is not there.
    const Entry* find(std::int32_t call, std::int32_t op) {
      while (!x_done && x_entry.before(call, op)) next();
      return !x_done && x_entry.call == call && x_entry.op == op ? &x_entry : nullptr;
    }

   private:
    std::uint64_t take() {
      std::uint64_t value = *x_at & 0x7fU;
      for (unsigned shift = 7; (*x_at++ & 0x80U) != 0; shift += 7) {
        value |= static_cast<std::uint64_t>(*x_at & 0x7fU) << shift;
      }
      return value;
    }

    const std::uint8_t* x_at;
    const std::uint8_t* x_end;
    Entry x_entry;
    bool x_done = false;
  };

 private:
  void put(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) x_bytes.push_back(static_cast<std::uint8_t>(value | 0x80U));
    x_bytes.push_back(static_cast<std::uint8_t>(value));
  }

  std::vector<std::uint8_t> x_bytes;
  std::size_t x_count = 0;
  Entry x_last;
};

/// Adds an op to its stream's log.
inline void push_op(std::vector<OpLog>& streams, const OpTimes& times) {
  const auto stream = static_cast<std::size_t>(times.stream);
  if (stream >= streams.size()) streams.resize(stream + 1);
  streams[stream].push(times);
}

}  // namespace foretrain

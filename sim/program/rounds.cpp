#include "sim/program/rounds.h"

#include <algorithm>

namespace foretrain {
namespace {

/// How many calls ago the frames of every call were last used, by call and slot; waits behind them.
/// Two slots are alike where they name one frame, or frames that were last used equally long ago.
class Ages {
 public:
  explicit Ages(const Program& program) {
    std::vector<std::int32_t> last(program.frames.size(), -1);
    x_first.reserve(program.calls.size() + 1);
    for (std::size_t c = 0; c < program.calls.size(); ++c) {
      const Call& call = program.calls[c];
      const auto now = static_cast<std::int32_t>(c);
      x_first.push_back(x_ages.size());
      const auto age = [&](FrameId frame) {
        const std::int32_t at = frame.valid() ? last[frame.index()] : -1;
        return at < 0 ? -1 : now - at;
      };
      for (const FrameId frame : call.frames) x_ages.push_back({frame, age(frame)});
      for (const StreamWait& wait : call.waits) x_ages.push_back({wait.frame, age(wait.frame)});
      for (const FrameId frame : call.frames) {
        if (frame.valid()) last[frame.index()] = now;
      }
    }
    x_first.push_back(x_ages.size());
  }

  bool same(std::size_t a, std::size_t b) const {
    const auto at = [this](std::size_t call) {
      return x_ages.begin() + static_cast<std::ptrdiff_t>(x_first[call]);
    };
    const auto alike = [](const Age& x, const Age& y) {
      return x.frame == y.frame || x.calls == y.calls;
    };
    return std::equal(at(a), at(a + 1), at(b), at(b + 1), alike);
  }

 private:
  struct Age {
    FrameId frame;
    std::int32_t calls = -1;  ///< -1: never before
  };
  std::vector<std::size_t> x_first;
  std::vector<Age> x_ages;
};

bool same_waits(const std::vector<StreamWait>& a, const std::vector<StreamWait>& b) {
  const auto same = [](const StreamWait& x, const StreamWait& y) {
    return x.stream == y.stream && x.event == y.event;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

/// Whether the rounds are too few to tell what becomes of a frame in one more: it is used before
/// and behind them but in none, or was there before the last round, in which no other follows it.
bool too_few(const Program& program, const Rounds& rounds) {
  constexpr std::uint8_t kBefore = 1, kWithin = 2, kLast = 4, kBehind = 8;
  std::vector<std::uint8_t> used(program.frames.size());
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    const auto at = static_cast<std::int32_t>(c);
    const std::uint8_t where = at < rounds.begin                  ? kBefore
                               : at < rounds.at(rounds.count - 1) ? kWithin
                               : at < rounds.end()                ? kLast
                                                                  : kBehind;
    for (const FrameId frame : program.calls[c].frames) {
      if (frame.valid()) used[frame.index()] |= where;
    }
  }
  const std::vector<FrameId> next = next_frames(program, rounds);
  for (std::size_t f = 0; f < used.size(); ++f) {
    if (program.frames[f].microbatch >= 0 && used[f] == (kBefore | kBehind)) return true;
  }
  for (std::int32_t c = rounds.at(rounds.count - 1); c < rounds.end(); ++c) {
    const std::vector<FrameId>& frames = program.calls[static_cast<std::size_t>(c)].frames;
    const Call& before = program.calls[static_cast<std::size_t>(c - rounds.length)];
    for (std::size_t f = 0; f < frames.size(); ++f) {
      if (!frames[f].valid() || frames[f] == before.frames[f]) continue;
      const bool is_new = (used[frames[f].index()] & (kBefore | kWithin)) == 0;
      if (!is_new && !next[frames[f].index()].valid()) return true;
    }
  }
  return false;
}

}  // namespace

Rounds find_rounds(const Program& program, std::int32_t microbatches) {
  const std::vector<Call>& calls = program.calls;
  std::int32_t most = -1;
  for (const Call& call : calls) most = std::max(most, call.microbatch);
  const std::int32_t middle = most / 2;
  const auto is_middle = [middle](const Call& call) { return call.microbatch == middle; };
  const auto anchor = std::find_if(calls.begin(), calls.end(), is_middle);
  if (anchor == calls.end()) return {};
  const auto follows = [&anchor, microbatches](const Call& call) {
    return call.segment == anchor->segment && call.layer == anchor->layer &&
           call.microbatch == anchor->microbatch + microbatches;
  };
  const auto next = std::find_if(anchor + 1, calls.end(), follows);
  if (next == calls.end()) return {};
  const Ages ages(program);
  const auto same = [&](std::int32_t a, std::int32_t b) {
    const Call& x = calls[static_cast<std::size_t>(a)];
    const Call& y = calls[static_cast<std::size_t>(b)];
    const std::int32_t more = x.microbatch < 0 ? 0 : microbatches;
    return x.segment == y.segment && x.layer == y.layer && y.microbatch == x.microbatch + more &&
           same_waits(x.waits, y.waits) &&
           ages.same(static_cast<std::size_t>(a), static_cast<std::size_t>(b));
  };
  const Rounds rounds = longest_rounds(static_cast<std::int32_t>(calls.size()),
                                       static_cast<std::int32_t>(next - anchor), same);
  return rounds.count < 2 || too_few(program, rounds) ? Rounds{} : rounds;
}

std::vector<FrameId> next_frames(const Program& program, const Rounds& rounds) {
  std::vector<FrameId> out(program.frames.size());
  for (std::int32_t c = rounds.begin; c + rounds.length < rounds.end(); ++c) {
    const Call& call = program.calls[static_cast<std::size_t>(c)];
    const Call& next = program.calls[static_cast<std::size_t>(c + rounds.length)];
    for (std::size_t f = 0; f < call.frames.size(); ++f) {
      const FrameId frame = call.frames[f];
      if (frame.valid() && frame != next.frames[f]) out[frame.index()] = next.frames[f];
    }
  }
  return out;
}

}  // namespace foretrain

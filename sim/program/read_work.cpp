#include "sim/program/read_work.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

namespace foretrain {
namespace {

/// The words of a text, read from the front. A word that is not what was asked for stays.
class Words {
 public:
  explicit Words(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(' ', at), text.size());
      if (end > at) x_words.emplace_back(text, at, end - at);
      at = end + 1;
    }
  }
  bool done() const { return x_at == x_words.size(); }
  const std::string& peek(std::size_t ahead = 0) const {
    static const std::string kNone;
    return x_at + ahead < x_words.size() ? x_words[x_at + ahead] : kNone;
  }
  std::string take() { return done() ? "" : x_words[x_at++]; }
  bool take(std::string_view words) {
    std::size_t ahead = 0;
    for (std::size_t at = 0; at < words.size();) {
      const std::size_t end = std::min(words.find(' ', at), words.size());
      if (peek(ahead++) != words.substr(at, end - at)) return false;
      at = end + 1;
    }
    x_at += ahead;
    return true;
  }
  std::optional<std::int64_t> take_number() {
    const auto out = number_in(peek());
    if (out) ++x_at;
    return out;
  }
  std::vector<std::int64_t> take_numbers() {
    std::vector<std::int64_t> out;
    while (const auto one = take_number()) out.push_back(*one);
    return out;
  }
  /// "4096x512x64", "12/4": so many numbers with that letter between them.
  template <std::size_t kCount>
  bool take_sizes(char between, std::array<std::int64_t, kCount>& out) {
    const std::string& word = peek();
    std::size_t at = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::size_t end = i + 1 < kCount ? word.find(between, at) : word.size();
      if (end == std::string::npos) return false;
      const auto one = number_in(word.substr(at, end - at));
      if (!one) return false;
      out[i] = *one;
      at = end + 1;
    }
    ++x_at;
    return true;
  }

 private:
  static std::optional<std::int64_t> number_in(const std::string& word) {
    std::int64_t out = 0;
    const char* const end = word.data() + word.size();
    const auto [stopped, error] = std::from_chars(word.data(), end, out);
    constexpr std::int64_t kMost = std::int64_t{1} << 48;
    const bool whole = !word.empty() && error == std::errc() && stopped == end;
    return whole && out >= 0 && out <= kMost ? std::optional(out) : std::nullopt;
  }

  std::vector<std::string> x_words;
  std::size_t x_at = 0;
};

/// The value of an enumeration up to `last` whose name is `name`.
template <typename Enum>
bool find_name(std::string_view name, Enum last, Enum& out) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (name_of(static_cast<Enum>(i)) != name) continue;
    out = static_cast<Enum>(i);
    return true;
  }
  return false;
}

bool find_type(std::string_view name, DType& out) { return find_name(name, DType::kUint8, out); }

/// "bf16->fp32".
bool take_types(Words& words, DType& in, DType& out) {
  const std::string word = words.take();
  const std::size_t arrow = word.find("->");
  return arrow != std::string::npos && find_type(word.substr(0, arrow), in) &&
         find_type(word.substr(arrow + 2), out);
}

bool take_layout(Words& words, Gemm& out) {
  const std::string word = words.take();
  if (word.size() != 2 || word.find_first_not_of("nt") != std::string::npos) return false;
  out.transpose_a = word[0] == 't';
  out.transpose_b = word[1] == 't';
  return true;
}

/// "of 4 on 2 streams", or "of 4096 1024".
bool take_parts(Words& words, Gemm& out) {
  if (!words.take("of")) return true;
  const std::vector<std::int64_t> numbers = words.take_numbers();
  if (words.take("on")) {
    const auto streams = words.take_number();
    if (numbers.size() != 1 || !streams || !words.take("streams")) return false;
    out.beside = static_cast<std::int32_t>(numbers[0]);
    out.streams = static_cast<std::int32_t>(*streams);
    return take_parts(words, out);
  }
  if (numbers.empty() || numbers.size() > out.columns.parts.size()) return false;
  std::copy(numbers.begin(), numbers.end(), out.columns.parts.begin());
  return true;
}

std::optional<Work> read_gemm(Words& words) {
  Gemm out;
  std::array<std::int64_t, 3> sizes{};
  if (!words.take("gemm") || !words.take_sizes('x', sizes)) return std::nullopt;
  out.m = sizes[0];
  out.n = sizes[1];
  out.k = sizes[2];
  if (words.take("batch")) {
    const auto batch = words.take_number();
    if (!batch) return std::nullopt;
    out.batch = *batch;
    out.apart = words.take("apart");
  }
  if (!take_layout(words, out) || !take_types(words, out.in, out.out)) return std::nullopt;
  out.split_accumulator = words.take("split accumulator");
  out.cutlass = words.take("cutlass");
  if (!take_parts(words, out)) return std::nullopt;
  if (words.take("groups")) out.groups = words.take_numbers();
  if (words.take("blocks")) out.columns.blocks = words.take_numbers();
  out.accumulate = words.take("accumulate");
  return out;
}

/// "attention-backward", "scores", ...
bool take_step(Words& words, Attention& out) {
  std::string name = words.take();
  constexpr std::string_view kBackward = "-backward";
  if (name.ends_with(kBackward)) {
    out.backward = true;
    name.resize(name.size() - kBackward.size());
  }
  return find_name(name, AttentionStep::kQueryGradient, out.step);
}

bool take_extents(Words& words, Attention& out) {
  std::array<std::int64_t, 2> heads{};
  std::array<std::int64_t, 2> lengths{};
  if (!words.take("batch")) return false;
  const auto batch = words.take_number();
  if (!batch || !words.take("heads") || !words.take_sizes('/', heads)) return false;
  if (!words.take("length") || !words.take_sizes('x', lengths) || !words.take("head")) return false;
  out.batch = *batch;
  out.q_heads = heads[0];
  out.kv_heads = heads[1];
  out.q_len = lengths[0];
  out.kv_len = lengths[1];
  std::array<std::int64_t, 2> dims{};
  if (words.take_sizes('/', dims)) {
    out.head_dim = dims[0];
    out.value_dim = dims[1];
    return true;
  }
  const auto dim = words.take_number();
  out.head_dim = dim.value_or(0);
  return dim.has_value();
}

std::optional<Work> read_attention(Words& words) {
  constexpr double kDropout = 0.1;
  constexpr double kCap = 50;
  Attention out;
  if (!take_step(words, out) || !take_extents(words, out)) return std::nullopt;
  out.causal = words.take("causal");
  out.alibi = words.take("alibi");
  if (words.take("from sequence")) out.first_sequence = words.take_number().value_or(0);
  if (words.take("part")) {
    out.head_part = static_cast<std::int32_t>(words.take_number().value_or(0));
    if (!words.take("of")) return std::nullopt;
    out.head_parts = static_cast<std::int32_t>(words.take_number().value_or(1));
  }
  out.score.sinks = words.take("sinks");
  if (words.take("capped")) out.score.cap = kCap;
  if (words.take("dropout")) out.dropout = kDropout;
  if (words.take("window")) out.window = words.take_number().value_or(0);
  if (words.take("documents")) out.documents = words.take_numbers();
  if (words.take("and")) {
    out.more.kernels = static_cast<std::int32_t>(words.take_number().value_or(0));
    if (!words.take("kernels of")) return std::nullopt;
    out.more.bytes = words.take_number().value_or(0);
    if (!words.take("B")) return std::nullopt;
  }
  if (!find_name(words.take(), AttentionKernel::kTriton, out.kernel)) return std::nullopt;
  if (!find_type(words.take(), out.dtype)) return std::nullopt;
  return out;
}

/// "scan-backward delta batch 2 length 4096 heads 128/8 dim 64 state 128 chunk 256 bf16".
std::optional<Work> read_scan(Words& words) {
  Scan out;
  out.backward = words.take() == "scan-backward";
  std::array<std::int64_t, 2> heads{};
  const auto take = [&words](std::string_view name, std::int64_t& value) {
    if (!words.take(name)) return false;
    const auto number = words.take_number();
    value = number.value_or(0);
    return number.has_value();
  };
  for (const ScanRule rule : {ScanRule::kSelective, ScanRule::kDelta, ScanRule::kChannelDelta}) {
    if (words.take(name_of(rule))) out.rule = rule;
  }
  if (!take("batch", out.batch) || !take("length", out.length)) return std::nullopt;
  if (!words.take("heads") || !words.take_sizes('/', heads)) return std::nullopt;
  out.heads = heads[0];
  out.groups = heads[1];
  const bool sizes =
      take("dim", out.head_dim) && take("state", out.state) && take("chunk", out.chunk);
  if (!sizes || !find_type(words.take(), out.dtype)) return std::nullopt;
  return out;
}

bool fits_slot(std::int64_t value) { return value <= std::numeric_limits<std::int32_t>::max(); }

bool take_slot(Words& words, GroupSlot& out) {
  const auto slot = words.take_number();
  if (!slot || !fits_slot(*slot)) return false;
  out = GroupSlot(static_cast<std::size_t>(*slot));
  return true;
}

std::optional<Work> read_kernel(Words& words, KernelKind kind) {
  Kernel out;
  out.kind = kind;
  std::array<std::int64_t, 2> sizes{};
  words.take();
  if (!words.take_sizes('x', sizes) || !find_type(words.take(), out.dtype)) return std::nullopt;
  out.rows = sizes[0];
  out.cols = sizes[1];
  const auto bytes = words.take_number();
  if (!bytes || !words.take("B")) return std::nullopt;
  out.bytes = *bytes;
  if (words.take("in")) {
    out.launches = static_cast<std::int32_t>(words.take_number().value_or(1));
    if (!words.take("launches")) return std::nullopt;
  }
  if (words.take("split over group") && !take_slot(words, out.split_over)) return std::nullopt;
  if (words.take("from row")) out.first_row = words.take_number().value_or(0);
  if (words.take("columns split over group") && !take_slot(words, out.cols_split_over)) {
    return std::nullopt;
  }
  if (const auto capacity = words.take_number()) {
    out.rows_of.capacity = *capacity;
    if (!words.take("rows an expert of")) return std::nullopt;
    out.rows_of.experts = words.take_number().value_or(0);
    if (words.take("from")) {
      out.rows_of.sources = words.take_number().value_or(1);
      if (!words.take("ranks")) return std::nullopt;
    }
  }
  return out;
}

std::optional<Work> read_collective(Words& words, CollectiveKind kind) {
  Collective out;
  out.kind = kind;
  words.take();
  if (!words.take("group") || !take_slot(words, out.group)) return std::nullopt;
  const auto count = words.take_number();
  if (!count || !find_type(words.take(), out.dtype)) return std::nullopt;
  out.count = *count;
  out.maximum = words.take("max");
  if (words.take("root")) out.root = static_cast<std::int32_t>(words.take_number().value_or(0));
  return out;
}

std::optional<Work> read_copy(Words& words) {
  Copy out;
  words.take();
  const std::string ends = words.take();
  const std::size_t arrow = ends.find("->");
  if (arrow == std::string::npos || !find_name(ends.substr(0, arrow), Memory::kStorage, out.from) ||
      !find_name(ends.substr(arrow + 2), Memory::kStorage, out.to)) {
    return std::nullopt;
  }
  const auto bytes = words.take_number();
  if (!bytes || !words.take("B")) return std::nullopt;
  out.bytes = *bytes;
  out.pageable = words.take("pageable");
  return out;
}

/// Whether sizes are those of a work that something may do.
bool is_sane(const Work& work) {
  const auto all = [](const std::vector<std::int64_t>& values, std::int64_t least) {
    return std::all_of(values.begin(), values.end(),
                       [least](std::int64_t v) { return v >= least; });
  };
  if (const auto* g = std::get_if<Gemm>(&work)) {
    const bool groups = g->groups.empty() ||
                        (static_cast<std::int64_t>(g->groups.size()) == g->batch &&
                         std::accumulate(g->groups.begin(), g->groups.end(), std::int64_t{0}) > 0);
    return g->batch >= 1 && g->beside >= 1 && g->streams >= 1 && groups;
  }
  if (const auto* a = std::get_if<Attention>(&work)) {
    return all({a->batch, a->q_heads, a->kv_heads, a->q_len, a->kv_len, a->head_dim, a->head_parts},
               1) &&
           all(a->documents, 1) && a->q_heads % a->kv_heads == 0;
  }
  if (const auto* s = std::get_if<Scan>(&work)) {
    return all({s->batch, s->length, s->heads, s->groups, s->head_dim, s->state, s->chunk}, 1) &&
           s->heads % s->groups == 0;
  }
  if (const auto* k = std::get_if<Kernel>(&work)) return k->launches >= 1;
  return true;
}

std::optional<Work> read(Words& words) {
  const std::string& first = words.peek();
  if (first == "gemm") return read_gemm(words);
  if (first == "copy") return read_copy(words);
  if (first == "scan" || first == "scan-backward") return read_scan(words);
  CollectiveKind collective{};
  if (find_name(first, CollectiveKind::kAllToAll, collective)) {
    return read_collective(words, collective);
  }
  if (words.peek(1) == "batch") return read_attention(words);
  constexpr auto kLast = static_cast<KernelKind>(static_cast<int>(KernelKind::kCount) - 1);
  KernelKind kernel{};
  if (find_name(first, kLast, kernel)) return read_kernel(words, kernel);
  return std::nullopt;
}

}  // namespace

Result<Work> read_work(const std::string& text) {
  Words words(text);
  std::optional<Work> out = read(words);
  if (!out || !words.done() || !is_sane(*out))
    return unsupported("no work that can be read: \"" + text + "\"");
  return *std::move(out);
}

}  // namespace foretrain

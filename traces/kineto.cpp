#include "traces/kineto.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "traces/activity_builder.h"
#include "traces/json_stream.h"
#include "traces/json_text.h"

namespace foretrain {
namespace {

constexpr std::int64_t kLatest = std::int64_t{1} << 61;  // ns; sums and differences still fit

/// What of an event may matter, by its category.
enum class Kind : std::uint8_t { kNone, kGpu, kRuntime, kOperator, kAnnotation, kGpuAnnotation };

struct Event {
  std::string ph, cat, name, process, thread;
  std::optional<std::int64_t> at, lasts;
  bool misread = false;  ///< a time that is no number in range
  std::string device, stream;
  std::uint64_t correlation = 0;
  LaunchDetail detail;  ///< `op`: of a collective
};

std::string small_letters(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// PyTorch before 1.12 wrote "Kernel", "Memcpy", "Runtime", "Operator".
Kind kind_of(const std::string& category) {
  const std::string cat = small_letters(category);
  if (cat == "kernel" || cat == "concurrent_kernel" || cat.ends_with("memcpy") ||
      cat.ends_with("memset")) {
    return Kind::kGpu;
  }
  if (cat.ends_with("runtime") || cat.ends_with("driver")) return Kind::kRuntime;
  if (cat == "cpu_op" || cat == "operator") return Kind::kOperator;
  if (cat == "user_annotation") return Kind::kAnnotation;
  if (cat == "gpu_user_annotation") return Kind::kGpuAnnotation;
  return Kind::kNone;
}

std::int64_t whole(const std::string& text) { return std::strtoll(text.c_str(), nullptr, 10); }

bool bounded(const std::string& text) { return text.size() < 19; }

/// `each(key)` for every member of the object that was just begun; it reads the value.
template <typename Each>
bool each_member(JsonStream& json, Each each) {
  for (;;) {
    const JsonToken token = json.next();
    if (token == JsonToken::kObjectEnd) return true;
    if (token != JsonToken::kKey) return false;
    const std::string key = json.text();
    if (!each(key)) return false;
  }
}

/// The text of a string, number or word; "" of lists and objects, which are read over.
bool scalar(JsonStream& json, JsonToken token, std::string& out) {
  const bool text = token == JsonToken::kString || token == JsonToken::kNumber;
  if (text) out = json.text();
  return text || json.skip(token);
}

bool opens(JsonToken token) { return token == JsonToken::kObject || token == JsonToken::kArray; }
bool closes(JsonToken token) {
  return token == JsonToken::kObjectEnd || token == JsonToken::kArrayEnd;
}

void append_token(JsonToken token, const std::string& text, std::string& out) {
  constexpr std::string_view kBrackets = "{}[]";  // in the order of the tokens
  if (opens(token) || closes(token)) {
    out += kBrackets[static_cast<std::size_t>(token)];
  } else if (token == JsonToken::kString || token == JsonToken::kKey) {
    append_string(out, text);
    if (token == JsonToken::kKey) out += ':';
  } else {
    out += text;
  }
}

/// The value that `token` begins, as compact JSON; of a longer one than 16 KiB its begin.
bool compact(JsonStream& json, JsonToken token, std::string& out) {
  constexpr std::size_t kLongestShape = 1 << 14;
  out.clear();
  int level = 0;
  bool comma = false;
  for (;; token = json.next()) {
    if (token == JsonToken::kFault || token == JsonToken::kEnd) return false;
    if (out.size() < kLongestShape) {
      if (comma && !closes(token)) out += ',';
      append_token(token, json.text(), out);
    }
    comma = !opens(token) && token != JsonToken::kKey;
    if (opens(token)) ++level;
    if (closes(token)) --level;
    if (level == 0 && token != JsonToken::kKey) return true;
  }
}

/// Hands events to the builder.
class EventTaker {
 public:
  EventTaker(std::string source, const ActivityOptions& options)
      : builder(std::move(source)), x_options(options) {}

  /// Returns false where a time of an event that matters was misread.
  bool take(Event& event);
  std::vector<ActivityTrace> finish();

  ActivityBuilder builder;
  std::int64_t negative = 0;

 private:
  void take_gpu(Event& event, bool copy);
  void take_operator(Event& event);
  void take_annotation(const Event& event);

  const ActivityOptions& x_options;
};

bool EventTaker::take(Event& event) {
  const Kind kind = kind_of(event.cat);
  if (event.ph != "X" || kind == Kind::kNone) return true;
  if (event.misread) {
    return false;
  }
  if (!event.at) return true;
  const std::int64_t lasts = event.lasts.value_or(0);
  if (lasts < 0) {
    ++negative;
    return true;
  }
  event.lasts = lasts;
  switch (kind) {
    case Kind::kGpu:
      take_gpu(event, small_letters(event.cat).find("mem") != std::string::npos);
      break;
    case Kind::kRuntime:
      if (event.correlation == 0) break;
      builder.launches.push_back(
          {event.correlation, *event.at, builder.thread(event.process, event.thread)});
      break;
    case Kind::kOperator:
      take_operator(event);
      break;
    case Kind::kAnnotation:
    case Kind::kGpuAnnotation:
      take_annotation(event);
      break;
    case Kind::kNone:
      break;
  }
  return true;
}

void EventTaker::take_gpu(Event& event, bool copy) {
  RawEvent raw;
  raw.event.begin = *event.at;
  raw.event.end = *event.at + *event.lasts;
  raw.event.name = builder.name(event.name);
  if (copy && builder.class_of_name(raw.event.name) != FamilyClass::kCopy) {
    raw.event.name = builder.name("Memcpy " + event.name);
  }
  const std::string& device = event.device.empty() ? event.process : event.device;
  raw.device = static_cast<std::uint32_t>(std::strtoul(device.c_str(), nullptr, 10));
  raw.event.stream = builder.stream(raw.device, event.stream.empty() ? event.thread : event.stream);
  raw.correlation = event.correlation;
  if (!event.detail.op.empty()) raw.collective = classify_collective(event.detail.op);
  builder.events.push_back(raw);
}

void EventTaker::take_operator(Event& event) {
  const std::int64_t end = *event.at + *event.lasts;
  if (event.name.starts_with(x_options.step_name)) return take_annotation(event);
  HostSpan span;
  span.begin = *event.at;
  span.end = end;
  if (event.name.starts_with("autograd::engine::evaluate_function")) {
    span.thread = builder.thread(event.process, event.thread);
    span.phase = HostPhase::kBackward;
    builder.autograd(span.thread);
  } else if (!event.detail.op.empty() && event.name == "record_param_comms") {
    span.thread = builder.thread(event.process, event.thread);
    span.role = HostRole::kCollective;
    span.collective = classify_collective(event.detail.op);
  } else if (x_options.details && !event.detail.dims.empty()) {
    span.thread = builder.thread(event.process, event.thread);
    span.role = HostRole::kOperator;
    event.detail.op = event.name;
    span.detail = builder.detail(std::move(event.detail));
    span.call = static_cast<std::int32_t>(builder.spans.size());
  } else {
    return;
  }
  builder.spans.push_back(span);
}

void EventTaker::take_annotation(const Event& event) {
  const std::int64_t end = *event.at + *event.lasts;
  const bool on_gpu = kind_of(event.cat) == Kind::kGpuAnnotation;
  if (event.name.starts_with(x_options.step_name)) {
    if (*event.lasts == 0) return;  // what the profiler did not see end
    TraceFacts& facts = builder.facts;
    (on_gpu ? facts.gpu_steps : facts.steps).push_back({*event.at, end, event.name});
    if (!on_gpu) builder.drives(builder.thread(event.process, event.thread));
    return;
  }
  if (on_gpu) return;
  HostSpan span;
  span.begin = *event.at;
  span.end = end;
  if (event.name.starts_with("nccl:")) {
    span.role = HostRole::kCollective;
    span.collective = classify_collective(event.name);
  } else {
    span.phase = phase_of_annotation(event.name);
    if (span.phase == HostPhase::kUnknown) return;
  }
  span.thread = builder.thread(event.process, event.thread);
  if (span.phase == HostPhase::kOptimizer) builder.drives(span.thread);
  builder.spans.push_back(span);
}

std::vector<ActivityTrace> EventTaker::finish() {
  if (negative > 0) {
    builder.facts.notes.push_back(std::to_string(negative) +
                                  " events of negative duration were left out");
  }
  return builder.take();
}

class KinetoReader {
 public:
  KinetoReader(ByteStream& bytes, const ActivityOptions& options)
      : x_bytes(bytes), x_options(options), x_json(bytes), x_taker(bytes.path(), options) {}

  Result<std::vector<ActivityTrace>> read();

 private:
  bool document();
  bool member(const std::string& key);
  bool events();
  bool event();
  bool event_member(Event& event);
  bool arguments(Event& event);
  bool devices();
  bool distributed();
  bool groups();
  bool time(JsonToken token, std::optional<std::int64_t>& out, Event& event);
  bool wants_arguments(const Event& event) const;

  ByteStream& x_bytes;
  const ActivityOptions& x_options;
  JsonStream x_json;
  EventTaker x_taker;
  std::int64_t x_events = 0;
  bool x_own = false;  ///< foretrain wrote it
};

bool KinetoReader::time(JsonToken token, std::optional<std::int64_t>& out, Event& event) {
  std::string text;
  if (!scalar(x_json, token, text)) return false;
  std::int64_t ns = 0;
  if (parse_us(text, ns)) {
    out = ns;
  } else {
    event.misread = true;
  }
  return true;
}

bool KinetoReader::wants_arguments(const Event& event) const {
  if (event.cat.empty()) return true;  // arguments may stand before the category
  switch (kind_of(event.cat)) {
    case Kind::kGpu:
    case Kind::kRuntime:
      return true;
    case Kind::kOperator:
      return x_options.details || event.name.empty() || event.name == "record_param_comms";
    case Kind::kAnnotation:
    case Kind::kGpuAnnotation:
    case Kind::kNone:
      break;
  }
  return false;
}

bool KinetoReader::arguments(Event& event) {
  return each_member(x_json, [this, &event](const std::string& key) {
    const JsonToken token = x_json.next();
    std::string text;
    if (key == "Input Dims") return compact(x_json, token, event.detail.dims);
    if (key == "Input type") return compact(x_json, token, event.detail.types);
    if (key == "Input Strides") return compact(x_json, token, event.detail.strides);
    if (key == "Concrete Inputs") return compact(x_json, token, event.detail.concrete);
    if (!scalar(x_json, token, text)) return false;
    if (key == "correlation") {
      event.correlation = std::strtoull(text.c_str(), nullptr, 10);
    } else if (key == "stream") {
      event.stream = text;
    } else if (key == "device") {
      event.device = text;
    } else if (key == "Collective name") {
      event.detail.op = text;
    } else if (key == "Group size" && bounded(text)) {
      std::int64_t& largest = x_taker.builder.facts.largest_group;
      largest = std::max(largest, whole(text));
    }
    return true;
  });
}

bool KinetoReader::event_member(Event& event) {
  const std::string key = x_json.text();
  const JsonToken token = x_json.next();
  if (key == "ph") return scalar(x_json, token, event.ph);
  if (key == "cat") return scalar(x_json, token, event.cat);
  if (key == "name") return scalar(x_json, token, event.name);
  if (key == "pid") return scalar(x_json, token, event.process);
  if (key == "tid") return scalar(x_json, token, event.thread);
  if (key == "ts") return time(token, event.at, event);
  if (key == "dur") return time(token, event.lasts, event);
  if (key == "args" && token == JsonToken::kObject && wants_arguments(event)) {
    return arguments(event);
  }
  return x_json.skip(token);
}

bool KinetoReader::event() {
  Event event;
  for (;;) {
    const JsonToken token = x_json.next();
    if (token == JsonToken::kObjectEnd) break;
    if (token != JsonToken::kKey || !event_member(event)) return false;
  }
  ++x_events;
  constexpr std::int64_t kEvery = 1 << 16;
  if (x_options.progress && x_events % kEvery == 0) {
    x_options.progress(x_bytes.done(), x_bytes.all());
  }
  if (x_taker.take(event)) return true;
  x_json.fault("the event \"" + event.name.substr(0, 80) +
               "\" has a ts or dur that is no number of microseconds below 2^61 ns");
  return false;
}

bool KinetoReader::events() {
  for (;;) {
    const JsonToken token = x_json.next();
    if (token == JsonToken::kArrayEnd) return true;
    if (token == JsonToken::kFault) return false;
    if (token == JsonToken::kObject) {
      if (!event()) return false;
    } else if (!x_json.skip(token)) {
      return false;
    }
  }
}

/// [{"id": 0, "name": "NVIDIA H100 80GB HBM3", ...}, ...]
bool KinetoReader::devices() {
  for (;;) {
    const JsonToken token = x_json.next();
    if (token == JsonToken::kArrayEnd) return true;
    if (token != JsonToken::kObject) {
      if (!x_json.skip(token)) return false;
      continue;
    }
    std::string id;
    std::string name;
    if (!each_member(x_json, [&](const std::string& key) {
          const JsonToken value = x_json.next();
          if (key == "id") return scalar(x_json, value, id);
          if (key == "name") return scalar(x_json, value, name);
          return x_json.skip(value);
        })) {
      return false;
    }
    constexpr std::size_t kMostDevices = 4096;
    if (x_taker.builder.facts.devices.size() < kMostDevices) {
      x_taker.builder.facts
          .devices[static_cast<std::uint32_t>(std::strtoul(id.c_str(), nullptr, 10))] = name;
    }
  }
}

/// "pg_config": the largest group is at most the world.
bool KinetoReader::groups() {
  for (;;) {
    const JsonToken token = x_json.next();
    if (token == JsonToken::kArrayEnd) return true;
    if (token != JsonToken::kObject) {
      if (!x_json.skip(token)) return false;
      continue;
    }
    if (!each_member(x_json, [&](const std::string& key) {
          std::string text;
          if (!scalar(x_json, x_json.next(), text)) return false;
          if (key == "pg_size" && bounded(text)) {
            x_taker.builder.facts.world_size =
                std::max(x_taker.builder.facts.world_size, whole(text));
          }
          return true;
        })) {
      return false;
    }
  }
}

bool KinetoReader::distributed() {
  return each_member(x_json, [this](const std::string& key) {
    const JsonToken token = x_json.next();
    if (key == "pg_config" && token == JsonToken::kArray) return groups();
    std::string text;
    if (!scalar(x_json, token, text)) return false;
    if (!bounded(text)) return true;
    if (key == "world_size")
      x_taker.builder.facts.world_size = std::max(x_taker.builder.facts.world_size, whole(text));
    if (key == "rank") x_taker.builder.facts.rank = whole(text);
    return true;
  });
}

bool KinetoReader::member(const std::string& key) {
  const JsonToken token = x_json.next();
  if (key == "traceEvents" && token == JsonToken::kArray) return events();
  if (key == "deviceProperties" && token == JsonToken::kArray) return devices();
  if (key == "distributedInfo" && token == JsonToken::kObject) return distributed();
  if (key != "otherData" || token != JsonToken::kObject) return x_json.skip(token);
  return each_member(x_json, [this](const std::string& inner) {
    std::string text;
    if (!scalar(x_json, x_json.next(), text)) return false;
    x_own = x_own || (inner == "schema" && text.starts_with("foretrain/"));
    return true;
  });
}

bool KinetoReader::document() {
  const JsonToken token = x_json.next();
  if (token == JsonToken::kArray) return events() && x_json.next() == JsonToken::kEnd;
  if (token == JsonToken::kObject) {
    return each_member(x_json, [this](const std::string& key) { return member(key); }) &&
           x_json.next() == JsonToken::kEnd;
  }
  if (token != JsonToken::kFault) x_json.fault("expected an object with traceEvents");
  return false;
}

Result<std::vector<ActivityTrace>> KinetoReader::read() {
  if (!document()) {
    if (x_json.error().message.empty()) x_json.fault("this is no trace of events");
    return x_json.error();
  }
  const std::string& path = x_bytes.path();
  if (x_own) {
    return input_error(path +
                       ": a trace that foretrain wrote to be looked at; it compares timelines, "
                       "which `simulate RUN --timeline FILE` writes");
  }
  if (x_taker.builder.events.empty()) {
    return input_error(path + ": found " + std::to_string(x_events) +
                       " events, none of them a kernel or copy of a GPU with a time and a "
                       "duration; profile with ProfilerActivity.CUDA");
  }
  return x_taker.finish();
}

constexpr std::int64_t kNsInUs = 1000;

/// The digits behind the point of microseconds, in nanoseconds, rounded.
bool parse_fraction(std::string_view digits, std::int64_t& ns) {
  constexpr std::size_t kKept = 3;
  ns = 0;
  for (std::size_t i = 0; i < std::max(digits.size(), kKept); ++i) {
    const char digit = i < digits.size() ? digits[i] : '0';
    if (digit < '0' || digit > '9') return false;
    if (i < kKept) ns = ns * 10 + (digit - '0');
    if (i == kKept && digit >= '5') ++ns;
  }
  return true;
}

}  // namespace

bool parse_us(std::string_view text, std::int64_t& ns) {
  constexpr std::int64_t kMostUs = kLatest / kNsInUs - 1;
  std::int64_t us = 0;
  const char* end = text.data() + text.size();
  const auto [point, error] = std::from_chars(text.data(), end, us);
  if (error == std::errc() && us <= kMostUs && us >= -kMostUs && point == end) {
    ns = us * kNsInUs;
    return true;
  }
  const bool exact = error == std::errc() && us <= kMostUs && us >= -kMostUs && *point == '.';
  std::int64_t fraction = 0;
  if (exact && parse_fraction({point + 1, static_cast<std::size_t>(end - point - 1)}, fraction)) {
    ns = us * kNsInUs + (text.starts_with("-") ? -fraction : fraction);
    return true;
  }
  const std::string copy(text);
  char* rest = nullptr;
  const double value = std::strtod(copy.c_str(), &rest);
  const auto most = static_cast<double>(kMostUs);
  if (copy.empty() || *rest != 0 || !(value > -most && value < most)) return false;
  ns = static_cast<std::int64_t>(value * static_cast<double>(kNsInUs));
  return true;
}

Result<std::vector<ActivityTrace>> read_kineto(ByteStream& bytes, const ActivityOptions& options) {
  return KinetoReader(bytes, options).read();
}

}  // namespace foretrain

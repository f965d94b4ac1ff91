// Keys of a file, each declared once: what reads it, its type and range, its default, what it is
// called elsewhere, when it changes nothing, and a value that must change a result. Readers,
// defaults, hints, the reference page, JSON Schemas and tests are made from these declarations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/json.h"

namespace foretrain {

/// KEY=VALUE, as --set takes them.
using Sets = std::vector<std::string>;

enum class KeyType : std::uint8_t { kFlag, kCount, kNumber, kText, kChoice, kNames, kAny };

/// What another system calls a key. `says` stands behind the key in the answer to a user.
struct KeyAlias {
  std::string name, says;
  bool former = false;  ///< a path that the key itself had before: still read, with a note
};

/// A change that must move a result, beside changes that bring a run to where it matters.
struct Probe {
  std::string set;
  Sets base;
};

/// Why a key changes nothing, and changes that bring a run there.
struct IdleReason {
  std::string why;
  Sets base;
  std::string value;  ///< to try; "" is that of the first probe
};

/// A declaration without what depends on the file's type.
struct KeyFacts {
  std::string section, name;  ///< a key of the file itself has no section
  KeyType type = KeyType::kAny;
  double low = 0, high = 0;          ///< of numbers
  std::vector<std::string> choices;  ///< of choices and lists of names
  bool or_auto = false;              ///< "auto" is accepted as well
  bool or_object = false;            ///< the keys of the section of this name are accepted as well
  std::optional<Json> fallback;      ///< the default, where it does not depend on other keys
  std::string fallback_rule;         ///< in words, where it depends on other keys
  std::string doc;
  std::vector<KeyAlias> aliases;
  std::vector<std::pair<std::string, std::string>> values;  ///< other systems' values, and ours
  std::vector<Probe> probes;

  std::string path() const { return section.empty() ? name : section + "." + name; }
  std::string pointer() const {
    std::string out = "/" + path();
    std::replace(out.begin(), out.end(), '.', '/');
    return out;
  }
};

/// How much a key may be, as a schema and the reference page say it.
inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// Which of `names` stand in the list at `key`.
std::vector<std::size_t> read_names(JsonReader& reader, const std::string& key,
                                    const std::vector<std::string>& names);

/// A key of what `Target` is read from. `Context` is what its effect depends on.
template <typename Target, typename Context>
class Key : public KeyFacts {
 public:
  using Condition = bool (*)(const Context&);
  struct Idle : IdleReason {
    Condition holds = nullptr;
  };
  using Read = std::function<void(const Key&, JsonReader&, Target&)>;
  template <typename Value>
  using Setter = std::function<void(Target&, Value)>;

  Key(const std::string& path, KeyType of, Read reads) : x_read(std::move(reads)) {
    const std::size_t dot = path.rfind('.');
    section = dot == std::string::npos ? "" : path.substr(0, dot);
    name = dot == std::string::npos ? path : path.substr(dot + 1);
    type = of;
  }

  static Key flag(const std::string& path, Setter<bool> set) {
    return Key(path, KeyType::kFlag,
               [set = std::move(set)](const Key& key, JsonReader& r, Target& t) {
                 bool value = false;
                 if (r.read(key.name, value)) set(t, value);
               });
  }
  static Key count(const std::string& path, Setter<std::int64_t> set) {
    const auto read = [set = std::move(set)](const Key& key, JsonReader& r, Target& t) {
      std::int64_t value = 0;
      const JsonReader::IntRange range{static_cast<std::int64_t>(key.low),
                                       static_cast<std::int64_t>(key.high)};
      if (r.read(key.name, value, range)) set(t, value);
    };
    return Key(path, KeyType::kCount, read).range(1, 1'000'000'000);
  }
  static Key number(const std::string& path, Setter<double> set) {
    return Key(path, KeyType::kNumber,
               [set = std::move(set)](const Key& key, JsonReader& r, Target& t) {
                 double value = 0;
                 if (r.read(key.name, value, JsonReader::Range{key.low, key.high})) set(t, value);
               });
  }
  static Key text(const std::string& path, Setter<const std::string&> set) {
    return Key(path, KeyType::kText,
               [set = std::move(set)](const Key& key, JsonReader& r, Target& t) {
                 std::string value;
                 if (r.read(key.name, value)) set(t, value);
               });
  }
  /// One of `names`, which stand for `Value` 0, 1, ...
  template <typename Value>
  static Key choice(const std::string& path, std::vector<std::string> names, Setter<Value> set) {
    Key out(path, KeyType::kChoice,
            [set = std::move(set)](const Key& key, JsonReader& r, Target& t) {
              int value = 0;
              if (r.read_choice(key.name, value, key.choices)) set(t, static_cast<Value>(value));
            });
    out.choices = std::move(names);
    return out;
  }
  /// A list of `names`; each that stands there is set.
  static Key names(const std::string& path, std::vector<std::string> names,
                   Setter<std::size_t> set) {
    Key out(path, KeyType::kNames,
            [set = std::move(set)](const Key& key, JsonReader& r, Target& t) {
              for (const std::size_t index : read_names(r, key.name, key.choices)) set(t, index);
            });
    out.choices = std::move(names);
    return out;
  }
  /// Read elsewhere, as a whole.
  static Key elsewhere(const std::string& path, KeyType type = KeyType::kAny) {
    return Key(path, type, [](const Key& key, JsonReader& r, Target&) { r.take(key.name); });
  }

  void read(JsonReader& reader, Target& target) const { x_read(*this, reader, target); }

  Key&& range(double from, double to) && { return low = from, high = to, std::move(*this); }
  Key&& fallback_to(Json value) && { return fallback = std::move(value), std::move(*this); }
  Key&& else_(std::string rule) && { return fallback_rule = std::move(rule), std::move(*this); }
  Key&& says(std::string text) && { return doc = std::move(text), std::move(*this); }
  Key&& auto_too() && { return or_auto = true, std::move(*this); }
  Key&& object_too() && { return or_object = true, std::move(*this); }
  /// Names in other systems.
  Key&& alias(const std::vector<std::string>& others, const std::string& more = "") && {
    for (const std::string& other : others) aliases.push_back({other, more});
    return std::move(*this);
  }
  /// Values in other systems.
  Key&& value(std::string theirs, std::string ours) && {
    values.emplace_back(std::move(theirs), std::move(ours));
    return std::move(*this);
  }
  Key&& probe(const std::string& value, Sets base = {}) && {
    probes.push_back({path() + "=" + value, std::move(base)});
    return std::move(*this);
  }
  Key&& probe_set(std::string set, Sets base = {}) && {
    probes.push_back({std::move(set), std::move(base)});
    return std::move(*this);
  }
  /// It changes nothing where `holds`. Conditions are asked in the order in which they stand.
  Key&& idle_if(Condition holds, std::string why, Sets base = {}, std::string value = "") && {
    Idle one;
    one.why = std::move(why);
    one.base = std::move(base);
    one.value = std::move(value);
    one.holds = holds;
    x_idle.push_back(std::move(one));
    return std::move(*this);
  }
  Key&& idle(const Idle& reason) && { return x_idle.push_back(reason), std::move(*this); }

  const std::vector<Idle>& idle_reasons() const { return x_idle; }
  /// Why it changes nothing there; null: it may.
  const Idle* idle_in(const Context& context) const {
    for (const Idle& one : x_idle) {
      if (one.holds(context)) return &one;
    }
    return nullptr;
  }

 private:
  Read x_read;
  std::vector<Idle> x_idle;
};

}  // namespace foretrain

// JSON as values, read strictly: duplicate keys, unknown keys and wrong types are errors that name
// the file, the JSON pointer, what was found and what is accepted.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sim/base/result.h"

namespace foretrain {

/// One JSON value. Objects keep the order of their keys.
struct Json {
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  using Alternatives =
      std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object>;
  /// A variant whose copies may run out of memory: that of libstdc++ 12, where all alternatives can
  /// be moved without exceptions, destroys in its copy constructor what was never made.
  struct Value : Alternatives {
    using Alternatives::variant;
    using Alternatives::operator=;
    Value(const Value& other) : Alternatives(nullptr) {
      std::visit(
          [this](const auto& held) {
            auto copy = held;
            Alternatives::operator=(std::move(copy));
          },
          static_cast<const Alternatives&>(other));
    }
    Value(Value&&) noexcept = default;
    Value& operator=(const Value& other) { return *this = Value(other); }
    Value& operator=(Value&&) noexcept = default;
    ~Value() = default;
  };
  Value value = nullptr;

  Json() = default;
  Json(std::nullptr_t) {}                               // NOLINT: literals read as values
  Json(bool b) : value(b) {}                            // NOLINT
  Json(std::int64_t i) : value(i) {}                    // NOLINT
  Json(int i) : value(static_cast<std::int64_t>(i)) {}  // NOLINT
  Json(double d) : value(d) {}                          // NOLINT
  Json(std::string s) : value(std::move(s)) {}          // NOLINT
  Json(std::string_view s) : value(std::string(s)) {}   // NOLINT
  Json(const char* s) : value(std::string(s)) {}        // NOLINT
  Json(Array a) : value(std::move(a)) {}                // NOLINT
  Json(Object o) : value(std::move(o)) {}               // NOLINT

  bool operator==(const Json& other) const { return value == other.value; }

  bool is_null() const { return value.index() == 0; }
  bool is_string() const { return std::holds_alternative<std::string>(value); }
  bool is_number() const { return value.index() == 2 || value.index() == 3; }
  const Object* object() const { return std::get_if<Object>(&value); }
  Object* object() { return std::get_if<Object>(&value); }
  const Array* array() const { return std::get_if<Array>(&value); }
  const std::string* string() const { return std::get_if<std::string>(&value); }
  /// The number as a double; 0 if it is not one.
  double number() const;

  /// The member of that name, or nullptr (also when this is no object).
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  /// Sets a member, at its old place or at the end. A value that is no object becomes one.
  Json& set(std::string_view key, Json item);
  /// Removes the member of that name if there is one.
  void erase(std::string_view key);
};

/// The path that stands for standard input.
inline constexpr std::string_view kStandardInput = "-";

/// Parses one document. `source` names it in messages. Comments (// and /* */) and a comma after
/// the last element are read over, and Infinity is 1e308. Fails on duplicate keys, more than 64
/// levels, numbers that overflow, anything after the value.
Result<Json> parse_json(std::string_view text, const std::string& source);

/// Reads and parses a file of at most 1 GiB, or standard input; gzip is uncompressed.
Result<Json> read_json_file(const std::string& path);

/// Reads a whole file, or standard input; the message names it and the system's reason.
Result<std::string> read_text_file(const std::string& path);

/// Writes `json`; `indent` < 0 gives one line. Doubles are the shortest text that reads back equal.
std::string dump_json(const Json& json, int indent = 2);

/// What a value is, for messages: `"eight"`, `3.5`, `an object`, ...
std::string describe(const Json& json);

/// The accepted name nearest to `wrong` by edit distance, or "" if none is near.
std::string nearest_name(std::string_view wrong, const std::vector<std::string>& accepted);

/// Reads the members of one object. Every `read` marks its key as known; `finish` returns all
/// errors, the first of each key, and refuses unknown keys.
///
///   JsonReader reader(json, "run.json", "/parallel");
///   reader.read("tensor", plan.tensor, {1, 1 << 20});
///   FT_TRY(reader.finish());
class JsonReader {
 public:
  struct IntRange {
    std::int64_t low;
    std::int64_t high;
  };
  struct Range {
    double low;
    double high;
  };

  /// `json` must outlive the reader. `where` is the JSON pointer of this object ("" at the root).
  JsonReader(const Json& json, std::string source, std::string where);

  bool has(std::string_view key);  ///< present and not null; marks the key as known
  /// Each leaves `out` alone, and returns false, when the key is absent, null or wrong.
  bool read(std::string_view key, std::int64_t& out, IntRange range);
  bool read(std::string_view key, std::int32_t& out, IntRange range);
  bool read(std::string_view key, double& out, Range range);
  bool read(std::string_view key, bool& out);
  bool read(std::string_view key, std::string& out);
  /// The index of the string in `names` goes to `out`.
  bool read_choice(std::string_view key, int& out, const std::vector<std::string>& names);
  template <typename Enum>
  void read_enum(std::string_view key, Enum& out, const std::vector<std::string>& names) {
    int index = static_cast<int>(out);
    read_choice(key, index, names);
    out = static_cast<Enum>(index);
  }
  /// The member itself, for nested readers; nullptr if absent or null.
  const Json* take(std::string_view key);
  /// Like `take`, but absence is an error; `what` says what belongs there.
  const Json* require(std::string_view key, std::string_view what);
  /// Keys that may stand here and are not read; they are listed in `ignored()`.
  void ignore(std::string_view key);
  const std::vector<std::string>& ignored() const { return x_ignored; }

  /// Keys of the object that nothing has read or ignored so far.
  std::vector<std::string> unknown() const;

  /// Records an error about `key` unless there is one about it already.
  void fail(std::string_view key, const std::string& message, ErrorKind kind = ErrorKind::kInput);
  /// Records the errors of a nested reader, which names its own place.
  void adopt(const Status& status);
  bool failed() const { return !x_errors.empty(); }
  /// The errors so far, of a reader that has not seen all of its keys.
  Status status() const;
  Status finish();

  const std::string& source() const { return x_source; }
  std::string pointer(std::string_view key) const;

 private:
  const Json* find(std::string_view key);
  void fail_value(std::string_view key, const std::string& expected, const std::string& hint = "");
  bool read_number(std::string_view key, double& out, const std::string& accepted);

  const Json& x_json;
  std::string x_source;
  std::string x_where;
  std::vector<std::string> x_known;
  std::vector<std::string> x_ignored;
  std::vector<Error> x_errors;
  bool x_missing = false;  ///< the first error is of a key that is missing
};

/// Like `reader.read`, for names that other programs gave: of any characters.
void read_any_text(JsonReader& reader, std::string_view key, std::string& out);

/// Reads "schema", which says what a file is: where there is one it must be `expected`, such as
/// "foretrain/device/1". "$schema", which is for editors, may be anything.
void read_schema(JsonReader& reader, const std::string& expected);

/// "SOURCE: /pointer: ", or without the pointer where it is empty: a message begins so.
std::string place_in(const std::string& source, const std::string& pointer);

}  // namespace foretrain

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "sim/base/json.h"
#include "sim/base/key.h"
#include "sim/base/printable.h"

namespace foretrain {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Upper and lower case are one.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// Every name once.
std::string join(const std::vector<std::string>& names) {
  std::string out;
  for (auto it = names.begin(); it != names.end(); ++it) {
    if (std::find(names.begin(), it, *it) != it) continue;
    out += (out.empty() ? "" : ", ") + *it;
  }
  return out;
}

std::string short_number(double v) {
  std::string text = dump_json(Json(v), -1);
  if (text.size() > 2 && text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

}  // namespace

std::string describe(const Json& json) {
  if (json.object() != nullptr) return "an object";
  if (json.array() != nullptr) return "a list";
  constexpr std::size_t kLongest = 60;
  std::string text = dump_json(json, -1);
  if (text.size() <= kLongest) return text;
  std::size_t end = kLongest - 3;
  while ((static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80) --end;  // a whole character
  return text.substr(0, end) + "...";
}

std::string nearest_name(std::string_view wrong, const std::vector<std::string>& accepted) {
  if (wrong.size() > 200) return "";
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, wrong.size() / 3) + 1;
  for (const std::string& name : accepted) {
    const std::size_t distance = edit_distance(wrong, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  constexpr std::size_t kPart = 3;  // letters that tell something of a name
  if (!best.empty() || wrong.size() < kPart) return best;
  for (const std::string& name : accepted) {  // the shortest that holds it
    if (name.find(wrong) == std::string::npos) continue;
    if (best.empty() || name.size() < best.size()) best = name;
  }
  return best;
}

JsonReader::JsonReader(const Json& json, std::string source, std::string where)
    : x_json(json), x_source(std::move(source)), x_where(std::move(where)) {
  if (json.object() == nullptr) {
    x_errors.push_back({x_source + ": " + (x_where.empty() ? "the document" : x_where) +
                            ": found " + describe(json) + ", expected an object",
                        ErrorKind::kInput, x_where, describe(json)});
  }
}

std::string JsonReader::pointer(std::string_view key) const {
  return key.empty() ? x_where : x_where + "/" + std::string(key);
}

const Json* JsonReader::find(std::string_view key) {
  x_known.emplace_back(key);
  const Json* json = x_json.find(key);
  return json == nullptr || json->is_null() ? nullptr : json;
}

bool JsonReader::has(std::string_view key) { return find(key) != nullptr; }

const Json* JsonReader::take(std::string_view key) { return find(key); }

const Json* JsonReader::require(std::string_view key, std::string_view what) {
  const Json* json = find(key);
  if (json == nullptr) {
    x_missing = x_missing || x_errors.empty();
    fail(key, "is missing, expected " + std::string(what));
  }
  return json;
}

void JsonReader::ignore(std::string_view key) {
  if (x_json.find(key) == nullptr) return;
  if (std::find(x_known.begin(), x_known.end(), key) != x_known.end()) return;  // it was read
  x_known.emplace_back(key);
  x_ignored.emplace_back(key);
}

bool JsonReader::read_number(std::string_view key, double& out, const std::string& accepted) {
  const Json* json = find(key);
  if (json == nullptr) return false;
  if (!json->is_number()) {
    fail_value(key, accepted);
    return false;
  }
  out = json->number();
  return true;
}

bool JsonReader::read(std::string_view key, double& out, Range range) {
  const std::string accepted =
      "a number from " + short_number(range.low) + " to " + short_number(range.high);
  double value = 0;
  if (!read_number(key, value, accepted)) return false;
  if (value < range.low || value > range.high) {
    fail(key, "found " + short_number(value) + ", expected " + accepted);
    return false;
  }
  out = value;
  return true;
}

bool JsonReader::read(std::string_view key, std::int64_t& out, IntRange range) {
  const std::string accepted =
      "a whole number from " + std::to_string(range.low) + " to " + std::to_string(range.high);
  double value = 0;
  if (!read_number(key, value, accepted)) return false;
  const Json& json = *x_json.find(key);
  const auto* exact = std::get_if<std::int64_t>(&json.value);
  const bool whole = exact != nullptr || (std::floor(value) == value && std::fabs(value) < 9e15);
  const std::int64_t integer = exact != nullptr ? *exact : whole ? std::int64_t(value) : 0;
  if (!whole || integer < range.low || integer > range.high) {
    fail_value(key, accepted);
    return false;
  }
  out = integer;
  return true;
}

bool JsonReader::read(std::string_view key, std::int32_t& out, IntRange range) {
  std::int64_t wide = out;
  const bool is = read(key, wide, range);
  out = static_cast<std::int32_t>(wide);
  return is;
}

bool JsonReader::read(std::string_view key, bool& out) {
  const Json* json = find(key);
  if (json == nullptr) return false;
  const bool* value = std::get_if<bool>(&json->value);
  if (value == nullptr) {
    fail_value(key, "true or false");
    return false;
  }
  out = *value;
  return true;
}

bool JsonReader::read(std::string_view key, std::string& out) {
  const Json* json = find(key);
  if (json == nullptr) return false;
  if (json->string() == nullptr) {
    fail_value(key, "a text");
    return false;
  }
  if (printable_line(*json->string()) != *json->string()) {
    fail_value(key, "a text of one line, without control characters");
    return false;
  }
  out = *json->string();
  return true;
}

bool JsonReader::read_choice(std::string_view key, int& out,
                             const std::vector<std::string>& names) {
  const Json* json = find(key);
  if (json == nullptr) return false;
  const std::string* value = json->string();
  const auto it = value ? std::find(names.begin(), names.end(), *value) : names.end();
  if (it == names.end()) {
    const std::string near = value ? nearest_name(*value, names) : "";
    fail_value(key, "one of " + join(names),
               near.empty() ? "" : " (did you mean \"" + near + "\"?)");
    return false;
  }
  out = static_cast<int>(it - names.begin());
  return true;
}

void JsonReader::fail(std::string_view key, const std::string& message, ErrorKind kind) {
  const std::string place = pointer(key);
  const std::string text = x_source + ": " + (place.empty() ? "" : place + ": ") + message;
  const bool told = std::any_of(x_errors.begin(), x_errors.end(),
                                [&text](const Error& one) { return one.message == text; });
  if (!told) x_errors.push_back({text, kind, place});
}

void JsonReader::fail_value(std::string_view key, const std::string& expected,
                            const std::string& hint) {
  const std::string found = describe(*x_json.find(key));
  const std::size_t before = x_errors.size();
  fail(key, "found " + found + ", expected " + expected + hint);
  if (x_errors.size() == before) return;
  x_errors.back().found = found;
  x_errors.back().hint = hint;
}

void JsonReader::adopt(const Status& status) {
  if (status.ok()) return;
  Error first = status.error();
  std::vector<Error> more = std::move(first.more);
  first.more.clear();
  x_errors.push_back(std::move(first));
  for (Error& one : more) x_errors.push_back(std::move(one));
}

Status JsonReader::status() const {
  if (x_errors.empty()) return ok_status();
  Error out = x_errors.front();
  out.more.insert(out.more.end(), x_errors.begin() + 1, x_errors.end());
  return out;
}

std::vector<std::string> JsonReader::unknown() const {
  std::vector<std::string> out;
  if (x_json.object() == nullptr) return out;
  for (const auto& [key, value] : *x_json.object()) {
    if (std::find(x_known.begin(), x_known.end(), key) == x_known.end()) out.push_back(key);
  }
  return out;
}

Status JsonReader::finish() {
  if (x_json.object() == nullptr) return status();
  for (const auto& [key, value] : *x_json.object()) {
    if (std::find(x_known.begin(), x_known.end(), key) != x_known.end()) continue;
    if (x_missing) {  // perhaps what is missing is there by another name
      x_errors.front().message += "; unknown here: " + key;
      break;
    }
    const std::string near = nearest_name(key, x_known);
    const std::string hint =
        near.empty() ? "; accepted here: " + join(x_known) : " (did you mean \"" + near + "\"?)";
    const std::size_t before = x_errors.size();
    fail(key, "unknown key" + hint);
    if (x_errors.size() == before) continue;
    x_errors.back().hint = hint;
    x_errors.back().unknown_key = true;
  }
  return status();
}

void read_any_text(JsonReader& reader, std::string_view key, std::string& out) {
  const Json* json = reader.take(key);
  if (json == nullptr) return;
  if (json->string() == nullptr) {
    return reader.fail(key, "found " + describe(*json) + ", expected a text");
  }
  out = *json->string();
}

void read_schema(JsonReader& reader, const std::string& expected) {
  reader.ignore("$schema");
  const Json* schema = reader.take("schema");
  if (schema == nullptr || *schema == Json(expected)) return;
  reader.fail("schema", "found " + describe(*schema) + ", expected \"" + expected + "\"");
}

std::string place_in(const std::string& source, const std::string& pointer) {
  return source + ": " + (pointer.empty() ? "" : pointer + ": ");
}

std::vector<std::size_t> read_names(JsonReader& reader, const std::string& key,
                                    const std::vector<std::string>& names) {
  std::vector<std::size_t> out;
  const Json* list = reader.take(key);
  if (list == nullptr) return out;
  if (list->array() == nullptr) {
    reader.fail(key, "found " + describe(*list) + ", expected a list of " + join(names));
    return out;
  }
  for (const Json& item : *list->array()) {
    const std::string name = item.string() ? *item.string() : describe(item);
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      const std::string near = nearest_name(name, names);
      reader.fail(key, "found " + describe(item) + ", expected " + join(names) +
                           (near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
      return out;
    }
    out.push_back(static_cast<std::size_t>(found - names.begin()));
  }
  return out;
}

}  // namespace foretrain

#include "sim/base/json.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "sim/base/file.h"
#include "sim/base/printable.h"

namespace foretrain {
namespace {

constexpr std::size_t kDepthLimit = 64;
constexpr std::size_t kShown = 60;  // of a key or number in a message
constexpr std::size_t kFileLimit = std::size_t{1} << 30;

/// Builds a Json from nlohmann's events; stops at the first offence.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Json root;
  std::string problem;  ///< ours or the parser's; empty if all went well

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(static_cast<std::int64_t>(v)); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return refuse("the number " + std::to_string(v) + " at " + here() +
                    " does not fit in 64 bits");
    }
    return put(static_cast<std::int64_t>(v));
  }
  bool number_float(number_float_t v, const string_t& text) override {
    const std::string shown = shortened(text, kShown);
    if (!std::isfinite(v)) return refuse("the number " + shown + " at " + here() + " overflows");
    if (text.find_first_of(".eE") == string_t::npos) {
      return refuse("the number " + shown + " at " + here() + " does not fit in 64 bits");
    }
    return put(v);
  }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }
  bool start_object(std::size_t) override { return open(Json::Object{}); }
  bool start_array(std::size_t) override { return open(Json::Array{}); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (x_stack.back()->find(name) != nullptr) {
      return refuse("duplicate key \"" + shortened(name, kShown) + "\" in " + here());
    }
    x_keys.back() = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) override {
    constexpr std::size_t kLongest = 300;  // it quotes the document
    std::string text = e.what();
    if (const std::size_t bracket = text.find("] "); bracket != std::string::npos) {
      text.erase(0, bracket + 2);
    }
    return refuse(shortened(text, kLongest) + ", at " + here());
  }

 private:
  std::vector<Json*> x_stack;
  std::vector<std::string> x_keys;

  std::string here() const {
    std::string pointer;
    for (std::size_t i = 0; i < x_stack.size(); ++i) {
      if (x_stack[i]->object() != nullptr && !x_keys[i].empty() && i + 1 < x_stack.size()) {
        pointer += "/" + shortened(x_keys[i], kShown);
      } else if (const Json::Array* array = x_stack[i]->array(); array && i + 1 < x_stack.size()) {
        pointer += "/" + std::to_string(array->size() - 1);
      }
    }
    return pointer.empty() ? "the top level" : pointer;
  }
  bool refuse(std::string text) {
    if (problem.empty()) problem = std::move(text);
    return false;
  }
  Json* add(Json item) {
    if (x_stack.empty()) {
      root = std::move(item);
      return &root;
    }
    if (Json::Object* object = x_stack.back()->object()) {
      object->emplace_back(x_keys.back(), std::move(item));
      return &object->back().second;
    }
    auto& array = std::get<Json::Array>(x_stack.back()->value);
    array.push_back(std::move(item));
    return &array.back();
  }
  template <typename T>
  bool put(T&& item) {
    add(Json(std::forward<T>(item)));
    return true;
  }
  template <typename T>
  bool open(T&& empty) {
    if (x_stack.size() >= kDepthLimit) {
      return refuse("more than " + std::to_string(kDepthLimit) + " levels of nesting");
    }
    x_stack.push_back(add(Json(std::forward<T>(empty))));
    x_keys.emplace_back();
    return true;
  }
  bool close() {
    x_stack.pop_back();
    x_keys.pop_back();
    return true;
  }
};

/// `text` as strict JSON: comments and commas before a closing bracket become spaces, so that
/// positions stay, and Infinity (which Python writes) the largest round double, 1e308.
std::string strict_json(std::string_view text) {
  std::string out(text);
  const auto blank = [&out](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if (out[i] != '\n') out[i] = ' ';
    }
  };
  constexpr std::string_view kInfinity = "Infinity";
  std::size_t comma = std::string::npos;  // after a value, with nothing but spaces behind it
  char before = '[';                      // the last that is neither space nor comment
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (out[i] == '"') {
      for (++i; i < out.size() && out[i] != '"'; ++i) i += out[i] == '\\' ? 1 : 0;
      comma = std::string::npos;
      before = '"';
    } else if (rest.starts_with("//") || rest.starts_with("/*")) {
      const bool line = rest[1] == '/';
      const std::size_t close = text.find(line ? "\n" : "*/", i + 2);
      const std::size_t end = close == std::string::npos ? out.size() : close + (line ? 0 : 2);
      blank(i, end);
      i = end - 1;
    } else if (rest.starts_with(kInfinity)) {
      out.replace(i, kInfinity.size(), "1e308   ");
      i += kInfinity.size() - 1;
      comma = std::string::npos;
      before = '8';
    } else if ((out[i] == '}' || out[i] == ']') && comma != std::string::npos) {
      out[comma] = ' ';
      comma = std::string::npos;
      before = out[i];
    } else if (std::string_view(" \t\r\n").find(out[i]) == std::string_view::npos) {
      const bool value = before != '[' && before != '{' && before != ',' && before != ':';
      comma = out[i] == ',' && value ? i : std::string::npos;
      before = out[i];
    }
  }
  return out;
}

nlohmann::ordered_json to_library(const Json& json) {
  struct Visitor {
    nlohmann::ordered_json operator()(std::nullptr_t) const { return nullptr; }
    nlohmann::ordered_json operator()(bool v) const { return v; }
    nlohmann::ordered_json operator()(std::int64_t v) const { return v; }
    nlohmann::ordered_json operator()(double v) const { return v; }
    nlohmann::ordered_json operator()(const std::string& v) const { return v; }
    nlohmann::ordered_json operator()(const Json::Array& v) const {
      nlohmann::ordered_json out = nlohmann::ordered_json::array();
      for (const Json& item : v) out.push_back(to_library(item));
      return out;
    }
    nlohmann::ordered_json operator()(const Json::Object& v) const {
      nlohmann::ordered_json::object_t members;
      members.reserve(v.size());
      for (const auto& [key, item] : v) {
        // push_back rather than operator[]: ordered_map searches linearly, and our keys are unique.
        members.push_back({key, to_library(item)});
      }
      return members;
    }
  };
  return std::visit(Visitor{}, json.value);
}

}  // namespace

double Json::number() const {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&value)) return *d;
  return 0;
}

const Json* Json::find(std::string_view key) const {
  const Object* members = object();
  if (members == nullptr) return nullptr;
  for (const auto& member : *members) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

Json* Json::find(std::string_view key) {
  return const_cast<Json*>(static_cast<const Json*>(this)->find(key));
}

Json& Json::set(std::string_view key, Json item) {
  if (object() == nullptr) value = Object{};
  if (Json* old = find(key)) {
    *old = std::move(item);
    return *old;
  }
  object()->emplace_back(std::string(key), std::move(item));
  return object()->back().second;
}

void Json::erase(std::string_view key) {
  if (object() == nullptr) return;
  std::erase_if(*object(), [key](const auto& member) { return member.first == key; });
}

Result<Json> parse_json(std::string_view text, const std::string& source) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return input_error(source + ": empty, expected a JSON document");
  }
  if (text.find('\0') != std::string_view::npos) {
    return input_error(source + ": not a JSON text (it holds zero bytes)");
  }
  const auto parse = [](std::string_view all) {
    Builder builder;
    const bool good = nlohmann::json::sax_parse(all.begin(), all.end(), &builder);
    if (good && builder.problem.empty()) return Result<Json>(std::move(builder.root));
    return Result<Json>(Error{builder.problem});
  };
  Result<Json> strict = parse(text);
  if (strict.ok()) return strict;
  const std::string plain = strict_json(text);
  Result<Json> read = plain == text ? std::move(strict) : parse(plain);
  if (read.ok()) return read;
  return input_error(source + ": " + read.error().message);
}

Result<std::string> read_text_file(const std::string& path) {
  errno = 0;
  const bool input = path == kStandardInput;
  std::FILE* file = input ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) return input_error(path + ": cannot be read: " + std::strerror(errno));
  std::string text;
  std::vector<char> chunk(std::size_t{1} << 16);
  std::size_t got = 0;
  while ((got = std::fread(chunk.data(), 1, chunk.size(), file)) > 0) {
    text.append(chunk.data(), got);
    if (text.size() > kFileLimit) break;
  }
  const bool bad = std::ferror(file) != 0;
  const int reason = errno;
  if (!input) std::fclose(file);
  if (bad) return input_error(path + ": cannot be read: " + std::strerror(reason));
  if (text.size() > kFileLimit) return input_error(path + ": larger than 1 GiB");
  return text;
}

Result<Json> read_json_file(const std::string& path) {
  FT_ASSIGN(const std::string text, read_text_file(path));
  const bool compressed = text.starts_with("\x1f\x8b") && path != kStandardInput;
  if (!compressed) return parse_json(text, path == kStandardInput ? "standard input" : path);
  FT_ASSIGN(const std::string plain, read_compressed_file(path));
  return parse_json(plain, path);
}

std::string dump_json(const Json& json, int indent) {
  return printable_json(
      to_library(json).dump(indent, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace foretrain

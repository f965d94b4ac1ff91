#include "tools/search/condition.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace foretrain {

/// By recursive descent, lowest binding first: or, and, not, comparison, sum, product, atom.
class ConditionParser {
 public:
  ConditionParser(const std::string& text, const std::vector<std::string>& names)
      : x_text(text), x_known(names) {
    x_out.x_text = text;
  }

  Result<Condition> run() {
    read_tokens();
    x_out.x_root = either();
    if (x_fault.empty() && x_at < x_tokens.size()) fail("\"" + x_tokens[x_at] + "\"");
    if (!x_fault.empty()) return input_error(x_fault);
    return std::move(x_out);
  }

 private:
  using Kind = Condition::Kind;

  static bool is_letter(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  }

  void read_tokens() {
    for (std::size_t i = 0; i < x_text.size();) {
      const std::size_t begin = i;
      if (x_text[i] == ' ' || x_text[i] == '\t') {
        ++i;
        continue;
      }
      if (is_letter(x_text[i])) {
        const auto in_word = [this](std::size_t at) {
          if (is_letter(x_text[at])) return true;
          return x_text[at] == '-' && at + 1 < x_text.size() && is_letter(x_text[at + 1]);
        };
        while (i < x_text.size() && in_word(i)) ++i;
      } else if (std::string_view("<>=!&|").find(x_text[i]) != std::string_view::npos) {
        ++i;
        if (i < x_text.size() &&
            std::string_view("=&|").find(x_text[i]) != std::string_view::npos) {
          ++i;
        }
      } else {
        ++i;
      }
      x_tokens.push_back(x_text.substr(begin, i - begin));
    }
  }

  void fail(const std::string& found) {
    if (!x_fault.empty()) return;
    x_fault = "\"" + x_text + "\": found " + found +
              ", expected a condition such as memory.peak_gib <= 72";
  }

  bool take(std::initializer_list<const char*> any) {
    if (x_at >= x_tokens.size()) return false;
    for (const char* one : any) {
      if (x_tokens[x_at] != one) continue;
      ++x_at;
      return true;
    }
    return false;
  }

  std::size_t add(Kind kind, std::size_t left = 0, std::size_t right = 0) {
    Condition::Node node;
    node.kind = kind;
    node.left = left;
    node.right = right;
    x_out.x_nodes.push_back(node);
    return x_out.x_nodes.size() - 1;
  }

  std::size_t either() {
    std::size_t left = both();
    while (take({"or", "||"})) {
      const std::size_t right = both();
      left = add(Kind::kOr, left, right);
    }
    return left;
  }

  std::size_t both() {
    std::size_t left = compared();
    while (take({"and", "&&"})) {
      const std::size_t right = compared();
      left = add(Kind::kAnd, left, right);
    }
    return left;
  }

  std::size_t compared() {
    if (take({"not", "!"})) {
      const std::size_t inner = compared();
      return add(Kind::kNot, inner);
    }
    const std::size_t left = sum();
    static constexpr std::pair<const char*, Kind> kComparisons[] = {
        {"<", Kind::kLess},   {"<=", Kind::kAtMost}, {">", Kind::kMore},    {">=", Kind::kAtLeast},
        {"==", Kind::kEqual}, {"=", Kind::kEqual},   {"!=", Kind::kUnequal}};
    for (const auto& [sign, kind] : kComparisons) {
      if (!take({sign})) continue;
      x_is_right = true;
      const std::size_t right = sum();
      x_is_right = false;
      return add(kind, left, right);
    }
    return left;
  }

  std::size_t sum() {
    std::size_t left = product();
    while (true) {
      const bool plus = take({"+"});
      if (!plus && !take({"-"})) return left;
      const std::size_t right = product();
      left = add(plus ? Kind::kAdd : Kind::kSubtract, left, right);
    }
  }

  std::size_t product() {
    std::size_t left = atom();
    while (true) {
      const bool times = take({"*"});
      if (!times && !take({"/"})) return left;
      const std::size_t right = atom();
      left = add(times ? Kind::kTimes : Kind::kOver, left, right);
    }
  }

  std::size_t atom() {
    if (x_at >= x_tokens.size() || !x_fault.empty()) {
      fail("its end");
      return add(Kind::kNumber);
    }
    if (take({"-"})) {
      const std::size_t inner = atom();
      return add(Kind::kNegate, inner);
    }
    if (take({"("})) {
      const std::size_t inner = either();
      if (!take({")"})) fail("no \")\"");
      return inner;
    }
    return word(x_tokens[x_at++]);
  }

  std::size_t word(const std::string& token) {
    char* end = nullptr;
    const double number = std::strtod(token.c_str(), &end);
    const std::size_t node = add(Kind::kNumber);
    if (*end == '\0' && std::isalpha(static_cast<unsigned char>(token[0])) == 0) {
      x_out.x_nodes[node].number = number;
      return node;
    }
    x_out.x_nodes[node].text = token;
    if (std::find(x_known.begin(), x_known.end(), token) != x_known.end()) {
      x_out.x_nodes[node].kind = Kind::kName;
      x_out.x_names.push_back(token);
    } else if (is_letter(token[0]) && x_is_right && token.find('.') == std::string::npos) {
      x_out.x_nodes[node].kind = Kind::kText;
    } else {
      name_fault(token);
    }
    return node;
  }

  void name_fault(const std::string& token) {
    if (!is_letter(token[0])) return fail("\"" + token + "\"");
    if (!x_fault.empty()) return;
    const std::string near = nearest_name(token, x_known);
    x_fault = "\"" + x_text + "\": nothing is called " + token +
              (near.empty() ? "" : " (did you mean \"" + near + "\"?)") +
              "; expected a key of a RUN, parallel.data, or a result such as memory.peak_gib";
  }

  const std::string& x_text;
  const std::vector<std::string>& x_known;
  std::vector<std::string> x_tokens;
  std::size_t x_at = 0;
  bool x_is_right = false;
  std::string x_fault;
  Condition x_out;
};

Result<Condition> Condition::parse(const std::string& text, const std::vector<std::string>& names) {
  return ConditionParser(text, names).run();
}

namespace {

bool is_true(const Json& value) {
  if (const bool* flag = std::get_if<bool>(&value.value)) return *flag;
  return value.is_number() ? value.number() != 0 : !value.is_null();
}

/// A flag or a number; true is 1.
double number_of(const Json& value) {
  const bool* flag = std::get_if<bool>(&value.value);
  return flag != nullptr ? (*flag ? 1 : 0) : value.number();
}

/// Texts are equal or not: true and false are read as flags.
bool are_equal(const Json& a, const Json& b) {
  const auto as_flag = [](const Json& value) {
    const std::string* text = value.string();
    if (text != nullptr && (*text == "true" || *text == "false")) return Json(*text == "true");
    return value;
  };
  const Json left = as_flag(a);
  const Json right = as_flag(b);
  if (left.is_string() || right.is_string()) return left == right;
  return number_of(left) == number_of(right);
}

}  // namespace

/// Of `and` and `or` one side may decide before the other is known.
std::optional<Json> Condition::joined(const Node& node, const Values& values) const {
  const bool decides = node.kind == Kind::kOr;
  const std::optional<Json> left = value_of(node.left, values);
  const std::optional<Json> right = value_of(node.right, values);
  if ((left && is_true(*left) == decides) || (right && is_true(*right) == decides)) return decides;
  if (!left || !right) return {};
  return !decides;
}

std::optional<Json> Condition::value_of(std::size_t index, const Values& values) const {
  const Node& node = x_nodes[index];
  switch (node.kind) {
    case Kind::kNumber:
      return Json(node.number);
    case Kind::kText:
      return Json(node.text);
    case Kind::kName: {
      const Json* value = values(node.text);
      return value == nullptr ? std::nullopt : std::optional(*value);
    }
    case Kind::kAnd:
    case Kind::kOr:
      return joined(node, values);
    default:
      break;
  }
  const std::optional<Json> left = value_of(node.left, values);
  if (!left) return {};
  if (node.kind == Kind::kNegate) return Json(-number_of(*left));
  if (node.kind == Kind::kNot) return Json(!is_true(*left));
  const std::optional<Json> right = value_of(node.right, values);
  if (!right) return {};
  const double a = number_of(*left);
  const double b = number_of(*right);
  switch (node.kind) {
    case Kind::kAdd:
      return Json(a + b);
    case Kind::kSubtract:
      return Json(a - b);
    case Kind::kTimes:
      return Json(a * b);
    case Kind::kOver:
      return Json(a / b);
    case Kind::kLess:
      return Json(a < b);
    case Kind::kAtMost:
      return Json(a <= b);
    case Kind::kMore:
      return Json(a > b);
    case Kind::kAtLeast:
      return Json(a >= b);
    case Kind::kEqual:
      return Json(are_equal(*left, *right));
    default:
      return Json(!are_equal(*left, *right));
  }
}

std::optional<bool> Condition::holds(const Values& values) const {
  const std::optional<Json> value = value_of(x_root, values);
  if (!value) return {};
  return is_true(*value);
}

}  // namespace foretrain

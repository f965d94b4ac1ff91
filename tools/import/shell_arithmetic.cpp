#include "tools/import/shell_arithmetic.h"

#include <array>
#include <limits>

namespace foretrain {
namespace {

using Whole = std::optional<std::int64_t>;

bool starts_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

Whole combine(std::int64_t a, std::string_view op, std::int64_t b) {
  std::int64_t out = 0;
  if (op == "+") return __builtin_add_overflow(a, b, &out) ? Whole() : Whole(out);
  if (op == "-") return __builtin_sub_overflow(a, b, &out) ? Whole() : Whole(out);
  if (op == "*") return __builtin_mul_overflow(a, b, &out) ? Whole() : Whole(out);
  if (op == "/" || op == "%") {
    if (b == 0 || (a == std::numeric_limits<std::int64_t>::min() && b == -1)) return {};
    return op == "/" ? a / b : a % b;
  }
  if (op == "**") {
    constexpr std::int64_t kMost = 63;
    if (b < 0 || b > kMost) return {};
    Whole power = 1;
    for (std::int64_t i = 0; power && i < b; ++i) power = combine(*power, "*", a);
    return power;
  }
  if (op == "<") return a < b;
  if (op == ">") return a > b;
  if (op == "<=") return a <= b;
  if (op == ">=") return a >= b;
  if (op == "==") return a == b;
  return a != b;
}

class ArithmeticReader {
 public:
  ArithmeticReader(std::string_view text, const ShellNumbers& numbers)
      : x_text(text), x_numbers(numbers) {}

  Whole whole() {
    const Whole out = level(0);
    skip();
    return x_at == x_text.size() ? out : Whole();
  }

 private:
  using Operators = std::array<std::string_view, 6>;
  static constexpr std::array<Operators, 4> kLevels = {Operators{"<=", ">=", "==", "!=", "<", ">"},
                                                       Operators{"+", "-"},
                                                       Operators{"*", "/", "%"}, Operators{"**"}};

  void skip() {
    while (x_at < x_text.size() &&
           std::string_view(" \t\n").find(x_text[x_at]) != std::string::npos)
      ++x_at;
  }

  /// An operator of that level that stands here, or "".
  std::string_view take(std::size_t of) {
    skip();
    const std::string_view rest = x_text.substr(x_at);
    for (const std::string_view op : kLevels.at(of)) {
      if (op.empty() || !rest.starts_with(op)) continue;
      if (op == "*" && rest.starts_with("**")) continue;
      x_at += op.size();
      return op;
    }
    return "";
  }

  Whole level(std::size_t of) {
    if (of == kLevels.size()) return atom();
    Whole left = level(of + 1);
    while (left) {
      const std::string_view op = take(of);
      if (op.empty()) break;
      const Whole right = level(of + 1);
      left = right ? combine(*left, op, *right) : Whole();
    }
    return left;
  }

  Whole atom() {
    constexpr int kDeepest = 64;
    skip();
    if (x_at == x_text.size() || ++x_depth > kDeepest) return {};
    const char c = x_text[x_at];
    Whole out;
    if (c == '(') {
      ++x_at;
      out = level(0);
      skip();
      if (x_at == x_text.size() || x_text[x_at] != ')') return {};
      ++x_at;
    } else if (c == '-' || c == '+') {
      ++x_at;
      out = atom();
      if (out && c == '-') out = combine(0, "-", *out);
    } else if (is_digit(c)) {
      out = 0;
      for (; out && x_at < x_text.size() && is_digit(x_text[x_at]); ++x_at) {
        out = combine(*out, "*", 10);
        if (out) out = combine(*out, "+", x_text[x_at] - '0');
      }
    } else if (starts_word(c)) {
      std::string name;
      for (; x_at < x_text.size() && (starts_word(x_text[x_at]) || is_digit(x_text[x_at]));
           ++x_at) {
        name += x_text[x_at];
      }
      out = x_numbers(name);
    }
    --x_depth;
    return out;
  }

  std::string_view x_text;
  const ShellNumbers& x_numbers;
  std::size_t x_at = 0;
  int x_depth = 0;
};

}  // namespace

std::optional<std::int64_t> shell_arithmetic(std::string_view text, const ShellNumbers& numbers) {
  return ArithmeticReader(text, numbers).whole();
}

}  // namespace foretrain

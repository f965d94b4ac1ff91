// Conditions on plans: "memory.peak_gib <= 72 and parallel.tensor * parallel.context <= 8".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"

namespace foretrain {

/// Comparisons (<, <=, >, >=, ==, !=) of sums and products of numbers and named values, joined by
/// `and`, `or` and `not`. A word on the right of == that names no value is a text:
/// `schedule != interleaved-1f1b`. Names hold letters, digits, "_", "." and, before a letter or a
/// digit, "-": a minus stands between spaces.
class Condition {
 public:
  /// `names`: of the values. Any other name with a dot, or that a number is expected of, is an
  /// error.
  static Result<Condition> parse(const std::string& text, const std::vector<std::string>& names);

  /// What a name stands for; null where that is not known yet.
  using Values = std::function<const Json*(const std::string&)>;
  /// Whether it holds; nothing where a value that decides is not known yet.
  std::optional<bool> holds(const Values& values) const;

  const std::string& text() const { return x_text; }
  const std::vector<std::string>& names() const { return x_names; }  ///< that stand in it

 private:
  friend class ConditionParser;
  enum class Kind : std::uint8_t {
    kNumber,
    kText,
    kName,
    kAdd,
    kSubtract,
    kTimes,
    kOver,
    kNegate,
    kLess,
    kAtMost,
    kMore,
    kAtLeast,
    kEqual,
    kUnequal,
    kAnd,
    kOr,
    kNot,
  };
  struct Node {
    Kind kind = Kind::kNumber;
    double number = 0;
    std::string text;
    std::size_t left = 0, right = 0;
  };
  std::optional<Json> value_of(std::size_t node, const Values& values) const;
  std::optional<Json> joined(const Node& node, const Values& values) const;

  std::string x_text;
  std::vector<std::string> x_names;
  std::vector<Node> x_nodes;
  std::size_t x_root = 0;
};

}  // namespace foretrain

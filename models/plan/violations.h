// The rules that a plan breaks.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/result.h"

namespace foretrain {

struct Model;
struct Plan;

/// A broken rule: the key of the RUN, and the value that was found, the reason and the remedy.
struct Violation {
  std::string key;  ///< such as "parallel/tensor"
  std::string message;
  ErrorKind kind = ErrorKind::kInput;
};

/// A part of a plan that a mechanism is not modelled with, and the key that brings the part in.
struct Beside {
  bool present;
  const char* key;
  const char* name;
};

/// Collects every rule that a plan breaks. A check adds what it finds and goes on, so one run of
/// all checks reports all faults, in any order.
class Violations {
 public:
  void add(std::string key, std::string message, ErrorKind kind = ErrorKind::kInput);
  /// A legal plan that is not modelled.
  void unsupported(std::string key, std::string message);
  /// "SUBJECT is not modelled with NAME, NAME and NAMEREMEDY", once at each key of `cases` that the
  /// plan has.
  void beside(std::string_view subject, std::initializer_list<Beside> cases,
              std::string_view remedy = "");
  void append(const Violations& other);

  bool empty() const { return x_all.empty(); }
  const std::vector<Violation>& all() const { return x_all; }

 private:
  std::vector<Violation> x_all;
};

/// What one check finds.
inline Violations found_by(void (*check)(const Model&, const Plan&, Violations&),
                           const Model& model, const Plan& plan) {
  Violations out;
  check(model, plan, out);
  return out;
}

/// "one", "one and two", "one, two and three".
std::string enumerated(const std::vector<std::string>& names);

}  // namespace foretrain

// Result<T>: a value, or what tells the user what to mend, a message for each fault.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sim/base/check.h"

namespace foretrain {

enum class ErrorKind {
  kInput,        ///< The user's file, flag or environment is at fault; exit code 1.
  kCondition,    ///< What the user asked to hold does not; exit code 3.
  kUnsupported,  ///< Valid input that this version does not model; exit code 1, `score` counts it.
};

/// Why something could not be done: the place, what was found, what is accepted.
struct Error {
  std::string message;
  ErrorKind kind = ErrorKind::kInput;
  std::string pointer = {};  ///< JSON pointer of the value at fault, where the fault is in a file
  std::string found = {};    ///< the value, as the message writes it
  std::string hint = {};     ///< the message's end: which accepted name the user may have meant
  bool unknown_key = false;  ///< the fault is the key itself
  std::vector<Error> more = {};  ///< the other faults of the same input
};

/// `error` with the faults of `other` behind its own.
inline void append(Error& error, Error other) {
  std::vector<Error> more = std::move(other.more);
  other.more.clear();
  error.more.push_back(std::move(other));
  for (Error& one : more) error.more.push_back(std::move(one));
}

inline Error input_error(std::string message) {
  return Error{std::move(message), ErrorKind::kInput};
}
inline Error unsupported(std::string message) {
  return Error{std::move(message), ErrorKind::kUnsupported};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  // A function returns a value or an error as it is: conversion is the point.
  // NOLINTBEGIN(google-explicit-constructor)
  Result(T value) : x_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : x_(std::in_place_index<1>, std::move(error)) {}
  // NOLINTEND(google-explicit-constructor)

  bool ok() const { return x_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    FT_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(x_);
  }
  const T& value() const& {
    FT_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(x_);
  }
  T&& value() && {
    FT_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(std::move(x_));
  }
  const Error& error() const {
    FT_CHECK(!ok(), "error() of a good Result");
    return std::get<1>(x_);
  }

 private:
  std::variant<T, Error> x_;
};

struct Nothing {
  bool operator==(const Nothing&) const = default;
};
using Status = Result<Nothing>;
inline Status ok_status() { return Nothing{}; }

}  // namespace foretrain

#define FT_CONCAT_INNER(a, b) a##b
#define FT_CONCAT(a, b) FT_CONCAT_INNER(a, b)

/// Returns the error of `expr` from the enclosing function, or goes on.
#define FT_TRY(expr)                               \
  do {                                             \
    auto ft_status = (expr);                       \
    if (!ft_status.ok()) return ft_status.error(); \
  } while (false)

/// `FT_ASSIGN(auto x, f())`: x is the value of f(), or the error is returned.
#define FT_ASSIGN(declaration, expr) \
  FT_ASSIGN_INNER(FT_CONCAT(ft_result_, __LINE__), declaration, expr)
#define FT_ASSIGN_INNER(temp, declaration, expr) \
  auto temp = (expr);                            \
  if (!temp.ok()) return temp.error();           \
  declaration = std::move(temp).value()

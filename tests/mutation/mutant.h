// Mutants in one binary: each mutated place asks whether its number is that of the environment.
//
//   a < b      a < Less{7} < b            the same operator twice binds its operands as before
//   a && b     a && !is(7) && b           false; `a || is(7) || b`: true
//   42         number<7>(42)
//   if (c)     if (is(7) != bool(c))
//   x += y;    is(7) ? void() : void(x += y);
//   std::min(  least<7>(
#pragma once

#include <algorithm>
#include <concepts>
#include <initializer_list>

namespace foretrain_mutant {

extern int active;                ///< $FORETRAIN_MUTANT; -1: none
extern unsigned char seen[4096];  ///< places that were reached

inline bool is(int place) {
  seen[place] = 1;
  return place == active;
}

#define FORETRAIN_MUTANT(Name, op, other)                                     \
  struct Name {                                                               \
    int place;                                                                \
  };                                                                          \
  template <class A>                                                          \
  struct Name##Left {                                                         \
    const A& a;                                                               \
    int place;                                                                \
  };                                                                          \
  template <class A>                                                          \
  Name##Left<A> operator op(const A& a, Name by) {                            \
    return {a, by.place};                                                     \
  }                                                                           \
  template <class A, class B>                                                 \
  auto operator op(const Name##Left<A>& left, const B& b) {                   \
    using Out = decltype(left.a op b);                                        \
    return is(left.place) ? static_cast<Out>(left.a other b) : (left.a op b); \
  }

FORETRAIN_MUTANT(Less, <, <=)
FORETRAIN_MUTANT(AtMost, <=, <)
FORETRAIN_MUTANT(More, >, >=)
FORETRAIN_MUTANT(AtLeast, >=, >)
FORETRAIN_MUTANT(Equal, ==, !=)
FORETRAIN_MUTANT(Differ, !=, ==)
FORETRAIN_MUTANT(Plus, +, -)
FORETRAIN_MUTANT(Minus, -, +)
FORETRAIN_MUTANT(Times, *, /)
FORETRAIN_MUTANT(Over, /, *)

/// 0 becomes 1 and 1 becomes 0; others grow, by one where they are small whole numbers.
template <int kPlace, class T>
T number(T value) {
  if (!is(kPlace)) return value;
  if (value == T(0) || value == T(1)) return T(1) - value;
  if constexpr (std::integral<T>) return value < T(100) ? value + T(1) : value * T(2);
  return value * T(1.5);
}

template <int kPlace, class T>
T least(const T& a, const T& b) {
  return is(kPlace) ? std::max(a, b) : std::min(a, b);
}
template <int kPlace, class T>
T least(std::initializer_list<T> all) {
  return is(kPlace) ? std::max(all) : std::min(all);
}
template <int kPlace, class T>
T most(const T& a, const T& b) {
  return is(kPlace) ? std::min(a, b) : std::max(a, b);
}
template <int kPlace, class T>
T most(std::initializer_list<T> all) {
  return is(kPlace) ? std::min(all) : std::max(all);
}

}  // namespace foretrain_mutant

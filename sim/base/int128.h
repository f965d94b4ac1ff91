// A 128-bit integer, for products of two times or sizes.
#pragma once

#include <cstdint>
#include <limits>

namespace foretrain {

// Not in ISO C++; __extension__ says that this is known. Only a typedef can carry it.
__extension__ typedef __int128 Int128;  // NOLINT(modernize-use-using)

/// a / b, rounded down, of a >= 0 and b > 0: in 64 bits where these hold a, which takes a fraction
/// of the time.
inline std::int64_t quotient(Int128 a, std::int64_t b) {
  if (a <= std::numeric_limits<std::int64_t>::max()) return static_cast<std::int64_t>(a) / b;
  return static_cast<std::int64_t>(a / b);
}

}  // namespace foretrain

// Where elements of an array lie when parts of it are of other types than the rest.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/base/units.h"

namespace foretrain {

/// Parts one behind the other, each of one density.
class ByteMap {
 public:
  void add(std::int64_t elements, Bytes bytes);
  bool empty() const { return x_ends.empty(); }
  Bytes bytes() const { return empty() ? 0 : x_ends.back().bytes; }
  /// Of an element, inside a part in proportion. `element` at most what was added.
  Bytes at(std::int64_t element) const;

 private:
  struct End {
    std::int64_t elements = 0;
    Bytes bytes = 0;
  };
  std::vector<End> x_ends;
};

}  // namespace foretrain

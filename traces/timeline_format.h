// The names that the saved form of a Timeline uses; shared by its writer and its reader.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/program/program.h"

namespace foretrain {

inline constexpr std::string_view kTimelineSchema = "foretrain/timeline/1";

inline const std::vector<std::string> kSpanColumns = {
    "track",      "stream",   "info",     "call",   "op",         "layer",
    "microbatch", "begin_ps", "start_ps", "end_ps", "provenance",
};
inline const std::vector<std::string> kFlowColumns = {"from", "to"};
inline const std::vector<std::string> kMemoryColumns = {"track", "at_ps", "kind", "bytes"};
inline const std::vector<std::string> kHostColumns = {"track",      "info",     "layer",
                                                      "microbatch", "begin_ps", "end_ps"};

/// The names of all values of an enumeration that ends in kCount.
template <typename Enum>
std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < static_cast<std::size_t>(Enum::kCount); ++i) {
    names.emplace_back(name_of(static_cast<Enum>(i)));
  }
  return names;
}

}  // namespace foretrain

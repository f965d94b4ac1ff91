// What the readers of a plan share.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/json.h"

namespace foretrain {

/// Of anything that is counted.
inline constexpr JsonReader::IntRange kAnyCount{1, 1'000'000'000};

inline std::string text(std::int64_t value) { return std::to_string(value); }

/// Switches of a plan by their names in a RUN.
template <typename Out>
using Flags = std::vector<std::pair<std::string, bool Out::*>>;

/// Sets what a list of names says; `each` sees every name.
template <typename Out, typename Each>
void read_flags(JsonReader& reader, const char* key, const Flags<Out>& flags, Out& out, Each each) {
  const Json* list = reader.take(key);
  if (list == nullptr || list->is_null()) return;
  std::vector<std::string> names;
  std::string expected;
  for (const auto& [name, unused] : flags) {
    names.push_back(name);
    expected += (expected.empty() ? "" : ", ") + name;
  }
  if (list->array() == nullptr) {
    return reader.fail(key, "found " + describe(*list) + ", expected a list of " + expected);
  }
  for (const Json& item : *list->array()) {
    const std::string name = item.string() ? *item.string() : describe(item);
    bool Out::*flag = nullptr;
    for (const auto& [known, member] : flags) {
      if (known == name) flag = member;
    }
    if (flag == nullptr) {
      const std::string near = nearest_name(name, names);
      return reader.fail(key, "found " + describe(item) + ", expected " + expected +
                                  (near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
    }
    out.*flag = true;
    each(name);
  }
}

}  // namespace foretrain

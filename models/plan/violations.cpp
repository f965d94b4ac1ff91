#include "models/plan/violations.h"

#include <algorithm>
#include <utility>

namespace foretrain {

void Violations::add(std::string key, std::string message, ErrorKind kind) {
  x_all.push_back({std::move(key), std::move(message), kind});
}

void Violations::unsupported(std::string key, std::string message) {
  add(std::move(key), std::move(message), ErrorKind::kUnsupported);
}

void Violations::beside(std::string_view subject, std::initializer_list<Beside> cases,
                        std::string_view remedy) {
  std::vector<std::pair<std::string_view, std::vector<std::string>>> by_key;
  for (const Beside& one : cases) {
    if (!one.present) continue;
    auto at = std::find_if(by_key.begin(), by_key.end(),
                           [&one](const auto& entry) { return entry.first == one.key; });
    if (at == by_key.end()) at = by_key.insert(by_key.end(), {one.key, {}});
    at->second.emplace_back(one.name);
  }
  for (const auto& [key, names] : by_key) {
    unsupported(std::string(key), std::string(subject) + " is not modelled with " +
                                      enumerated(names) + std::string(remedy));
  }
}

void Violations::append(const Violations& other) {
  x_all.insert(x_all.end(), other.x_all.begin(), other.x_all.end());
}

std::string enumerated(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " and " : ", ";
    out += names[i];
  }
  return out;
}

}  // namespace foretrain

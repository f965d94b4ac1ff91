#include "sim/base/assets.h"

#include <algorithm>

namespace foretrain {

std::string_view find_asset(std::string_view path) {
  const std::span<const Asset> all = assets();
  const auto it = std::lower_bound(
      all.begin(), all.end(), path,
      [](const Asset& asset, std::string_view wanted) { return asset.path < wanted; });
  return it != all.end() && it->path == path ? it->text : std::string_view();
}

}  // namespace foretrain

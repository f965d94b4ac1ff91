#include "executor/cuda/peers.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

namespace foretrain {

bool may_have_peers(std::int64_t launched, const std::string& visible, int devices) {
  if (launched > 0) return launched > 1;
  if (visible.empty()) return devices > 1;
  return visible.find(',') != std::string::npos;
}

int count_device_files(const std::string& folder) {
  constexpr std::string_view kName = "nvidia";
  int out = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string();
    const bool numbered = name.size() > kName.size() && name.starts_with(kName) &&
                          std::all_of(name.begin() + kName.size(), name.end(), [](char c) {
                            return std::isdigit(static_cast<unsigned char>(c)) != 0;
                          });
    out += numbered ? 1 : 0;
  }
  return out;
}

}  // namespace foretrain

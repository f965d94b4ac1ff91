// The presets of `configs/`, embedded in the binary so that names work from any folder.
#pragma once

#include <span>
#include <string_view>

namespace foretrain {

struct Asset {
  std::string_view path;  ///< relative to `configs/`, e.g. "models/llama-3-8b.json"
  std::string_view text;
};

/// All embedded files, sorted by path.
std::span<const Asset> assets();

/// The text of one embedded file, or an empty view.
std::string_view find_asset(std::string_view path);

}  // namespace foretrain

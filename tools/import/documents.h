// YAML and TOML as Json values, and documents as settings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/import/draft.h"

namespace foretrain {

/// Parses one YAML document. Refused with a message: more than 64 levels, more than 10,000 values
/// (aliases of aliases count as often as they stand), tags and anchors that refer to themselves.
Result<Json> parse_yaml(std::string_view text, const std::string& source);

/// Parses TOML, with the same limits.
Result<Json> parse_toml(std::string_view text, const std::string& source);

/// The members of a document as settings, parts joined by dots. `${a.b}` stands for the value at
/// that place (OmegaConf); what else stands in ${} is missing.
std::vector<Setting> settings_of(const Json& document, const std::string& source);

}  // namespace foretrain

// JSON Schemas and the reference page, made from the declarations of keys.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/key.h"

namespace foretrain {

/// Kinds of files that have a schema: run, cluster, device, system, campaign, profile, timeline,
/// result, goodput, reliability.
const std::vector<std::string>& schema_kinds();

/// The JSON Schema (draft 2020-12) of a kind.
Json schema_of(const std::string& kind);

/// docs/reference/keys.md.
std::string keys_page();

/// The declarations of all keys of a RUN.
const std::vector<const KeyFacts*>& every_key();

}  // namespace foretrain

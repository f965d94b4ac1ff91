// What is made from the declarations of keys: JSON Schemas, the reference page, shell completion.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json.h"

namespace foretrain {

/// Kinds of files that have a schema: run, cluster, device, system, campaign.
const std::vector<std::string>& schema_kinds();

/// The JSON Schema (draft 2020-12) of a kind.
Json schema_of(const std::string& kind);

/// docs/reference/keys.md.
std::string keys_page();

/// A script for bash that completes the verbs in `verbs`, and keys and values of --set.
std::string bash_completion(const std::vector<std::string>& verbs);

}  // namespace foretrain

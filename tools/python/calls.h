// Verbs as functions of JSON, for callers in the same process.
#pragma once

#include <string>
#include <vector>

namespace foretrain {

/// What a verb answers.
struct CallResult {
  std::string error;                  ///< "", or "input", "unsupported", "condition"
  std::string json;                   ///< what --json writes; "" where there is none
  std::vector<std::string> messages;  ///< of the error: what the verb prints on stderr, each
  std::vector<std::string> warnings;  ///< keys of the RUN without an effect
};

/// Runs `simulate`, `search`, `goodput`, `compare`, `import` or `export` with the options in
/// `request`, an object: flags of the verb by their names with _ for -, `sets` for --set, the
/// positional ones by theirs. Nothing is printed.
CallResult call_verb(const std::string& verb, const std::string& request);

}  // namespace foretrain

// Scripts that complete the command line in a shell: verbs, options, names of what ships, and keys
// and values of --set from the declarations of keys.
#pragma once

#include <string>
#include <vector>

#include "sim/base/result.h"

namespace foretrain {

/// An option as a shell offers it.
struct OfferedOption {
  std::string name, help;  ///< "--set"
  bool takes_value = false;
  std::vector<std::string> choices;  ///< values, where there are few
};

/// A verb as a shell offers it.
struct OfferedVerb {
  std::string name, help;
  std::vector<OfferedOption> options;
  std::string names;  ///< kinds of presets that may stand behind it: "runs", "all", "kinds", ""
};

/// The script for bash, zsh or fish.
Result<std::string> completion_script(const std::string& shell,
                                      const std::vector<OfferedVerb>& verbs);

}  // namespace foretrain

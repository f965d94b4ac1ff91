// Words of a shell script, cut but not expanded yet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/result.h"

namespace foretrain {

/// A piece of a word: letters as they stand, or something that a shell would expand.
struct ShellPart {
  enum class Kind : std::uint8_t { kText, kVariable, kArithmetic, kCommand };
  Kind kind = Kind::kText;
  bool quoted = false;  ///< its value is not cut at spaces
  std::string text;     ///< of a variable what stands in ${...}, of the others what stands inside
};

/// A word, an operator such as ";" or "&&", an array that is assigned, or a here-document.
struct ShellToken {
  enum class Kind : std::uint8_t { kWord, kOperator, kArray, kDocument };
  Kind kind = Kind::kWord;
  std::int64_t line = 0;
  std::vector<ShellPart> parts;     ///< of a word; of a here-document, its body
  std::string text;                 ///< an operator; of an array what stands before its bracket
  std::vector<ShellToken> members;  ///< of an array
  /// The letters of a word that nothing expands and nothing quotes; "" otherwise.
  std::string plain() const;
};

struct ShellTokens {
  std::vector<ShellToken> tokens;
  std::vector<std::string> directives;  ///< lines of comments that begin with #SBATCH
};

/// Cuts a script. Comments are left out. The body of a here-document stands where its `<<` does.
/// Brackets nest up to 32 deep.
Result<ShellTokens> cut_shell(std::string_view text, const std::string& source);

/// The parts of a word that is given alone, as in the default of ${X:-default}.
Result<std::vector<ShellPart>> cut_word(std::string_view text, const std::string& source);

}  // namespace foretrain

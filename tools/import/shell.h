// What a shell script would run, found by expanding it. Nothing is ever executed: what only
// running could tell (`$(...)`, variables of the environment, tests of files) is named instead.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/result.h"
#include "tools/import/shell_words.h"

namespace foretrain {

/// A word after expansion. What could not be told stands in it as `${NAME}` or `$(...)`.
struct ShellWord {
  std::string text;
  std::int64_t line = 0;
  std::set<std::string> missing;  ///< names of what could not be told
};

struct ShellCommand {
  std::int64_t line = 0;
  std::vector<ShellWord> words;
};

/// Values of a variable: one, or those of an array.
using ShellValue = std::vector<ShellWord>;

/// Whether what nobody could tell, by its name, stands in a text.
bool stands_in(const std::string& missing, const std::string& text);

enum class ShellTruth : std::uint8_t { kFalse, kTrue, kUnknown };

/// Reads scripts one after the other; later ones see the variables of earlier ones.
///
/// `if` and `case` are followed where their conditions compare texts or numbers that are known; a
/// variable that nothing sets is empty there, as in ${X:-default}, and named. Other conditions are
/// taken to be false, bodies of loops are left out, both by name. Functions are followed where they
/// are called. A value longer than 1 MiB, or more than 64 MiB of expansion, is an error.
class Shell {
 public:
  Status read(std::string_view text, const std::string& source);

  std::vector<ShellCommand> commands;
  std::map<std::string, ShellValue> variables;
  std::map<std::string, std::string> directives;  ///< of #SBATCH, without dashes
  std::map<std::string, ShellWord> documents;     ///< here-documents, by the file they are led to
  std::vector<std::string> left_out;              ///< what was not followed, and why

 private:
  /// From `at` to before `end`.
  struct Range {
    std::size_t at, end;
  };

  Status run(Range range);
  Status run_simple(std::size_t& at, std::size_t end);
  Status keep_document(const ShellCommand& command, std::size_t body, std::size_t to);
  Status follow_if(std::size_t& at, std::size_t end);
  Status follow_case(std::size_t& at, std::size_t end);
  Status skip_loop(std::size_t& at, std::size_t end);
  Status assign(const ShellToken& token, bool& assigned);
  Result<std::vector<ShellWord>> expand(const std::vector<ShellPart>& parts, std::int64_t line);
  Result<ShellValue> variable(const std::string& inner, std::int64_t line);
  Result<ShellTruth> condition(Range range);
  Status grow(std::size_t letters, std::int64_t line);
  std::string place(std::int64_t line) const;

  std::string x_source;
  std::vector<ShellToken> x_tokens;
  std::map<std::string, Range> x_functions;
  std::size_t x_grown = 0;
  int x_depth = 0;
};

}  // namespace foretrain

// What became of plans that a search looked at, kept in a file: another search of the same question
// goes on from there.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/search/search.h"
#include "tools/search/search_case.h"

namespace foretrain {

enum class Fate : std::uint8_t { kRefused, kExcluded, kTooLarge, kSimulated };

/// Of one plan.
struct Outcome {
  Fate fate = Fate::kRefused;
  double least_gib = 0;  ///< that it takes at least
  std::string reason;    ///< of a refusal
  std::optional<FoundPlan> found;
  double seconds = 0;  ///< that looking at it took
};

/// A plan of a case, of which its step tells cost, energy and objective.
FoundPlan found_plan(const SearchCase& of, double iteration_time_s);

/// A text that tells apart all that an answer depends on, the version of the program among it.
std::string question_of(const std::vector<SearchCase>& cases, const SearchOptions& options);

class SearchState {
 public:
  /// Reads `path` where there is such a file, and refuses one of another question or of another
  /// version of the program. `path` "": nothing is kept.
  static Result<SearchState> open(std::string path, const std::vector<SearchCase>& cases,
                                  const SearchOptions& options);

  std::optional<Outcome> find(std::uint32_t of_case, std::uint32_t plan) const;
  void add(std::uint32_t of_case, std::uint32_t plan, const Outcome& outcome);
  /// Writes all outcomes, into a file of its own that takes the place of the old one.
  Status save() const;

 private:
  struct Kept {
    Fate fate = Fate::kRefused;
    double least_gib = 0;
    std::string reason;
    double iteration_time_s = 0, tokens_per_s = 0, mfu = 0, capacity_gib = 0, host_gib = 0;
  };
  Status read(const Json& file);
  Status read_plan(const Json& json, const std::string& where);

  const std::vector<SearchCase>* x_cases = nullptr;
  std::string x_path, x_question;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Kept> x_kept;
};

}  // namespace foretrain

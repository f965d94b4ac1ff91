// What a user asks of a search: the flags of the verb, or the section `search` of a RUN, which says
// the same by the same names.
#pragma once

#include <string>
#include <vector>

#include "tools/search/search.h"

namespace foretrain {

/// As flags and the section give it.
struct SearchRequest {
  std::vector<std::string> free, fix, range, where, over, clusters, price;
  std::vector<std::int64_t> accelerators;
  std::string objective;  ///< "": time
  double budget = 0;      ///< s; 0: 60
  bool allow_numerics = false;
  std::string resume;  ///< a file that keeps what was simulated, "": none; of flags alone
};

/// Takes the section out of a RUN; an empty request where there is none.
Result<SearchRequest> take_section(Json& run, const std::string& source);

/// Lists of `flags` behind those of `section`, single values before.
SearchRequest merged(SearchRequest section, const SearchRequest& flags);

/// Reads the texts of a request.
Result<SearchOptions> options_of(const SearchRequest& request);

}  // namespace foretrain

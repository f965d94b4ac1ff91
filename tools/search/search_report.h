// What a search prints and writes.
#pragma once

#include <string>

#include "tools/search/search.h"

namespace foretrain {

/// The verdict, a table of the best `shown` plans, the Pareto front and the certificate.
std::string search_text(const SearchResult& result, const SearchOptions& options,
                        std::size_t shown);
/// docs/reference/files.md lists the keys.
Json search_json(const SearchResult& result, const SearchOptions& options);
/// Every plan that was simulated and fits, a line each.
std::string search_csv(const SearchResult& result);

/// Changes of a plan, as `--set` takes them.
std::vector<std::string> sets_of(const FoundPlan& plan);

/// What is told of a search that goes on, in one line.
std::string progress_text(const SearchProgress& progress);

}  // namespace foretrain

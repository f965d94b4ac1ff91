// What predictions of published runs miss by, as a file that ships: "runs like yours".
#pragma once

#include <string>
#include <vector>

#include "tools/score/runs_like.h"
#include "tools/score/score.h"

namespace foretrain {

/// Of every row whose step was measured and predicted, in their order. Errors are rounded to 1e-4.
std::vector<PublishedRun> published_errors(const std::vector<Row>& rows,
                                           const std::vector<RowResult>& results);

/// configs/published_errors.json; `month`: of today ("2026-11").
std::string published_errors_text(const std::vector<PublishedRun>& runs, const std::string& month);

}  // namespace foretrain

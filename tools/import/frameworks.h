// What each framework makes of its settings beyond a table's rows.
#pragma once

#include "tools/import/draft.h"
#include "tools/import/table.h"

namespace foretrain {

/// From facts `job.*` and `model.*` to keys. `accelerators` is the world size.
Status finish_megatron(const Table& table, std::int64_t accelerators, Draft& draft);

}  // namespace foretrain

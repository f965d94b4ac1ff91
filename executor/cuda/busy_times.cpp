#include "executor/cuda/busy_times.h"

#include <algorithm>
#include <map>

namespace foretrain {

std::vector<Time> busy_times(const std::vector<Launched>& launches, std::vector<Ran> ran,
                             std::size_t ops) {
  std::map<std::uint64_t, std::size_t> op_of;
  for (const Launched& launch : launches) op_of[launch.number] = launch.op;
  std::sort(ran.begin(), ran.end(),
            [](const Ran& a, const Ran& b) { return a.begin_ns < b.begin_ns; });
  std::vector<Time> out(ops);
  std::vector<std::int64_t> until(ops, 0);  // what of the op is counted already
  for (const Ran& r : ran) {
    const auto found = op_of.find(r.launch);
    if (found == op_of.end() || found->second >= ops) continue;
    const std::int64_t from = std::max(r.begin_ns, until[found->second]);
    if (r.end_ns <= from) continue;
    out[found->second].ps += (r.end_ns - from) * 1000;
    until[found->second] = r.end_ns;
  }
  return out;
}

}  // namespace foretrain

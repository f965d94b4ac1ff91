// Work on all cores.
#pragma once

#include <cstddef>
#include <functional>

namespace foretrain {

/// Calls `work` with each of 0 to `count` - 1, on so many threads at once, this one among them; 0:
/// as many as there are cores. `work` throws nothing.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work,
                 std::size_t threads = 0);

}  // namespace foretrain

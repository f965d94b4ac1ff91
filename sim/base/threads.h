// Work on several threads, where neither threads nor memory are certain to be there.
#pragma once

#include <cstddef>
#include <functional>
#include <new>
#include <system_error>

#include "sim/base/result.h"

namespace foretrain {

/// What a user reads when memory runs out.
inline constexpr const char* kNoMemory = "this needs more memory than the machine gives";

/// An Error of this reason; where no memory is left for its text, of the words "out of memory",
/// which need none.
Error reason_or_want(const char* reason) noexcept;

/// `work()`, or an error where memory or something else of the system runs out in it: for threads
/// that others wait for. Making the error throws nothing.
template <typename Work>
auto or_want(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return reason_or_want(kNoMemory);
  } catch (const std::system_error& error) {
    return reason_or_want(error.what());
  }
}

/// Cores that this process may use: all of the machine, unless it is bound to some.
std::size_t own_cores();

/// Calls `work` with each of 0 to `count` - 1, on so many threads at once, this one among them; 0:
/// as many as there are cores, or one where this thread shares the cores: in the work of another
/// call on several threads, or on a number that was given, and in that of `all_at_once`.
/// `stop_asked` answers on each as it does here. Where the system gives fewer threads, fewer do the
/// work. An exception of `work` ends the others after what they are at, and is thrown here.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work,
                 std::size_t threads = 0);

/// Calls `work` with each of 0 to `count` - 1, each on a thread of its own: they may wait for each
/// other. No call begins before all threads are there; where the system gives fewer, none begins,
/// and the error names the system's reason. An exception of `work` is thrown here once all have
/// ended: who waits for others answers errors by `or_want`.
Status all_at_once(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace foretrain

// Work that someone asks to stop: what a thread does, and what it hands to others by in_parallel.
#pragma once

#include <atomic>

namespace foretrain {

/// While it lives, `stop_asked` on this thread tells what `flag` says. Null: nobody asks.
class StopScope {
 public:
  explicit StopScope(const std::atomic<bool>* flag);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  const std::atomic<bool>* x_before;
};

/// The flag of this thread, for threads that work for it; null where nobody asks.
const std::atomic<bool>* stop_flag();

/// Whether the work of this thread is to end soon, whatever it answers. Loops of more than a tenth
/// of a second ask now and then.
bool stop_asked();

}  // namespace foretrain

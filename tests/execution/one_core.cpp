// The threads of a test, one for each stream of each rank, mostly wait for each other: on one core,
// where waking one is cheap, they take two thirds of the time that they take on two. On as many as
// there are they run under ThreadSanitizer, and in the commands that the suite `cli` starts.
#include <sched.h>

#if !defined(__SANITIZE_THREAD__)
namespace {

[[maybe_unused]] const bool pinned = [] {
  const int core = sched_getcpu();
  if (core < 0) return false;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<unsigned>(core), &cores);
  return sched_setaffinity(0, sizeof(cores), &cores) == 0;
}();

}  // namespace
#endif

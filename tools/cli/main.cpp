// foretrain: predicts pre-training runs.
#include <alloca.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cstddef>

#include "tools/cli/command_line.h"

namespace {

/// Takes as much of the stack as a run needs before it takes anything else. Under a limit of
/// address space the stack cannot grow once the heap has taken all, and the system answers with a
/// segmentation fault. The deepest run that tests know uses 120 KiB; readers go 64 levels deep.
[[gnu::noinline]] void reserve_stack() {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  constexpr std::size_t kPage = 4096;
  volatile char* const bytes = static_cast<char*>(alloca(kBytes));
  for (std::size_t i = kBytes; i >= kPage; i -= kPage) bytes[i - 1] = 0;
}

/// What one prediction gave back serves the next: the kernel need not take, clear and give it
/// again. Not under a limit of address space, which others of this process need as well.
void keep_memory() {
#ifdef __GLIBC__
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur != RLIM_INFINITY) return;
  constexpr int kMappedApart = 32 << 20;  // the most that glibc takes
  constexpr int kKept = 256 << 20;
  mallopt(M_MMAP_THRESHOLD, kMappedApart);
  mallopt(M_TRIM_THRESHOLD, kKept);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  reserve_stack();
  keep_memory();
  return foretrain::run_guarded(argc, argv);
}

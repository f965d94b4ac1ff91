// foretrain: predicts pre-training runs.
#include <alloca.h>

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

}  // namespace

int main(int argc, char** argv) {
  reserve_stack();
  return foretrain::run_guarded(argc, argv);
}

#include "sim/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace foretrain {

void check_failed(const char* file, int line, const char* text) {
  std::fprintf(stderr,
               "%s:%d: internal error: %s\nThis is a bug in foretrain, not in your input. "
               "Please report it with the command line and the RUN file.\n",
               file, line, text);
  std::abort();
}

}  // namespace foretrain

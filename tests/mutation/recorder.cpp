// Linked into a suite of mutated code: which mutant is active, and which places a test reaches.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/mutation/mutant.h"

namespace foretrain_mutant {

int active = -1;
unsigned char seen[4096];

/// Before the static objects of the suite.
__attribute__((constructor(101))) static void choose_mutant() {
  const char* number = std::getenv("FORETRAIN_MUTANT");
  if (number != nullptr) active = std::atoi(number);
}

/// Appends "Suite.Case milliseconds place place ..." to $FORETRAIN_REACHED.
class Recorder : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const char* path = std::getenv("FORETRAIN_REACHED");
    std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
    if (file == nullptr) return;
    std::fprintf(file, "%s.%s %lld", test.test_suite_name(), test.name(),
                 static_cast<long long>(test.result()->elapsed_time()));
    for (int i = 0; i < 4096; ++i) {
      if (seen[i] != 0) std::fprintf(file, " %d", i);
    }
    std::fputc('\n', file);
    std::fclose(file);
    std::memset(seen, 0, sizeof seen);
  }
};

static const bool kListens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Recorder);
  return true;
}();

}  // namespace foretrain_mutant

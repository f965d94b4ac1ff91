// Context parallelism from the command line: what is predicted, what is refused by name.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

TEST(ContextParallel, WindowsGoWithoutARing) {
  const Workplace place;
  place.write("run.json", R"({"model": "mistral-7b", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "batch": {"global": 8, "sequence": 8192}, "parallel": {"context": 4},
      "sharding": {"level": "optimizer"}})");
  const CommandResult ring = place.run({"simulate", "run.json"});
  EXPECT_EQ(ring.exit_code, 1);
  for (const char* part : {"/parallel/context", "windows", "allgather", "alltoall"}) {
    EXPECT_NE(ring.err.find(part), std::string::npos) << ring.err;
  }
  for (const char* exchange : {"allgather", "alltoall"}) {
    const CommandResult run =
        place.run({"simulate", "run.json", "--set", std::string("kernels.context=") + exchange});
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }
}

}  // namespace
}  // namespace foretrain

// Are rows of the same token found in order?
#include "executor/cuda/token_links.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "executor/cuda/host_loops.h"
#include "sim/base/rng.h"

namespace foretrain {
namespace {

TEST(TokenLinks, AreTheRowsBeforeAndAfterOfTheSameToken) {
  Rng rng(11);
  for (const std::int64_t rows : {1, 2, 255, 256, 257, 511, 513, 1000, 1537, 5000}) {
    for (const std::int64_t vocabulary : {1, 3, 700, 100'000}) {
      std::vector<std::int64_t> tokens;
      for (std::int64_t r = 0; r < rows; ++r) tokens.push_back(rng.below(vocabulary));
      const auto count = static_cast<std::size_t>(rows);
      std::vector<std::int32_t> memory(count * device::kLinkArrays, -7);
      device::HostLoops loops;
      device::link_tokens(loops, tokens.data(), rows, memory.data());
      std::map<std::int64_t, std::int32_t> last;
      std::vector<std::int32_t> before;
      std::vector<std::int32_t> next(count, -1);
      for (std::size_t r = 0; r < count; ++r) {
        const auto known = last.find(tokens[r]);
        before.push_back(known == last.end() ? -1 : known->second);
        const auto row = static_cast<std::int32_t>(r);
        if (before.back() >= 0) next[static_cast<std::size_t>(before.back())] = row;
        last[tokens[r]] = row;
      }
      const auto end = memory.begin() + rows;
      EXPECT_EQ(std::vector<std::int32_t>(memory.begin(), end), before) << rows;
      EXPECT_EQ(std::vector<std::int32_t>(end, end + rows), next) << rows;
    }
  }
}

}  // namespace
}  // namespace foretrain

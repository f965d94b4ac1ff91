// Are the lists of tensor degrees that a search asks about legal, and none twice?
#include "tools/search/stage_degrees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace foretrain {
namespace {

using List = std::vector<std::int64_t>;

// Of 8 ranks on two to four stages: 4+4 and 2+2+2+2 have one degree and are left out.
TEST(StageDegrees, GrowOrShrink) {
  const std::vector<List> lists = stage_degrees({{1, 2, 4}, 8, 2, 4, {}}, 100);
  EXPECT_EQ(lists, (std::vector<List>{{2, 2, 4}, {4, 2, 2}, {1, 1, 2, 4}, {4, 2, 1, 1}}));
}

TEST(StageDegrees, KeepToPools) {
  const std::vector<List> lists = stage_degrees({{1, 2, 4}, 6, 2, 5, {4, 2}}, 100);
  ASSERT_GE(lists.size(), 5);
  EXPECT_EQ(lists[0], (List{1, 1, 1, 1, 2}));
  EXPECT_EQ(lists[1], (List{2, 2, 1, 1}));
  EXPECT_EQ(lists[2], (List{4, 1, 1}));
  EXPECT_EQ(lists[3], (List{4, 2}));
  EXPECT_TRUE(std::find(lists.begin(), lists.end(), List{2, 4}) != lists.end());
}

TEST(StageDegrees, AreLegalAndDiffer) {
  for (std::int64_t ranks = 1; ranks <= 24; ++ranks) {
    for (const std::vector<std::int64_t>& pools : {List{}, List{ranks / 2, ranks - ranks / 2}}) {
      const std::vector<List> lists = stage_degrees({{8, 3, 2, 1, 4}, ranks, 2, 6, pools}, 1000);
      EXPECT_EQ(std::set<List>(lists.begin(), lists.end()).size(), lists.size());
      for (const List& list : lists) {
        EXPECT_EQ(std::accumulate(list.begin(), list.end(), std::int64_t{0}), ranks);
        EXPECT_GE(list.size(), 2);
        EXPECT_LE(list.size(), 6);
        EXPECT_GT(std::set<std::int64_t>(list.begin(), list.end()).size(), 1);
        for (std::size_t s = 0; s + 1 < list.size(); ++s) {
          EXPECT_EQ(std::max(list[s], list[s + 1]) % std::min(list[s], list[s + 1]), 0);
        }
      }
    }
  }
}

TEST(StageDegrees, AreNoMoreThanAsked) {
  EXPECT_EQ(stage_degrees({{1, 2, 4, 8}, 64, 2, 32, {}}, 60).size(), 60);
  EXPECT_TRUE(stage_degrees({{1}, 8, 2, 8, {}}, 60).empty());
}

}  // namespace
}  // namespace foretrain

#include "base/recent.h"

#include <gtest/gtest.h>

namespace ringcoll {
namespace {

TEST(Recent, KeepsTheLastThatWereAdded) {
  Recent<int, int> recent(3);
  for (int key : {5, 1, 4}) recent.add(key, 10 * key);
  EXPECT_EQ(recent.add(5, 7), 50) << "it was there, and is not newer for that";
  recent.add(2) = 20;
  EXPECT_EQ(recent.find(5), nullptr);
  ASSERT_NE(recent.find(1), nullptr);
  EXPECT_EQ(*recent.find(1), 10);
  recent.add(5, 7);
  EXPECT_EQ(recent.find(1), nullptr);
  EXPECT_EQ(*recent.find(5), 7);
  EXPECT_EQ(recent.size(), 3u);
}

}  // namespace
}  // namespace ringcoll

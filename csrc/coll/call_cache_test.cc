#include "coll/call_cache.h"

#include <gtest/gtest.h>

namespace ringcoll {
namespace {

using Cache = CallCache<int64_t>;

// The value for a key of one word is the word; how often it was made.
int made(Cache& cache, int64_t word) {
  int times = 0;
  EXPECT_EQ(cache.get({word}, [&] { return times++, word; }), word);
  return times;
}

TEST(CallCache, MakesEachValueOnce) {
  Cache cache(10);
  for (int64_t word : {1, 1, 2, 1, 2, 2}) made(cache, word);
  EXPECT_EQ(made(cache, 1) + made(cache, 2), 0);
  EXPECT_EQ(cache.get({1, 2}, [] { return 12; }), 12);
  EXPECT_EQ(cache.size(), 3u);
}

TEST(CallCache, ValuesStayWhereTheyAreUntilATrim) {
  Cache cache(10);
  const int64_t* first = &cache.get({0}, [] { return 0; });
  for (int64_t word = 1; word < 1000; word++) made(cache, word);
  EXPECT_EQ(&cache.get({0}, [] { return 1; }), first);
  EXPECT_EQ(cache.size(), 1000u);
}

TEST(CallCache, ATrimForgetsWhatWasNotAskedForTheLongest) {
  Cache cache(10);
  for (int64_t word = 0; word < 10; word++) made(cache, word);
  EXPECT_FALSE(cache.trim()) << "there is room";
  made(cache, 0);
  made(cache, 10);
  EXPECT_TRUE(cache.trim());
  EXPECT_LE(cache.size(), 6u);
  for (int64_t word : {0, 10, 9, 8}) EXPECT_EQ(made(cache, word), 0) << word;
  for (int64_t word : {1, 2, 3, 4}) EXPECT_EQ(made(cache, word), 1) << word;
}

}  // namespace
}  // namespace ringcoll

#include "bootstrap/repeats.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace ringcoll {
namespace {

constexpr size_t kLimit = 1 << 20;

std::string random_text(std::mt19937* random, size_t length, int letters) {
  std::uniform_int_distribution<int> letter(0, letters - 1);
  std::string text;
  for (size_t i = 0; i < length; i++) text.push_back(static_cast<char>(letter(*random)));
  return text;
}

TEST(Repeats, ComeBackAsTheyWere) {
  std::mt19937 random(7);
  for (int letters : {1, 2, 256})
    for (size_t length : {0, 1, 7, 8, 9, 100, 1000, 70000}) {
      std::string text = random_text(&random, length, letters);
      EXPECT_EQ(unfold(fold(text), kLimit), text) << length << " of " << letters;
      std::string twice = text + "between" + text;
      EXPECT_EQ(unfold(fold(twice), kLimit), twice) << length << " of " << letters;
    }
}

TEST(Repeats, TakeFewBytes) {
  std::mt19937 random(1);
  std::string host = random_text(&random, 300, 256), all;
  for (int rank = 0; rank < 1000; rank++)
    all += fmt::format("rank {} pid {} ", rank, 4000 + rank) + host;
  EXPECT_LT(fold(all).size(), 1000 * 24 + 400);
  EXPECT_LT(fold(std::string(1 << 20, 'x')).size(), 20u);
  std::string noise = random_text(&random, 10000, 256);
  EXPECT_LE(fold(noise).size(), noise.size() + 4);
}

TEST(Repeats, ThatAreDamagedAreAnError) {
  std::string folded = fold("abcdefghijklmnop--abcdefghijklmnop");
  EXPECT_THROW(unfold(folded, 33), Error);
  EXPECT_EQ(unfold(folded, 34).size(), 34u);
  for (size_t length = 0; length < folded.size(); length++)
    EXPECT_THROW(unfold(folded.substr(0, length), kLimit), Error) << length;
  EXPECT_THROW(unfold(folded + "x", kLimit), Error);
  // Copies of what is not there: before the beginning, and of no distance.
  EXPECT_THROW(unfold(std::string("\x01x\x08\x02\x00\x00", 6), kLimit), Error);
  EXPECT_THROW(unfold(std::string("\x01x\x08\x00\x00\x00", 6), kLimit), Error);
  EXPECT_THROW(unfold(std::string(10, '\xff'), kLimit), Error);
  std::mt19937 random(3);
  for (int i = 0; i < 2000; i++) {
    std::string other = folded;
    other[random() % other.size()] = static_cast<char>(random());
    try {
      EXPECT_LE(unfold(other, 100).size(), 100u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTransport);
    }
  }
}

}  // namespace
}  // namespace ringcoll

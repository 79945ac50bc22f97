#include "bootstrap/compress.h"

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

TEST(Compress, ComesBackAsItWas) {
  std::mt19937 random(7);
  for (int letters : {1, 2, 256})
    for (size_t length : {0, 1, 7, 8, 9, 100, 1000, 70000}) {
      std::string text = random_text(&random, length, letters);
      EXPECT_EQ(decompress(compress(text), kLimit), text) << length << " of " << letters;
      std::string twice = text + "between" + text;
      EXPECT_EQ(decompress(compress(twice), kLimit), twice) << length << " of " << letters;
    }
}

TEST(Compress, OfWhatIsAlikeLittleIsLeft) {
  std::mt19937 random(1);
  std::string host = random_text(&random, 300, 256), all;
  for (int rank = 0; rank < 1000; rank++)
    all += fmt::format("rank {} pid {} ", rank, 4000 + rank) + host;
  EXPECT_LT(compress(all).size(), 1000 * 24 + 400);
  EXPECT_LT(compress(std::string(1 << 20, 'x')).size(), 5000u);
  std::string noise = random_text(&random, 10000, 256);
  EXPECT_LE(compress(noise).size(), noise.size() + 50);
}

TEST(Compress, WhatIsDamagedIsAnError) {
  std::string compressed = compress("abcdefghijklmnop--abcdefghijklmnop");
  EXPECT_THROW(decompress(compressed, 33), Error);
  EXPECT_EQ(decompress(compressed, 34).size(), 34u);
  for (size_t length = 0; length < compressed.size(); length++)
    EXPECT_THROW(decompress(compressed.substr(0, length), kLimit), Error) << length;
  EXPECT_THROW(decompress(compressed + "x", kLimit), Error);
  EXPECT_THROW(decompress(std::string(10, '\xff'), kLimit), Error);
  EXPECT_THROW(decompress(std::string(8, 0) + compressed, kLimit), Error);
  std::mt19937 random(3);
  for (int i = 0; i < 2000; i++) {
    std::string other = compressed;
    other[random() % other.size()] = static_cast<char>(random());
    try {
      EXPECT_LE(decompress(other, 100).size(), 100u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTransport);
    }
  }
}

}  // namespace
}  // namespace ringcoll

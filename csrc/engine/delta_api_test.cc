// Deltas and checksums through the C ABI.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "delta/checksum.h"
#include "ringcoll/ringcoll.h"

namespace ringcoll {
namespace {

constexpr int kCount = 1000;

struct Versions {
  Versions() : now(before) { now[7] = now[999] = 1.5F; }
  size_t bytes() const { return sizeof(float) * kCount; }
  std::vector<float> before = std::vector<float>(kCount, 0.5F);
  std::vector<float> now;
};

TEST(DeltaApi, ADeltaTurnsOneVersionIntoTheOther) {
  Versions of;
  std::vector<std::byte> delta(of.bytes());
  size_t length = 0;
  ASSERT_EQ(ringcoll_delta_make(of.before.data(), of.now.data(), of.bytes(), sizeof(float),
                                delta.data(), delta.size(), &length),
            RC_OK);
  EXPECT_LT(length, 64);
  ASSERT_EQ(ringcoll_delta_apply(of.before.data(), of.bytes(), delta.data(), length), RC_OK);
  EXPECT_EQ(of.before, of.now);
}

TEST(DeltaApi, ADeltaThatDoesNotFitIsTooLong) {
  Versions of;
  std::array<std::byte, 20> out{};
  size_t length = 1;
  EXPECT_EQ(ringcoll_delta_make(of.before.data(), of.now.data(), of.bytes(), 4, out.data(),
                                out.size(), &length),
            RC_TOO_LONG);
  EXPECT_EQ(length, 0);
  EXPECT_NE(std::string(ringcoll_error_message()).find("longer than 20 bytes"), std::string::npos);
  length = 1;
  EXPECT_EQ(
      ringcoll_delta_make(of.before.data(), of.now.data(), of.bytes(), 4, nullptr, 0, &length),
      RC_TOO_LONG);
  EXPECT_EQ(length, 0);
}

TEST(DeltaApi, ALengthNeverExceedsItsBound) {
  for (int width : {1, 2, 4, 8})
    for (size_t bytes : {size_t{0}, size_t{8}, size_t{65536}, size_t{1} << 20}) {
      std::vector<std::byte> before(bytes), now(bytes, std::byte{1});
      std::vector<std::byte> out(bytes + bytes / 16384 + 64);
      size_t length = 0;
      EXPECT_EQ(ringcoll_delta_make(before.data(), now.data(), bytes, width, out.data(), out.size(),
                                    &length),
                RC_OK);
      EXPECT_EQ(ringcoll_delta_apply(before.data(), bytes, out.data(), length), RC_OK);
      EXPECT_EQ(before, now);
    }
}

TEST(DeltaApi, ADamagedDeltaIsRefused) {
  Versions of;
  const std::vector<float> unchanged = of.before;
  std::vector<std::byte> delta(of.bytes());
  size_t length = 0;
  ASSERT_EQ(ringcoll_delta_make(of.before.data(), of.now.data(), of.bytes(), 4, delta.data(),
                                delta.size(), &length),
            RC_OK);
  delta[length - 1] ^= std::byte{1};
  EXPECT_EQ(ringcoll_delta_apply(of.before.data(), of.bytes(), delta.data(), length),
            RC_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ringcoll_error_message()).find("damaged"), std::string::npos);
  EXPECT_EQ(ringcoll_error_rank(), -1);
  EXPECT_EQ(of.before, unchanged);
}

TEST(DeltaApi, ChecksumsAreThoseOfTheLayer) {
  Versions of;
  std::vector<float> copy(kCount);
  uint64_t sum = 0, of_copy = 0;
  EXPECT_EQ(ringcoll_checksum(of.now.data(), of.bytes(), &sum), RC_OK);
  EXPECT_EQ(sum, checksum(of.now.data(), of.bytes()));
  EXPECT_EQ(ringcoll_copy_checksum(copy.data(), of.now.data(), of.bytes(), &of_copy), RC_OK);
  EXPECT_EQ(of_copy, sum);
  EXPECT_EQ(copy, of.now);
}

TEST(DeltaApi, RefusesNullAndOtherWidths) {
  Versions of;
  void *before = of.before.data(), *now = of.now.data();
  std::vector<std::byte> out(100);
  size_t length = 0;
  uint64_t sum = 0;
  for (rc_status status : {
           ringcoll_delta_make(nullptr, now, of.bytes(), 4, out.data(), 100, &length),
           ringcoll_delta_make(before, nullptr, of.bytes(), 4, out.data(), 100, &length),
           ringcoll_delta_make(before, now, of.bytes(), 4, nullptr, 100, &length),
           ringcoll_delta_make(before, now, of.bytes(), 4, out.data(), 100, nullptr),
           ringcoll_delta_make(before, now, of.bytes(), 0, out.data(), 100, &length),
           ringcoll_delta_make(before, now, of.bytes(), -4, out.data(), 100, &length),
           ringcoll_delta_make(before, now, of.bytes(), 3, out.data(), 100, &length),
           ringcoll_delta_make(before, now, of.bytes() - 1, 4, out.data(), 100, &length),
           ringcoll_delta_apply(nullptr, of.bytes(), out.data(), 100),
           ringcoll_delta_apply(before, of.bytes(), nullptr, 100),
           ringcoll_delta_apply(before, of.bytes(), nullptr, 0),
           ringcoll_checksum(nullptr, 1, &sum),
           ringcoll_checksum(now, 1, nullptr),
           ringcoll_copy_checksum(nullptr, now, 1, &sum),
           ringcoll_copy_checksum(before, nullptr, 1, &sum),
           ringcoll_copy_checksum(before, now, 1, nullptr),
       })
    EXPECT_EQ(status, RC_INVALID_ARGUMENT);
  EXPECT_EQ(ringcoll_checksum(nullptr, 0, &sum), RC_OK);
  EXPECT_EQ(ringcoll_copy_checksum(nullptr, nullptr, 0, &sum), RC_OK);
  EXPECT_EQ(sum, checksum(nullptr, 0));
}

TEST(DeltaApi, ErrorsAreThoseOfTheirThread) {
  uint64_t sum = 0;
  ASSERT_EQ(ringcoll_checksum(nullptr, 1, &sum), RC_INVALID_ARGUMENT);
  const std::string mine = ringcoll_error_message();
  std::string theirs = "not asked";
  std::thread([&] { theirs = ringcoll_error_message(); }).join();
  EXPECT_EQ(theirs, "");
  EXPECT_NE(mine, "");
  EXPECT_EQ(ringcoll_error_message(), mine);
}

}  // namespace
}  // namespace ringcoll

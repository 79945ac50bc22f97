#include "base/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace ringcoll {
namespace {

constexpr size_t kPage = 4096;

/// Bytes of which any place within a page can be had.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes + 2 * kPage) {}
  std::byte* at(size_t in_page) {
    auto begin = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (kPage - begin % kPage) + in_page;
  }

 private:
  std::vector<std::byte> bytes_;
};

TEST(CopyBytes, CopiesFromAnywhereToAnywhere) {
  constexpr size_t kMost = 20000, kBeside = 8;
  Pages from(kMost + kPage), to(kMost + kPage);
  for (size_t begin : {0, 1, 16, 4080, 4095})
    for (size_t ahead : {0, 1, 4, 16, 31, 32, 63, 64, 4095})
      for (size_t bytes : {size_t{0}, size_t{1}, size_t{2047}, size_t{2048}, kPage, kPage + 1,
                           2 * kPage, size_t{10001}, kMost - 100}) {
        std::byte* in = from.at(begin);
        std::byte* out = to.at((begin + ahead) % kPage);
        for (size_t i = 0; i < bytes; i++) in[i] = static_cast<std::byte>(i * 7 + i / 251 + 1);
        std::fill(out - kBeside, out + bytes + kBeside, std::byte{0xee});
        copy_bytes(out, in, bytes);
        ASSERT_TRUE(std::equal(in, in + bytes, out)) << begin << " " << ahead << " " << bytes;
        for (size_t i = 1; i <= kBeside; i++) {
          ASSERT_EQ(out[-static_cast<ptrdiff_t>(i)], std::byte{0xee});
          ASSERT_EQ(out[bytes + i - 1], std::byte{0xee});
        }
      }
}

TEST(CopyBytes, ToItselfDoesNothing) {
  std::vector<std::byte> bytes(10000, std::byte{3});
  copy_bytes(bytes.data(), bytes.data(), bytes.size());
  EXPECT_EQ(bytes, std::vector<std::byte>(10000, std::byte{3}));
}

// Ten to fifteen times as slow by memcpy alone on AMD's family 25.
TEST(CopyBytes, IsFastWhereverTheTwoLieInTheirPages) {
  constexpr size_t kBytes = 256 << 10;
  constexpr int kTimes = 50;
  Pages from(kBytes + kPage), to(kBytes + kPage);
  auto least = [&](size_t ahead) {
    Duration best = Duration::max();
    for (int i = 0; i < kTimes; i++) {
      auto start = Clock::now();
      copy_bytes(to.at(ahead), from.at(0), kBytes);
      best = std::min<Duration>(best, Clock::now() - start);
    }
    return to_seconds(best);
  };
  double usual = least(0);
  for (size_t ahead : {1, 4, 16, 31}) EXPECT_LT(least(ahead), 5 * usual) << ahead;
}

}  // namespace
}  // namespace ringcoll

#include "net/wire.h"

#include <gtest/gtest.h>

namespace ringcoll {
namespace {

TEST(Wire, ReadsWhatItWrote) {
  WireWriter writer;
  writer.put<uint16_t>(7);
  writer.put_text("seven");
  writer.put_text("");
  writer.put<int64_t>(-7);
  std::string bytes = writer.take();
  EXPECT_EQ(bytes.size(), 2u + 4 + 5 + 4 + 8);
  WireReader reader(bytes, "test");
  EXPECT_EQ(reader.get<uint16_t>(), 7);
  EXPECT_EQ(reader.get_text(5), "seven");
  EXPECT_EQ(reader.get_text(0), "");
  EXPECT_EQ(reader.get<int64_t>(), -7);
  reader.finish();
}

TEST(Wire, RefusesWhatIsCutTooLongOrTooMuch) {
  WireWriter writer;
  writer.put_text("seven");
  std::string bytes = writer.take();
  for (size_t cut = 0; cut < bytes.size(); cut++) {
    WireReader reader(std::string_view(bytes).substr(0, cut), "test");
    EXPECT_THROW(reader.get_text(100), Error) << cut;
  }
  WireReader limited(bytes, "test");
  EXPECT_THROW(limited.get_text(4), Error);
  WireReader left(bytes, "test");
  left.get<uint32_t>();
  EXPECT_THROW(left.finish(), Error);
  WireReader huge("\xff\xff\xff\xff", "test");
  EXPECT_THROW(huge.get_text(SIZE_MAX), Error);
}

}  // namespace
}  // namespace ringcoll

#include "verbs/table.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "verbs/fake/fake_testing.h"

namespace ringcoll::verbs {
namespace {

std::string message_of_load(const char* file) {
  try {
    load_table(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTransport);
    return error.what();
  }
  return "no error";
}

TEST(Table, AMissingLibraryNamesThePackage) {
  std::string text = message_of_load("libibverbs-that-is-not-there.so.1");
  for (const char* part : {"libibverbs-that-is-not-there.so.1", "libibverbs1", "rdma-core"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Table, ALibraryThatIsAnotherIsRefused) {
  std::string text = message_of_load("libc.so.6");
  EXPECT_NE(text.find("it has no ibv_get_device_list"), std::string::npos) << text;
}

TEST(Table, TheRealLibraryHasEverything) {
  Table loaded;
  try {
    loaded = load_table("libibverbs.so.1");
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_NE(loaded.reg_mr, nullptr);
  EXPECT_NE(loaded.destroy_comp_channel, nullptr);
  EXPECT_NE(loaded.modify_qp, nullptr);
}

TEST(Table, AnOverrideIsInForceWhileItLives) {
  Table fake, other;
  {
    ScopedTable scope(fake);
    EXPECT_EQ(&table(), &fake);
    {
      ScopedTable inner(other);
      EXPECT_EQ(&table(), &other);
    }
    EXPECT_EQ(&table(), &fake);
  }
  ScopedTable again(fake);
  EXPECT_EQ(&table(), &fake);
}

TEST(Table, ForkNeedsNothingWhereTheKernelCopies) {
  FakeVerbs fake;
  EXPECT_EQ(fork_support(), ForkSupport::kUnneeded);
  EXPECT_EQ(fake.counters().fork_inits, 0u);
}

TEST(Table, ForkIsPreparedWhereTheKernelDoesNot) {
  FakeVerbs fake({.fork_unneeded = false});
  EXPECT_EQ(fork_support(), ForkSupport::kEnabled);
  EXPECT_EQ(fake.counters().fork_inits, 1u);
}

TEST(Table, ForkThatCannotBePreparedIsSaid) {
  Table fake;
  fake.fork_init = [] { return EINVAL; };  // positive: not to be taken for success
  EXPECT_EQ(prepare_for_fork(fake), ForkSupport::kDisabled);
  EXPECT_NE(describe(ForkSupport::kDisabled).find("RDMAV_FORK_SAFE"), std::string::npos);
}

}  // namespace
}  // namespace ringcoll::verbs

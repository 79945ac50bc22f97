#include "verbs/failure.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringcoll::verbs {
namespace {

template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTransport);
    return error.what();
  }
  return "no error";
}

const PortId kPortId{"mlx5_0", 1, 3};

TEST(Failure, EachConventionHasItsChecker) {
  int object = 0;
  errno = 0;
  EXPECT_EQ(check_object(&object, "ibv_alloc_pd", kPortId), &object);
  EXPECT_EQ(check_not_negative(7, "poll", kPortId), 7);
  check_zero(0, "ibv_modify_qp(RTR)", kPortId);

  errno = EACCES;
  EXPECT_NE(message_of([] {
              check_object<int>(nullptr, "ibv_open_device", kPortId);
            }).find("Permission denied"),
            std::string::npos);
  // The errno is what was returned: positive, which `< 0` would let pass.
  errno = 0;
  EXPECT_NE(
      message_of([] { check_zero(ETIMEDOUT, "ibv_modify_qp(RTR)", kPortId); }).find("timed out"),
      std::string::npos);
  errno = EBADF;
  EXPECT_NE(message_of([] {
              check_not_negative(-1, "ibv_get_cq_event", kPortId);
            }).find("Bad file descriptor"),
            std::string::npos);
}

TEST(Failure, UnderstandsProvidersThatReturnItNegative) {
  EXPECT_EQ(error_of(EINVAL), EINVAL);
  EXPECT_EQ(error_of(-EINVAL), EINVAL);
  errno = ENOMEM;
  EXPECT_EQ(error_of(-1), ENOMEM);
  errno = 0;
  EXPECT_EQ(error_of(-1), EIO);
}

TEST(Failure, SaysCallReasonLinkAndRemedy) {
  std::string text = message_of([] { fail("ibv_modify_qp(RTR)", ETIMEDOUT, kPortId); });
  EXPECT_EQ(text.find("ibv_modify_qp(RTR): Connection timed out [mlx5_0:1, gid 3]: "), 0u) << text;
  EXPECT_NE(text.find("RINGCOLL_GID_INDEX"), std::string::npos) << text;
}

TEST(Failure, KnowsRemedies) {
  EXPECT_NE(remedy("ibv_reg_mr(4096 bytes)", ENOMEM).find("ulimit -l"), std::string::npos);
  EXPECT_NE(remedy("ibv_create_cq", ENOMEM).find(memlock_text(memlock_limit())), std::string::npos);
  EXPECT_NE(remedy("ibv_open_device", EPERM).find("/dev/infiniband/uverbs"), std::string::npos);
  EXPECT_NE(remedy("ibv_modify_qp(RTR)", EINVAL).find("MTU"), std::string::npos);
  EXPECT_EQ(remedy("ibv_modify_qp(RTR)", ENOSPC), "");
}

TEST(Failure, NamesPlaces) {
  EXPECT_EQ((PortId{"mlx5_0"}.text()), "mlx5_0");
  EXPECT_EQ((PortId{"mlx5_0", 2}.text()), "mlx5_0:2");
  EXPECT_EQ(kPortId.text(), "mlx5_0:1, gid 3");
  EXPECT_EQ(memlock_text(UINT64_MAX), "unlimited");
  EXPECT_EQ(memlock_text(65536), "64 KiB");
}

}  // namespace
}  // namespace ringcoll::verbs

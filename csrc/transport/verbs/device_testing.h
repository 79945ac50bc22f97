// The RDMA device of tests: one in software, or with RINGCOLL_TEST_RDMA=host the host's own.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "verbs/fake/fake_testing.h"

namespace ringcoll::testing {

/// Whether tests are to use a device of the host, which processes can share.
inline bool rdma_of_the_host() {
  const char* where = std::getenv("RINGCOLL_TEST_RDMA");
  return where && std::string_view(where) == "host";
}

/// A test program adds one, and its communicators find a device. The software device moves bytes on
/// a thread of its own, so that memory that is used again too early is found out.
class RdmaForTests : public ::testing::Environment {
 public:
  /// The software device, or null.
  static verbs::FakeVerbs* fake() { return fake_; }

  void SetUp() override {
    if (!rdma_of_the_host()) replace({verbs::FakeDevice{}});
  }
  void TearDown() override { remove(); }

  /// While it lives, there are other devices.
  class Instead {
   public:
    /// They give up what does not pass after that time.
    explicit Instead(const std::vector<verbs::FakeDevice>& devices,
                     Duration give_up_after = verbs::FakeOptions{}.give_up_after) {
      replace(devices, give_up_after);
    }
    ~Instead() { replace({verbs::FakeDevice{}}); }
    Instead(const Instead&) = delete;
    Instead& operator=(const Instead&) = delete;
  };

 private:
  static void replace(const std::vector<verbs::FakeDevice>& devices,
                      Duration give_up_after = verbs::FakeOptions{}.give_up_after) {
    remove();
    fake_ = new verbs::FakeVerbs(
        {.devices = devices, .in_background = true, .give_up_after = give_up_after});
  }
  static void remove() {
    if (!fake_) return;
    EXPECT_EQ(fake_->misuses(), std::vector<std::string>());
    EXPECT_EQ(fake_->objects_left(), 0);
    delete std::exchange(fake_, nullptr);
  }

  static inline verbs::FakeVerbs* fake_ = nullptr;
};

/// Two devices in networks of their own.
inline std::vector<verbs::FakeDevice> two_devices() {
  std::vector<verbs::FakeDevice> devices(2);
  for (int i = 0; i < 2; i++)
    devices[i] = {.name = fmt::format("fake{}", i),
                  .ports = {{.gids = {{fmt::format("fd7{}::1", i)}}}}};
  return devices;
}

}  // namespace ringcoll::testing

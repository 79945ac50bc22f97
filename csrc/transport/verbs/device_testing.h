// The RDMA device of tests: one in software, or with RINGCOLL_TEST_RDMA=host the host's own.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "verbs/fake_testing.h"

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
    if (rdma_of_the_host()) return;
    device_ = std::make_unique<verbs::FakeVerbs>(verbs::FakeOptions{.in_background = true});
    fake_ = device_.get();
  }
  void TearDown() override {
    if (!device_) return;
    EXPECT_EQ(device_->misuses(), std::vector<std::string>());
    EXPECT_EQ(device_->objects_left(), 0);
    fake_ = nullptr;
    device_.reset();
  }

 private:
  static inline verbs::FakeVerbs* fake_ = nullptr;
  std::unique_ptr<verbs::FakeVerbs> device_;
};

}  // namespace ringcoll::testing

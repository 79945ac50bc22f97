// Agents that copy by RDMA, on the device in software: what is used when, and what becomes of
// copies when regions, keys, registrations and queue pairs go. That copies give the right bytes and
// errors at all is tried in agent_test.cc, for all ways alike.
#include "remote/rdma.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "remote/agent_testing.h"
#include "transport/verbs/device_testing.h"
#include "verbs/breaker_testing.h"

namespace ringcoll::remote {
namespace {

using ringcoll::testing::RdmaForTests;

constexpr size_t kMiB = 1 << 20;

Config config_with(int64_t register_bytes, const char* transport = "auto") {
  Config config = rdma_config();
  config.register_bytes = register_bytes;
  config.transport = transport;
  return config;
}

uint64_t bytes_by(Agent& agent, Way way) { return agent.stats().ways[way]; }

/// Two agents on two hosts, and memory of one of them that the other copies.
class RdmaAgents : public ::testing::Test {
 protected:
  void begin(const Config* of_owner = &rdma_config(), const Config* of_reader = &rdma_config()) {
    owner_.emplace(loopback(), "one", of_owner);
    reader_.emplace(loopback(), "two", of_reader);
    owner_->admit("test", "key");
    reader_->admit("test", "key");
  }
  std::shared_ptr<Region> open(size_t bytes, bool writable = true) {
    memory_ = std::vector<std::byte>(bytes);
    for (size_t i = 0; i < bytes; i++) memory_[i] = static_cast<std::byte>(i * 7 >> 3);
    return owner_->open(memory_.data(), bytes, writable);
  }
  std::shared_ptr<const RegionHandle> handle(const Region& region) {
    return attach(owner_->handle_of(region));
  }
  /// Reads the whole region and compares.
  void read(const std::shared_ptr<const RegionHandle>& remote) {
    std::vector<std::byte> got(memory_.size());
    reader_->run(reading(got.data(), got.size(), {{remote, 0}}));
    EXPECT_TRUE(got == memory_);
  }
  /// Waits until a read goes by RDMA (again).
  void expect_rdma(const std::shared_ptr<const RegionHandle>& remote) {
    for (Deadline deadline(seconds(10)); !deadline.passed();) {
      uint64_t before = bytes_by(*reader_, Way::kRdma);
      read(remote);
      if (bytes_by(*reader_, Way::kRdma) > before) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    FAIL() << "no read goes by RDMA";
  }

  // The agents end before what they use.
  std::optional<RdmaForTests::Instead> instead_;
  std::optional<verbs::QueuePairBreaker> breaker_;
  std::vector<std::byte> memory_;
  std::optional<Agent> owner_, reader_;
};

TEST_F(RdmaAgents, LeaveTheOwnersThreadOutOfIt) {
  begin();
  auto region = open(64 * kMiB + 5);
  auto remote = handle(*region);
  read(remote);
  std::vector<std::byte> sent(memory_.size(), std::byte{9});
  reader_->run(writing(sent.data(), sent.size(), {remote, 0}, 3));
  EXPECT_EQ(region->take_notice(Deadline(seconds(5))), 3u);
  EXPECT_TRUE(sent == memory_);
  EXPECT_EQ(bytes_by(*reader_, Way::kRdma), 2 * memory_.size());
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), 0u);
  EXPECT_EQ(owner_->stats().answered, 0u);
}

TEST_F(RdmaAgents, BothEndsOfALinkUseItsQueuePair) {
  begin();
  read(handle(*open(kMiB)));
  std::vector<std::byte> memory(kMiB, std::byte{4}), got(kMiB);
  auto region = reader_->open(memory.data(), memory.size(), false);
  owner_->run(reading(got.data(), got.size(), {{attach(reader_->handle_of(*region)), 0}}));
  EXPECT_TRUE(got == memory);
  EXPECT_EQ(bytes_by(*owner_, Way::kRdma), kMiB);
  EXPECT_EQ(owner_->stats().links, 1u);
}

TEST_F(RdmaAgents, APeerWithoutItIsReachedOverTcp) {
  begin(nullptr);
  read(handle(*open(kMiB)));
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), kMiB);
}

TEST_F(RdmaAgents, AnotherTransportTurnsItOff) {
  Config tcp = config_with(1 << 30, "tcp");
  begin(&rdma_config(), &tcp);
  read(handle(*open(kMiB)));
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), kMiB);
}

TEST_F(RdmaAgents, DemandedRdmaThatIsNotThereIsAnError) {
  Config verbs = config_with(1 << 30, "verbs");
  begin(nullptr, &verbs);
  auto region = open(kMiB);
  EXPECT_CODE(Code::kTransport, read(handle(*region)));
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), 0u);
  if (!RdmaForTests::fake()) return;
  reader_.reset();
  owner_.reset();
  instead_.emplace(std::vector<verbs::FakeDevice>{});
  EXPECT_CODE(Code::kTransport, Agent(loopback(), "two", &verbs));
}

TEST_F(RdmaAgents, DemandedRdmaCarriesAllPayload) {
  Config verbs = config_with(1 << 30, "verbs");
  begin(&verbs, &verbs);
  auto region = open(3 * kMiB);
  read(handle(*region));
  reader_->run(writing(memory_.data(), 100, {handle(*region), 0}, 5));
  EXPECT_EQ(region->take_notice(Deadline(seconds(5))), 5u);
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), 0u);
}

TEST_F(RdmaAgents, APathThatDoesNotCarryItIsFoundBeforeItIsUsed) {
  if (!RdmaForTests::fake()) GTEST_SKIP() << "no device in software";
  begin();
  RdmaForTests::fake()->set_loss("fake0", 1, true);
  read(handle(*open(kMiB)));
  RdmaForTests::fake()->set_loss("fake0", 1, false);
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), kMiB);
}

TEST_F(RdmaAgents, ARegionThatIsClosedInTheMiddleIsGone) {
  begin();
  int gone = 0;
  for (int round = 0; round < 30; round++) {
    auto region = open(8 * kMiB);
    auto remote = handle(*region);
    std::vector<std::byte> got(memory_.size());
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
      owner_->close(region, Deadline(seconds(5)));
      std::ranges::fill(memory_, std::byte{0xee});  // has another use by now
    });
    auto error = error_of([&] { reader_->run(reading(got.data(), got.size(), {{remote, 0}})); });
    closer.join();
    if (error) {
      EXPECT_EQ(error->code(), Code::kGone) << error->what();
      gone++;
    } else {
      for (size_t i = 0; i < got.size(); i++)
        ASSERT_EQ(got[i], static_cast<std::byte>(i * 7 >> 3)) << "at " << i;
    }
  }
  EXPECT_GT(gone, 0);
  expect_rdma(handle(*open(kMiB)));
}

TEST_F(RdmaAgents, AClosingRegionWaitsForWhatTheDeviceHasOfIt) {
  if (!RdmaForTests::fake()) GTEST_SKIP() << "no device in software";
  begin();
  auto region = open(4 * kMiB);
  auto remote = handle(*region);
  read(remote);
  uint64_t pairs = RdmaForTests::fake()->counters().queue_pairs_made;
  RdmaForTests::fake()->set_loss("fake0", 1, true);
  std::thread reader([&] { EXPECT_FALSE(error_of([&] { read(remote); })); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  std::thread closer([&] { owner_->close(region, Deadline(seconds(5))); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  RdmaForTests::fake()->set_loss("fake0", 1, false);
  reader.join();
  closer.join();
  EXPECT_EQ(RdmaForTests::fake()->counters().queue_pairs_made, pairs);
  EXPECT_CODE(Code::kGone, read(remote));
}

TEST_F(RdmaAgents, AWriteNeverComesAfterTheRegionIsClosed) {
  begin();
  for (int round = 0; round < 30; round++) {
    auto region = open(8 * kMiB);
    auto remote = handle(*region);
    std::vector<std::byte> sent(memory_.size(), std::byte{1});
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
      owner_->close(region, Deadline(seconds(5)));
      std::ranges::fill(memory_, std::byte{0xee});
    });
    auto error = error_of([&] { reader_->run(writing(sent.data(), sent.size(), {remote, 0})); });
    closer.join();
    if (error) {
      EXPECT_EQ(error->code(), Code::kGone) << error->what();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_TRUE(std::ranges::all_of(memory_, [](std::byte b) { return b == std::byte{0xee}; }));
  }
}

TEST_F(RdmaAgents, AKeyThatMadeRoomIsAskedForAgain) {
  Config little = config_with(3 * kMiB / 2);
  begin(&little);
  std::vector<std::vector<std::byte>> memories;
  std::vector<std::shared_ptr<const RegionHandle>> remotes;
  for (int i = 0; i < 3; i++) {
    memories.emplace_back(kMiB, static_cast<std::byte>(i));
    remotes.push_back(handle(*owner_->open(memories[i].data(), kMiB, false)));
  }
  std::vector<std::byte> got(kMiB);
  for (size_t round = 0; round < 12; round++) {
    reader_->run(reading(got.data(), got.size(), {{remotes[round % 3], 0}}));
    ASSERT_TRUE(got == memories[round % 3]);
  }
  EXPECT_GT(bytes_by(*reader_, Way::kRdma), 5 * kMiB);
}

TEST_F(RdmaAgents, ARegionThatMayNotBeRegisteredIsServedOverTcp) {
  Config none = config_with(kMiB / 2);
  begin(&none);
  read(handle(*open(kMiB)));
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), kMiB);
  read(handle(*open(kMiB / 4)));
  EXPECT_EQ(bytes_by(*reader_, Way::kRdma), kMiB / 4);
}

TEST_F(RdmaAgents, LocalMemoryThatMayNotBeRegisteredGoesOverTcp) {
  Config none = config_with(0);
  begin(&rdma_config(), &none);
  read(handle(*open(kMiB)));
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), kMiB);
}

TEST_F(RdmaAgents, TheDevicesLimitOfLockedMemoryIsRespected) {
  if (!RdmaForTests::fake()) GTEST_SKIP() << "no device in software";
  std::vector<verbs::FakeDevice> devices(1);
  devices[0].memlock_bytes = 2 * kMiB;
  instead_.emplace(devices);
  begin();
  read(handle(*open(4 * kMiB)));
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), 4 * kMiB);
  read(handle(*open(kMiB / 2)));
  EXPECT_EQ(bytes_by(*reader_, Way::kRdma), kMiB / 2);
}

TEST_F(RdmaAgents, AQueuePairThatBreaksIsMadeAnew) {
  breaker_.emplace();
  begin();
  auto remote = handle(*open(16 * kMiB));
  for (int round = 0; round < 5; round++) {
    std::thread breaks([&, round] {
      std::this_thread::sleep_for(std::chrono::milliseconds(round));
      breaker_->break_oldest();
    });
    read(remote);
    breaks.join();
  }
  expect_rdma(remote);
}

TEST_F(RdmaAgents, ABatchThatEndsEarlyLeavesItsMemoryAlone) {
  if (!RdmaForTests::fake()) GTEST_SKIP() << "no device in software";
  instead_.emplace(std::vector{verbs::FakeDevice{}}, seconds(30));
  begin();
  auto remote = handle(*open(4 * kMiB));
  read(remote);
  std::vector<std::byte> got(memory_.size());
  RdmaForTests::fake()->set_loss("fake0", 1, true);
  EXPECT_CODE(Code::kTimeout, reader_->run(reading(got.data(), got.size(), {{remote, 0}}, 0.3)));
  std::ranges::fill(got, std::byte{0x55});
  RdmaForTests::fake()->set_loss("fake0", 1, false);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{0x55}; }));
  expect_rdma(remote);
}

TEST_F(RdmaAgents, AReadGoesOverTcpWhenItsQueuePairIsSilent) {
  if (!RdmaForTests::fake()) GTEST_SKIP() << "no device in software";
  instead_.emplace(std::vector{verbs::FakeDevice{}}, seconds(30));
  begin();
  auto remote = handle(*open(4 * kMiB));
  read(remote);
  RdmaForTests::fake()->set_loss("fake0", 1, true);
  read(remote);
  EXPECT_EQ(bytes_by(*reader_, Way::kTcp), 4 * kMiB);
  RdmaForTests::fake()->set_loss("fake0", 1, false);
}

TEST_F(RdmaAgents, ReleasedMemoryOfThePoolIsRegisteredAnew) {
  if (!RdmaForTests::fake()) GTEST_SKIP() << "no device in software";
  begin();
  auto remote = handle(*open(kMiB));
  auto regions_made_by = [&](std::byte* into) {
    uint64_t before = RdmaForTests::fake()->counters().regions_made;
    reader_->run(reading(into, kMiB, {{remote, 0}}));
    return RdmaForTests::fake()->counters().regions_made - before;
  };
  std::byte* first = Pool::of_process().allocate(kMiB);
  EXPECT_GT(regions_made_by(first), 0u);
  EXPECT_EQ(regions_made_by(first), 0u);
  Pool::of_process().release(first);
  std::byte* second = Pool::of_process().allocate(kMiB);
  EXPECT_EQ(second, first) << "this shows nothing";
  EXPECT_EQ(regions_made_by(second), 1u);
  Pool::of_process().release(second);
}

TEST_F(RdmaAgents, AnOwnerThatEndsIsLost) {
  begin();
  auto remote = handle(*open(32 * kMiB));
  read(remote);
  std::vector<std::byte> got(memory_.size());
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    owner_.reset();
  });
  auto error = error_of([&] {
    for (;;) reader_->run(reading(got.data(), got.size(), {{remote, 0}}));
  });
  ends.join();
  EXPECT_EQ(error->code(), Code::kPeerLost) << error->what();
}

}  // namespace
}  // namespace ringcoll::remote

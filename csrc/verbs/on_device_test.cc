// The same code on a real device: run where there is one (a card, or Soft-RoCE), else skipped with
// the reason.
#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "verbs/events.h"
#include "verbs/knobs.h"
#include "verbs/pair_testing.h"
#include "verbs/report.h"

namespace ringcoll::verbs {
namespace {

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    found_ = survey();
    chosen_ = select_ports(found_, KnobTable(knobs()).read());
    if (chosen_.usable.empty()) GTEST_SKIP() << chosen_.why_none(found_);
    ends_.emplace(chosen_.usable[0], limits());
  }
  // What every device can do inline; some can do nothing.
  QueuePairLimits limits() const {
    QueuePairLimits limits = PairForTest::kLimits;
    limits.inline_bytes = std::min(limits.inline_bytes, chosen_.usable[0].limits.inline_bytes);
    return limits;
  }
  PairForTest& connected() {
    ends_->connect();
    for (size_t i = 0; i < ends_->a.memory.size(); i++)
      ends_->a.memory[i] = static_cast<std::byte>(i * 31 >> 3);
    return *ends_;
  }
  /// `count` bytes of a's memory from `at`.
  Slice slice(size_t at, uint32_t count) {
    return slice_of(ends_->a.region, &ends_->a.memory[at], count);
  }

  Survey found_;
  Selection chosen_;
  std::optional<PairForTest> ends_;
};

TEST_F(OnDevice, IsDescribed) {
  std::string text = report_json(found_, chosen_, KnobTable(knobs()).read());
  std::printf("%s\n", text.c_str());
  const UsablePort& port = chosen_.usable[0];
  EXPECT_EQ(port.port.state, PortState::kActive);
  EXPECT_GE(port.port.active_mtu_bytes, 256u);
  EXPECT_GE(port.port.max_message_bytes, 1u << 20);
  EXPECT_FALSE(port.gid.gid.empty());
  EXPECT_NE(text.find("\"chosen\":true"), std::string::npos);
  EXPECT_GT(port.limits.work_requests, 0);
}

TEST_F(OnDevice, WritesWithImmediateArriveInOrder) {
  PairForTest& ends = connected();
  ASSERT_EQ(ends.b.pair.try_receive(7, 8), 8u);
  for (uint32_t i = 0; i < 8; i++) {
    Slice from = slice(0, 1000 * (i + 1));
    Write write = ends.write(from);
    write.id = i;
    write.immediate = 0xf0000000 + i;
    ASSERT_TRUE(ends.a.pair.try_write(write));
  }
  for (uint32_t i = 0; i < 8; i++) {
    Completion received = ends.b.wait();
    ASSERT_TRUE(received.ok()) << received.text();
    EXPECT_EQ(received.operation(), Operation::kReceiveImmediate);
    EXPECT_EQ(received.id(), 7u);
    EXPECT_EQ(received.immediate(), 0xf0000000 + i);
    EXPECT_EQ(received.bytes(), 1000 * (i + 1));
    Completion sent = ends.a.wait();
    ASSERT_TRUE(sent.ok()) << sent.text();
    EXPECT_EQ(sent.id(), i);
  }
  EXPECT_EQ(std::memcmp(ends.a.memory.data(), ends.b.memory.data(), 8000), 0);
}

TEST_F(OnDevice, AGatherListArrivesAsOne) {
  PairForTest& ends = connected();
  std::array<Slice, 4> slices = {slice(5000, 4097), slice(0, 1), slice(100, 64),
                                 slice(40000, 9000)};
  Write write = ends.write(slices[0]);
  write.from = slices;
  write.immediate = 3;
  ASSERT_EQ(ends.b.pair.try_receive(0, 1), 1u);
  ASSERT_TRUE(ends.a.pair.try_write(write));
  Completion received = ends.b.wait();
  ASSERT_TRUE(received.ok()) << received.text();
  EXPECT_EQ(received.bytes(), 4097u + 1 + 64 + 9000);
  size_t at = 0;
  for (const Slice& from : slices) {
    EXPECT_EQ(std::memcmp(&ends.b.memory[at], reinterpret_cast<void*>(from.address), from.bytes),
              0);
    at += from.bytes;
  }
}

TEST_F(OnDevice, UnsignaledAndInlineWritesAndOneEvent) {
  PairForTest& ends = connected();
  uint32_t bytes = std::min(ends.a.pair.limits().inline_bytes, 32u);
  if (bytes == 0) GTEST_SKIP() << "the device carries nothing inline";
  std::vector<std::byte> before(ends.a.memory.begin(), ends.a.memory.begin() + bytes);
  ASSERT_EQ(ends.b.pair.try_receive(0, 1), 1u);
  ends.b.queue.arm();
  Slice from = slice(0, bytes);
  Write write = ends.write(from);
  write.inlined = true;
  write.signaled = false;
  ASSERT_TRUE(ends.a.pair.try_write(write));
  write.remote_address += 4096;
  write.immediate = 9;
  write.signaled = true;
  ASSERT_TRUE(ends.a.pair.try_write(write));
  std::fill_n(ends.a.memory.begin(), bytes, std::byte{0});  // inline: it is ours again
  pollfd watched{ends.b.channel.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&watched, 1, 20000), 1);
  EXPECT_EQ(ends.b.channel.drain(), 1);
  ASSERT_TRUE(ends.b.wait().ok());
  ASSERT_TRUE(ends.a.wait().ok());
  EXPECT_TRUE(ends.a.quiet());
  EXPECT_EQ(std::memcmp(&ends.b.memory[0], before.data(), bytes), 0);
  EXPECT_EQ(std::memcmp(&ends.b.memory[4096], before.data(), bytes), 0);
}

TEST_F(OnDevice, AFullSendQueueIsNoError) {
  PairForTest& ends = connected();
  Slice from = slice(0, 8);
  std::vector<Write> writes(ends.a.pair.limits().send_requests + 500, ends.write(from));
  size_t posted = ends.a.pair.try_write(writes);
  EXPECT_GE(posted, PairForTest::kLimits.send_requests);
  for (size_t i = 0; i < std::min<size_t>(posted, 64); i++) ASSERT_TRUE(ends.a.wait().ok());
}

TEST_F(OnDevice, AWriteOutsideWhatWasGrantedIsRefused) {
  PairForTest& ends = connected();
  EventReader events(ends.context);
  ASSERT_EQ(ends.b.pair.try_receive(5, 1), 1u);
  Slice from = slice(0, 64);
  std::array<Write, 2> writes = {ends.write(from), ends.write(from)};
  writes[0].remote_address += PairForTest::kBytes - 32;
  writes[0].signaled = false;
  writes[1].id = 2;
  ASSERT_EQ(ends.a.pair.try_write(writes), 2u);
  Completion refused = ends.a.wait();
  std::printf("refused: %s\n", refused.text().c_str());
  EXPECT_EQ(refused.status(), Status::kRemoteAccess);
  Completion flushed = ends.a.wait();
  EXPECT_EQ(flushed.status(), Status::kFlushed) << flushed.text();
  EXPECT_EQ(flushed.id(), 2u);
  EXPECT_EQ(ends.a.pair.query_state(), QueuePairState::kError);
  // The owner of the memory learns of it by an event, and its receives come back.
  pollfd watched{events.fd(), POLLIN, 0};
  if (::poll(&watched, 1, 2000) == 1) {
    auto event = events.next();
    ASSERT_TRUE(event);
    std::printf("event: %s\n", event->text().c_str());
  }
  EXPECT_EQ(ends.b.wait().status(), Status::kFlushed);
}

TEST_F(OnDevice, ReadsFetchThePeersBytes) {
  PairForTest& ends = connected();
  for (size_t i = 0; i < ends.b.memory.size(); i++)
    ends.b.memory[i] = static_cast<std::byte>(i * 13 >> 2);
  Slice whole = slice(0, PairForTest::kBytes);
  // More than the one read that may be outstanding: the others wait in the queue.
  for (uint64_t id = 1; id <= 4; id++) {
    Read read = ends.read(whole);
    read.id = id;
    ASSERT_TRUE(ends.a.pair.try_read(read));
  }
  for (uint64_t id = 1; id <= 4; id++) {
    Completion done = ends.a.wait();
    ASSERT_TRUE(done.ok()) << done.text();
    EXPECT_EQ(done.operation(), Operation::kRead);
    EXPECT_EQ(done.id(), id);
  }
  EXPECT_EQ(ends.a.memory, ends.b.memory);
}

TEST_F(OnDevice, AReadOfMemoryThatIsNotRegisteredAnyMoreIsRefused) {
  PairForTest& ends = connected();
  Slice into = slice(0, 64);
  Read read = ends.read(into);
  ends.b.region = {};
  ends.a.memory[0] = std::byte{9};
  ASSERT_TRUE(ends.a.pair.try_read(read));
  Completion refused = ends.a.wait();
  EXPECT_EQ(refused.status(), Status::kRemoteAccess) << refused.text();
  EXPECT_EQ(ends.a.memory[0], std::byte{9});
}

TEST_F(OnDevice, UnregisteredMemoryIsALocalError) {
  PairForTest& ends = connected();
  Slice from = slice(PairForTest::kBytes - 8, 64);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(from)));
  Completion refused = ends.a.wait();
  std::printf("refused: %s\n", refused.text().c_str());
  EXPECT_EQ(refused.status(), Status::kLocalProtection);
}

TEST_F(OnDevice, APeerThatIsGoneUsesTheRetriesUp) {
  Connection of_a = ends_->connection(ends_->a, ends_->b);
  of_a.timeout_exponent = 14;
  of_a.retries = 2;
  ends_->connect(of_a, ends_->connection(ends_->b, ends_->a));
  ends_->b.pair.reset();
  Slice from = slice(0, 64);
  ASSERT_TRUE(ends_->a.pair.try_write(ends_->write(from)));
  double shortest = retry_seconds(of_a.timeout_exponent, of_a.retries);
  Clock::time_point start = Clock::now();
  Completion refused = ends_->a.wait(seconds(30));
  std::printf("after %.2f s: %s\n", to_seconds(Clock::now() - start),
              refused.text(shortest).c_str());
  EXPECT_EQ(refused.status(), Status::kRetryExceeded);
  EXPECT_GE(to_seconds(Clock::now() - start), shortest / 2);
}

TEST_F(OnDevice, AWrongGidIsNamed) {
  Connection of_a = ends_->connection(ends_->a, ends_->b);
  if (!of_a.global_route) GTEST_SKIP() << "InfiniBand routes by LID here";
  ends_->a.pair.to_init(of_a);
  of_a.gid_index = 200;
  try {
    ends_->a.pair.to_ready_to_receive(of_a);
    FAIL() << "a GID index that is empty was taken";
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
    EXPECT_NE(std::string(error.what()).find("ibv_modify_qp(RTR)"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("gid 200"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("RINGCOLL_GID_INDEX"), std::string::npos);
  }
}

TEST_F(OnDevice, AForkWithMemoryRegisteredDisturbsNothing) {
  PairForTest& ends = connected();
  ASSERT_EQ(ends.b.pair.try_receive(0, 2), 2u);
  pid_t child = ::fork();
  if (child == 0) {
    ends.a.memory[0] = ends.b.memory[0] = std::byte{1};  // its own copy
    ::_exit(0);
  }
  Slice from = slice(0, 32 << 10);
  Write write = ends.write(from);
  for (uint32_t i = 0; i < 2; i++) {
    ends.a.memory[i] = std::byte{0x55};  // a page that was shared by the fork
    write.immediate = i;
    ASSERT_TRUE(ends.a.pair.try_write(write));
    Completion received = ends.b.wait();
    ASSERT_TRUE(received.ok()) << received.text();
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::memcmp(ends.a.memory.data(), ends.b.memory.data(), 32 << 10), 0);
}

/// Takes a network interface down or up; false if this process may not.
bool set_interface(const std::string& name, bool up) {
  Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), sizeof request.ifr_name - 1);
  if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags =
      static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0;
}

/// Waits for an event of this kind and prints all that come.
bool comes(EventReader& events, EventKind kind) {
  Deadline deadline(seconds(10));
  while (!deadline.passed()) {
    pollfd watched{events.fd(), POLLIN, 0};
    ::poll(&watched, 1, 100);
    while (auto event = events.next()) {
      std::printf("event: %s\n", event->text().c_str());
      if (event->kind == kind) return true;
    }
  }
  return false;
}

TEST_F(OnDevice, ALinkThatGoesAndComesIsToldAndSurvived) {
  const char* allowed = std::getenv("TEST_RDMA_INTERFACE");
  const UsablePort& port = chosen_.usable[0];
  if (!allowed || port.port.interface != allowed)
    GTEST_SKIP()
        << "TEST_RDMA_INTERFACE does not name "
        << port.port.interface << ": a test may take only an interface down that it was told to";
  PairForTest& ends = connected();
  PairForTest others(port, limits());
  others.connect();
  EventReader events(ends.context);
  ASSERT_TRUE(set_interface(allowed, false));
  EXPECT_TRUE(comes(events, EventKind::kPortDown));
  Survey down = survey();
  std::printf("%s\n", select_ports(down, KnobTable(knobs()).read()).why_none(down).c_str());
  EXPECT_EQ(down.devices.at(0).ports.at(0).state, PortState::kDown);
  Slice meanwhile = slice_of(others.a.region, others.a.memory.data(), 4096);
  ASSERT_TRUE(others.a.pair.try_write(others.write(meanwhile)));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ASSERT_TRUE(set_interface(allowed, true));
  EXPECT_TRUE(comes(events, EventKind::kPortUp));
  Slice from = slice(0, 4096);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(from)));
  Completion after = ends.a.wait();
  EXPECT_TRUE(after.ok()) << after.text();
  // A card repeats what was posted meanwhile; Soft-RoCE finds no route and gives up at once.
  Completion during = others.a.wait();
  std::printf("posted while down: %s\n", during.text().c_str());
  EXPECT_TRUE(during.ok() || during.status() == Status::kLocalOperation) << during.text();
}

}  // namespace
}  // namespace ringcoll::verbs

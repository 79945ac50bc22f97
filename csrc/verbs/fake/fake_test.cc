// The fake device must punish what a real one does: else what is tested on it is not tested.
#include <gtest/gtest.h>
#include <poll.h>

#include <numeric>

#include "verbs/fake/fake_testing.h"
#include "verbs/pair_testing.h"

namespace ringcoll::verbs {
namespace {

UsablePort first_port() { return select_ports(survey(), Config{}).usable.at(0); }

void count_up(std::vector<std::byte>* memory) {
  for (size_t i = 0; i < memory->size(); i++) (*memory)[i] = static_cast<std::byte>(i * 7);
}

/// Whatever happens in a test, nothing may be left and nothing misused.
class Fake : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { begin(FakeOptions{}.give_up_after); }
  void begin(Duration give_up_after) {
    fake.reset();
    FakeOptions options;
    options.in_background = GetParam();
    options.give_up_after = give_up_after;
    fake.emplace(options);
  }
  void TearDown() override {
    EXPECT_EQ(fake->objects_left(), 0);
    EXPECT_TRUE(fake->misuses().empty());
  }
  std::optional<FakeVerbs> fake;
};

TEST_P(Fake, AWriteWithImmediateArrivesBeforeItsCompletion) {
  PairForTest ends(first_port());
  ends.connect();
  count_up(&ends.a.memory);
  ASSERT_EQ(ends.b.pair.try_receive(77, 1), 1u);
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 5000);
  Write write = ends.write(slice);
  write.immediate = 0xabcd1234;
  ASSERT_TRUE(ends.a.pair.try_write(write));
  Completion received = ends.b.wait();
  ASSERT_TRUE(received.ok()) << received.text();
  EXPECT_EQ(received.id(), 77u);
  EXPECT_EQ(received.immediate(), 0xabcd1234u);
  EXPECT_EQ(received.bytes(), 5000u);
  EXPECT_EQ(received.qp_num(), ends.b.pair.number());
  EXPECT_EQ(std::memcmp(ends.a.memory.data(), ends.b.memory.data(), 5000), 0);
  Completion sent = ends.a.wait();
  EXPECT_TRUE(sent.ok());
  EXPECT_EQ(sent.operation(), Operation::kWrite);
}

TEST_P(Fake, GathersInOrder) {
  PairForTest ends(first_port());
  ends.connect();
  count_up(&ends.a.memory);
  std::array<Slice, 3> slices = {slice_of(ends.a.region, &ends.a.memory[3000], 10),
                                 slice_of(ends.a.region, &ends.a.memory[0], 0),
                                 slice_of(ends.a.region, &ends.a.memory[100], 20)};
  Write write = ends.write(slices[0]);
  write.from = slices;
  ASSERT_TRUE(ends.a.pair.try_write(write));
  ASSERT_TRUE(ends.a.wait().ok());
  EXPECT_EQ(std::memcmp(&ends.b.memory[0], &ends.a.memory[3000], 10), 0);
  EXPECT_EQ(std::memcmp(&ends.b.memory[10], &ends.a.memory[100], 20), 0);
}

TEST_P(Fake, WritesOfOneQueuePairKeepTheirOrder) {
  PairForTest ends(first_port());
  ends.connect();
  ASSERT_EQ(ends.b.pair.try_receive(0, 50), 50u);
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 64);
  for (uint32_t i = 0; i < 50; i++) {
    Write write = ends.write(slice);
    write.immediate = i;
    ASSERT_TRUE(ends.a.pair.try_write(write));
  }
  for (uint32_t i = 0; i < 50; i++) ASSERT_EQ(ends.b.wait().immediate(), i);
}

TEST_P(Fake, UnsignaledWritesAreSilentAndTheirRoomComesBackWithASignaledOne) {
  PairForTest ends(first_port());
  ends.connect();
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  std::vector<Write> writes(64, ends.write(slice));
  for (Write& write : writes) write.signaled = false;
  writes[31].signaled = true;
  writes[31].id = 31;
  ASSERT_EQ(ends.a.pair.try_write(writes), 64u);
  EXPECT_FALSE(ends.a.pair.try_write(writes[0]));
  EXPECT_EQ(ends.a.wait().id(), 31u);
  EXPECT_EQ(ends.a.pair.try_write(writes), 32u);  // those up to the signaled one
  EXPECT_EQ(ends.a.pair.try_write(writes), 0u);
  // As on a device, whoever signals none of what is left has no way to make room again.
}

TEST_P(Fake, InlineMemoryIsFreeAtOnce) {
  PairForTest ends(first_port());
  ends.connect();
  ends.a.memory[0] = std::byte{42};
  Slice slice{ends.a.region.address(), 1, 0};  // no key needed
  Write write = ends.write(slice);
  write.inlined = true;
  ASSERT_TRUE(ends.a.pair.try_write(write));
  ends.a.memory[0] = std::byte{0};
  ASSERT_TRUE(ends.a.wait().ok());
  EXPECT_EQ(ends.b.memory[0], std::byte{42});
  slice.bytes = 65;
  EXPECT_THROW((void)ends.a.pair.try_write(write), Error);
}

TEST_P(Fake, MemoryThatIsNotRegisteredIsALocalError) {
  PairForTest ends(first_port());
  ends.connect();
  Slice slice = slice_of(ends.a.region, ends.a.memory.data() + PairForTest::kBytes - 4, 8);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  EXPECT_EQ(ends.a.wait().status(), Status::kLocalProtection);
  EXPECT_EQ(ends.a.pair.query_state(), QueuePairState::kError);
  EXPECT_EQ(ends.b.pair.query_state(), QueuePairState::kReadyToSend);
}

struct Violation {
  const char* name;
  void (*change)(Write*, const PairForTest&);
};
const Violation kViolations[] = {
    {"past the end",
     [](Write* w, const PairForTest&) { w->remote_address += PairForTest::kBytes; }},
    {"before the start", [](Write* w, const PairForTest&) { w->remote_address -= 1; }},
    {"a key that is none", [](Write* w, const PairForTest&) { w->rkey ^= 0x40000000; }},
    {"the local key", [](Write* w, const PairForTest& p) { w->rkey = p.b.region.lkey(); }},
};

TEST_P(Fake, AWriteOutsideWhatWasGrantedBreaksBothEnds) {
  for (const Violation& violation : kViolations) {
    SCOPED_TRACE(violation.name);
    PairForTest ends(first_port());
    ends.connect();
    EventReader events(ends.context);
    ASSERT_EQ(ends.b.pair.try_receive(7, 2), 2u);
    Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
    Write write = ends.write(slice);
    violation.change(&write, ends);
    write.signaled = false;  // failures are never silent
    std::array<Write, 2> both = {write, ends.write(slice)};
    ASSERT_EQ(ends.a.pair.try_write(both), 2u);
    Completion failed = ends.a.wait();
    EXPECT_EQ(failed.status(), Status::kRemoteAccess) << failed.text();
    EXPECT_EQ(ends.a.wait().status(), Status::kFlushed);
    EXPECT_EQ(ends.b.wait().status(), Status::kFlushed);
    EXPECT_EQ(ends.b.wait().status(), Status::kFlushed);
    EXPECT_EQ(ends.b.pair.query_state(), QueuePairState::kError);
    auto event = events.next();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->kind, EventKind::kQueuePairAccess);
    EXPECT_EQ(event->qp_num, ends.b.pair.number());
  }
}

TEST_P(Fake, AReadFetchesOnlyWhatWasGranted) {
  PairForTest ends(first_port());
  Connection of_a = ends.connection(ends.a, ends.b);
  ends.connect(of_a, ends.connection(ends.b, ends.a));
  count_up(&ends.b.memory);
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 5000);
  ASSERT_TRUE(ends.a.pair.try_read(ends.read(slice)));
  Completion done = ends.a.wait();
  ASSERT_TRUE(done.ok()) << done.text();
  EXPECT_EQ(done.operation(), Operation::kRead);
  EXPECT_EQ(std::memcmp(ends.a.memory.data(), ends.b.memory.data(), 5000), 0);
  EXPECT_EQ(fake->counters().reads, 1u);
  ends.b.region = MemoryRegion(ends.domain, ends.b.memory.data(), 5000, Access::kRemoteWrite);
  ASSERT_TRUE(ends.a.pair.try_read(ends.read(slice)));
  EXPECT_EQ(ends.a.wait().status(), Status::kRemoteAccess);
  EXPECT_EQ(ends.b.pair.query_state(), QueuePairState::kError);
}

TEST_P(Fake, AReadNeedsMemoryThatMayBeWrittenAndAPeerThatServesReads) {
  {
    PairForTest ends(first_port());
    ends.connect();
    MemoryRegion unwritten(ends.domain, ends.a.memory.data(), 64, Access::kLocalRead);
    Slice slice = slice_of(unwritten, ends.a.memory.data(), 64);
    ASSERT_TRUE(ends.a.pair.try_read(ends.read(slice)));
    EXPECT_EQ(ends.a.wait().status(), Status::kLocalProtection);
  }
  PairForTest ends(first_port());
  Connection of_a = ends.connection(ends.a, ends.b);
  of_a.reads_in_flight = 2;
  ends.connect(of_a, ends.connection(ends.b, ends.a));
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 64);
  ASSERT_TRUE(ends.a.pair.try_read(ends.read(slice)));
  EXPECT_EQ(ends.a.wait().status(), Status::kRemoteInvalidRequest);
}

TEST_P(Fake, AWriteWithImmediateWaitsForAReceive) {
  PairForTest ends(first_port());
  ends.connect();
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  Write write = ends.write(slice);
  write.immediate = 1;
  ASSERT_TRUE(ends.a.pair.try_write(write));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(ends.a.quiet());
  EXPECT_EQ(fake->counters().receiver_not_ready, 1u);
  ASSERT_EQ(ends.b.pair.try_receive(0, 1), 1u);
  EXPECT_TRUE(ends.a.wait().ok());
  EXPECT_TRUE(ends.b.wait().ok());
}

TEST_P(Fake, WithFewRetriesAReceiverThatIsNotReadyIsAnError) {
  begin(seconds(0.05));
  PairForTest ends(first_port());
  Connection of_a = ends.connection(ends.a, ends.b);
  of_a.receiver_not_ready_retries = 3;
  ends.connect(of_a, ends.connection(ends.b, ends.a));
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  Write write = ends.write(slice);
  write.immediate = 1;
  ASSERT_TRUE(ends.a.pair.try_write(write));
  EXPECT_EQ(ends.a.wait().status(), Status::kReceiverNotReady);
}

TEST_P(Fake, ALinkThatComesBackInTimeIsSurvived) {
  PairForTest ends(first_port());
  ends.connect();
  fake->set_link("fake0", 1, false);
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(ends.a.quiet());
  fake->set_link("fake0", 1, true);
  EXPECT_TRUE(ends.a.wait().ok());
}

TEST_P(Fake, LossForGoodUsesTheRetriesUp) {
  begin(seconds(0.05));
  PairForTest ends(first_port());
  ends.connect();
  fake->set_loss("fake0", 1, true);
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  EXPECT_EQ(ends.a.wait().status(), Status::kRetryExceeded);
}

TEST_P(Fake, EndsThatDoNotAgreeDoNotReachEachOther) {
  begin(seconds(0.05));
  for (int what = 0; what < 2; what++) {
    PairForTest ends(first_port());
    Connection of_a = ends.connection(ends.a, ends.b);
    Connection of_b = ends.connection(ends.b, ends.a);
    if (what == 0) of_b.remote_psn++;
    if (what == 1) of_b.remote_qp_num = 0x7fffff;
    ends.connect(of_a, of_b);
    Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
    ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
    EXPECT_EQ(ends.a.wait().status(), Status::kRetryExceeded);
  }
}

TEST_P(Fake, APeerThatIsGoneUsesTheRetriesUp) {
  begin(seconds(0.05));
  PairForTest ends(first_port());
  ends.connect();
  ends.b.pair.reset();
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  EXPECT_EQ(ends.a.wait().status(), Status::kRetryExceeded);
}

TEST_P(Fake, MixedMtusAndForbiddenWritesAreInvalidRequests) {
  for (int what = 0; what < 2; what++) {
    PairForTest ends(first_port());
    Connection of_b = ends.connection(ends.b, ends.a);
    if (what == 0) of_b.path_mtu_bytes = 1024;
    if (what == 1) of_b.peer_may = Access::kLocalRead;
    ends.connect(ends.connection(ends.a, ends.b), of_b);
    Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 2000);
    ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
    EXPECT_EQ(ends.a.wait().status(), Status::kRemoteInvalidRequest);
  }
}

TEST_P(Fake, AnOverflowingQueueIsLostWithItsQueuePairs) {
  PairForTest ends(first_port(), PairForTest::kLimits, 4);
  ends.connect();
  EventReader events(ends.context);
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  std::vector<Write> writes(5, ends.write(slice));
  ASSERT_EQ(ends.a.pair.try_write(writes), 5u);
  pollfd watched{events.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&watched, 1, 10000), 1);
  EXPECT_EQ(events.next()->kind, EventKind::kCompletionQueueLost);
  Completion completion;
  EXPECT_THROW(ends.a.queue.poll(std::span(&completion, 1)), Error);
  EXPECT_EQ(ends.a.pair.query_state(), QueuePairState::kError);
}

TEST_P(Fake, AnArmedQueueTellsItsChannelOnce) {
  PairForTest ends(first_port());
  ends.connect();
  pollfd watched{ends.a.channel.fd(), POLLIN, 0};
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  ASSERT_TRUE(ends.a.wait().ok());
  EXPECT_EQ(::poll(&watched, 1, 0), 0);  // not armed
  ends.a.queue.arm();
  for (int i = 0; i < 3; i++) ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  ASSERT_EQ(::poll(&watched, 1, 10000), 1);
  for (int i = 0; i < 3; i++) ASSERT_TRUE(ends.a.wait().ok());
  EXPECT_EQ(ends.a.channel.drain(), 1);
  EXPECT_EQ(::poll(&watched, 1, 0), 0);
}

TEST_P(Fake, ArmedForSolicitedOnlyThoseTell) {
  PairForTest ends(first_port());
  ends.connect();
  pollfd watched{ends.b.channel.fd(), POLLIN, 0};
  ASSERT_EQ(ends.b.pair.try_receive(0, 2), 2u);
  ends.b.queue.arm(true);
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  Write write = ends.write(slice);
  write.immediate = 1;
  ASSERT_TRUE(ends.a.pair.try_write(write));
  ASSERT_TRUE(ends.b.wait().ok());
  EXPECT_EQ(::poll(&watched, 1, 0), 0);
  write.solicited = true;
  ASSERT_TRUE(ends.a.pair.try_write(write));
  EXPECT_EQ(::poll(&watched, 1, 10000), 1);
}

TEST_P(Fake, AnEventThatNobodyTookGoesWithItsQueue) {
  Context context("fake0");
  CompletionChannel channel(context);
  EXPECT_EQ(channel.drain(), 0);
  PairForTest ends(first_port());
  ends.connect();
  ends.a.queue.arm();
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  ASSERT_TRUE(ends.a.wait().ok());
}

TEST_P(Fake, ToErrorFlushesWhatIsPosted) {
  PairForTest ends(first_port());
  ends.connect();
  ASSERT_EQ(ends.a.pair.try_receive(5, 3), 3u);
  EXPECT_TRUE(ends.a.pair.to_error());
  for (int i = 0; i < 3; i++) EXPECT_EQ(ends.a.wait().status(), Status::kFlushed);
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  EXPECT_EQ(ends.a.wait().status(), Status::kFlushed);
}

TEST_P(Fake, FailsWhatItIsToldTo) {
  UsablePort port = first_port();
  PairForTest ends(port);
  ends.connect();
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  fake->fail(FakeCall::kPostSend, 2, EIO);
  EXPECT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  EXPECT_THROW((void)ends.a.pair.try_write(ends.write(slice)), Error);
  EXPECT_TRUE(ends.a.wait().ok());
  fake->fail_completion(2, Status::kRemoteOperation);
  EXPECT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  EXPECT_TRUE(ends.a.wait().ok());
  EXPECT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  EXPECT_EQ(ends.a.wait().status(), Status::kRemoteOperation);
  EXPECT_EQ(ends.a.pair.query_state(), QueuePairState::kError);
}

TEST_P(Fake, ThreadsReachEachOther) {
  UsablePort port = first_port();
  PairForTest ends(port);
  ends.connect();
  constexpr uint32_t kMessages = 300;
  auto exchange = [&](EndForTest& mine, const EndForTest& other) {
    ASSERT_EQ(mine.pair.try_receive(0, 60), 60u);
    uint32_t sent = 0, received = 0, left = 0;
    Deadline deadline(seconds(30));
    // The lower half is written by the peer, the upper one is what this end sends.
    auto* numbers = reinterpret_cast<uint32_t*>(mine.memory.data());
    constexpr size_t kHalf = PairForTest::kBytes / 2, kSlots = 32;
    while ((received < kMessages || left < kMessages) && !deadline.passed()) {
      // 32 slots, so no more than 32 beyond what the peer has answered.
      if (sent < kMessages && sent < received + kSlots && sent < left + kSlots) {
        size_t slot = sent % kSlots;
        numbers[kHalf / 4 + slot] = sent;
        Slice slice = slice_of(mine.region, &numbers[kHalf / 4 + slot], 4);
        Write write{.from = std::span(&slice, 1),
                    .remote_address = other.region.address() + slot * 4,
                    .rkey = other.region.rkey(),
                    .immediate = sent};
        if (mine.pair.try_write(write)) sent++;
      }
      Completion completion;
      if (mine.queue.poll(std::span(&completion, 1)) == 0) continue;
      ASSERT_TRUE(completion.ok()) << completion.text();
      if (completion.operation() == Operation::kWrite) left++;
      if (completion.operation() != Operation::kReceiveImmediate) continue;
      ASSERT_EQ(completion.immediate(), received);
      ASSERT_EQ(mine.pair.try_receive(0, 1), 1u);
      received++;
    }
    EXPECT_EQ(received, kMessages);
  };
  std::thread other([&] { exchange(ends.b, ends.a); });
  exchange(ends.a, ends.b);
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Moving, Fake, testing::Bool(), [](const auto& info) {
  return info.param ? "InTheBackground" : "OnThePost";
});

TEST(FakeInfiniBand, RoutesByLid) {
  FakePort port{.link_layer = LinkLayer::kInfiniBand,
                .lid = 9,
                .gids = {{"fe80::2:c903:1", GidType::kInfiniBand}}};
  FakeVerbs fake({.devices = {{.ports = {port}}}});
  PairForTest ends(first_port());
  Connection of_a = ends.connection(ends.a, ends.b);
  EXPECT_FALSE(of_a.global_route);
  ends.connect();
  EXPECT_EQ(ends.a.pair.port_id().text(), "fake0:1");
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  EXPECT_TRUE(ends.a.wait().ok());
}

TEST(FakeMessages, LongerThanThePortAllowsAreALocalError) {
  FakePort port;
  port.max_message_bytes = 4096;
  FakeVerbs fake({.devices = {{.ports = {port}}}});
  PairForTest ends(first_port());
  ends.connect();
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 4097);
  ASSERT_TRUE(ends.a.pair.try_write(ends.write(slice)));
  EXPECT_EQ(ends.a.wait().status(), Status::kLocalLength);
}

}  // namespace
}  // namespace ringcoll::verbs

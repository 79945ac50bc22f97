// Agents with one another, over the ways that a copy takes: by mapped memory, by the kernel, and by
// links. Those of other processes, which can be killed, are in tests/remote.
#include "remote/agent.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/threads.h"
#include "net/socket.h"
#include "remote/agent_testing.h"
#include "transport/verbs/device_testing.h"

namespace ringcoll::remote {
namespace {

class Ways : public ::testing::TestWithParam<Path> {
 protected:
  Ways()
      : owner_(loopback(), "one", rdma_of(GetParam())),
        reader_(loopback(), reader_host(GetParam()), rdma_of(GetParam())) {
    owner_.admit("test", "key");
    reader_.admit("test", "key");
  }
  Agent owner_, reader_;
};
const auto* const kRdmaEnvironment =
    ::testing::AddGlobalTestEnvironment(new ringcoll::testing::RdmaForTests);
INSTANTIATE_TEST_SUITE_P(All, Ways,
                         ::testing::Values(Path::kMapped, Path::kKernel, Path::kLinks, Path::kRdma),
                         [](const auto& each) { return name_of(each.param); });

TEST_P(Ways, ReadsWhatTheOwnerHas) {
  for (size_t bytes : {1u, 8u, 4097u, 1u << 20, (3u << 20) + 5u}) {
    Memory memory(GetParam(), bytes);
    memory.fill(static_cast<int>(bytes));
    auto region = owner_.open(memory.data(), bytes, false);
    auto remote = attach(owner_.handle_of(*region));
    std::vector<std::byte> got(bytes);
    reader_.run(reading(got.data(), bytes, {{remote, 0}}));
    EXPECT_TRUE(std::equal(got.begin(), got.end(), memory.data()));
    owner_.close(region, Deadline(seconds(5)));
  }
}

TEST_P(Ways, ReadsAPart) {
  Memory memory(GetParam(), 100'000);
  memory.fill(1);
  auto region = owner_.open(memory.data(), memory.bytes(), false);
  auto remote = attach(owner_.handle_of(*region));
  std::vector<std::byte> got(1000);
  reader_.run(reading(got.data(), 1000, {{remote, 99'000}}));
  EXPECT_TRUE(std::equal(got.begin(), got.end(), memory.data() + 99'000));
  owner_.close(region, Deadline(seconds(5)));
}

TEST_P(Ways, WritesAndGivesNoticeAfterTheBytes) {
  Memory memory(GetParam(), (2 << 20) + 3);
  auto region = owner_.open(memory.data(), memory.bytes(), true);
  auto remote = attach(owner_.handle_of(*region));
  std::vector<std::byte> sent(memory.bytes(), std::byte{42});
  std::thread writer([&] { reader_.run(writing(sent.data(), sent.size(), {remote, 0}, 7)); });
  EXPECT_EQ(region->take_notice(Deadline(seconds(10))), 7u);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), memory.data()));
  writer.join();
  reader_.run(writing(nullptr, 0, {remote, 0}, 8));  // a notice alone
  EXPECT_EQ(region->take_notice(Deadline(seconds(10))), 8u);
}

TEST_P(Ways, RefusesToWriteWhereItMayNot) {
  Memory memory(GetParam(), 100);
  memory.fill(3);
  auto region = owner_.open(memory.data(), 100, false);
  RegionHandle handle = decode(owner_.handle_of(*region));
  std::vector<std::byte> sent(100);
  EXPECT_CODE(Code::kRefused,
              writing(sent.data(), 100, {std::make_shared<RegionHandle>(handle), 0}));
  handle.writable = true;  // a forged handle
  auto forged = std::make_shared<RegionHandle>(handle);
  EXPECT_CODE(Code::kRefused, reader_.run(writing(sent.data(), 100, {forged, 0})));
  EXPECT_EQ(memory.data()[0], std::byte{3});
}

TEST_P(Ways, NeverLeavesTheRegion) {
  Memory memory(GetParam(), 1000);
  auto region = owner_.open(memory.data() + 100, 500, true);
  RegionHandle handle = decode(owner_.handle_of(*region));
  std::vector<std::byte> mine(1000);
  auto honest = std::make_shared<RegionHandle>(handle);
  EXPECT_CODE(Code::kInvalidArgument, reading(mine.data(), 501, {{honest, 0}}));
  EXPECT_CODE(Code::kInvalidArgument, reading(mine.data(), 1, {{honest, 500}}));
  EXPECT_CODE(Code::kInvalidArgument, reading(mine.data(), 2, {{honest, UINT64_MAX}}));
  handle.bytes = UINT64_MAX;  // a forged handle
  auto forged = std::make_shared<RegionHandle>(handle);
  EXPECT_CODE(Code::kInvalidArgument, reader_.run(reading(mine.data(), 501, {{forged, 0}})));
  EXPECT_CODE(Code::kInvalidArgument, reader_.run(writing(mine.data(), 10, {forged, 495})));
  EXPECT_CODE(Code::kInvalidArgument,
              reader_.run(writing(mine.data(), 10, {forged, UINT64_MAX - 5})));
}

TEST_P(Ways, ARegionThatIsClosedIsGone) {
  Memory memory(GetParam(), 1000);
  auto region = owner_.open(memory.data(), 1000, true);
  auto remote = attach(owner_.handle_of(*region));
  std::vector<std::byte> mine(1000);
  reader_.run(reading(mine.data(), 1000, {{remote, 0}}));
  owner_.close(region, Deadline(seconds(5)));
  EXPECT_CODE(Code::kGone, reader_.run(reading(mine.data(), 1000, {{remote, 0}})));
  EXPECT_CODE(Code::kGone, reader_.run(writing(mine.data(), 1000, {remote, 0})));
  auto next = owner_.open(memory.data(), 1000, true);  // takes the number of the other
  EXPECT_CODE(Code::kGone, reader_.run(reading(mine.data(), 1000, {{remote, 0}})));
  EXPECT_CODE(Code::kGone, region->take_notice(Deadline(seconds(1))));
}

TEST_P(Ways, AWrongSecretOpensNothing) {
  Memory memory(GetParam(), 1000);
  auto region = owner_.open(memory.data(), 1000, true);
  RegionHandle handle = decode(owner_.handle_of(*region));
  handle.secret ^= 1;
  std::vector<std::byte> mine(1000);
  auto forged = std::make_shared<RegionHandle>(handle);
  EXPECT_CODE(Code::kGone, reader_.run(reading(mine.data(), 1000, {{forged, 0}})));
  EXPECT_CODE(Code::kGone, reader_.run(writing(mine.data(), 1000, {forged, 0})));
  handle.index = UINT32_MAX;
  forged = std::make_shared<RegionHandle>(handle);
  EXPECT_CODE(Code::kGone, reader_.run(reading(mine.data(), 1000, {{forged, 0}})));
}

TEST_P(Ways, ReadsAnotherHolderWhereOneIsGone) {
  Agent other(loopback(), crosses_hosts(GetParam()) ? "three" : "one", rdma_of(GetParam()));
  other.admit("test", "key");
  Memory first(GetParam(), 5 << 20), second(GetParam(), 5 << 20);
  second.fill(9);
  auto lost = owner_.open(first.data(), first.bytes(), false);
  auto kept = other.open(second.data(), second.bytes(), false);
  std::vector<Source> sources = {{attach(owner_.handle_of(*lost)), 0},
                                 {attach(other.handle_of(*kept)), 0}};
  owner_.close(lost, Deadline(seconds(5)));
  std::vector<std::byte> got(second.bytes());
  reader_.run(reading(got.data(), got.size(), sources));
  EXPECT_TRUE(std::equal(got.begin(), got.end(), second.data()));
  other.close(kept, Deadline(seconds(5)));
}

TEST_P(Ways, ManyThreadsReadAndWriteAtOnce) {
  constexpr size_t kThreads = 4, kBytes = 300'000;
  Memory memory(GetParam(), kThreads * kBytes);
  auto region = owner_.open(memory.data(), memory.bytes(), true);
  auto remote = attach(owner_.handle_of(*region));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; i++)
    threads.emplace_back([&, i] {
      std::vector<std::byte> sent(kBytes), got(kBytes);
      for (int round = 0; round < 20; round++) {
        std::ranges::fill(sent, static_cast<std::byte>(i * 20 + static_cast<size_t>(round)));
        reader_.run(writing(sent.data(), kBytes, {remote, i * kBytes}));
        reader_.run(reading(got.data(), kBytes, {{remote, i * kBytes}}));
        ASSERT_EQ(got, sent);
      }
    });
  for (auto& thread : threads) thread.join();
  owner_.close(region, Deadline(seconds(5)));
}

TEST_P(Ways, StartedBatchesEndWithACallback) {
  Memory memory(GetParam(), 3 << 20);
  memory.fill(5);
  auto region = owner_.open(memory.data(), memory.bytes(), false);
  auto remote = attach(owner_.handle_of(*region));
  std::vector<std::byte> got(memory.bytes());
  std::atomic<int> ended = 0;
  Copy copy{.local = got.data(), .bytes = got.size(), .sources = {{remote, 0}}};
  auto batch = std::make_shared<Batch>(std::vector{copy}, seconds(20),
                                       [&](const std::optional<Error>& error) {
                                         EXPECT_FALSE(error.has_value());
                                         ended++;
                                       });
  reader_.start(batch);
  EXPECT_TRUE(batch->wait(10));
  EXPECT_EQ(ended, 1);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), memory.data()));
  owner_.close(region, Deadline(seconds(5)));
}

// The owner closes regions while others read them: each read gives the bytes of its region, or says
// that the region is gone.
TEST_P(Ways, ClosingWhileOthersRead) {
  std::mutex mutex;
  std::shared_ptr<const RegionHandle> current;
  std::byte expected{};
  std::atomic<bool> over = false;
  std::atomic<int> read = 0, gone = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; i++)
    readers.emplace_back([&] {
      std::vector<std::byte> got(200'000);
      while (!over) {
        std::shared_ptr<const RegionHandle> remote;
        std::byte wanted;
        {
          std::lock_guard lock(mutex);
          remote = current;
          wanted = expected;
        }
        if (!remote) continue;
        auto error = error_of([&] { reader_.run(reading(got.data(), got.size(), {{remote, 0}})); });
        if (error) {
          ASSERT_EQ(error->code(), Code::kGone) << error->what();
          gone++;
        } else {
          ASSERT_TRUE(std::ranges::all_of(got, [&](std::byte b) { return b == wanted; }));
          read++;
        }
      }
    });
  // One stretch of memory for all of them, so that a late reader would see the next one's bytes.
  // ThreadSanitizer cannot know that such a reader throws them away: there, each region has its
  // own.
#ifdef __SANITIZE_THREAD__
  constexpr size_t kStretches = 100;
#else
  constexpr size_t kStretches = 1;
#endif
  std::deque<Memory> stretches;
  while (stretches.size() < kStretches) stretches.emplace_back(GetParam(), 200'000);
  for (size_t round = 1; round <= 100; round++) {
    Memory& memory = stretches[round % kStretches];
    std::fill_n(memory.data(), memory.bytes(), static_cast<std::byte>(round));
    auto region = owner_.open(memory.data(), memory.bytes(), false);
    {
      std::lock_guard lock(mutex);
      current = attach(owner_.handle_of(*region));
      expected = static_cast<std::byte>(round);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    owner_.close(region, Deadline(seconds(5)));
  }
  over = true;
  for (auto& reader : readers) reader.join();
  EXPECT_GT(read, 0);
}

TEST(Agent, ReadsItsOwnRegions) {
  Agent agent(loopback(), "one");
  std::vector<std::byte> memory(1000, std::byte{4}), got(1000);
  auto region = agent.open(memory.data(), 1000, true);
  auto remote = attach(agent.handle_of(*region));
  agent.run(reading(got.data(), 1000, {{remote, 0}}));
  EXPECT_EQ(got, memory);
  got[0] = std::byte{5};
  agent.run(writing(got.data(), 1000, {remote, 0}, 77));
  EXPECT_EQ(memory, got);
  EXPECT_EQ(region->take_notice(Deadline(seconds(1))), 77u);
}

TEST(Agent, SharesAReadBetweenHolders) {
  Agent reader(loopback(), "reader"), one(loopback(), "one"), two(loopback(), "two");
  for (Agent* each : {&reader, &one, &two}) each->admit("test", "key");
  std::vector<std::byte> memory(32 << 20, std::byte{8}), got(32 << 20);
  auto first = one.open(memory.data(), memory.size(), false);
  auto second = two.open(memory.data(), memory.size(), false);
  std::vector<Source> sources = {{attach(one.handle_of(*first)), 0},
                                 {attach(two.handle_of(*second)), 0}};
  for (const Source& each : sources) reader.run(reading(got.data(), 1, {each}));  // makes the links
  reader.run(reading(got.data(), got.size(), sources));
  EXPECT_EQ(got, memory);
  auto served = reader.stats().served;
  ASSERT_EQ(served.size(), 2u);
  // On a busy machine one holder may serve no more than what it was asked for at first.
  for (auto& each : served) EXPECT_GE(each.bytes, 4u << 20);
  one.close(first, Deadline(seconds(5)));
  two.close(second, Deadline(seconds(5)));
}

TEST(Agent, UsesNearerHoldersAlone) {
  Agent reader(loopback(), "reader"), one(loopback(), "one"), two(loopback(), "two");
  for (Agent* each : {&reader, &one, &two}) each->admit("test", "key");
  std::vector<std::byte> memory(8 << 20), got(8 << 20);
  auto first = one.open(memory.data(), memory.size(), false);
  auto second = two.open(memory.data(), memory.size(), false);
  std::vector<Source> sources = {{attach(one.handle_of(*first)), 0, 2},
                                 {attach(two.handle_of(*second)), 0, 1}};
  reader.run(reading(got.data(), got.size(), sources));
  auto served = reader.stats().served;
  ASSERT_EQ(served.size(), 1u);
  EXPECT_EQ(served[0].agent, two.id());
  one.close(first, Deadline(seconds(5)));
  two.close(second, Deadline(seconds(5)));
}

TEST(Agent, SaysWhyAHolderCannotBeReached) {
  Agent reader(loopback(), "reader");
  reader.admit("test", "key");
  std::vector<std::byte> memory(100), got(100);
  std::string handle;
  {
    Agent owner(loopback(), "owner");
    owner.admit("test", "key");
    handle = owner.handle_of(*owner.open(memory.data(), 100, false));
  }
  EXPECT_CODE(Code::kPeerLost, reader.run(reading(got.data(), 100, {{attach(handle), 0}})));
  Agent stranger(loopback(), "stranger");
  stranger.admit("test", "another key");
  handle = stranger.handle_of(*stranger.open(memory.data(), 100, false));
  EXPECT_CODE(Code::kRefused, reader.run(reading(got.data(), 100, {{attach(handle), 0}})));
  Agent closed(loopback(), "closed");
  closed.admit("other", "key");
  handle = closed.handle_of(*closed.open(memory.data(), 100, false));
  EXPECT_CODE(Code::kRefused, reader.run(reading(got.data(), 100, {{attach(handle), 0}})));
}

TEST(Agent, AHandleIsNotEnoughOnOneHostEither) {
  Agent reader(loopback(), "one"), owner(loopback(), "one");
  owner.admit("test", "key");
  std::vector<std::byte> memory(100, std::byte{3}), got(100);
  auto region = owner.open(memory.data(), 100, true);
  auto remote = attach(owner.handle_of(*region));
  EXPECT_CODE(Code::kRefused, reader.run(reading(got.data(), 100, {{remote, 0}})));
  reader.admit("test", "another key");
  EXPECT_CODE(Code::kRefused, reader.run(reading(got.data(), 100, {{remote, 0}})));
  EXPECT_CODE(Code::kRefused, reader.run(writing(got.data(), 100, {remote, 0})));
  EXPECT_EQ(got[0], std::byte{0});
  EXPECT_EQ(memory[0], std::byte{3});
  Agent late(loopback(), "one");
  EXPECT_CODE(Code::kRefused, late.run(reading(got.data(), 100, {{remote, 0}})));
  late.admit("test", "key");
  late.run(reading(got.data(), 100, {{remote, 0}}));
  EXPECT_EQ(got, memory);
}

// A listener that accepts so many connections, closes or resets each at once, and ends.
class Closing {
 public:
  explicit Closing(int times, bool resets = false)
      : listener_(listen_on(Address::parse("127.0.0.1:0"))),
        address_(local_address(listener_.get())),
        thread_([this, times, resets] { run(times, resets); }) {}
  ~Closing() { thread_.join(); }
  Target target() const { return {address_.host(), address_.port(), "test"}; }

 private:
  void run(int times, bool resets) {
    for (int i = 0; i < times; i++) {
      pollfd readable{listener_.get(), POLLIN, 0};
      // Without sleep, so that the peer is reset while it still connects, in most cases.
      const Deadline deadline(seconds(10));
      while (::poll(&readable, 1, 0) != 1) ASSERT_FALSE(deadline.passed());
      Fd closed(::accept(listener_.get(), nullptr, nullptr));
      const linger reset{.l_onoff = resets, .l_linger = 0};
      ::setsockopt(closed.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    listener_.reset();
  }

  Fd listener_;
  Address address_;
  std::thread thread_;
};

TEST_P(Ways, NoticesOfOneWriterComeInOrder) {
  constexpr uint64_t kCount = 3000;
  Memory memory(GetParam(), 8);
  auto region = owner_.open(memory.data(), 8, true);
  auto remote = attach(owner_.handle_of(*region));
  std::thread writer([&] {
    for (uint64_t i = 0; i < kCount; i++) {
      if (i % 500 == 499) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      reader_.run(writing(nullptr, 0, {remote, 0}, i));
    }
  });
  for (uint64_t i = 0; i < kCount; i++) ASSERT_EQ(region->take_notice(Deadline(seconds(20))), i);
  writer.join();
  owner_.close(region, Deadline(seconds(5)));
}

TEST(Control, ASlotOfAProcessThatHasEndedBeforeItNamedARegionIsFree) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  OwnControl control;
  (*control).writers[0].pid = child;
  (*control).writers[1].pid = ::getpid();
  EXPECT_FALSE(has_writers(*control, 3));
  EXPECT_EQ((*control).writers[0].pid, 0);
  EXPECT_EQ((*control).writers[1].pid, ::getpid());
  (*control).writers[1].region = 3 + 1;
  EXPECT_TRUE(has_writers(*control, 3));
}

TEST_P(Ways, NoticesThatNobodyTakesAreKept) {
  constexpr uint64_t kCount = 2 * kMostWriters;
  Memory memory(GetParam(), 8);
  auto region = owner_.open(memory.data(), 8, true);
  auto remote = attach(owner_.handle_of(*region));
  std::byte byte{5};
  for (uint64_t i = 0; i < kCount; i++) reader_.run(writing(&byte, 1, {remote, 0}, i));
  owner_.close(region, Deadline(seconds(5)));
  std::set<uint64_t> found;
  for (uint64_t i = 0; i < kCount; i++) found.insert(region->take_notice(Deadline(seconds(5))));
  EXPECT_EQ(found.size(), kCount);
  EXPECT_CODE(Code::kGone, region->take_notice(Deadline(seconds(1))));
}

TEST(Agent, OneThatClosesEachConnectionIsNotTakenForOneThatHasEnded) {
  Agent agent(loopback(), "one");
  agent.admit("test", "key");
  Closing closing(4);
  EXPECT_CODE(Code::kTransport, agent.dial(closing.target(), Deadline(seconds(10))));
}

TEST(Agent, OneThatClosesItsConnectionsBeforeItsListenerHasEnded) {
  Agent agent(loopback(), "one");
  agent.admit("test", "key");
  Closing closing(2);
  EXPECT_CODE(Code::kPeerLost, agent.dial(closing.target(), Deadline(seconds(10))));
}

TEST(Agent, OneThatResetsItsConnectionsBeforeItsListenerIsClosedHasEnded) {
  Agent agent(loopback(), "one");
  agent.admit("test", "key");
  for (int i = 0; i < 20; i++) {
    Closing closing(2, /*resets=*/true);
    EXPECT_CODE(Code::kPeerLost, agent.dial(closing.target(), Deadline(seconds(10))));
  }
}

TEST(Agent, ACallbackCannotWaitForOtherCopies) {
  Agent agent(loopback(), "one");
  std::vector<std::byte> memory(100), got(100);
  auto region = agent.open(memory.data(), 100, true);
  Source source{attach(agent.handle_of(*region)), 0};
  auto other = reading(got.data(), 100, {source});
  std::optional<Error> refused;
  bool may_wait = true;
  Copy copy{.local = got.data(), .bytes = 100, .sources = {source}};
  auto first =
      std::make_shared<Batch>(std::vector{copy}, seconds(20), [&](const std::optional<Error>&) {
        may_wait = other->may_wait();
        refused = error_of([&] { agent.run(other); });
      });
  agent.start(first);
  EXPECT_TRUE(first->wait(10));
  EXPECT_FALSE(may_wait);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code(), Code::kInvalidArgument);
  EXPECT_TRUE(first->may_wait());
}

TEST(Agent, ACopyHasEndedBeforeItsCallbackWakesAnybody) {
  Agent agent(loopback(), "one");
  std::vector<std::byte> memory(100), got(100);
  auto region = agent.open(memory.data(), 100, true);
  Copy copy{.local = got.data(), .bytes = 100, .sources = {{attach(agent.handle_of(*region)), 0}}};
  bool has_ended = false;
  std::weak_ptr<Batch> told;
  auto batch = std::make_shared<Batch>(
      std::vector{copy}, seconds(20),
      [&](const std::optional<Error>&) { has_ended = told.lock()->has_ended(); });
  told = batch;
  EXPECT_FALSE(batch->has_ended());
  agent.run(batch);
  EXPECT_TRUE(has_ended);
}

TEST(Agent, AnswersOfAnotherProcessAtTheAddressMeanGone) {
  Agent reader(loopback(), "reader"), owner(loopback(), "owner");
  reader.admit("test", "key");
  owner.admit("test", "key");
  std::vector<std::byte> memory(100), got(100);
  RegionHandle handle = decode(owner.handle_of(*owner.open(memory.data(), 100, false)));
  handle.owner.id ^= 1;
  auto stale = std::make_shared<RegionHandle>(handle);
  EXPECT_CODE(Code::kGone, reader.run(reading(got.data(), 100, {{stale, 0}})));
}

TEST(Agent, EndsABatchAtItsDeadline) {
  Agent reader(loopback(), "reader");
  reader.admit("test", "key");
  Fd deaf = listen_on(Address::parse("127.0.0.1:0"));  // connects, and never answers
  RegionHandle handle{.owner = {.id = 5}, .index = 0, .secret = 1, .bytes = 100};
  handle.owner.doors = {
      {"test", {Address::parse("127.0.0.1:0").with_port(local_address(deaf.get()).port())}}};
  handle.owner.stack = own_stack();
  std::vector<std::byte> got(100);
  auto begin = Clock::now();
  auto remote = std::make_shared<RegionHandle>(handle);
  EXPECT_CODE(Code::kTimeout, reader.run(reading(got.data(), 100, {{remote, 0}}, 0.5)));
  EXPECT_LT(to_seconds(Clock::now() - begin), 3);
}

}  // namespace
}  // namespace ringcoll::remote

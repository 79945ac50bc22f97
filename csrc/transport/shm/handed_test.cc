#include "transport/shm/handed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "transport/shm/endpoint.h"
#include "transport/shm/layout.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using shm::HandedBuffers;
using testing::World;

constexpr uint64_t kBytes = 8192;
constexpr uint64_t kArena = 64 << 10;

const TransportRow& row() { return *find_transport("shm"); }

Config config_with(int64_t handed_bytes) {
  Config config = testing::test_config();
  config.handed_bytes = handed_bytes;
  return config;
}

class Handed : public ::testing::Test {
 protected:
  std::vector<std::byte> mine_{HandedBuffers::kOfEach * kBytes};
  std::vector<std::byte> theirs_{HandedBuffers::kOfEach * kBytes};
  HandedBuffers a_{mine_, theirs_, true}, b_{theirs_, mine_, false};

  /// A message from one end to the other, which reads it; null: there is no buffer for it.
  static const std::byte* move(HandedBuffers& from, HandedBuffers& to) {
    if (from.empty()) from.take_back(to.returned());
    if (from.empty()) return nullptr;
    uint32_t number = from.hand_over();
    const std::byte* buffer = from.at(number);
    EXPECT_EQ(to.receive(number), buffer);
    to.take_back(from.returned());
    to.keep(number);
    return buffer;
  }
};

TEST_F(Handed, WhatWasReadLastIsWrittenNext) {
  const std::byte* first = move(a_, b_);
  for (int i = 0; i < 100; i++) {
    ASSERT_EQ(move(b_, a_), first);
    ASSERT_EQ(move(a_, b_), first);
  }
}

TEST_F(Handed, AnEndWritesFirstWhatIsInItsOwnMemory) {
  for (uint32_t i = 0; i < HandedBuffers::kOfEach; i++) {
    const std::byte* sent = move(b_, a_);
    EXPECT_GE(sent, theirs_.data());
    EXPECT_LT(sent, theirs_.data() + theirs_.size());
  }
}

// However much an end has received, the peer has buffers for as many messages as a link must take.
TEST_F(Handed, WhoSendsAndDoesNotReceiveGetsThemBack) {
  for (int i = 0; i < 1000; i++) ASSERT_TRUE(move(a_, b_)) << i;
  a_.take_back(b_.returned());
  uint64_t unread = 0;
  for (; !a_.empty(); unread++) a_.hand_over();
  EXPECT_GE(unread, kLeastCredits);
}

// An end that has sent much has buffers of which it does not know yet when it begins to receive.
TEST_F(Handed, AnEndThatSentMuchLeavesThePeerEnough) {
  for (int i = 0; i < 100; i++) ASSERT_TRUE(move(a_, b_));
  for (int i = 0; i < 100; i++) ASSERT_TRUE(move(b_, a_)) << i;
}

TEST_F(Handed, NoneIsLostHoweverTheyGo) {
  std::mt19937 random(3);
  for (int i = 0; i < 10'000; i++) {
    bool forth = random() % 4 > static_cast<unsigned>(i / 2500);
    ASSERT_TRUE(forth ? move(a_, b_) : move(b_, a_)) << i;
  }
  a_.take_back(b_.returned());
  b_.take_back(a_.returned());
  uint32_t left = 0;
  for (HandedBuffers* end : {&a_, &b_})
    for (; !end->empty(); left++) end->hand_over();
  EXPECT_EQ(left, HandedBuffers::kCount);
}

TEST_F(Handed, NothingComesInABufferThatThePeerDoesNotHave) {
  EXPECT_EQ(a_.receive(0), nullptr) << "which is this end's";
  EXPECT_EQ(a_.receive(HandedBuffers::kCount), nullptr);
  EXPECT_NE(a_.receive(HandedBuffers::kOfEach), nullptr);
  EXPECT_EQ(a_.receive(HandedBuffers::kOfEach), nullptr) << "twice";
}

TEST_F(Handed, APeerThatGivesBackWhatItDoesNotHaveGivesNothing) {
  uint32_t before = 0;
  HandedBuffers fresh(mine_, theirs_, true);
  for (; !fresh.empty(); before++) fresh.hand_over();
  a_.take_back((HandedBuffers::Set{1} << HandedBuffers::kOfEach) - 1);  // which are this end's
  uint32_t after = 0;
  for (; !a_.empty(); after++) a_.hand_over();
  EXPECT_EQ(after, before);
}

TEST(HandedNone, AreNone) {
  HandedBuffers none({}, {}, true);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.bytes(), 0u);
  EXPECT_EQ(none.receive(0), nullptr);
}

// ---- By links ----

uint64_t try_copy(Endpoint& link, std::span<const std::byte> data) {
  Slice slice{data.data(), data.size()};
  return host_link(link)->try_copy({}, {&slice, 1}, data.size());
}

TEST(ShmHanded, AMessageComesInItsBufferWhichAnswersIt) {
  World world(row(), 2, kArena, {}, 0, config_with(kBytes));
  Endpoint* ends[] = {&world[0][1], &world[1][0]};
  const std::byte* first = nullptr;
  std::vector<std::byte> data(kBytes);
  for (uint64_t n = 1; n <= 200; n++) {
    Endpoint &from = *ends[n % 2], &to = *ends[(n + 1) % 2];
    std::ranges::fill(data, static_cast<std::byte>(n));
    uint64_t number = try_copy(from, data);
    ASSERT_GT(number, 0u);
    EXPECT_EQ(from.completed(), number) << "it need not be waited for";
    std::ranges::fill(data, std::byte{0xee});
    View view;
    ASSERT_TRUE(to.try_recv(nullptr, kBytes, &view));
    EXPECT_EQ(std::count(view.data, view.data + kBytes, static_cast<std::byte>(n)),
              static_cast<int64_t>(kBytes));
    if (n == 1) first = view.data;
    to.release();
  }
  std::ranges::fill(data, std::byte{77});
  ASSERT_GT(try_copy(*ends[1], data), 0u);
  EXPECT_EQ(first[0], std::byte{77}) << "one memory went to and fro";
}

TEST(ShmHanded, SlicesBecomeOneMessage) {
  World world(row(), 2, kArena, {}, 0, config_with(kBytes));
  for (size_t bytes : {size_t{9}, size_t{100}, size_t{1000}, size_t{kBytes}}) {
    std::vector<std::byte> data(bytes);
    for (size_t i = 0; i < bytes; i++) data[i] = static_cast<std::byte>(i * 7);
    std::vector<Slice> slices = {
        {data.data(), 3}, {data.data() + 3, 0}, {data.data() + 3, bytes / 2}};
    slices.push_back({data.data() + 3 + bytes / 2, bytes - 3 - bytes / 2});
    ASSERT_GT((host_link(world[0][1])->try_copy({}, slices, bytes)), 0u);
    View view;
    ASSERT_TRUE((world[1][0].try_recv(nullptr, bytes, &view)));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), view.data)) << bytes;
    world[1][0].release();
  }
}

// The receiver has no use for the buffers, and gives them back.
TEST(ShmHanded, AStreamInOneDirectionGoesOn) {
  World world(row(), 2, kArena, {}, 0, config_with(kBytes));
  Endpoint &from = world[0][1], &to = world[1][0];
  std::vector<std::byte> data(kBytes);
  for (int n = 0; n < 1000; n++) {
    std::ranges::fill(data, static_cast<std::byte>(n));
    ASSERT_GT(try_copy(from, data), 0u) << n;
    View view;
    ASSERT_TRUE(to.try_recv(nullptr, data.size(), &view));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), view.data));
    to.release();
  }
}

TEST(ShmHanded, ALinkTakesAsManyAsItMustAndThenWaitsForTheReceiver) {
  World world(row(), 2, kArena, {}, 0, config_with(kBytes));
  Endpoint &from = world[0][1], &to = world[1][0];
  std::vector<std::byte> data(kBytes);
  View view;
  for (int round = 0; round < 50; round++) {
    uint64_t taken = 0;
    while (try_copy(from, data) > 0) taken++;
    ASSERT_GE(taken, kLeastCredits);
    for (; taken > 0; taken--) {
      ASSERT_TRUE(to.try_recv(nullptr, data.size(), &view));
      to.release();
    }
  }
}

// One end of a link that sends messages of all kinds as long as there is credit, and reads what
// comes late and in order.
class Exchanger {
 public:
  static constexpr uint64_t kMessages = 20'000;
  Exchanger(Endpoint& link, Rank rank) : link_(link), rank_(rank), random_(rank + 1) {}

  void run() {
    while (sent_ < kMessages || received_ < kMessages) {
      if (deadline_.passed()) throw Error(Code::kTimeout, "nothing comes");
      if (sent_ < kMessages && random_() % 3 > 0) send();
      View view;
      if (views_.size() < kMostUnread && link_.try_recv(nullptr, kBytes, &view))
        views_.push_back(view);
      bool late = views_.size() < kMostUnread && received_ + kMostUnread < kMessages;
      if (!views_.empty() && !(late && random_() % 4 > 0)) read();
    }
  }

 private:
  static constexpr size_t kMostUnread = 8;
  static std::byte value(Rank of, uint64_t n) { return static_cast<std::byte>(n * 7 + of * 101); }

  void send() {
    bool is_small = random_() % 2 == 0;
    uint64_t bytes = 1 + random_() % (is_small ? testing::kTestInlineBytes : kBytes);
    std::vector<std::byte> data(bytes, value(rank_, sent_));
    auto try_send = [&] {
      return is_small ? link_.try_send({}, data.data(), bytes) : try_copy(link_, data);
    };
    while (try_send() == 0) {
      if (deadline_.passed()) throw Error(Code::kTimeout, "no credit");
      View view;
      if (views_.empty() && link_.try_recv(nullptr, kBytes, &view)) views_.push_back(view);
      if (!views_.empty()) read();
    }
    sent_++;
  }
  void read() {
    View oldest = views_.front();
    auto right = std::count(oldest.data, oldest.data + oldest.bytes, value(1 - rank_, received_));
    if (static_cast<uint64_t>(right) != oldest.bytes) throw Error(Code::kInternal, "overwritten");
    link_.release();
    views_.pop_front();
    received_++;
  }

  Endpoint& link_;
  const Rank rank_;
  std::mt19937 random_;
  Deadline deadline_{seconds(60)};
  uint64_t sent_ = 0, received_ = 0;
  std::deque<View> views_;
};

// What is in a buffer is not written to before it was read.
TEST(ShmHanded, NothingIsOverwrittenThatIsUnread) {
  World world(row(), 2, kArena, {}, 0, config_with(kBytes));
  std::string error;
  std::thread other([&] {
    try {
      Exchanger(world[1][0], 1).run();
    } catch (const Error& e) {
      error = e.what();
    }
  });
  EXPECT_NO_THROW(Exchanger(world[0][1], 0).run());
  other.join();
  EXPECT_EQ(error, "");
}

TEST(ShmHanded, RanksWithOtherSizesSaySo) {
  SharedMemory arenas[] = {SharedMemory::create(4096), SharedMemory::create(4096)};
  Config configs[] = {config_with(4096), config_with(8192)};
  std::unique_ptr<Transport> made[2];
  for (Rank r : {0, 1}) made[r] = row().make({r, 2, configs[r], arenas[r], Deadline(seconds(20))});
  EXPECT_EQ(made[0]->reach(1, made[1]->address()),
            "RINGCOLL_HANDED_BYTES differs: 8192 there, 4096 here");
}

TEST(ShmHanded, WithoutAnyAllGoesAsBefore) {
  World world(row(), 2, kArena, {}, 0, config_with(0));
  EXPECT_EQ(world[0].transport->copies_up_to(), testing::kTestInlineBytes);
  std::vector<std::byte> data(testing::kTestInlineBytes, std::byte{3});
  ASSERT_GT(world[0][1].try_send({}, data.data(), data.size()), 0u);
  View view;
  ASSERT_TRUE(world[1][0].try_recv(nullptr, data.size(), &view));
  EXPECT_TRUE(std::equal(data.begin(), data.end(), view.data));
}

TEST(ShmHanded, TheWholeHasBuffersForAllAndPartsWithinBounds) {
  shm::Layout small(2, 1024, 2, 128 << 10);
  constexpr uint64_t kMost = (uint64_t{2} << 30) / shm::kHandedShare;
  EXPECT_LE(small.handed(small.units_with_buffers()), kMost);
  EXPECT_GT(small.handed(small.units_with_buffers() + 1), kMost);
  shm::Layout many(1000, 1024, 1000, 128 << 10);
  EXPECT_EQ(many.units_with_buffers(), 1000u);
  EXPECT_EQ(shm::Layout(2, 1024, 2).units_with_buffers(), 0u);
  shm::Layout few(2, 1024, 0, 1);
  EXPECT_EQ(few.units_with_buffers(), 2u);
  EXPECT_EQ(few.handed_unit_bytes(), 4096u * HandedBuffers::kOfEach);
}

}  // namespace
}  // namespace ringcoll

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

  /// A message from one end to the other.
  static const std::byte* move(HandedBuffers& from, HandedBuffers& to) {
    std::byte* buffer = from.take(kBytes);
    if (!buffer) return nullptr;
    uint32_t number = from.hand_over(buffer);
    EXPECT_LT(number, HandedBuffers::kCount);
    EXPECT_EQ(to.receive(number), buffer);
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

TEST_F(Handed, WhoSendsAndDoesNotReceiveHasNoneSoon) {
  for (uint32_t i = 0; i < HandedBuffers::kOfEach; i++) ASSERT_TRUE(move(a_, b_));
  EXPECT_FALSE(move(a_, b_));
  for (uint32_t i = 0; i < HandedBuffers::kCount; i++) ASSERT_TRUE(move(b_, a_));
  EXPECT_FALSE(move(b_, a_)) << "each of all was handed over once";
}

TEST_F(Handed, AreForMessagesThatFit) {
  EXPECT_EQ(a_.take(kBytes + 1), nullptr);
  EXPECT_NE(a_.take(kBytes), nullptr);
}

TEST_F(Handed, OnlyWhatWasTakenIsHandedOver) {
  std::byte* taken = a_.take(100);
  EXPECT_EQ(a_.hand_over(taken + 1), HandedBuffers::kCount);
  EXPECT_EQ(a_.hand_over(mine_.data()), HandedBuffers::kCount) << "which is free";
  EXPECT_EQ(a_.hand_over(theirs_.data()), HandedBuffers::kCount);
  EXPECT_TRUE(a_.hold(taken));
  EXPECT_FALSE(a_.hold(this));
  EXPECT_LT(a_.hand_over(taken), HandedBuffers::kCount);
  EXPECT_EQ(a_.hand_over(taken), HandedBuffers::kCount) << "it is the peer's";
}

TEST_F(Handed, NothingComesInABufferThatThePeerDoesNotHave) {
  EXPECT_EQ(a_.receive(0), nullptr) << "which is this end's";
  EXPECT_EQ(a_.receive(HandedBuffers::kCount), nullptr);
  EXPECT_NE(a_.receive(HandedBuffers::kOfEach), nullptr);
  EXPECT_EQ(a_.receive(HandedBuffers::kOfEach), nullptr) << "twice";
}

TEST(HandedNone, AreNone) {
  HandedBuffers none({}, {}, true);
  EXPECT_EQ(none.take(0), nullptr);
  EXPECT_EQ(none.receive(0), nullptr);
  EXPECT_FALSE(none.hold(&none));
  EXPECT_FALSE(none.hold(nullptr));
}

// ---- By links ----

TEST(ShmHanded, AMessageComesInItsBufferWhichAnswersIt) {
  World world(row(), 2, kArena, {}, 0, config_with(kBytes));
  Endpoint* ends[] = {&world[0][1], &world[1][0]};
  const std::byte* first = nullptr;
  for (uint64_t n = 1; n <= 200; n++) {
    Endpoint &from = *ends[n % 2], &to = *ends[(n + 1) % 2];
    std::byte* buffer = from.take_buffer(kBytes);
    ASSERT_NE(buffer, nullptr);
    std::fill_n(buffer, kBytes, static_cast<std::byte>(n));
    uint64_t number = from.try_send({}, buffer, kBytes);
    ASSERT_GT(number, 0u);
    EXPECT_EQ(from.completed(), number) << "it need not be waited for";
    View view;
    ASSERT_TRUE(to.try_recv(nullptr, kBytes, &view));
    EXPECT_EQ(std::count(view.data, view.data + kBytes, static_cast<std::byte>(n)),
              static_cast<int64_t>(kBytes));
    if (n == 1) first = view.data;
    to.release();
  }
  std::byte* again = ends[1]->take_buffer(kBytes);
  ASSERT_NE(again, nullptr);
  std::fill_n(again, kBytes, std::byte{77});
  EXPECT_EQ(first[0], std::byte{77}) << "one memory went to and fro";
}

// In one direction alone buffers run out, and messages go as they would without.
TEST(ShmHanded, AStreamGoesOnWithout) {
  World world(row(), 2, kArena, {}, 0, config_with(kBytes));
  Endpoint &from = world[0][1], &to = world[1][0];
  std::vector<std::byte> data(testing::kTestInlineBytes);
  int without = 0;
  for (int n = 0; n < 1000; n++) {
    std::ranges::fill(data, static_cast<std::byte>(n));
    ASSERT_GT(from.try_send({}, data.data(), data.size()), 0u);
    View view;
    ASSERT_TRUE(to.try_recv(nullptr, data.size(), &view));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), view.data));
    to.release();
    without += from.take_buffer(kBytes) == nullptr;
  }
  EXPECT_GE(without, 990);
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
    uint64_t bytes = 1 + random_() % (is_small ? small_.size() : kBytes);
    if (bytes <= small_.size()) is_small = true;
    std::byte* from = is_small ? small_.data() : link_.take_buffer(bytes);
    if (!from) return;
    std::fill_n(from, bytes, value(rank_, sent_));
    while (link_.try_send({}, from, bytes) == 0) {
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
  std::vector<std::byte> small_{testing::kTestInlineBytes};
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
  EXPECT_EQ(world[0][1].take_buffer(1000), nullptr);
  std::vector<std::byte> data(testing::kTestInlineBytes, std::byte{3});
  ASSERT_GT(world[0][1].try_send({}, data.data(), data.size()), 0u);
  View view;
  ASSERT_TRUE(world[1][0].try_recv(nullptr, data.size(), &view));
  EXPECT_TRUE(std::equal(data.begin(), data.end(), view.data));
}

TEST(ShmHanded, TheWholeHasBuffersForAllAndPartsWithinBounds) {
  shm::Layout small(2, 1024, 2, 128 << 10);
  EXPECT_EQ(small.handed(small.units_with_buffers()), shm::kMostHandedBytes);
  shm::Layout many(1000, 1024, 1000, 128 << 10);
  EXPECT_EQ(many.units_with_buffers(), 1000u);
  EXPECT_EQ(shm::Layout(2, 1024, 2).units_with_buffers(), 0u);
  shm::Layout few(2, 1024, 0, 1);
  EXPECT_EQ(few.units_with_buffers(), 2u);
  EXPECT_EQ(few.handed_unit_bytes(), 4096u * HandedBuffers::kOfEach);
}

}  // namespace
}  // namespace ringcoll

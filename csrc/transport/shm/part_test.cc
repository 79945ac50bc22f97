// What is particular to parts over shared memory: their units, which are given out again, and what
// that costs. What every transport's parts do is asked by ../part_test.cc.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/order.h"
#include "transport/shm/endpoint.h"
#include "transport/shm/layout.h"
#include "transport/shm/reserve.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;
using shm::PartAddress;

const TransportRow& row() { return *find_transport("shm"); }

template <typename Address>
Address read_address(const Transport& transport) {
  Address address;
  std::memcpy(&address, transport.address().data(), sizeof address);
  return address;
}
std::string text_of(const PartAddress& address) {
  return {reinterpret_cast<const char*>(&address), sizeof address};
}
bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr uint64_t kInline = 1024;  // as by default

/// Control memory without a transport.
class ShmReserve : public ::testing::Test {
 protected:
  static constexpr uint64_t kPage = 4096;

  static int64_t used_bytes(const SharedMemory& memory) {
    struct stat status{};
    EXPECT_EQ(::fstat(memory.fd(), &status), 0);
    return status.st_blocks * 512;
  }
  int64_t used_bytes() const { return used_bytes(control_); }
  void write(const shm::Block& block) {
    std::memset(control_.data() + layout_.ring(block.first), 1,
                layout_.unit_bytes() * block.units - sizeof(shm::PeerLines));
    std::memset(handed_.data() + layout_.handed(block.first), 1,
                layout_.handed_unit_bytes() * block.units);
  }
  std::string why_not(uint32_t units) {
    try {
      reserve_.take(units);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTransport);
      return error.what();
    }
    return "";
  }
  shm::Witness witness() { return {&peer_, 5}; }

  const shm::Layout layout_{4, kInline, 4, kPage};
  SharedMemory control_ = SharedMemory::create(layout_.bytes());
  SharedMemory handed_ = SharedMemory::create(layout_.handed(layout_.units_with_buffers()));
  shm::Reserve reserve_{control_, handed_, layout_};
  std::atomic<uint64_t> peer_{5};
};

TEST_F(ShmReserve, GivesOutBlocksThatDoNotOverlapWithBasesOfTheirOwn) {
  uint32_t end = layout_.whole_units();
  uint64_t base = 0;
  for (uint32_t units : {1, 4, 2, 3}) {
    shm::Block block = reserve_.take(units);
    EXPECT_GE(block.first, end);
    EXPECT_GT(block.base, base);
    EXPECT_EQ(block.base % shm::kBaseStep, 0u);
    end = block.first + units;
    base = block.base;
  }
}

TEST_F(ShmReserve, WhatIsFreeIsOnePieceAgain) {
  std::vector<shm::Block> blocks;
  uint32_t units = layout_.spare_units();
  for (uint32_t i = 0; i < units; i++) blocks.push_back(reserve_.take(1));
  for (uint32_t i = 0; i < units; i += 2) reserve_.give_back(blocks[i], {});
  EXPECT_NE(why_not(2), "") << "every other one is taken";
  for (uint32_t i = 1; i < units; i += 2) reserve_.give_back(blocks[i], {});
  EXPECT_EQ(reserve_.take(units).first, layout_.whole_units());
  EXPECT_TRUE(says(why_not(1), "1 are in use")) << why_not(1);
}

TEST_F(ShmReserve, WaitsForThePeersThatMayStillRead) {
  uint32_t all = layout_.spare_units();
  reserve_.give_back(reserve_.take(all), {witness()});
  EXPECT_TRUE(says(why_not(1), "1 have ended here but not on all")) << why_not(1);
  peer_ = 0;
  EXPECT_EQ(reserve_.take(all).units, all);
}

TEST_F(ShmReserve, WaitsForNobodyWhoseProcessHasEnded) {
  uint32_t all = layout_.spare_units();
  std::atomic<bool> dead{false};
  reserve_.give_back(reserve_.take(all), {{&peer_, 5, &dead}});
  EXPECT_NE(why_not(1), "");
  dead = true;
  EXPECT_EQ(reserve_.take(all).units, all);
}

// These two are for ThreadSanitizer. What the peer reads, it reads in a thread that tells nothing
// but by the word.
TEST_F(ShmReserve, WhatThePeerReadsBeforeItEndsIsReadBeforeItIsWrittenAnew) {
  uint32_t all = layout_.spare_units();
  SharedMemory control = SharedMemory::create(layout_.bytes());
  SharedMemory handed = SharedMemory::create(4096);
  shm::Reserve peers(control, handed, layout_);
  shm::Block mine = reserve_.take(all), theirs = peers.take(1);
  auto* lines = reinterpret_cast<shm::PeerLines*>(control.data() + layout_.lines(theirs.first));
  std::byte& message = control_.data()[layout_.ring(mine.first)];
  message = std::byte{1};
  reserve_.give_back(mine, {{&lines->open, theirs.base}});
  std::jthread peer([&] {
    std::byte read = message;
    peers.give_back(theirs, {});
    EXPECT_EQ(read, std::byte{1});
  });
  Deadline deadline(seconds(60));
  while (why_not(all) != "" && !deadline.passed()) std::this_thread::yield();
  message = std::byte{2};
}

TEST_F(ShmReserve, WhatAReaderHasReadIsReadBeforeItIsWrittenAnew) {
  std::atomic<uint64_t> released{5};
  shm::Reader reader{witness(), &released, 5, 1};
  int message = 1;
  std::jthread peer([&] {
    int read = message;
    publish(released, 6);
    EXPECT_EQ(read, 1);
  });
  Deadline deadline(seconds(60));
  while (reader.may_read() && !deadline.passed()) std::this_thread::yield();
  message = 2;
}

TEST_F(ShmReserve, PagesOfABlockThatIsFreeAreTheSystemsAgain) {
  int64_t before = used_bytes();
  shm::Block block = reserve_.take(4);
  EXPECT_LE(used_bytes() - before, static_cast<int64_t>(kPage)) << "before it is used";
  write(block);
  EXPECT_GE(used_bytes() - before, static_cast<int64_t>(3 * layout_.unit_bytes()));
  reserve_.give_back(block, {witness()});
  EXPECT_GE(used_bytes() - before, static_cast<int64_t>(3 * layout_.unit_bytes()));
  EXPECT_EQ(used_bytes(handed_), static_cast<int64_t>(4 * layout_.handed_unit_bytes()));
  peer_ = 0;
  reserve_.give_back(reserve_.take(1), {});
  EXPECT_LE(used_bytes() - before, static_cast<int64_t>(3 * kPage));
  EXPECT_EQ(used_bytes(handed_), 0);
}

TEST_F(ShmReserve, ABlockThatIsGivenOutReadsAsZeros) {
  shm::Block before = reserve_.take(1), block = reserve_.take(3), after = reserve_.take(1);
  for (const shm::Block& each : {before, block, after}) write(each);
  reserve_.give_back(block, {});
  shm::Block again = reserve_.take(2);
  ASSERT_EQ(again.first, block.first);
  const std::byte* ring = control_.data() + layout_.ring(again.first);
  const std::byte* end = control_.data() + layout_.lines(again.first + 2);
  EXPECT_TRUE(std::all_of(ring, end, [](std::byte byte) { return byte == std::byte{0}; }));
  for (const shm::Block& each : {before, after})
    EXPECT_EQ(control_.data()[layout_.ring(each.first)], std::byte{1}) << "a neighbour's";
}

class ShmPart : public ::testing::Test {
 protected:
  static constexpr size_t kArena = 64 << 10;
};

TEST_F(ShmPart, AnAddressThatPointsElsewhereIsRefused) {
  World world(row(), 3, kArena);
  PartWorld part(world, {0, 2}, 0, kArena, false);
  auto honest = read_address<PartAddress>(*part[1].transport);
  auto reason = [&](const std::function<void(PartAddress&)>& change) {
    PartAddress address = honest;
    change(address);
    return part[0].transport->reach(1, text_of(address));
  };
  shm::Layout layout(3, kTestInlineBytes, 3);
  uint32_t end = layout.whole_units() + layout.spare_units();
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_EQ(reason([&](auto& a) { a.first = end - 2; }), "") << "the last block";
  for (uint32_t first : {0u, 2u, end - 1, end, end + 1, UINT32_MAX, UINT32_MAX - 1})
    EXPECT_TRUE(says(reason([&](auto& a) { a.first = first; }), "makes no sense")) << first;
  for (uint64_t base : {uint64_t{0}, uint64_t{1}, shm::kBaseStep / 2, shm::kBaseStep + 1})
    EXPECT_TRUE(says(reason([&](auto& a) { a.base = base; }), "makes no sense")) << base;
  EXPECT_TRUE(says(reason([](auto& a) { a.rank = 0; }), "not rank 1"));
}

// Of the ranks of a group that are elsewhere nothing is kept.
TEST_F(ShmPart, HasUnitsForTheRanksOfItsMachineAlone) {
  Seats seats{.machine_of = {0, 1, 0, 1, 1, 0}};
  World world(row(), 6, kArena, seats);
  PartWorld first(world, {0, 1, 3, 4, 2}, 0, kArena, false);
  PartWorld second(world, {0, 1, 3, 4, 2}, 0, kArena, false);
  auto units = [&](Rank rank) {
    return read_address<PartAddress>(*second[rank].transport).first -
           read_address<PartAddress>(*first[rank].transport).first;
  };
  EXPECT_EQ(units(0), 2u);
  EXPECT_EQ(units(1), 3u);
  EXPECT_EQ(first[0].transport->reach(4, first[4].transport->address()), "");
  EXPECT_TRUE(
      says(first[0].transport->reach(1, first[1].transport->address()), "is not mapped here"));
}

TEST_F(ShmPart, SaysWhenThereIsNoRoomForOneMore) {
  World world(row(), 2, kArena);
  std::vector<std::unique_ptr<PartWorld>> parts;
  std::string why;
  try {
    for (int i = 0; i < 100'000; i++)
      parts.push_back(
          std::make_unique<PartWorld>(world, std::vector<Rank>{0, 1}, 0, kArena, false));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTransport);
    why = error.what();
  }
  EXPECT_GE(parts.size(), 64u);
  EXPECT_TRUE(says(why, "no room for one more group with 2 ranks") &&
              says(why, "close some groups"))
      << why;
  parts.pop_back();
  PartWorld again(world, {0, 1}, 0, kArena);
  send(again[0][1], envelope_of(1), "x", 1);
  EXPECT_EQ(receive(again[1][0]).bytes, 1u);
  again[1][0].release();
}

// However many come one after another.
TEST_F(ShmPart, UnitsAreUsedAgainOnceBothRanksHaveEnded) {
  World world(row(), 2, kArena);
  uint32_t first = 0;
  for (uint64_t turn = 0; turn < 1000; turn++) {
    PartWorld part(world, {0, 1}, 0, kArena);
    for (Rank from : {0, 1}) {
      send(part[from][1 - from], envelope_of(turn), &turn, sizeof turn);
      View view = receive(part[1 - from][from]);
      ASSERT_EQ(view.envelope, envelope_of(turn));
      part[1 - from][from].release();
    }
    auto address = read_address<PartAddress>(*part[0].transport);
    if (turn == 0) first = address.first;
    ASSERT_EQ(address.first, first);
  }
}

// Ranks count bases each for itself, so that blocks of two of them may have the same one. What a
// rank has released of a peer's messages is nothing to the peer that has its unit afterwards.
TEST_F(ShmPart, ALinkTakesNoReleaseOfAnEarlierPartForItsOwn) {
  constexpr uint64_t kLong = kTestInlineBytes + 1;
  World world(row(), 3, kArena);
  PartAddress reader_before, sender_before;
  {
    PartWorld earlier(world, {1, 0}, 0, kArena);
    sender_before = read_address<PartAddress>(*earlier[0].transport);
    reader_before = read_address<PartAddress>(*earlier[1].transport);
    for (uint64_t n = 1; n <= 20; n++) {
      send(earlier[0][1], envelope_of(n), earlier[0].extent.data(), kLong);
      receive(earlier[1][0]);
      earlier[1][0].release();
    }
  }
  PartWorld later(world, {2, 0}, 0, kArena);
  ASSERT_EQ(read_address<PartAddress>(*later[0].transport).base, sender_before.base);
  ASSERT_EQ(read_address<PartAddress>(*later[1].transport).first, reader_before.first);
  for (uint64_t n = 1; n <= shm::kEntries; n++) {
    send(later[0][1], envelope_of(n), later[0].extent.data(), kLong);
    EXPECT_EQ(later[0][1].completed(), 0u) << "nobody has read message " << n;
  }
  EXPECT_EQ(receive(later[1][0]).envelope, envelope_of(1));
  later[1][0].release();
  complete(later[0][1], 1);
  EXPECT_EQ(later[0][1].completed(), 1u);
}

/// A part of two ranks that only rank 1 has linked, and rank 0 has left; and a later one, which has
/// rank 0's units of the old.
class ShmPartStale : public ShmPart {
 protected:
  void SetUp() override {
    old_[1].connect(0, old_[0].transport->address());
    auto before = read_address<PartAddress>(*old_[0].transport);
    old_.remove(0);
    later_.emplace(world_, std::vector<Rank>{0, 1}, 0, kArena);
    ASSERT_EQ(read_address<PartAddress>(*later(0).transport).first, before.first);
  }
  PartRank& later(Rank rank) { return (*later_)[rank]; }
  Endpoint& stale() { return old_[1][0]; }

  World world_{row(), 2, kArena};
  PartWorld old_{world_, {0, 1}, 0, kArena, false};
  std::optional<PartWorld> later_;
};

// A rank that never made its end of a link need not wait for the peer: what the peer reads through
// its own end is then of another part, and nothing to it.
TEST_F(ShmPartStale, ALinkTakesNothingOfALaterPart) {
  send(stale(), envelope_of(7), world_[1].arena.data(), 3000);
  for (uint64_t n = 1; n <= 100; n++) {
    send(later(0)[1], envelope_of(n), world_[0].arena.data(), n % 2 ? 8 : 3000);
    View view;
    EXPECT_FALSE(stale().try_recv(nullptr, UINT64_MAX, &view));
    EXPECT_EQ(receive(later(1)[0]).envelope, envelope_of(n));
    later(1)[0].release();
    send(later(1)[0], envelope_of(n), world_[1].arena.data(), 3000);
    receive(later(0)[1]);
    later(0)[1].release();
    EXPECT_EQ(stale().completed(), 0u) << "released were messages of the later part";
  }
  auto start = Clock::now();
  stale().completed();
  old_[1].waits.sleep(std::chrono::milliseconds(50));
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(40)) << "it sleeps all the same";
}

// Nor does it write there: the buffers that it hands over first are in its own memory.
TEST_F(ShmPartStale, ALinkWritesNothingOfALaterPart) {
  std::vector<std::byte> right(kTestInlineBytes, std::byte{1});
  std::vector<std::byte> wrong(kTestInlineBytes, std::byte{2});
  for (uint32_t n = 0; n < shm::HandedBuffers::kOfEach; n++)
    for (Rank from : {0, 1}) send(later(from)[1 - from], {}, right.data(), right.size());
  for (uint32_t n = 0; n < shm::HandedBuffers::kOfEach; n++)
    send(stale(), {}, wrong.data(), wrong.size());
  for (uint32_t n = 0; n < shm::HandedBuffers::kOfEach; n++)
    for (Rank to : {0, 1}) {
      View view = receive(later(to)[1 - to]);
      EXPECT_TRUE(std::equal(right.begin(), right.end(), view.data));
      later(to)[1 - to].release();
    }
}

/// Two ranks of three, of which the one has sent the other some bytes from its extent, and has
/// nothing left but what it may not have read.
class ShmPartReaders : public ShmPart {
 protected:
  void end_sending(std::initializer_list<uint64_t> messages) {
    for (uint64_t bytes : messages) send(part_[0][1], {}, part_[0].extent.data(), bytes);
    part_[0].links.clear();
    readers_ = part_[0].transport->readers();
    part_.remove(0);
  }
  bool any() { return readers_ && readers_->any(); }
  void take() {
    receive(part_[1][0]);
    EXPECT_TRUE(any()) << "it is being read";
    part_[1][0].release();
  }

  static constexpr uint64_t kLong = kTestInlineBytes + 1;
  World world_{row(), 3, kArena};
  PartWorld part_{world_, {0, 2}, 0, kArena};
  std::unique_ptr<Readers> readers_;
};

TEST_F(ShmPartReaders, AreNoneOfWhatWentInline) {
  end_sending({1, kTestInlineBytes});
  EXPECT_FALSE(any());
}

TEST_F(ShmPartReaders, AreThoseWhoHaveNotReleasedAll) {
  end_sending({kLong, 1, kLong, 1, 1});
  take();
  take();
  take();
  EXPECT_FALSE(any()) << "the last two are inline";
}

TEST_F(ShmPartReaders, AreNoneOfWhatWasReleasedBefore) {
  for (int i = 0; i < 100; i++) {
    send(part_[0][1], {}, part_[0].extent.data(), kLong);
    receive(part_[1][0]);
    part_[1][0].release();
  }
  end_sending({1});
  EXPECT_FALSE(any());
}

TEST_F(ShmPartReaders, AreNoneOnceTheyHaveEnded) {
  end_sending({kLong, kLong});
  take();
  EXPECT_TRUE(any());
  part_.remove(1);
  EXPECT_FALSE(any());
}

// Even if its units are another part's by then, in which it takes something.
TEST_F(ShmPartReaders, AreNoneOnceTheyAreInAnotherPart) {
  end_sending({kLong});
  EXPECT_TRUE(any());
  part_.remove(1);
  PartWorld later(world_, {0, 2}, 0, kArena);
  send(later[1][0], {}, later[1].extent.data(), kLong);
  EXPECT_FALSE(any());
}

TEST_F(ShmPartReaders, AreNoneOnceTheirProcessHasEnded) {
  end_sending({kLong});
  world_[0].transport->ended(1);
  EXPECT_TRUE(any());
  world_[0].transport->ended(2);
  EXPECT_FALSE(any());
}

TEST_F(ShmPart, SendsFromItsExtentAlone) {
  World world(row(), 2, kArena, {}, 16 << 10);
  PartWorld part(world, {0, 1}, 16 << 10, 16 << 10);
  const std::byte* arena = world[0].arena.data();
  constexpr uint64_t kBytes = 8 << 10;
  EXPECT_TRUE(world[0][1].try_send({}, arena, kBytes));
  EXPECT_THROW(world[0][1].try_send({}, arena + (16 << 10), kBytes), Error);
  EXPECT_THROW(world[0][1].try_send({}, arena + (12 << 10), kBytes), Error);
  EXPECT_TRUE(part[0][1].try_send({}, arena + (24 << 10), kBytes));
  EXPECT_THROW(part[0][1].try_send({}, arena, kBytes), Error);
  EXPECT_THROW(part[0][1].try_send({}, arena + (28 << 10), kBytes), Error);
}

/// Control and arena of a rank, what they take of memory.
class ShmPartMemory : public ::testing::Test {
 protected:
  static int64_t bytes_of(TestRank& rank) {
    auto address = read_address<shm::Address>(*rank.transport);
    int64_t bytes = 0;
    for (int fd : {address.control_fd, address.arena_fd}) {
      struct stat status{};
      EXPECT_EQ(::fstat(fd, &status), 0);
      bytes += status.st_blocks * 512;
    }
    return bytes;
  }
};

TEST_F(ShmPartMemory, OfAGroupThatIsNotUsedIsNextToNothing) {
  std::vector<Rank> members = {7, 6, 5, 4, 3, 2, 1, 0};
  World world(row(), 8, 1 << 20);
  int64_t before = bytes_of(world[0]);
  PartWorld part(world, members, 0, 1 << 20, false);
  EXPECT_LE(bytes_of(world[0]) - before, 8 << 10);
  part.connect();
  EXPECT_LE(bytes_of(world[0]) - before, 256 << 10);
}

// Messages of a pair go twice round its ring: the longest that go there, and some from the arena.
void talk(PartRank& from, Rank sender, PartRank& to, Rank receiver) {
  for (uint64_t n = 1; n <= 2 * shm::kEntries; n++) {
    uint64_t bytes = n % 4 ? kInline : 2 * kInline;
    fill(from.extent.data(), bytes, n);
    send(from[receiver], envelope_of(n), from.extent.data(), bytes);
    EXPECT_TRUE(filled(receive(to[sender]).data, bytes, n));
    to[sender].release();
  }
}

// When all of their pairs have talked.
TEST_F(ShmPartMemory, Of64GroupsOfFourIsAFewMiB) {
  constexpr size_t kGroups = 64, kExtent = 8 << 10;
  Config config = test_config();
  config.inline_bytes = kInline;
  World world(row(), 4, (1 + kGroups) * kExtent, {}, kExtent, config);
  int64_t before = bytes_of(world[0]);
  std::vector<std::unique_ptr<PartWorld>> parts;
  for (size_t group = 1; group <= kGroups; group++) {
    parts.push_back(std::make_unique<PartWorld>(world, std::vector<Rank>{0, 1, 2, 3},
                                                group * kExtent, kExtent));
    PartWorld& part = *parts.back();
    for (Rank a = 0; a < 4; a++)
      for (Rank b = 0; b < 4; b++)
        if (a != b) talk(part[a], a, part[b], b);
  }
  int64_t used = bytes_of(world[0]) - before;
  RecordProperty("bytes", std::to_string(used));
  EXPECT_LE(used, 16 << 20);
  parts.clear();
  PartWorld(world, {0, 1}, 0, 0, false);  // rank 0 frees what the others have ended by now, too
  int64_t left = bytes_of(world[0]) - before - static_cast<int64_t>(kGroups * kExtent);
  EXPECT_LE(left, static_cast<int64_t>(kGroups) * 2 * 4096) << "pages at the edges of blocks";
}

TEST_F(ShmPartMemory, MapsNothing) {
  auto maps = [] {
    std::ifstream file("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(file, line);) count += says(line, "memfd:ringcoll");
    return count;
  };
  World world(row(), 4, 1 << 20);
  int before = maps();
  PartWorld part(world, {3, 2, 1, 0}, 0, 1 << 20);
  send(part[0][3], envelope_of(1), part[0].extent.data(), 1 << 20);
  receive(part[3][0]);
  part[3][0].release();
  EXPECT_EQ(maps(), before);
}

}  // namespace
}  // namespace ringcoll

#include "transport/shm/shm.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "shm/peer_memory_testing.h"
#include "transport/shm/endpoint.h"
#include "transport/shm/layout.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;

const TransportRow& row() { return *find_transport("shm"); }

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTransport);
    EXPECT_EQ(error.rank(), 1);
    return error.what();
  }
  return "no error";
}
#define EXPECT_ERROR(call, text)                                    \
  do {                                                              \
    std::string what = error_of([&] { call; });                     \
    EXPECT_NE(what.find(text), std::string::npos) << what;          \
    EXPECT_NE(what.find("rank 0 -> 1"), std::string::npos) << what; \
  } while (false)

// An address like rank 1's, with one thing changed.
std::string reason(const std::function<void(shm::Address&)>& change) {
  World world(row(), 2, 8192);
  std::string address = world[1].transport->address();
  shm::Address fields;
  std::memcpy(&fields, address.data(), sizeof fields);
  change(fields);
  std::memcpy(address.data(), &fields, sizeof fields);
  Switchboard board;
  TestRank rank(row(), 0, 2, board, 8192);
  return rank.transport->reach(1, address);
}

TEST(ShmReach, SaysWhyNot) {
  auto contains = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_EQ(reason([](auto& a) { a.boot_id[3] ^= 1; }), "other host");
  EXPECT_TRUE(contains(reason([](auto& a) { a.nonce++; }), "PID namespace"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.pid = 1 << 29; }), "PID namespace"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.control_fd = 0; }), "not memory of ringcoll"));
  EXPECT_TRUE(contains(reason([](auto& a) { std::swap(a.control_fd, a.arena_fd); }), "bytes"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.arena_bytes *= 2; }), "only"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.control_bytes *= 2; }), "INLINE_BYTES"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.inline_bytes *= 2; }), "INLINE_BYTES"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.rank = 0; }), "not rank 1 of 2"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.size = 3; }), "not rank 1 of 2"));
  EXPECT_TRUE(contains(reason([](auto& a) { a.version++; }), "version"));
}

TEST(ShmLayout, WordsOfDifferentWritersAreApartAndUnitsDoNotOverlap) {
  for (uint64_t inline_bytes : {0, 1, 16, 17, 1024, 65536}) {
    shm::Layout layout(5, inline_bytes, 3);
    EXPECT_GE(layout.stride(), sizeof(shm::Entry) + inline_bytes);
    EXPECT_EQ(layout.stride() % shm::kLineBytes, 0u);
    EXPECT_GE(layout.lines(0), sizeof(shm::ControlPage));
    EXPECT_EQ(layout.lines(0) % alignof(shm::PeerLines), 0u);
    EXPECT_EQ(layout.unit_bytes() % alignof(shm::PeerLines), 0u);
    uint32_t units = layout.whole_units() + layout.spare_units();
    for (uint32_t unit = 0; unit < units; unit++) {
      EXPECT_EQ(layout.lines(unit) + sizeof(shm::PeerLines), layout.ring(unit));
      EXPECT_EQ(layout.ring(unit) + layout.stride() * shm::kEntries, layout.lines(unit + 1));
    }
    EXPECT_EQ(layout.lines(units), layout.bytes());
  }
  EXPECT_EQ(shm::Layout(1, 16).stride(), shm::kLineBytes) << "16 bytes travel with their flag";
}

TEST(ShmLayout, WhatIsSpareIsForThousandsOfGroupsWithinBounds) {
  constexpr uint64_t kBytes = uint64_t{2} << 30;
  EXPECT_EQ(shm::Layout(2, 1024).spare_units(), 0u);
  EXPECT_EQ(shm::Layout(4, 1024, 4, 0, kBytes).spare_units(), 4u * shm::kSpareParts);
  EXPECT_EQ(shm::Layout(4096, 1024, 4, 0, kBytes).spare_units(), 4u * shm::kSpareParts)
      << "of one machine";
  EXPECT_GE(shm::Layout(8, 1024, 8, 0, kBytes).spare_units(), 8u * 2 * 1000);
  shm::Layout wide(256, 65536, 256, 0, kBytes);
  EXPECT_LE(wide.unit_bytes() * wide.spare_units(), kBytes);
  EXPECT_GE(shm::Layout(1024, 65536, 1024, 0, kBytes).spare_units(), 1024u) << "one group of all";
}

TEST(ShmTransport, PagesArePaidForOnlyByPairsThatTalk) {
  Config config = test_config();
  config.inline_bytes = 64 << 10;
  SharedMemory arena = SharedMemory::create(4096);
  auto transport = row().make({0, 256, config, arena, Deadline(seconds(20))});
  shm::Address address;
  std::memcpy(&address, transport->address().data(), sizeof address);
  EXPECT_GT(address.control_bytes, uint64_t{256} << 20);
  struct stat status{};
  ASSERT_EQ(::fstat(address.control_fd, &status), 0);
  EXPECT_LT(status.st_blocks * 512, 64 << 10);
}

constexpr uint64_t kInline = 64;
constexpr uint64_t kArena = 8192;

/// What one of two ranks shares, mapped once: both see it at the same addresses.
struct Side {
  explicit Side(Rank rank) : peer(1 - rank) {}
  shm::PeerLines* lines() const {
    return reinterpret_cast<shm::PeerLines*>(control.data() + layout.lines(peer));
  }
  std::byte* ring() const { return control.data() + layout.ring(peer); }
  shm::Pair paired_with(const Side& other) {
    set.mine = lines();
    return {.rank = other.peer,
            .peer = peer,
            .inline_bytes = kInline,
            .stride = layout.stride(),
            .mine = lines(),
            .theirs = other.lines(),
            .out_ring = ring(),
            .in_ring = other.ring(),
            .my_buffers = {handed.data(), handed.bytes()},
            .their_buffers = {other.handed.data(), other.handed.bytes()},
            .leads = other.peer < peer,
            .extent = {arena.data(), arena.bytes()},
            .arena = &arena,
            .their_arena = &other.arena,
            .pid = ::getpid(),
            .set = &set,
            .their_lead = other.lines(),
            .ropes = &ropes};
  }

  Rank peer;
  shm::LinkSet set;
  BellRopes ropes;
  shm::Layout layout{2, kInline};
  SharedMemory control = SharedMemory::create(layout.bytes());
  SharedMemory arena = SharedMemory::create(kArena);
  SharedMemory handed = SharedMemory::create(4096 * shm::HandedBuffers::kOfEach);
};

// For ThreadSanitizer, which sees both ends of a ring at one address. Nothing but releases goes
// back, and nobody sleeps: so each order has to hold by itself, and is not had from another on the
// way.
TEST(ShmOrder, WhatWasWrittenIsReadAndWhatWasReadIsOverwritten) {
  Side here(0), there(1);
  shm::ShmEndpoint sender(here.paired_with(there)), receiver(there.paired_with(here));
  constexpr uint64_t kMessages = 50 * shm::kEntries, kPlaces = 8, kLong = kArena / kPlaces;
  auto spin = [](const char* what, auto&& ready) {
    for (Deadline deadline(seconds(60)); !ready(); std::this_thread::yield())
      check(!deadline.passed(), Code::kTimeout, "{}", what);
  };
  auto bytes_of = [](uint64_t n) { return n % 3 == 0 ? kInline : kLong; };
  auto other = std::async(std::launch::async, [&] {
    for (uint64_t n = 1; n <= kMessages; n++) {
      std::byte* place = here.arena.data() + n % kPlaces * kLong;
      spin("complete", [&] { return sender.completed() + kPlaces >= n; });
      fill(place, bytes_of(n), n);
      spin("send", [&] { return sender.try_send(envelope_of(n), place, bytes_of(n)); });
    }
  });
  for (uint64_t n = 1; n <= kMessages; n++) {
    View view;
    spin("receive", [&] { return receiver.try_recv(nullptr, kLong, &view); });
    ASSERT_EQ(view.envelope, envelope_of(n));
    ASSERT_TRUE(filled(view.data, bytes_of(n), n)) << n;
    receiver.release();
  }
  other.get();
}

// Between its look around and its sleep nothing can wake a rank: then its bell has to have been
// rung, or it would sleep through what it waits for.
TEST(ShmOrder, WhoFindsAPeerAsleepRingsItsBell) {
  Side here(0), there(1);
  shm::ShmEndpoint sender(here.paired_with(there)), receiver(there.paired_with(here));
  View view;
  auto deliver = [&](uint64_t n) {
    EXPECT_EQ(sender.try_send(envelope_of(n), here.arena.data(), kArena), n);
    EXPECT_TRUE(receiver.try_recv(nullptr, kArena, &view));
  };
  std::vector<pollfd> fds;
  auto rings = [&](Side* asleep, auto&& act) {
    Bell bell;
    Sleep sleep{bell, fds};
    if (asleep) {
      EXPECT_FALSE(asleep->set.may_be_ready(&sleep));
    }
    act();
    if (asleep) asleep->set.end_wait();
    pollfd fd{bell.fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
  };
  EXPECT_FALSE(rings(nullptr, [&] { deliver(1); })) << "nobody sleeps";
  EXPECT_FALSE(rings(nullptr, [&] { receiver.release(); }));
  EXPECT_TRUE(rings(&there, [&] { deliver(2); }));
  EXPECT_TRUE(rings(&here, [&] { receiver.release(); }));
}

// One goes to sleep just when the other, which does not sleep, does what it waits for: one of the
// two has to see what the other does. Of three messages, one finds the receiver so, and the release
// of one the sender, each time some nanoseconds earlier or later. A machine that stands still makes
// a sleep long, too, but once; without kStoresArrive this run is nothing but long sleeps.
TEST(ShmOrder, NobodySleepsThroughWhatComesAsItFallsAsleep) {
  World world(row(), 2, kArena);
  constexpr Duration kLimit = std::chrono::milliseconds(200);
  std::atomic<int> slept_through = 0;
  // Sleeps after so many turns of nothing; 0: never.
  auto until_ready = [&](Endpoint& link, uint64_t turns, auto&& ready) {
    Deadline deadline(seconds(60));
    for (int tries = 1; !ready(); tries++) {
      check(!deadline.passed(), Code::kTimeout, "the other thread is gone");
      for (uint64_t i = 0; i < turns; i++) std::atomic_signal_fence(std::memory_order_seq_cst);
      if (turns > 0) {
        Deadline limit(kLimit);
        sleep_on(link, kLimit);
        slept_through += limit.passed();
      } else if (tries % 1000 == 0) {
        std::this_thread::yield();
      }
    }
  };
  auto other = std::async(std::launch::async, [&] {
    Endpoint& link = world[1][0];
    View view;
    for (uint64_t n = 1; n == 1 || view.bytes > 0; n++) {
      uint64_t turns = n % 3 == 2 ? 1 + n % 31 : 0;
      until_ready(link, turns, [&] { return link.try_recv(nullptr, kArena, &view); });
      link.release();
    }
  });
  Endpoint& link = world[0][1];
  uint64_t n = 0;
  for (Deadline end(seconds(1)); !end.passed();) {
    ASSERT_TRUE(link.try_send(envelope_of(++n), world[0].arena.data(), 1000));
    uint64_t turns = n % 3 == 0 ? 1 + n % 31 : 0;
    until_ready(link, turns, [&] { return link.completed() == n; });
  }
  ASSERT_TRUE(link.try_send(envelope_of(++n), nullptr, 0));
  other.get();
  RecordProperty("slept_through", slept_through);
  EXPECT_LE(slept_through, 2) << "of " << n << " messages";
}

/// Memory of the caller's that can be taken away.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    invariant(at != MAP_FAILED, "mmap");
    data_ = static_cast<std::byte*>(at);
    for (size_t i = 0; i < bytes; i++) data_[i] = static_cast<std::byte>(i * 7);
  }
  ~Pages() { unmap(); }
  Pages(const Pages&) = delete;
  void unmap() {
    if (data_) ::munmap(std::exchange(data_, nullptr), bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

TEST(ShmLent, IsReadWhereItLies) {
  constexpr size_t kBytes = 100'000;
  World world(row(), 2, 8192);
  Endpoint &from = world[0][1], &to = world[1][0];
  ASSERT_TRUE(host_link(from)->takes_lent());
  Pages mine(kBytes), same(kBytes);
  std::vector<std::byte> place(kBytes);
  View view;
  ASSERT_EQ(from.try_send({}, mine.data(), kBytes), 1u);
  ASSERT_TRUE(to.try_recv(place.data(), kBytes, &view));
  EXPECT_EQ(view.data, place.data());
  EXPECT_EQ(std::memcmp(place.data(), same.data(), kBytes), 0);
  EXPECT_EQ(from.completed(), 0u) << "its memory is the sender's again before it was released";
  to.release();
  EXPECT_EQ(from.completed(), 1u);
  // Wherever there is room, where no place is offered.
  ASSERT_EQ(from.try_send({}, mine.data() + 1, kBytes - 1), 2u);
  ASSERT_TRUE(to.try_recv(nullptr, kBytes, &view));
  EXPECT_EQ(std::memcmp(view.data, same.data() + 1, kBytes - 1), 0);
  to.release();
  // What is too long is not read at all.
  ASSERT_EQ(from.try_send({}, mine.data(), kBytes), 3u);
  std::ranges::fill(place, std::byte{1});
  ASSERT_TRUE(to.try_recv(place.data(), kBytes - 1, &view));
  EXPECT_EQ(view.data, nullptr);
  EXPECT_EQ(view.bytes, kBytes);
  EXPECT_EQ(std::ranges::count(place, std::byte{1}), std::ssize(place));
}

TEST(ShmLent, WhatPeersCannotReadIsNotGranted) {
  World world(row(), 2, 8192);
  Pages mine(100'000);
  Loan loans[] = {{.data = mine.data(), .bytes = 100'000},
                  {.data = testing::mapped_as_by_a_driver(), .bytes = 8}};
  world[0].transport->lend(loans, 0);
  EXPECT_TRUE(loans[0].granted);
  EXPECT_FALSE(loans[1].granted);
}

// Then its caller may write there.
TEST(ShmLent, WhatHasBeenTakenBackIsAnError) {
  World world(row(), 3, 8192);
  Pages mine(100'000);
  std::vector<std::byte> place(100'000);
  View view;
  for (Rank peer : {0, 2}) ASSERT_EQ(world[1][peer].try_send({}, mine.data(), 100'000), 1u);
  ASSERT_TRUE(world[0][1].try_recv(place.data(), 100'000, &view));
  world[1][2].revoke();
  try {
    world[2][1].try_recv(place.data(), 100'000, &view);
    ADD_FAILURE() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kPeerLost);
    EXPECT_EQ(error.rank(), 1);
  }
}

TEST(ShmLent, WhatHasBeenUnmappedIsAnError) {
  World world(row(), 2, 8192);
  Pages mine(100'000);
  std::vector<std::byte> place(100'000);
  View view;
  ASSERT_EQ(world[1][0].try_send({}, mine.data(), 100'000), 1u);
  mine.unmap();
  EXPECT_ERROR(world[0][1].try_recv(place.data(), 100'000, &view),
               "cannot be read. Has its caller unmapped them");
}

// An endpoint whose peer is this test, with a pen in its hand.
class Corrupt : public ::testing::Test {
 protected:
  void put(uint64_t stamp, uint64_t bytes, uint64_t offset) {
    entry_->bytes = bytes;
    entry_->offset = offset;
    entry_->stamp = stamp;
  }

  Side mine_{0}, theirs_{1};
  const SharedMemory &arena_ = mine_.arena, &their_arena_ = theirs_.arena;
  shm::PeerLines* theirs_lines_ = theirs_.lines();
  shm::Entry* entry_ = reinterpret_cast<shm::Entry*>(theirs_.ring());
  std::unique_ptr<shm::ShmEndpoint> link_ =
      std::make_unique<shm::ShmEndpoint>(mine_.paired_with(theirs_));
  View view_;
};

TEST_F(Corrupt, APayloadOutsideTheArenaIsRefused) {
  put(1, 100, kArena - 99);
  EXPECT_ERROR(link_->try_recv(nullptr, 1000, &view_), "100 bytes at offset 8093");
  put(1, kArena + 1, 0);
  EXPECT_ERROR(link_->try_recv(nullptr, UINT64_MAX, &view_), "corrupt");
  put(1, UINT64_MAX - 50, 100);
  EXPECT_ERROR(link_->try_recv(nullptr, UINT64_MAX, &view_), "corrupt");
  put(1, 100, UINT64_MAX - 50);
  EXPECT_ERROR(link_->try_recv(nullptr, UINT64_MAX, &view_), "corrupt");
  put(1, 100, kArena - 100);
  EXPECT_TRUE(link_->try_recv(nullptr, 1000, &view_));
  EXPECT_EQ(view_.data, their_arena_.data() + kArena - 100);
}

TEST_F(Corrupt, ABufferThatThePeerDoesNotHaveIsRefused) {
  for (uint64_t number :
       {uint64_t{0}, uint64_t{3}, uint64_t{shm::HandedBuffers::kCount}, UINT64_MAX >> 2}) {
    put(1, 100, shm::kHanded | number);
    EXPECT_ERROR(link_->try_recv(nullptr, 1000, &view_), "100 bytes in buffer");
  }
  constexpr uint64_t kPeers = shm::HandedBuffers::kOfEach;
  put(1, 4097, shm::kHanded | kPeers);
  EXPECT_ERROR(link_->try_recv(nullptr, 10000, &view_), "4097 bytes in buffer");
  put(1, 4096, shm::kHanded | kPeers);
  EXPECT_TRUE(link_->try_recv(nullptr, 10000, &view_));
}

TEST_F(Corrupt, AStampFromTheFutureIsRefused) {
  put(0, 10, 0);
  EXPECT_FALSE(link_->try_recv(nullptr, 1000, &view_));
  put(2, 10, 0);
  EXPECT_ERROR(link_->try_recv(nullptr, 1000, &view_), "message 2 where 1 was due");
}

TEST_F(Corrupt, CreditThatWasNeverUsedIsRefused) {
  for (uint64_t n = 1; n <= 3; n++) ASSERT_TRUE(link_->try_send({}, arena_.data(), 1000));
  EXPECT_EQ(link_->completed(), 0u);
  theirs_lines_->released = 2;
  EXPECT_EQ(link_->completed(), 2u);
  theirs_lines_->released = 4;
  EXPECT_ERROR(link_->completed(), "4 of 3 sent");
  theirs_lines_->released = 1;
  EXPECT_ERROR(link_->completed(), "1 of 3 sent");
}

TEST_F(Corrupt, ALongMessageOutsideTheArenaIsADefectOfTheCaller) {
  std::byte elsewhere[kInline + 1] = {};
  EXPECT_TRUE(link_->try_send({}, elsewhere, kInline));
  EXPECT_THROW(link_->try_send({}, elsewhere, kInline + 1), Error);
  EXPECT_THROW(link_->try_send({}, arena_.data() + 1, kArena), Error);
  // Unless the peer has said that it reads what is lent.
  theirs_lines_->reads = 1;
  EXPECT_TRUE(link_->try_send({}, elsewhere, kInline + 1));
}

}  // namespace
}  // namespace ringcoll

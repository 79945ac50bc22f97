// Queue pairs that break and peers that break the rules, on the software device and on real ones.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "base/error.h"
#include "net/socket.h"
#include "transport/verbs/device_testing.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/wire.h"
#include "transport/world_testing.h"
#include "verbs/breaker_testing.h"
#include "verbs/discovery.h"
#include "verbs/queue_pair.h"
#include "verbs/selection.h"

namespace ringcoll {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr size_t kArenaBytes = 1 << 20;

const TransportRow& row() { return *find_transport("verbs"); }

class VerbsFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    Probe probe = row().probe(test_config());
    if (!probe.usable) GTEST_SKIP() << probe.detail;
  }
};

bool says(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

// Sends until the link breaks.
Error break_of(Endpoint& link, const std::byte* data) {
  try {
    for (Deadline deadline(seconds(40)); !deadline.passed();) {
      link.try_send(envelope_of(1), data, 50'000);
      link.completed();
      sleep_on(link, milliseconds(1));
    }
  } catch (const Error& error) {
    return error;
  }
  return {Code::kInternal, "it did not break"};
}

TEST_F(VerbsFaults, AQueuePairInTheErrorStateIsAnErrorOfBothItsRanks) {
  verbs::QueuePairBreaker breaker;
  World world(row(), 2, kArenaBytes);
  ASSERT_EQ(breaker.queue_pairs(), 2u);
  const std::byte *mine = world[0].arena.data(), *theirs = world[1].arena.data();
  for (int i = 0; i < 8; i++) send(world[0][1], envelope_of(1), mine, kArenaBytes);
  ASSERT_TRUE(breaker.break_oldest());  // with that much to send
  Error here = break_of(world[0][1], mine), there = break_of(world[1][0], theirs);
  for (const Error* error : {&here, &there}) {
    EXPECT_EQ(error->code(), Code::kTransport) << error->what();
    EXPECT_TRUE(says(*error, ":1, gid ")) << error->what();
  }
  EXPECT_EQ(here.rank(), 1);
  EXPECT_TRUE(says(here, "flushed") && says(here, "rank 0 -> 1")) << here.what();
  EXPECT_EQ(there.rank(), 0);
  EXPECT_TRUE(says(there, "retry exceeded") && says(there, "rank 1 -> 0")) << there.what();
}

/// Rank 1 by hand: it has passed the authentication and knows what an honest peer knows.
class Intruder {
 public:
  explicit Intruder(Switchboard& board)
      : port_(usable_port()),
        context_(port_.device),
        domain_(context_),
        queue_(context_, 64),
        memory_(domain_, kBytes, verbs::Access::kRemoteWrite),
        pair_(domain_, queue_, queue_, {.send_requests = 16, .receive_requests = 16}),
        socket_(board.take(1, 0, 0)) {}

  /// As rank 1 of `victim`, which is connecting.
  void join(TestRank& victim, rdma::Address address) {
    Deadline deadline(seconds(20));
    rdma::Hello mine{.address = address,
                     .qp_num = pair_.number(),
                     .inbox = memory_.region().address(),
                     .psn = kPsn,
                     .rkey = memory_.region().rkey()};
    send_all(socket_.get(), &mine, sizeof mine, deadline, "intruder");
    recv_all(socket_.get(), &theirs_, sizeof theirs_, deadline, "intruder");
    victim.each(&Endpoint::try_establish);
    connect();
    char receives = 'R';
    send_all(socket_.get(), &receives, 1, deadline, "intruder");
    victim.each(&Endpoint::try_prove);
  }
  const rdma::Hello& theirs() const { return theirs_; }

  /// How a write of the first bytes of memory() ends.
  verbs::Completion write(uint64_t address, uint32_t rkey, uint32_t bytes,
                          std::optional<uint32_t> immediate = {}) {
    verbs::Slice slice = verbs::slice_of(memory_.region(), memory(), bytes);
    verbs::Write write{.id = 1,
                       .from = std::span(&slice, bytes > 0 ? 1 : 0),
                       .remote_address = address,
                       .rkey = rkey,
                       .immediate = immediate};
    EXPECT_TRUE(pair_.try_write(write));
    verbs::Completion completion;
    for (Deadline deadline(seconds(20)); !deadline.passed();)
      if (queue_.poll(std::span(&completion, 1)) == 1) break;
    return completion;
  }
  /// Behind what the victim takes for an inbox.
  std::byte* memory() { return memory_.data() + kBytes / 2; }

 private:
  static constexpr size_t kBytes = 1 << 20;
  static constexpr uint32_t kPsn = 4711;

  static verbs::UsablePort usable_port() {
    return verbs::select_ports(verbs::survey(), test_config()).usable.at(0);
  }
  void connect() {
    verbs::Connection c;
    c.port = static_cast<uint8_t>(port_.port.number);
    c.remote_qp_num = theirs_.qp_num;
    c.local_psn = kPsn;
    c.remote_psn = theirs_.psn;
    c.path_mtu_bytes = port_.port.active_mtu_bytes;
    c.global_route = verbs::needs_global_route(port_.port, port_.gid.gid, port_.gid.gid);
    c.gid_index = static_cast<uint8_t>(port_.gid.index);
    c.remote_gid = port_.gid.gid;
    c.remote_lid = port_.port.lid;
    pair_.to_init(c);
    EXPECT_EQ(pair_.try_receive(0, 8), 8u);
    pair_.to_ready_to_receive(c);
    pair_.to_ready_to_send(c);
  }

  verbs::UsablePort port_;
  verbs::Context context_;
  verbs::ProtectionDomain domain_;
  verbs::CompletionQueue queue_;
  rdma::Registered memory_;
  verbs::QueuePair pair_;
  Fd socket_;
  rdma::Hello theirs_;
};

/// A rank and its intruder, who are connected.
struct Attacked {
  Attacked() : victim(row(), 0, 2, board, kArenaBytes), intruder(board) {
    std::string text = victim.transport->address();
    rdma::Address address;
    std::memcpy(&address, text.data(), sizeof address);
    address.rank = 1;
    victim.connect(1, std::string(reinterpret_cast<const char*>(&address), sizeof address));
    intruder.join(victim, address);
  }
  rdma::Layout layout() const { return rdma::Layout(intruder.theirs().address.slot_bytes); }
  std::byte* inbox() const { return reinterpret_cast<std::byte*>(intruder.theirs().inbox); }
  /// The inbox has whole pages.
  uint64_t inbox_bytes() const {
    uint64_t bytes = layout().bytes();
    return (bytes + kPage - 1) / kPage * kPage;
  }

  static constexpr uint64_t kPage = 4096;
  Switchboard board;
  TestRank victim;
  Intruder intruder;
};

TEST_F(VerbsFaults, AnIntruderThatKeepsTheRulesIsAPeer) {
  Attacked scene;
  rdma::Header header{.number = 1, .bytes = 5, .form = rdma::Header::kHere};
  std::memcpy(scene.intruder.memory(), &header, sizeof header);
  std::memcpy(scene.intruder.memory() + sizeof header, "hello", 5);
  const rdma::Hello& theirs = scene.intruder.theirs();
  uint64_t slot = theirs.inbox + scene.layout().slot(1);
  EXPECT_TRUE(
      scene.intruder
          .write(slot, theirs.rkey, sizeof header + 5, rdma::immediate_of(rdma::Kind::kMessage, 1))
          .ok());
  View view = receive(scene.victim[1]);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(view.data), view.bytes), "hello");
}

TEST_F(VerbsFaults, AHelloThatIsNotOfTheAddressThatWasReachedIsRefused) {
  struct Case {
    std::function<void(rdma::Address&)> change;
    const char* says;
  };
  for (const Case& c : {Case{[](auto& a) { a.magic++; }, "did not say who it is"},
                        Case{[](auto& a) { a.rank = 2; }, "did not say who it is"},
                        Case{[](auto& a) { a.version++; }, "version"},
                        Case{[](auto& a) { a.slot_bytes *= 2; }, "INLINE_BYTES"}}) {
    Switchboard board;
    TestRank victim(row(), 0, 3, board, kArenaBytes);
    Fd socket = board.take(1, 0, 0);
    rdma::Hello hello;
    std::string text = victim.transport->address();
    std::memcpy(&hello.address, text.data(), sizeof hello.address);
    hello.address.rank = 1;
    victim.connect(
        1, std::string(reinterpret_cast<const char*>(&hello.address), sizeof hello.address));
    c.change(hello.address);
    send_all(socket.get(), &hello, sizeof hello, Deadline(seconds(5)), "test");
    try {
      victim.each(&Endpoint::try_establish);
      ADD_FAILURE() << c.says;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTransport);
      EXPECT_TRUE(says(error, c.says)) << error.what();
    }
  }
}

/// Where the intruder writes, and by which key.
struct Attempt {
  const char* name;
  std::function<uint64_t(Attacked&)> address;
  uint32_t key_offset;  // to the one that it was given
};

class VerbsIntruder : public VerbsFaults, public ::testing::WithParamInterface<Attempt> {};

INSTANTIATE_TEST_SUITE_P(
    , VerbsIntruder,
    ::testing::Values(
        Attempt{"PastTheEndOfItsInbox",
                [](Attacked& s) { return s.intruder.theirs().inbox + s.inbox_bytes() - 32; }, 0},
        Attempt{"BeforeItsInbox", [](Attacked& s) { return s.intruder.theirs().inbox - 32; }, 0},
        Attempt{"IntoTheArenaByTheInboxsKey",
                [](Attacked& s) { return reinterpret_cast<uintptr_t>(s.victim.arena.data()); }, 0},
        Attempt{"ByAGuessedKey", [](Attacked& s) { return s.intruder.theirs().inbox; }, 0x5a5a}),
    [](const auto& info) { return info.param.name; });

TEST_P(VerbsIntruder, IsRefusedAndNamedAndChangesNothing) {
  Attacked scene;
  fill(scene.victim.arena.data(), kArenaBytes, 3);
  std::vector<std::byte> before(scene.inbox(), scene.inbox() + scene.inbox_bytes());
  std::memset(scene.intruder.memory(), 0xee, 64);
  verbs::Completion refused = scene.intruder.write(
      GetParam().address(scene), scene.intruder.theirs().rkey + GetParam().key_offset, 64);
  EXPECT_EQ(refused.status(), verbs::Status::kRemoteAccess) << refused.text();
  EXPECT_TRUE(filled(scene.victim.arena.data(), kArenaBytes, 3));
  EXPECT_EQ(std::memcmp(scene.inbox(), before.data(), before.size()), 0);
  Error error = break_of(scene.victim[1], scene.victim.arena.data());
  EXPECT_EQ(error.code(), Code::kTransport) << error.what();
  EXPECT_EQ(error.rank(), 1);
  EXPECT_TRUE(says(error, "flushed") && says(error, "not granted")) << error.what();
}

/// What a peer says that cannot be so, by writes that are allowed.
struct Nonsense {
  const char* name;
  std::function<void(Attacked&)> say;
};

using rdma::Header;
using rdma::Kind;
using rdma::kWindow;

void say_word(Attacked& scene, Kind kind, uint64_t number) {
  const rdma::Hello& theirs = scene.intruder.theirs();
  EXPECT_TRUE(
      scene.intruder.write(theirs.inbox, theirs.rkey, 0, rdma::immediate_of(kind, number)).ok());
}
template <typename T>
void say_in_inbox(Attacked& scene, const T& what, uint64_t offset, Kind kind, uint64_t number) {
  const rdma::Hello& theirs = scene.intruder.theirs();
  std::memcpy(scene.intruder.memory(), &what, sizeof what);
  EXPECT_TRUE(
      scene.intruder
          .write(theirs.inbox + offset, theirs.rkey, sizeof what, rdma::immediate_of(kind, number))
          .ok());
}
/// A header in the slot of `number`.
void say_header(Attacked& scene, uint64_t number, const Header& header) {
  say_in_inbox(scene, header, scene.layout().slot(number), Kind::kMessage, number);
}
void say_place(Attacked& scene, uint64_t number, const rdma::Place& place) {
  say_in_inbox(scene, place, scene.layout().place(number), Kind::kPlace, number);
}

const Nonsense kNonsense[] = {
    {"AMessageBeforeItsTurn",
     [](Attacked& s) { say_header(s, 2, {.number = 2, .form = Header::kHere}); }},
    {"AHeaderOfAnotherMessage",
     [](Attacked& s) { say_header(s, 1, {.number = 2, .form = Header::kHere}); }},
    {"AMessageBeyondTheWindow",
     [](Attacked& s) {
       for (uint64_t n = 1; n <= kWindow + 1; n++) {
         s.victim[1].progress();  // its slot is overwritten by the last
         say_header(s, n, {.number = n, .form = Header::kHere});
       }
     }},
    {"APayloadThatIsLongerThanItsSlot",
     [](Attacked& s) {
       say_header(s, 1, {.number = 1, .bytes = s.layout().most_here() + 1, .form = Header::kHere});
     }},
    {"APayloadAtAPlaceThatWasNotNamed",
     [](Attacked& s) { say_header(s, 1, {.number = 1, .bytes = 1, .form = Header::kPlaced}); }},
    {"APayloadThatIsLongerThanItsPlace",
     [](Attacked& s) {
       s.victim[1].expect(s.victim.arena.data(), 20'000);
       say_header(s, 1, {.number = 1, .bytes = 20'001, .form = Header::kPlaced});
     }},
    {"APayloadThatIsLongerThanAnArena",
     [](Attacked& s) {
       say_header(s, 1, {.number = 1, .bytes = kArenaBytes + 1, .form = Header::kLater});
     }},
    {"AFormThatIsNone", [](Attacked& s) { say_header(s, 1, {.number = 1, .form = 4}); }},
    {"TheEndOfAMessageThatHasNotBegun", [](Attacked& s) { say_word(s, Kind::kDone, 1); }},
    {"TheEndOfAMessageThatIsThere",
     [](Attacked& s) {
       say_header(s, 1, {.number = 1, .form = Header::kHere});
       say_word(s, Kind::kDone, 1);
     }},
    {"TheEndOfAMessageWithoutAPlace",
     [](Attacked& s) {
       say_header(s, 1, {.number = 1, .bytes = 20'000, .form = Header::kLater});
       say_word(s, Kind::kDone, 1);
     }},
    {"APlaceOfAnotherMessage", [](Attacked& s) { say_place(s, 1, {.number = 2, .bytes = 1}); }},
    {"APlaceForAMessageFarAhead",
     [](Attacked& s) { say_place(s, 2 * kWindow + 1, {.number = 2 * kWindow + 1, .bytes = 1}); }},
    {"AReleaseOfWhatWasNotSent", [](Attacked& s) { say_word(s, Kind::kReleased, 1); }},
    {"AWordThatIsNone", [](Attacked& s) { say_word(s, static_cast<Kind>(5), 1); }},
};

class VerbsNonsense : public VerbsFaults, public ::testing::WithParamInterface<Nonsense> {};

INSTANTIATE_TEST_SUITE_P(, VerbsNonsense, ::testing::ValuesIn(kNonsense),
                         [](const auto& info) { return info.param.name; });

TEST_P(VerbsNonsense, IsAnErrorThatNamesThePeer) {
  Attacked scene;
  GetParam().say(scene);
  Error error(Code::kInternal, "nothing was noticed");
  try {
    for (Deadline deadline(seconds(5)); !deadline.passed();) scene.victim[1].progress();
  } catch (const Error& thrown) {
    error = thrown;
  }
  EXPECT_EQ(error.code(), Code::kTransport) << error.what();
  EXPECT_EQ(error.rank(), 1);
  EXPECT_TRUE(says(error, "unexpected data")) << error.what();
}

}  // namespace
}  // namespace ringcoll

// Connections that are made at the same time, to peers that answer late, never, or die.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error_testing.h"
#include "connect/auth.h"
#include "connect/connector.h"
#include "connect/networks.h"
#include "net/event_loop.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

using testing::error_of;

constexpr GroupNumber kGroup = 7;
const Duration kForEver = seconds(INFINITY);
constexpr Duration kLate = std::chrono::milliseconds(50);

Config on_loopback() {
  Config config;
  config.interface = "127.0.0.1/32";
  return config;
}

size_t descriptors() {
  auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

/// The accepting side of a rank, by hand: the kernel takes connections, and it answers as told.
class Acceptor {
 public:
  Acceptor() = default;
  ~Acceptor() {
    stopping_ = true;
    if (!dies_) ::shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  /// As of a rank of the same host.
  std::string offers(const Connector& of_host) const {
    Offer offer = decode_offers(of_host.offers()).front();
    offer.address = local_address(listener_.get());
    return encode_offers({&offer, 1});
  }
  /// From now on it gives each answer so much later than it could.
  void answer(const AuthPolicy& policy, Duration late) {
    thread_ = std::thread([this, policy, late] {
      while (!stopping_) {
        Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (fd && converse(fd.get(), policy, late)) accepted_.push_back(std::move(fd));
      }
    });
  }
  /// Takes one connection, hears its hello, and is no more.
  void die(const AuthPolicy& policy) {
    dies_ = true;
    thread_ = std::thread([this, policy] {
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::vector<char> hello(Challenger(policy).wanted());
      [[maybe_unused]] ssize_t got = ::recv(fd.get(), hello.data(), hello.size(), MSG_WAITALL);
      listener_.reset();
    });
  }
  /// How many have given a proof.
  int proofs() const { return proofs_; }

 private:
  bool converse(int fd, const AuthPolicy& policy, Duration late) {
    Challenger challenger(policy);
    while (size_t wanted = challenger.wanted()) {
      std::vector<char> message(wanted);
      if (::recv(fd, message.data(), wanted, MSG_WAITALL) != static_cast<ssize_t>(wanted))
        return false;
      std::string reply = challenger.answer({message.data(), wanted});
      proofs_ += challenger.wanted() == 0;
      std::this_thread::sleep_for(late);
      if (::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL) < 0) return false;
    }
    return challenger.state() == Challenger::State::kAccepted;
  }

  Fd listener_ = listen_on(Address::parse("127.0.0.1:0"));
  std::vector<Fd> accepted_;
  std::atomic<int> proofs_{0};
  bool dies_ = false;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// Rank 0, and the accepting sides of the others.
struct Hub {
  explicit Hub(Rank peers) : acceptors(static_cast<size_t>(peers)) {
    std::vector<std::string> offers = {connector.offers()};
    for (const Acceptor& acceptor : acceptors) offers.push_back(acceptor.offers(connector));
    std::string all;
    for (const std::string& of_one : offers) all += of_one + '\n';
    connector.set_peers(offers, "sesame");
    group = make_group_id(all);
  }
  AuthPolicy policy(Rank peer) const { return {"sesame", peer, 0, 0, group}; }
  Acceptor& operator[](Rank peer) { return acceptors[static_cast<size_t>(peer) - 1]; }
  void answer(Rank peer, Duration late) { (*this)[peer].answer(policy(peer), late); }

  std::vector<Acceptor> acceptors;
  EventLoop loop{"test"};
  Connector connector{0, on_loopback(), loop};
  GroupId group{};
};

/// Connections of one group, which are begun together and given as they come.
class Dials {
 public:
  struct Made {
    Rank peer;
    Fd fd;
    std::optional<Unmade> unmade;
  };

  Dials(Connector& connector, GroupNumber group, Deadline deadline)
      : connector_(connector), group_(group), deadline_(deadline) {}
  void dial(Rank peer, uint32_t channel) {
    left_++;
    connector_.begin({peer, channel, group_, Connector::Ends::kLower}, deadline_,
                     [inbox = inbox_, peer](Fd fd, const std::optional<Unmade>& unmade) {
                       std::lock_guard lock(inbox->mutex);
                       inbox->made.push_back({peer, std::move(fd), unmade});
                       inbox->changed.notify_all();
                     });
  }
  /// Nothing within `limit`, or if there is nothing left. Throws the first error.
  std::optional<Made> next(Duration limit) {
    std::unique_lock lock(inbox_->mutex);
    auto until = Clock::now() + std::min(limit, seconds(100));
    auto is_any = [this] { return !inbox_->made.empty(); };
    if (left_ == 0 || !inbox_->changed.wait_until(lock, until, is_any)) return {};
    Made made = std::move(inbox_->made.front());
    inbox_->made.pop_front();
    left_--;
    if (made.unmade) throw Error(made.unmade->why);
    return made;
  }

 private:
  struct Inbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Made> made;
  };

  Connector& connector_;
  const GroupNumber group_;
  const Deadline deadline_;
  size_t left_ = 0;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
};

/// The peers of all that is made until there is nothing more, or an error.
std::vector<Rank> all_of(Dials& dials) {
  std::vector<Rank> peers;
  while (auto made = dials.next(kForEver)) {
    EXPECT_TRUE(made->fd);
    peers.push_back(made->peer);
  }
  std::ranges::sort(peers);
  return peers;
}

double seconds_to_connect(Rank peers) {
  Hub hub(peers);
  for (Rank peer = 1; peer <= peers; peer++) hub.answer(peer, kLate);
  auto start = Clock::now();
  Dials dials(hub.connector, kGroup, Deadline(seconds(60)));
  for (Rank peer = 1; peer <= peers; peer++) dials.dial(peer, 1);
  EXPECT_EQ(all_of(dials).size(), static_cast<size_t>(peers));
  return to_seconds(Clock::now() - start);
}

// The best of some: the machine may be busy.
TEST(Dials, ToManyThatAnswerLateTakeNoLongerThanToOne) {
  double one = INFINITY, eight = INFINITY;
  for (int i = 0; i < 3; i++) {
    one = std::min(one, seconds_to_connect(1));
    eight = std::min(eight, seconds_to_connect(8));
  }
  EXPECT_LT(eight, 4 * one);
}

// Who comes first is given first, whoever was named first.
TEST(Dials, AreGivenAsTheyCome) {
  Hub hub(3);
  hub.answer(1, 4 * kLate);
  hub.answer(2, Duration::zero());
  hub.answer(3, Duration::zero());
  Dials dials(hub.connector, kGroup, Deadline(seconds(60)));
  for (Rank peer : {1, 2, 3}) dials.dial(peer, 1);
  std::vector<Rank> order;
  while (auto made = dials.next(kForEver)) order.push_back(made->peer);
  ASSERT_EQ(order.size(), 3u);
  EXPECT_EQ(order.back(), 1);
}

TEST(Dials, WhoNeverAnswersIsNamedAtTheDeadlineAndOthersAreMade) {
  size_t before = descriptors();
  {
    Hub hub(5);
    for (Rank peer : {1, 3, 5}) hub.answer(peer, Duration::zero());
    std::vector<Rank> made;
    {
      Dials dials(hub.connector, kGroup, Deadline(std::chrono::milliseconds(500)));
      for (Rank peer = 5; peer >= 1; peer--) dials.dial(peer, 1);
      Error error = error_of([&] {
        while (auto one = dials.next(kForEver)) made.push_back(one->peer);
      });
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
      EXPECT_EQ(error.rank(), 4) << "of both the first that was asked for";
      EXPECT_NE(std::string(error.what()).find("rank 0 -> 4"), std::string::npos) << error.what();
    }
    std::ranges::sort(made);
    EXPECT_EQ(made, (std::vector<Rank>{1, 3, 5}));
  }
  EXPECT_EQ(descriptors(), before);
}

// Rank 2 waits for ranks 0, which does not come, and 1, and dials rank 3.
TEST(Dials, WhoIsWaitedForHoldsBackNobody) {
  std::vector<std::unique_ptr<EventLoop>> loops;
  std::vector<std::unique_ptr<Connector>> connectors;
  std::vector<std::string> offers;
  for (Rank rank = 0; rank < 4; rank++) {
    loops.push_back(std::make_unique<EventLoop>("test"));
    connectors.push_back(std::make_unique<Connector>(rank, on_loopback(), *loops.back()));
    offers.push_back(connectors.back()->offers());
  }
  for (auto& connector : connectors) connector->set_peers(offers, "sesame");
  std::thread other([&] { EXPECT_TRUE(connectors[1]->dial(2, 1, Deadline(seconds(20)), kGroup)); });
  std::vector<Rank> made;
  Dials dials(*connectors[2], kGroup, Deadline(seconds(1)));
  for (Rank peer : {0, 1, 3}) dials.dial(peer, 1);
  Error error = error_of([&] {
    while (auto one = dials.next(kForEver)) made.push_back(one->peer);
  });
  other.join();
  std::ranges::sort(made);
  EXPECT_EQ(made, (std::vector<Rank>{1, 3}));
  EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
  EXPECT_EQ(error.rank(), 0);
}

TEST(Dials, WhoDiesInTheMiddleIsNamedAtOnce) {
  size_t before = descriptors();
  {
    Hub hub(4);
    hub[2].die(hub.policy(2));
    hub.answer(4, Duration::zero());
    Dials dials(hub.connector, kGroup, Deadline(seconds(60)));
    for (Rank peer : {1, 2, 3, 4}) dials.dial(peer, 1);  // 1 and 3 never answer
    auto start = Clock::now();
    Error error = error_of([&] { all_of(dials); });
    EXPECT_LT(to_seconds(Clock::now() - start), 20);
    EXPECT_EQ(error.code(), Code::kPeerLost) << error.what();
    EXPECT_EQ(error.rank(), 2);
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(Dials, AnInterruptEndsAll) {
  size_t before = descriptors();
  {
    Hub hub(3);
    hub.answer(2, Duration::zero());
    Dials dials(hub.connector, kGroup, Deadline(seconds(60)));
    for (Rank peer : {1, 2, 3}) dials.dial(peer, 1);
    auto first = dials.next(kForEver);
    ASSERT_TRUE(first);
    EXPECT_EQ(first->peer, 2);
    std::thread other([&] {
      std::this_thread::sleep_for(kLate);
      hub.connector.interrupt(kGroup);
    });
    auto start = Clock::now();
    Error error = error_of([&] { all_of(dials); });
    other.join();
    EXPECT_LT(to_seconds(Clock::now() - start), 20);
    EXPECT_EQ(error.code(), Code::kTransport) << error.what();
    EXPECT_EQ(error.rank(), 1);
  }
  EXPECT_EQ(descriptors(), before);
}

// Each peer's gate has few places, and this process few descriptors.
TEST(Dials, SoManyAreInFlightAndNoMore) {
  constexpr uint32_t kChannels = 29;
  constexpr Rank kPeers = 3;
  static_assert(kChannels * kPeers > Connector::kMostInFlight);
  Hub hub(kPeers);
  size_t before = descriptors();
  Dials dials(hub.connector, kGroup, Deadline(seconds(60)));
  for (Rank peer = 1; peer <= kPeers; peer++)
    for (uint32_t channel = 1; channel <= kChannels; channel++) dials.dial(peer, channel);
  EXPECT_FALSE(dials.next(kLate));  // nobody answers yet
  EXPECT_EQ(descriptors() - before, Connector::kMostInFlight + 1) << "and one to be told by";
  for (Rank peer = 1; peer <= kPeers; peer++) hub.answer(peer, Duration::zero());
  EXPECT_EQ(all_of(dials).size(), kChannels * kPeers);
}

// The peer has it, and takes a rank for dead whose lifeline closes without a word.
TEST(Dials, ALifelineThatThePeerMayHaveIsNotGivenUp) {
  Hub hub(2);
  hub.answer(1, kLate);
  Dials dials(hub.connector, kGroup, Deadline(seconds(60)));
  for (Rank peer : {1, 2}) dials.dial(peer, kLifelineChannel);
  for (Deadline soon(seconds(20)); hub[1].proofs() == 0 && !soon.passed();)
    EXPECT_FALSE(dials.next(std::chrono::milliseconds(1)));
  hub.connector.interrupt(kGroup);
  std::optional<Dials::Made> made;
  Error error = error_of([&] {
    while (auto one = dials.next(kForEver)) made = std::move(one);
  });
  EXPECT_EQ(error.code(), Code::kTransport) << error.what();
  EXPECT_EQ(error.rank(), 2);
  if (!made) made = dials.next(kForEver);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->peer, 1);
  EXPECT_TRUE(made->fd);
}

// Such a peer may be stopped.
TEST(Dials, ALifelineThatThePeerMayHaveDoesNotKeepTheConnectorFromEnding) {
  Hub hub(1);
  hub.answer(1, seconds(3));
  Dials dials(hub.connector, kGroup, Deadline(seconds(60)));
  dials.dial(1, kLifelineChannel);
  for (Deadline soon(seconds(20)); hub[1].proofs() == 0 && !soon.passed();)
    EXPECT_FALSE(dials.next(std::chrono::milliseconds(1)));
  auto start = Clock::now();
  hub.connector.stop();
  EXPECT_LT(to_seconds(Clock::now() - start), 2);
}

}  // namespace
}  // namespace ringcoll

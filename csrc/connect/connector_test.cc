#include "connect/connector.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/error_testing.h"
#include "connect/auth.h"
#include "connect/gate.h"
#include "connect/networks.h"
#include "connect/rate.h"
#include "net/interfaces.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

using testing::error_of;

Config on_loopback() {
  Config config;
  config.interface = "127.0.0.1/32";
  return config;
}

/// Of a peer of the same host.
Offer at(const Address& address, const Connector& of_host) {
  Offer offer = decode_offers(of_host.offers()).front();
  offer.address = address;
  return offer;
}

/// The connectors of a job in one process.
struct Job {
  explicit Job(Rank size, const std::vector<std::string>& secrets = {}) {
    std::vector<std::string> addresses;
    for (Rank rank = 0; rank < size; rank++) {
      loops.push_back(std::make_unique<EventLoop>("test"));
      connectors.push_back(std::make_unique<Connector>(rank, on_loopback(), *loops.back()));
      addresses.push_back(connectors.back()->offers());
    }
    for (Rank rank = 0; rank < size; rank++)
      connectors[rank]->set_peers(addresses, secrets.empty() ? "sesame" : secrets[rank]);
    all = addresses;
  }
  std::vector<std::unique_ptr<EventLoop>> loops;
  std::vector<std::unique_ptr<Connector>> connectors;
  std::vector<std::string> all;
};

bool contains(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

TEST(Connector, EveryPairAndChannelFindsItsOtherEnd) {
  constexpr Rank kSize = 4;
  constexpr uint32_t kChannels = 3;
  Job job(kSize);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kSize; rank++)
    threads.emplace_back([&job, rank] {
      for (uint32_t channel = 0; channel < kChannels; channel++)
        for (Rank peer = 0; peer < kSize; peer++) {
          if (peer == rank) continue;
          Deadline deadline(seconds(20));
          Fd fd = job.connectors[rank]->dial(peer, channel, deadline);
          uint32_t mine = static_cast<uint32_t>(rank) << 8 | channel, theirs = 0;
          send_all(fd.get(), &mine, sizeof mine, deadline, "test");
          recv_all(fd.get(), &theirs, sizeof theirs, deadline, "test");
          EXPECT_EQ(theirs, static_cast<uint32_t>(peer) << 8 | channel);
        }
    });
  for (auto& thread : threads) thread.join();
  for (auto& connector : job.connectors) EXPECT_EQ(connector->rejected(), 0u);
}

TEST(Connector, DifferentSecretsAreSaidOnBothSidesAtOnce) {
  Job job(2, {"sesame", "simsim"});
  auto start = Clock::now();
  Error accepting{Code::kInternal, ""};
  std::thread thread(
      [&] { accepting = error_of([&] { job.connectors[1]->dial(0, 0, Deadline(seconds(60))); }); });
  Error connecting = error_of([&] { job.connectors[0]->dial(1, 0, Deadline(seconds(60))); });
  thread.join();
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
  for (const Error& error : {accepting, connecting}) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    EXPECT_TRUE(contains(error, "RINGCOLL_SECRET")) << error.what();
  }
  EXPECT_EQ(accepting.rank(), 0);
  EXPECT_EQ(connecting.rank(), 1);
  EXPECT_EQ(job.connectors[1]->rejected(), 1u);
}

TEST(Connector, AStrangerWithAWrongSecretStopsNobody) {
  Job job(2), other(2, {"a", "b"});
  // Of another job: it knows an address, but not the group.
  EventLoop loop("test");
  Connector stranger(0, on_loopback(), loop);
  stranger.set_peers({stranger.offers(), job.all[1]}, "simsim");
  Error refused = error_of([&] { stranger.dial(1, 0, Deadline(seconds(20))); });
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  std::thread thread([&] { EXPECT_TRUE(job.connectors[1]->dial(0, 0, Deadline(seconds(20)))); });
  EXPECT_TRUE(job.connectors[0]->dial(1, 0, Deadline(seconds(20))));
  thread.join();
  EXPECT_EQ(job.connectors[1]->rejected(), 1u);
}

GroupId group_of(const Job& job) {
  std::string all;
  for (const std::string& offers : job.all) all += offers + '\n';
  return make_group_id(all);
}

// A connection to rank 1 of the job, from `source`.
Fd connect_from(const char* source, const Job& job) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Address from = Address::parse(fmt::format("{}:0", source));
  Address to = decode_offers(job.all[1]).at(0).address;
  EXPECT_EQ(::bind(fd.get(), from.get(), from.length()), 0);
  EXPECT_EQ(::connect(fd.get(), to.get(), to.length()), 0);
  return fd;
}

void expect_dials(Job& job) {
  std::thread thread([&] { EXPECT_TRUE(job.connectors[1]->dial(0, 0, Deadline(seconds(20)))); });
  EXPECT_TRUE(job.connectors[0]->dial(1, 0, Deadline(seconds(20))));
  thread.join();
}

// Such as that of a rank whose communicator fails while it connects, or of who listened.
TEST(Connector, AHelloThatGoesAwayStopsNobody) {
  Job job(2);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Fd active(ends[0]), passive(ends[1]);
  std::thread prover([&] {
    prove(active.get(), "sesame", {0, 1, 0, group_of(job)}, Deadline(seconds(20)), "test");
  });
  char hello[1024];
  ssize_t bytes = ::recv(passive.get(), hello, sizeof hello, 0);
  passive.reset();
  prover.join();
  ASSERT_GT(bytes, 0);
  {
    Fd fd = connect_from("127.0.0.1", job);
    ASSERT_EQ(::send(fd.get(), hello, static_cast<size_t>(bytes), 0), bytes);
    char challenge;
    ASSERT_EQ(::recv(fd.get(), &challenge, 1, 0), 1) << "the hello is good";
  }
  for (Deadline soon(seconds(10)); job.connectors[1]->rejected() == 0 && !soon.passed();)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(job.connectors[1]->rejected(), 1u);
  expect_dials(job);
}

// It knows the group, which can be worked out, but has not the address of the rank it says it is.
TEST(Connector, AWrongProofFromElsewhereStopsNobody) {
  Job job(2);
  Fd fd = connect_from("127.0.0.2", job);
  Verdict verdict =
      prove(fd.get(), "simsim", {0, 1, 0, group_of(job)}, Deadline(seconds(20)), "test");
  ASSERT_EQ(verdict, Verdict::kWrongSecret);
  expect_dials(job);
}

TEST(Connector, AnotherCommunicatorOfTheSameSecretIsNotMistaken) {
  Job job(2);
  EventLoop loop("test");
  Connector stranger(0, on_loopback(), loop);
  stranger.set_peers({stranger.offers(), job.all[1]}, "sesame");
  Error refused = error_of([&] { stranger.dial(1, 0, Deadline(seconds(20))); });
  EXPECT_EQ(refused.code(), Code::kTransport);
  EXPECT_TRUE(contains(refused, "another communicator")) << refused.what();
}

// By who connects, and by who waits for it to connect.
TEST(Connector, APeerThatHasEndedIsNamedAtOnce) {
  for (Rank ended : {1, 0}) {
    Job job(2);
    job.connectors[ended].reset();
    Rank other = 1 - ended;
    auto start = Clock::now();
    Error error = error_of([&] { job.connectors[other]->dial(ended, 3, Deadline(seconds(60))); });
    EXPECT_LT(to_seconds(Clock::now() - start), 20);
    EXPECT_EQ(error.code(), Code::kPeerLost);
    EXPECT_EQ(error.rank(), ended);
    EXPECT_TRUE(contains(error, "channel 3")) << error.what();
    EXPECT_TRUE(contains(error, "the process has ended, or a firewall")) << error.what();
    std::string address = decode_offers(job.all[ended])[0].address.text();
    EXPECT_TRUE(contains(error, address)) << error.what();
  }
}

// It listens, so that the rank that waits looks for it in vain, and is no stranger by that.
TEST(Connector, APeerThatComesLateIsWaitedFor) {
  Job job(2);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(900));
    EXPECT_TRUE(job.connectors[0]->dial(1, 0, Deadline(seconds(20))));
  });
  std::string failure;
  try {
    EXPECT_TRUE(job.connectors[1]->dial(0, 0, Deadline(seconds(20))));
  } catch (const Error& error) {
    failure = error.what();
  }
  late.join();
  EXPECT_EQ(failure, "");
  EXPECT_EQ(job.connectors[0]->rejected(), 0u);
}

TEST(Connector, APeerThatDoesNotComeIsNamedAtTheDeadline) {
  Job job(2);
  auto start = Clock::now();
  Error error = error_of([&] { job.connectors[1]->dial(0, 0, Deadline(seconds(0.1))); });
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.rank(), 0);
  EXPECT_TRUE(contains(error, "rank 0")) << error.what();
}

TEST(Connector, APeerThatIsStoppedIsNamedAtTheDeadline) {
  EventLoop loop("test");
  Connector connector(0, on_loopback(), loop);
  Fd stopped = listen_on(Address::parse("127.0.0.1:0"));  // the kernel accepts, nobody answers
  Offer offers[] = {at(local_address(stopped.get()), connector)};
  connector.set_peers({connector.offers(), encode_offers(offers)}, "sesame");
  Error error = error_of([&] { connector.dial(1, 0, Deadline(seconds(0.1))); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.rank(), 1);
}

TEST(Connector, GroupsHaveChannelsOfTheirOwn) {
  Job job(2);
  constexpr GroupNumber kGroups[] = {0, 1, 5 * (GroupNumber{1} << 32)};
  std::thread higher([&] {
    for (GroupNumber group : {kGroups[2], kGroups[0], kGroups[1]}) {
      Fd fd = job.connectors[1]->dial(0, 1, Deadline(seconds(20)), group);
      send_all(fd.get(), &group, sizeof group, Deadline(seconds(20)), "test");
    }
  });
  std::map<GroupNumber, Fd> lines;
  for (GroupNumber group : kGroups)
    lines[group] = job.connectors[0]->dial(1, 1, Deadline(seconds(20)), group);
  for (const auto& [group, fd] : lines) {
    GroupNumber theirs = 0;
    recv_all(fd.get(), &theirs, sizeof theirs, Deadline(seconds(20)), "test");
    EXPECT_EQ(theirs, group);
  }
  higher.join();
}

// The others go on.
TEST(Connector, AnInterruptIsOfOneGroup) {
  Job job(2);
  std::thread higher([&] {
    Error error = error_of([&] { job.connectors[1]->dial(0, 1, Deadline(seconds(60)), 7); });
    EXPECT_TRUE(contains(error, "the communicator has failed")) << error.what();
    EXPECT_TRUE(job.connectors[1]->dial(0, 1, Deadline(seconds(20)), 8));
    EXPECT_TRUE(job.connectors[1]->dial(0, kLifelineChannel, Deadline(seconds(20)), 8));
  });
  job.connectors[1]->interrupt(7);
  EXPECT_TRUE(job.connectors[0]->dial(1, 1, Deadline(seconds(20)), 8));
  EXPECT_TRUE(job.connectors[0]->dial(1, kLifelineChannel, Deadline(seconds(20)), 8));
  higher.join();
}

bool ends(const Fd& fd) {
  pollfd readable{fd.get(), POLLIN, 0};
  char byte;
  return ::poll(&readable, 1, 20'000) == 1 && ::recv(fd.get(), &byte, 1, 0) == 0;
}

// Who connected to one that has ended finds its connection closed, be it before or after that.
TEST(Connector, ConnectionsOfAGroupThatEndsAreClosed) {
  Job job(2);
  Fd before = job.connectors[0]->dial(1, 1, Deadline(seconds(20)), 7);
  job.connectors[1]->forget(7);
  EXPECT_TRUE(ends(before));
  EXPECT_TRUE(ends(job.connectors[0]->dial(1, 2, Deadline(seconds(20)), 7)));
}

// Its host does not answer at all, or the kernel accepts and the process does nothing.
TEST(Connector, AnInterruptEndsADial) {
  for (bool accepts : {true, false}) {
    EventLoop loop("test");
    Connector connector(0, on_loopback(), loop);
    Fd stopped = listen_on(Address::parse("127.0.0.1:0"));
    Address address = local_address(stopped.get());
    std::vector<Fd> waiting;  // in a short queue: who comes later hears nothing
    if (!accepts) ::listen(stopped.get(), 0);
    for (int i = 0; !accepts && i < 8; i++) {
      int error = 0;
      waiting.push_back(begin_connect(address, &error));
    }
    Offer offers[] = {at(address, connector)};
    connector.set_peers({connector.offers(), encode_offers(offers)}, "sesame");
    std::thread thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      connector.interrupt(0);
    });
    auto start = Clock::now();
    Error error = error_of([&] { connector.dial(1, 0, Deadline(seconds(30))); });
    EXPECT_LT(to_seconds(Clock::now() - start), 10);
    EXPECT_EQ(error.code(), Code::kTransport) << error.what();
    thread.join();
    error = error_of([&] { connector.dial(1, 0, Deadline(seconds(30))); });
    EXPECT_TRUE(contains(error, "the communicator has failed")) << error.what();
  }
}

std::vector<Interface> interfaces(const std::vector<std::string>& addresses) {
  std::vector<Interface> all;
  for (const std::string& address : addresses)
    all.push_back({"lo", Address::parse(address + ":0"), true, true, 8, 0});
  return all;
}

// Streams of a group of some ranks go where those of the group of all ranks go.
TEST(Connector, TheStreamsOfEachGroupUseAllNetworks) {
  EventLoop loop("test");
  auto both = interfaces({"127.0.0.1", "127.0.0.2"});
  both[1].name = "lo:1";
  for (Interface& one : both) one.prefix_bits = 32;
  std::vector<std::unique_ptr<Connector>> connectors;
  std::vector<std::string> offers;
  for (Rank rank : {0, 1}) {
    connectors.push_back(std::make_unique<Connector>(rank, both, loop));
    offers.push_back(connectors.back()->offers());
  }
  Trial trial;
  trial.findings = {{100, ""}, {100, ""}};
  for (auto& connector : connectors) {
    connector->set_peers(offers, "sesame");
    connector->settle_networks(std::vector{trial.encode(), std::string()},
                               [](Rank) { return std::string(); });
  }
  auto address_of = [&](uint32_t channel, GroupNumber group) {
    Deadline soon(seconds(20));
    Fd lower;
    std::thread other([&] { lower = connectors[0]->dial(1, channel, soon, group); });
    Fd higher = connectors[1]->dial(0, channel, soon, group);
    other.join();
    return local_address(higher.get()).host();
  };
  for (GroupNumber group : {0, 7}) {
    EXPECT_EQ(address_of(kFirstDataChannel, group), "127.0.0.1") << group;
    EXPECT_EQ(address_of(kFirstDataChannel + 1, group), "127.0.0.2") << group;
  }
}

// Say an IPv6 address that the kernel still looks for duplicates of. 198.51.100.0/24 is for
// documents.
TEST(Connector, AnAddressThatCannotBeBoundIsLeftOut) {
  EventLoop loop("test");
  Connector connector(0, interfaces({"198.51.100.1", "127.0.0.1", "203.0.113.1"}), loop);
  auto offers = decode_offers(connector.offers());
  ASSERT_EQ(offers.size(), 1u);
  EXPECT_EQ(offers[0].address.host(), "127.0.0.1");
  Error error = error_of([&] { Connector(0, interfaces({"198.51.100.1"}), loop); });
  EXPECT_EQ(error.code(), Code::kTransport);
  for (const char* part : {"198.51.100.1", "bind", "RINGCOLL_INTERFACE"})
    EXPECT_TRUE(contains(error, part)) << error.what();
}

TEST(Connector, OfVeryManyAddressesTheFastestAreOffered) {
  std::vector<std::string> addresses;
  for (size_t i = 1; i <= kMostOffers + 6; i++) addresses.push_back(fmt::format("127.0.0.{}", i));
  auto all = interfaces(addresses);
  all.back().speed_mbps = 1000;
  EventLoop loop("test");
  auto offers = decode_offers(Connector(0, all, loop).offers());
  EXPECT_EQ(offers.size(), kMostOffers);
  EXPECT_EQ(offers[0].address.host(), addresses.back());
}

TEST(Connector, AnAddressThatIsNoneIsAnError) {
  EventLoop loop("test");
  Connector connector(0, on_loopback(), loop);
  Error error = error_of([&] { connector.set_peers({connector.offers(), "somewhere"}, "sesame"); });
  EXPECT_EQ(error.rank(), 1);
}

/// Two ranks that have two networks in common, of which the first that is tried is given.
struct TwoNetworks {
  explicit TwoNetworks(const Address& first, bool one_host = false) {
    for (Rank r = 0; r < 2; r++) {
      connectors.push_back(std::make_unique<Connector>(r, on_loopback(), loop));
      auto own = decode_offers(connectors[r]->offers());
      own.push_back({0, "eth0", first, 24, 100000});
      if (!one_host)
        for (Offer& offer : own) offer.stack = static_cast<uint64_t>(r), offer.is_of_stack = false;
      offers.push_back(encode_offers(own));
    }
    for (auto& connector : connectors) connector->set_peers(offers, "sesame");
  }
  /// What each finds.
  std::vector<std::string> try_networks(double limit_s) {
    std::vector<std::string> findings;
    for (auto& connector : connectors)
      findings.push_back(connector->try_networks(Deadline(seconds(limit_s))));
    return findings;
  }
  EventLoop loop{"test"};
  std::vector<std::unique_ptr<Connector>> connectors;
  std::vector<std::string> offers;
};

TEST(Connector, BeforeTheNetworkIsSettledAllAreTried) {
  // Nobody listens there any more.
  Fd gone = listen_on(Address::parse("127.0.0.1:0"));
  Address refuses = local_address(gone.get());
  gone.reset();
  TwoNetworks ranks(refuses);
  std::thread thread([&] { ranks.connectors[1]->dial(0, 0, Deadline(seconds(20))); });
  EXPECT_TRUE(ranks.connectors[0]->dial(1, 0, Deadline(seconds(20))));
  thread.join();
}

TEST(Connector, ANetworkThatDoesNotReachIsNotUsed) {
  Fd gone = listen_on(Address::parse("127.0.0.1:0"));
  Address refuses = local_address(gone.get());
  gone.reset();
  TwoNetworks ranks(refuses);
  std::vector<std::string> findings = ranks.try_networks(20);
  for (auto& connector : ranks.connectors) {
    connector->settle_networks(findings, [](Rank) { return ""; });
    EXPECT_TRUE(connector->network().starts_with("127.0.0.0/8 (lo, ")) << connector->network();
  }
  std::thread thread([&] { ranks.connectors[1]->dial(0, 1, Deadline(seconds(20))); });
  EXPECT_TRUE(ranks.connectors[0]->dial(1, 1, Deadline(seconds(20))));
  thread.join();
  EXPECT_EQ(ranks.connectors[1]->rejected(), 0u);
}

// As behind a firewall that drops: the peer listens there, with no room for one more connection.
TEST(Connector, ANetworkThatSwallowsIsGivenUpLongBeforeTheDeadline) {
  Fd full = listen_on(Address::parse("127.0.0.1:0"));
  ASSERT_EQ(::listen(full.get(), 0), 0);
  Address swallows = local_address(full.get());
  std::vector<Fd> waiting;
  for (int i = 0; i < 4; i++) {
    int error = 0;
    waiting.push_back(begin_connect(swallows, &error));
  }
  TwoNetworks ranks(swallows);
  constexpr double kDeadlineSeconds = 60;
  auto start = Clock::now();
  std::vector<std::string> findings = ranks.try_networks(kDeadlineSeconds);
  EXPECT_LT(to_seconds(Clock::now() - start), kDeadlineSeconds / 4);
  for (auto& connector : ranks.connectors) {
    connector->settle_networks(findings, [](Rank) { return ""; });
    EXPECT_TRUE(connector->network().starts_with("127.0.0.0/8 (lo, ")) << connector->network();
  }
}

TEST(Connector, IfNoNetworkReachesEverybodyAllSaySo) {
  Job job(2);
  Trial none;
  none.findings = {{Trial::kNotReached, "no answer"}};
  for (auto& connector : job.connectors) {
    std::string findings[] = {none.encode(), ""};
    Error error = error_of([&] {
      connector->settle_networks(findings, [](Rank r) { return "host" + std::to_string(r); });
    });
    EXPECT_EQ(error.code(), Code::kTransport);
    for (const char* part :
         {"no network joins all hosts; host0 has lo 127.0.0.1/8, by 127.0.0.0/8: "
          "no answer",
          "RINGCOLL_INTERFACE"})
      EXPECT_TRUE(contains(error, part)) << error.what();
  }
}

TEST(Connector, WithOneNetworkNothingIsTried) {
  Job job(2);
  EXPECT_EQ(job.connectors[0]->try_networks(Deadline(seconds(20))), "");
}

TEST(Connector, OnOneHostNothingIsTried) {
  TwoNetworks ranks(Address::parse("127.0.0.1:1"), true);
  std::string findings[2];
  for (Rank r = 0; r < 2; r++)
    findings[r] = ranks.connectors[r]->try_networks(Deadline(seconds(20)));
  ranks.connectors[0]->settle_networks(findings, [](Rank) { return ""; });
  EXPECT_EQ(ranks.connectors[0]->network(), "127.0.0.0/24 (eth0)");
}

TEST(Connector, WhoIsTriedAndDoesNotAnswerIsNamed) {
  Fd stopped = listen_on(Address::parse("127.0.0.1:0"));
  TwoNetworks ranks(local_address(stopped.get()));
  Error error = error_of([&] { ranks.connectors[0]->try_networks(Deadline(seconds(0.1))); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_TRUE(contains(error, "rank 0 -> 1")) << error.what();
  EXPECT_EQ(error.rank(), 1);
}

// A peer that is not run for a moment says nothing of the network; it is asked again.
TEST(Connector, ARateThatIsNotToldIsMeasuredAgain) {
  EventLoop loop("test");
  Sink sink(loop);
  std::mutex mutex;
  std::vector<Fd> ignored;
  std::set<uint64_t> asked;  // channels
  Gate gate(Address::parse("127.0.0.1:0"), loop);
  Connector connector(0, on_loopback(), loop);
  auto own = decode_offers(connector.offers());
  own[0].is_of_stack = false;  // as if it were a network
  own.push_back({own[0].stack, "eth0", Address::parse("127.0.0.1:1"), 24, 0});
  std::vector<Offer> theirs = own;
  for (Offer& offer : theirs) offer.address = gate.address(), offer.stack++;
  std::vector<std::string> offers = {encode_offers(own), encode_offers(theirs)};
  gate.open(
      {"sesame", 1, 0, 0, make_group_id(offers[0] + '\n' + offers[1] + '\n')},
      [&](const Identity& from, Fd fd) {
        std::lock_guard lock(mutex);
        if (asked.insert(from.channel).second)
          ignored.push_back(std::move(fd));
        else
          sink.take(std::move(fd));
      },
      [](const Gate::Refusal&) {});
  connector.set_peers(offers, "sesame");
  auto findings = Trial::decode(connector.try_networks(Deadline(seconds(30))), 2).findings;
  ASSERT_EQ(findings.size(), 2u);
  for (const auto& found : findings) EXPECT_GT(found.bytes_per_us, 1) << found.why;
}

TEST(Rate, IsMeasuredIntoASink) {
  Fd listener = listen_on(Address::parse("127.0.0.1:0"));
  int error = 0;
  Fd out = try_connect(local_address(listener.get()), Deadline(seconds(20)), &error);
  ASSERT_TRUE(out);
  EventLoop loop("test");
  Sink sink(loop);
  Fd in(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  ASSERT_TRUE(in);
  sink.take(std::move(in));
  EXPECT_GT(measure_rate(out.get()), 1);  // a megabyte a second
}

TEST(Rate, ThatNobodyTellsIsNone) {
  Fd listener = listen_on(Address::parse("127.0.0.1:0"));
  int error = 0;
  Fd out = try_connect(local_address(listener.get()), Deadline(seconds(20)), &error);
  ASSERT_TRUE(out);
  EXPECT_EQ(measure_rate(out.get()), std::nullopt);
}

// On a link of `rate` bytes a microsecond, `each` bytes arriving at a time.
std::vector<Arrived> arrivals(double rate, uint64_t each, Duration time) {
  constexpr auto kLook = std::chrono::microseconds(250);
  std::vector<Arrived> seen;
  for (Duration at{}; at <= time; at += kLook) {
    auto bytes = static_cast<uint64_t>(rate * to_seconds(at) * 1e6 + 0.5);
    seen.push_back({Clock::time_point(at), 1000 + bytes / each * each});
  }
  return seen;
}

TEST(Rate, OfAFastLinkIsThatOfItsBestWindow) {
  auto seen = arrivals(1000, 1, std::chrono::milliseconds(5));
  EXPECT_NEAR(rate_of(seen), 1000, 0.1);
  // Nobody ran for five milliseconds, in the second window of several.
  for (size_t i = 6; i < seen.size(); i++) seen[i].at += std::chrono::milliseconds(5);
  EXPECT_NEAR(rate_of(seen), 1000, 0.1);
}

TEST(Rate, OfASlowLinkIsNotThatOfItsLumps) {
  // 100 Mb/s, a lump of 64 KiB every 5.2 ms: a millisecond holds one or none.
  for (uint64_t each : {16 << 10, 32 << 10, 64 << 10}) {
    double rate = rate_of(arrivals(12.5, each, kTrialTime));
    EXPECT_NEAR(rate, 12.5, 1) << each;
  }
}

TEST(Rate, OfNothingIsZero) {
  EXPECT_EQ(rate_of({}), 0);
  EXPECT_EQ(rate_of(arrivals(0, 1, kTrialTime)), 0);
}

TEST(Connector, AnInterfaceThatDoesNotExistIsAnError) {
  EventLoop loop("test");
  Config config;
  config.interface = "nonesuch0";
  Error error = error_of([&] { Connector(0, config, loop); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_TRUE(contains(error, "nonesuch0"));
}

}  // namespace
}  // namespace ringcoll

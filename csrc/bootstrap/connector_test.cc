#include "bootstrap/connector.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

Config on_loopback() {
  Config config;
  config.interface = "lo";
  return config;
}

/// The connectors of a job in one process.
struct Job {
  explicit Job(Rank size, const std::vector<std::string>& secrets = {}) {
    std::vector<std::string> addresses;
    for (Rank rank = 0; rank < size; rank++) {
      loops.push_back(std::make_unique<EventLoop>("test"));
      connectors.push_back(std::make_unique<Connector>(rank, on_loopback(), *loops.back()));
      addresses.push_back(connectors.back()->address());
    }
    for (Rank rank = 0; rank < size; rank++)
      connectors[rank]->set_peers(addresses, secrets.empty() ? "sesame" : secrets[rank]);
    all = addresses;
  }
  std::vector<std::unique_ptr<EventLoop>> loops;
  std::vector<std::unique_ptr<Connector>> connectors;
  std::vector<std::string> all;
};

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {Code::kInternal, ""};
}

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
  stranger.set_peers({stranger.address(), job.all[1]}, "simsim");
  Error refused = error_of([&] { stranger.dial(1, 0, Deadline(seconds(20))); });
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  std::thread thread([&] { EXPECT_TRUE(job.connectors[1]->dial(0, 0, Deadline(seconds(20)))); });
  EXPECT_TRUE(job.connectors[0]->dial(1, 0, Deadline(seconds(20))));
  thread.join();
  EXPECT_EQ(job.connectors[1]->rejected(), 1u);
}

TEST(Connector, AnotherCommunicatorOfTheSameSecretIsNotMistaken) {
  Job job(2);
  EventLoop loop("test");
  Connector stranger(0, on_loopback(), loop);
  stranger.set_peers({stranger.address(), job.all[1]}, "sesame");
  Error refused = error_of([&] { stranger.dial(1, 0, Deadline(seconds(20))); });
  EXPECT_EQ(refused.code(), Code::kTransport);
  EXPECT_TRUE(contains(refused, "another communicator")) << refused.what();
}

TEST(Connector, APeerThatHasEndedIsNamedAtOnce) {
  Job job(2);
  job.connectors[1].reset();
  auto start = Clock::now();
  Error error = error_of([&] { job.connectors[0]->dial(1, 3, Deadline(seconds(60))); });
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_EQ(error.rank(), 1);
  for (const std::string& part : {std::string("rank 0 -> 1"), job.all[1], std::string("channel 3"),
                                  std::string("Connection refused")})
    EXPECT_TRUE(contains(error, part)) << error.what();
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
  connector.set_peers({connector.address(), local_address(stopped.get()).text()}, "sesame");
  Error error = error_of([&] { connector.dial(1, 0, Deadline(seconds(0.1))); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.rank(), 1);
}

TEST(Connector, AnAddressThatIsNoneIsAnError) {
  EventLoop loop("test");
  Connector connector(0, on_loopback(), loop);
  connector.set_peers({connector.address(), "somewhere"}, "sesame");
  EXPECT_EQ(error_of([&] { connector.dial(1, 0, Deadline(seconds(1))); }).rank(), 1);
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

#include "net/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "base/error_testing.h"

namespace ringcoll {
namespace {

using testing::error_of;

struct Connected {
  Fd client, server;
};

Fd accept_one(int listener) {
  pollfd entry{listener, POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 10000), 1);
  return Fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

Connected connect_pair(const char* address) {
  Fd listener = listen_on(Address::parse(address));
  int error = 0;
  Fd client = try_connect(local_address(listener.get()), Deadline(seconds(10)), &error);
  EXPECT_TRUE(client) << error;
  return {std::move(client), accept_one(listener.get())};
}

bool has_ipv6() {
  try {
    listen_on(Address::parse("[::1]:0"));
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(Address, ReadsAndWrites) {
  for (const char* text : {"10.0.0.5:4711", "[fd00::2]:80", "0.0.0.0:0", "[::1]:65535"})
    EXPECT_EQ(Address::parse(text).text(), text);
  EXPECT_EQ(Address::parse("[fd00::2]:80").host(), "fd00::2");
  EXPECT_EQ(Address::parse("10.0.0.5:0").with_port(7).text(), "10.0.0.5:7");
  EXPECT_EQ(split_host_port("node17:99").host, "node17");
}

TEST(Address, RefusesWhatIsNone) {
  for (const char* bad :
       {"", ":", ":1", "10.0.0.5", "10.0.0.5:", "10.0.0.5:x", "10.0.0.5:65536", "10.0.0.5:-1",
        "10.0.0.5:1 ", "300.0.0.1:1", "localhost:1", "::1:80", "[::1]", "[]:1", "[g::]:1"})
    EXPECT_EQ(error_of([&] { Address::parse(bad); }).code(), Code::kInvalidArgument) << bad;
}

TEST(Address, ResolvesNamesAndSaysWhichItCannot) {
  auto addresses = resolve({"localhost", 12});
  ASSERT_FALSE(addresses.empty());
  EXPECT_EQ(addresses[0].port(), 12);
  Error error = error_of([] { resolve({"no-such-host.invalid", 1}); });
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_NE(std::string(error.what()).find("no-such-host.invalid"), std::string::npos);
}

TEST(Socket, CarriesALargeMessageBothWays) {
  std::vector<const char*> addresses = {"127.0.0.1:0"};
  if (has_ipv6()) addresses.push_back("[::1]:0");
  for (const char* address : addresses) {
    Connected pair = connect_pair(address);
    std::string sent(5 << 20, 'x'), got(sent.size(), 0);
    for (size_t i = 0; i < sent.size(); i++) sent[i] = static_cast<char>(i * 7 + i / 255);
    std::thread sender([&] {
      send_all(pair.client.get(), sent.data(), sent.size(), Deadline(seconds(20)), "test");
    });
    recv_all(pair.server.get(), got.data(), got.size(), Deadline(seconds(20)), "test");
    sender.join();
    EXPECT_EQ(sent, got);
    EXPECT_EQ(peer_address(pair.server.get()).text(), local_address(pair.client.get()).text());
  }
}

TEST(Socket, IsTuned) {
  Connected pair = connect_pair("127.0.0.1:0");
  int value = 0;
  socklen_t length = sizeof value;
  getsockopt(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, &value, &length);
  EXPECT_NE(value, 0);
  getsockopt(pair.client.get(), SOL_SOCKET, SO_KEEPALIVE, &value, &length);
  EXPECT_NE(value, 0);
  getsockopt(pair.client.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &length);
  EXPECT_GT(value, 1000);
  EXPECT_NE(fcntl(pair.client.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(pair.client.get(), F_GETFD) & FD_CLOEXEC, 0);
}

// The kernel counts the silence of one that is idle; of one that has sent, whoever asks.
TEST(Socket, WatchesTheHostOfItsPeer) {
  Connected pair = connect_pair("127.0.0.1:0");
  int fd = pair.client.get();
  watch_host(fd);
  auto option = [fd](int name) {
    int value = -1;
    socklen_t length = sizeof value;
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, name, &value, &length), 0);
    return value;
  };
  EXPECT_EQ(
      std::chrono::seconds(option(TCP_KEEPIDLE) + option(TCP_KEEPINTVL) * option(TCP_KEEPCNT)),
      kHostSilence);
  EXPECT_EQ(option(TCP_USER_TIMEOUT), 0) << "or the kernel would not count probes";
  send_all(fd, "x", 1, Deadline(seconds(5)), "test");
  Deadline acknowledged(seconds(5));
  while (unanswered_for(fd) && !acknowledged.passed()) std::this_thread::yield();
  EXPECT_FALSE(unanswered_for(fd));
  EXPECT_FALSE(unanswered_for(0)) << "it is not TCP";
}

TEST(Socket, WaitsEndAtTheDeadline) {
  Connected pair = connect_pair("127.0.0.1:0");
  char byte;
  auto start = Clock::now();
  Error error =
      error_of([&] { recv_all(pair.server.get(), &byte, 1, Deadline(seconds(0.05)), "rank 1"); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos);
  std::string much(64 << 20, 'x');
  error = error_of([&] {
    send_all(pair.client.get(), much.data(), much.size(), Deadline(seconds(0.05)), "rank 1");
  });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_LT(to_seconds(Clock::now() - start), 10);
}

TEST(Socket, SaysThatThePeerHasClosed) {
  Connected pair = connect_pair("127.0.0.1:0");
  pair.client.reset();
  char byte;
  Error error =
      error_of([&] { recv_all(pair.server.get(), &byte, 1, Deadline(seconds(5)), "rank 1"); });
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_NE(std::string(error.what()).find("closed by the peer"), std::string::npos);
  std::string much(1 << 20, 'x');  // no SIGPIPE
  error = error_of([&] {
    for (;;) send_all(pair.server.get(), much.data(), much.size(), Deadline(seconds(5)), "rank 1");
  });
  EXPECT_EQ(error.code(), Code::kTransport);
}

TEST(Socket, ConnectSaysRefused) {
  Address free_port;
  {
    Fd listener = listen_on(Address::parse("127.0.0.1:0"));
    free_port = local_address(listener.get());
  }
  int error = 0;
  EXPECT_FALSE(try_connect(free_port, Deadline(seconds(5)), &error));
  EXPECT_EQ(error, ECONNREFUSED);
}

TEST(Socket, ListenSaysWhatIsInTheWay) {
  Fd listener = listen_on(Address::parse("127.0.0.1:0"));
  Address taken = local_address(listener.get());
  std::string text = error_of([&] { listen_on(taken); }).what();
  EXPECT_NE(text.find("Address already in use"), std::string::npos) << text;
  EXPECT_NE(text.find(taken.text()), std::string::npos) << text;
}

}  // namespace
}  // namespace ringcoll

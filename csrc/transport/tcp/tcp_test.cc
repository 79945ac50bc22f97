#include "transport/tcp/tcp.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <thread>

#include "transport/tcp/endpoint.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;

// An endpoint whose peer is this test, byte by byte.
class Wire : public ::testing::Test {
 protected:
  static constexpr uint64_t kMost = 100000;

  Wire() {
    auto [here, there] = connected_sockets();
    there_ = std::move(there);
    std::vector<Fd> sockets;
    sockets.push_back(std::move(here));
    link_ = std::make_unique<tcp::TcpEndpoint>(0, 1, std::move(sockets), 1024, kMost, all_);
  }

  void put(const void* data, size_t bytes) {
    ASSERT_EQ(::send(there_.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  std::string message(uint64_t bytes, uint64_t number) {
    tcp::Header header;
    header.bytes = bytes;
    header.signature = signature_of(number);
    std::string text(sizeof header + bytes, '\0');
    std::memcpy(text.data(), &header, sizeof header);
    fill(reinterpret_cast<std::byte*>(text.data()) + sizeof header, bytes, number);
    return text;
  }
  Error error_of_receive() {
    try {
      receive(*link_);
    } catch (const Error& error) {
      return error;
    }
    return Error(Code::kInternal, "no error");
  }

  tcp::Endpoints all_;
  Fd there_;
  std::unique_ptr<tcp::TcpEndpoint> link_;
};

TEST_F(Wire, AMessageMayComeInAnyPieces) {
  std::string text = message(200, 1);
  View view;
  std::byte place[200];
  for (char byte : text) {
    EXPECT_FALSE(link_->try_recv(place, 200, &view));
    put(&byte, 1);
    link_->wait(seconds(5));
  }
  receive(*link_, place, 200).data;
  EXPECT_TRUE(filled(place, 200, 1));
}

TEST_F(Wire, ManyMessagesMayComeAtOnce) {
  std::string text;
  for (uint64_t n = 1; n <= 50; n++) text += message(n * 37 % 900, n);
  put(text.data(), text.size());
  for (uint64_t n = 1; n <= 50; n++) {
    View view = receive(*link_);
    EXPECT_EQ(view.signature, signature_of(n));
    EXPECT_EQ(view.bytes, n * 37 % 900);
    EXPECT_TRUE(filled(view.data, view.bytes, n));
    link_->release();
  }
}

TEST_F(Wire, APlaceOfferedLateIsNotNeeded) {
  std::string text = message(5000, 1);
  put(text.data(), 2000);
  View view;
  Deadline deadline(std::chrono::milliseconds(50));
  while (!deadline.passed()) ASSERT_FALSE(link_->try_recv(nullptr, 5000, &view));
  put(text.data() + 2000, text.size() - 2000);
  std::vector<std::byte> place(5000);
  view = receive(*link_, place.data(), 5000);
  EXPECT_TRUE(filled(view.data, 5000, 1));
}

TEST_F(Wire, NonsenseIsRefused) {
  std::string text(100, 'x');
  put(text.data(), text.size());
  Error error = error_of_receive();
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_NE(std::string(error.what()).find("the stream is corrupt"), std::string::npos);
}

TEST_F(Wire, ALengthThatCannotBeIsRefused) {
  tcp::Header header;
  header.bytes = kMost + 1;
  put(&header, sizeof header);
  Error error = error_of_receive();
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_NE(std::string(error.what()).find("100001 bytes"), std::string::npos) << error.what();
}

TEST_F(Wire, AnotherVersionIsRefused) {
  tcp::Header header;
  header.version++;
  put(&header, sizeof header);
  EXPECT_EQ(error_of_receive().code(), Code::kTransport);
}

TEST_F(Wire, AnEndInTheMiddleOfAMessageIsPeerLost) {
  std::string text = message(500, 1);
  put(text.data(), 300);
  there_.reset();
  Error error = error_of_receive();
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_EQ(error.rank(), 1);
}

TEST_F(Wire, AResetIsPeerLost) {
  linger hard{1, 0};
  ASSERT_EQ(::setsockopt(there_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard), 0);
  there_.reset();
  Error error = error_of_receive();
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_NE(std::string(error.what()).find("reset"), std::string::npos) << error.what();
  try {
    for (int i = 0; i < 10; i++) link_->try_send({}, "x", 1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kPeerLost);
  }
}

TEST_F(Wire, WhatIsSentIsWhatTheHeaderSays) {
  std::byte data[300];
  fill(data, sizeof data, 1);
  send(*link_, signature_of(1), data, sizeof data);
  EXPECT_EQ(link_->completed(), 1u);
  std::string expected = message(300, 1);
  std::string got(expected.size(), '\0');
  ASSERT_EQ(::recv(there_.get(), got.data(), got.size(), MSG_WAITALL),
            static_cast<ssize_t>(got.size()));
  EXPECT_EQ(got, expected);
}

// Small socket buffers and an odd number of streams: every message is cut into pieces.
TEST(TcpStreams, KeepTheOrderUnderPressure) {
  constexpr uint64_t kMessages = 300;
  constexpr uint64_t kBytes = 20000;
  std::vector<Fd> sockets[2];
  for (int i = 0; i < 3; i++) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    for (int side = 0; side < 2; side++) {
      int small = 4096;
      ::setsockopt(fds[side], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
      sockets[side].emplace_back(fds[side]);
    }
  }
  tcp::Endpoints all[2];
  tcp::TcpEndpoint from(0, 1, std::move(sockets[0]), 1024, kBytes, all[0]);
  tcp::TcpEndpoint to(1, 0, std::move(sockets[1]), 1024, kBytes, all[1]);
  std::vector<std::byte> data(kBytes);
  fill(data.data(), kBytes, 1);
  std::thread sender([&] {
    for (uint64_t n = 1; n <= kMessages; n++)
      send(from, signature_of(n), data.data(), n * 7919 % kBytes);
    complete(from, kMessages);
  });
  std::vector<std::byte> place(kBytes);
  for (uint64_t n = 1; n <= kMessages; n++) {
    View view = receive(to, n % 2 ? place.data() : nullptr, kBytes);
    EXPECT_EQ(view.signature, signature_of(n));
    EXPECT_EQ(view.bytes, n * 7919 % kBytes);
    EXPECT_TRUE(filled(view.data, view.bytes, 1));
    to.release();
  }
  sender.join();
}

TEST(TcpReach, StreamsMustAgree) {
  const TransportRow& row = *find_transport("tcp");
  Switchboard board;
  Config more = test_config();
  more.tcp_streams++;
  TestRank here(row, 0, 2, board, 4096);
  TestRank there(row, 1, 2, board, 4096, more);
  std::string reason = here.transport->reach(1, there.transport->address());
  EXPECT_NE(reason.find("RINGCOLL_TCP_STREAMS differs: 3 there, 2 here"), std::string::npos)
      << reason;
}

}  // namespace
}  // namespace ringcoll

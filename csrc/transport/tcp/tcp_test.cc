#include "transport/tcp/tcp.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <thread>

#include "net/socket.h"
#include "transport/tcp/endpoint.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

// An endpoint whose peer is this test, byte by byte.
class Wire : public ::testing::Test {
 protected:
  static constexpr uint64_t kMost = 100000;

  Wire() {
    auto [here, there] = connected_sockets();
    there_ = std::move(there);
    std::vector<Fd> sockets;
    sockets.push_back(std::move(here));
    link_ = std::make_unique<tcp::TcpEndpoint>(0, 1, std::move(sockets), std::vector<size_t>{1},
                                               1024, kMost, all_);
  }

  void put(const void* data, size_t bytes) {
    ASSERT_EQ(::send(there_.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  std::string message(uint64_t bytes, uint64_t number) {
    tcp::Header header;
    header.number = number;
    header.bytes = header.here = bytes;
    header.envelope = envelope_of(number);
    std::string text(sizeof header + bytes, '\0');
    std::memcpy(text.data(), &header, sizeof header);
    fill(reinterpret_cast<std::byte*>(text.data()) + sizeof header, bytes, number);
    return text;
  }
  /// For a moment: what came is read while it is waited for.
  void pause() {
    std::vector<pollfd> fds;
    if (!link_->may_be_ready(&fds)) ::poll(fds.data(), fds.size(), 1);
    link_->end_wait();
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
    pause();
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
    EXPECT_EQ(view.envelope, envelope_of(n));
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
  header.number = 1;
  header.bytes = header.here = kMost + 1;
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
  send(*link_, envelope_of(1), data, sizeof data);
  EXPECT_EQ(link_->completed(), 1u);
  std::string expected = message(300, 1);
  std::string got(expected.size(), '\0');
  ASSERT_EQ(::recv(there_.get(), got.data(), got.size(), MSG_WAITALL),
            static_cast<ssize_t>(got.size()));
  EXPECT_EQ(got, expected);
}

// The kernel would give up on a peer that is stopped, or busy elsewhere, with its window full.
// Who fails has its memory back at once, and may free it.
TEST_F(Wire, WhatIsRevokedIsNotReadAnyMore) {
  constexpr size_t kBytes = 64 << 20;  // more than the kernel takes
  void* memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(link_->try_send(envelope_of(1), nullptr, 0), 1u);
  ASSERT_EQ(link_->try_send(envelope_of(2), memory, kBytes), 2u);
  ASSERT_EQ(link_->try_send(envelope_of(3), memory, 100), 3u);
  EXPECT_LT(link_->completed(), 2u);
  link_->revoke();
  ASSERT_EQ(::munmap(memory, kBytes), 0);
  EXPECT_EQ(link_->completed(), 3u);
  EXPECT_FALSE(link_->busy());
  EXPECT_EQ(link_->try_send(envelope_of(4), nullptr, 0), 0u) << "which would be in the middle of 2";
  std::vector<char> taken(1 << 20);
  while (is_readable(there_.get())) {
    ASSERT_GT(::recv(there_.get(), taken.data(), taken.size(), 0), 0);
    EXPECT_FALSE(link_->progress());
  }
}

TEST_F(Wire, WhatHasNoPayloadIsSentThoughItIsRevoked) {
  ASSERT_EQ(link_->try_send(envelope_of(1), nullptr, 0), 1u);
  link_->revoke();
  ASSERT_EQ(link_->try_send(envelope_of(2), nullptr, 0), 2u);
  EXPECT_EQ(link_->completed(), 2u);
  tcp::Header headers[2];
  ASSERT_EQ(::recv(there_.get(), headers, sizeof headers, MSG_WAITALL),
            static_cast<ssize_t>(sizeof headers));
  EXPECT_EQ(headers[1].number, 2u);
}

TEST_F(Wire, WhatComesAfterItWasRevokedIsNotPutWhereItWasWanted) {
  std::string text = message(200, 1);
  std::vector<std::byte> place(200, std::byte{7});
  View view;
  put(text.data(), text.size() - 100);
  while (!link_->try_peek(&view.envelope, &view.bytes)) pause();
  EXPECT_FALSE(link_->try_recv(place.data(), 200, &view));
  link_->revoke();
  std::fill(place.begin(), place.end(), std::byte{7});
  put(text.data() + text.size() - 100, 100);
  while (!link_->try_recv(place.data(), 200, &view)) pause();
  EXPECT_EQ(view.data, nullptr);
  EXPECT_EQ(place, std::vector<std::byte>(200, std::byte{7}));
}

TEST(Stream, OutlastsAPeerThatDoesNotRead) {
  Fd listener = listen_on(Address::parse("127.0.0.1:0"));
  int error = 0;
  Fd fd = try_connect(local_address(listener.get()), Deadline(seconds(20)), &error);
  ASSERT_TRUE(fd) << error;
  auto user_timeout_ms = [](int of) {
    unsigned ms = 0;
    socklen_t length = sizeof ms;
    EXPECT_EQ(::getsockopt(of, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &length), 0);
    return ms;
  };
  EXPECT_GT(user_timeout_ms(fd.get()), 0u) << "a lifeline notices that a host is gone";
  tcp::Stream stream(std::move(fd), 1, "test", 0);
  EXPECT_EQ(user_timeout_ms(stream.fd()), 0u);
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
  tcp::TcpEndpoint from(0, 1, std::move(sockets[0]), std::vector<size_t>{3}, 1024, kBytes, all[0]);
  tcp::TcpEndpoint to(1, 0, std::move(sockets[1]), std::vector<size_t>{3}, 1024, kBytes, all[1]);
  std::vector<std::byte> data(kBytes);
  fill(data.data(), kBytes, 1);
  std::thread sender([&] {
    for (uint64_t n = 1; n <= kMessages; n++)
      send(from, envelope_of(n), data.data(), n * 7919 % kBytes);
    complete(from, kMessages);
  });
  std::vector<std::byte> place(kBytes);
  for (uint64_t n = 1; n <= kMessages; n++) {
    View view = receive(to, n % 2 ? place.data() : nullptr, kBytes);
    EXPECT_EQ(view.envelope, envelope_of(n));
    EXPECT_EQ(view.bytes, n * 7919 % kBytes);
    EXPECT_TRUE(filled(view.data, view.bytes, 1));
    to.release();
  }
  sender.join();
}

// Two endpoints, each for a thread of its own, over as many streams.
struct Pair {
  explicit Pair(size_t streams) {
    std::vector<Fd> sockets[2];
    for (size_t i = 0; i < streams; i++) {
      auto [a, b] = connected_sockets();
      sockets[0].push_back(std::move(a));
      sockets[1].push_back(std::move(b));
    }
    auto numbers = std::vector<size_t>{streams};
    from = std::make_unique<tcp::TcpEndpoint>(0, 1, std::move(sockets[0]), numbers, 1024, kMost,
                                              all[0]);
    to = std::make_unique<tcp::TcpEndpoint>(1, 0, std::move(sockets[1]), numbers, 1024, kMost,
                                            all[1]);
  }
  static constexpr uint64_t kMost = 8 << 20;
  tcp::Endpoints all[2];
  std::unique_ptr<tcp::TcpEndpoint> from, to;
};

TEST(TcpStreams, LongAndShortMessagesKeepTheirOrder) {
  for (size_t streams : {1, 2, 4}) {
    Pair pair(streams);
    constexpr uint64_t kMessages = 60;
    auto bytes_of = [](uint64_t n) {
      return n % 3 == 0 ? n * 3 % 40 : tcp::kStretchBytes * (n % 7) + n * 7919 % 5000;
    };
    std::vector<std::byte> data(Pair::kMost), place(Pair::kMost);
    fill(data.data(), data.size(), 1);
    std::thread sender([&] {
      for (uint64_t n = 1; n <= kMessages; n++)
        send(*pair.from, envelope_of(n), data.data(), bytes_of(n));
      complete(*pair.from, kMessages);
    });
    for (uint64_t n = 1; n <= kMessages; n++) {
      std::ranges::fill(place, std::byte{0});
      View view = receive(*pair.to, n % 2 ? place.data() : nullptr, Pair::kMost);
      EXPECT_EQ(view.envelope, envelope_of(n));
      EXPECT_EQ(view.bytes, bytes_of(n));
      EXPECT_TRUE(filled(view.data, view.bytes, 1)) << n;
      pair.to->release();
    }
    sender.join();
  }
}

// What no stream has room for yet is not bound to any.
TEST(TcpStreams, AStreamThatIsStuckDelaysOnlyWhatItHolds) {
  auto [slow, reader] = connected_sockets();
  auto [fast_here, fast_there] = connected_sockets();
  std::vector<Fd> sockets;
  sockets.push_back(std::move(fast_here));
  sockets.push_back(std::move(slow));
  tcp::Endpoints all;
  tcp::TcpEndpoint from(0, 1, std::move(sockets), std::vector<size_t>{2}, 1024, 1 << 30, all);
  std::vector<std::byte> data(64 << 20);
  ASSERT_TRUE(from.try_send(envelope_of(1), data.data(), data.size()));
  // Nobody reads stream 1; all that it has not taken goes over stream 0.
  std::vector<std::byte> sink(1 << 20);
  uint64_t got = 0;
  Deadline quiet(seconds(20));
  while (got < data.size() / 4 * 3 && !quiet.passed()) {
    from.progress();
    ssize_t bytes = ::recv(fast_there.get(), sink.data(), sink.size(), MSG_DONTWAIT);
    if (bytes > 0) got += static_cast<uint64_t>(bytes);
  }
  EXPECT_GE(got, data.size() / 4 * 3);
}

// An endpoint with two streams whose peer is this test.
class TwoStreams : public ::testing::Test {
 protected:
  static constexpr uint64_t kMost = 1000;

  TwoStreams() {
    std::vector<Fd> sockets;
    for (Fd& end : there_) {
      auto [here, there] = connected_sockets();
      sockets.push_back(std::move(here));
      end = std::move(there);
    }
    link_ = std::make_unique<tcp::TcpEndpoint>(0, 1, std::move(sockets), std::vector<size_t>{2},
                                               1024, kMost, all_);
  }
  void put(int stream, const tcp::Header& header) {
    std::string text(sizeof header + header.here, 'x');
    std::memcpy(text.data(), &header, sizeof header);
    ASSERT_EQ(::send(there_[stream].get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  /// Of message 1, of 100 bytes.
  static tcp::Header stretch(uint64_t offset, uint64_t here) {
    tcp::Header header;
    header.streams = 2;
    header.number = 1;
    header.bytes = 100;
    header.offset = offset;
    header.here = here;
    return header;
  }
  std::string refusal() {
    try {
      receive(*link_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTransport);
      EXPECT_EQ(error.rank(), 1);
      return error.what();
    }
    return "";
  }
  tcp::Endpoints all_;
  Fd there_[2];
  std::unique_ptr<tcp::TcpEndpoint> link_;
};

TEST_F(TwoStreams, StretchesMayComeInAnyOrder) {
  tcp::Header later = stretch(0, 10);
  later.number = 2;
  later.bytes = 20;
  put(1, stretch(70, 30));
  put(1, later);
  put(1, [&] {
    tcp::Header rest = later;
    rest.offset = 10;
    return rest;
  }());
  put(0, stretch(0, 0));
  put(0, stretch(0, 70));
  EXPECT_EQ(receive(*link_).bytes, 100u);
  View view;
  EXPECT_FALSE(link_->try_recv(nullptr, kMost, &view));  // it has not begun
  later.here = 0;
  put(0, later);
  EXPECT_EQ(receive(*link_).bytes, 20u);
}

TEST_F(TwoStreams, AStretchOutsideTheMessageIsRefused) {
  put(0, stretch(90, 11));
  EXPECT_NE(refusal().find("a stretch of 11 bytes at 90 of a message of 100"), std::string::npos);
}

TEST_F(TwoStreams, AnOffsetThatOverflowsIsRefused) {
  tcp::Header header = stretch(0, 10);
  header.offset = UINT64_MAX - 4;
  put(0, header);
  EXPECT_NE(refusal().find("a stretch of 10 bytes at 18446744073709551611"), std::string::npos);
}

TEST_F(TwoStreams, MoreThanTheMessageIsRefused) {
  put(0, stretch(0, 60));
  put(1, stretch(0, 60));
  EXPECT_NE(refusal().find("more than its 100 bytes"), std::string::npos);
}

TEST_F(TwoStreams, AStretchThatBelongsElsewhereIsRefused) {
  tcp::Header other = stretch(50, 50);
  other.bytes = 200;
  put(0, stretch(0, 50));
  put(1, other);
  EXPECT_NE(refusal().find("of a message of 200 bytes"), std::string::npos);
}

TEST_F(TwoStreams, AMessageOnceMoreIsRefused) {
  put(0, stretch(0, 100));
  receive(*link_);
  put(0, stretch(0, 100));
  EXPECT_NE(refusal().find("message 2 was expected, and message 1 once more came"),
            std::string::npos);
}

TEST_F(TwoStreams, AMessageThatIsNotTheNextIsRefused) {
  tcp::Header header = stretch(0, 100);
  header.number = 3;
  put(0, header);
  EXPECT_NE(refusal().find("message 1 was expected, and the beginning of message 3 came"),
            std::string::npos);
}

TEST_F(TwoStreams, StreamsThatThereAreNotAreRefused) {
  tcp::Header header = stretch(0, 100);
  header.streams = 3;
  put(0, header);
  EXPECT_NE(refusal().find("on 3 streams"), std::string::npos);
}

TEST_F(TwoStreams, AnEmptyStretchBesideIsRefused) {
  put(0, stretch(0, 60));
  put(1, stretch(60, 0));
  EXPECT_NE(refusal().find("a stretch of 0 bytes"), std::string::npos);
}

TEST_F(TwoStreams, WhatWasSentBeforeThePeerLeftStillComes) {
  put(0, stretch(0, 60));
  put(1, stretch(60, 40));
  for (Fd& end : there_) end.reset();
  EXPECT_EQ(receive(*link_).bytes, 100u);
  EXPECT_THROW(receive(*link_), Error);
}

TEST_F(TwoStreams, OneThatBreaksIsPeerLost) {
  put(0, stretch(0, 60));
  tcp::Header header = stretch(60, 40);
  ASSERT_GT(::send(there_[1].get(), &header, sizeof header, MSG_NOSIGNAL), 0);
  there_[1].reset();
  try {
    receive(*link_);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kPeerLost);
    EXPECT_NE(std::string(error.what()).find("tcp stream 1"), std::string::npos) << error.what();
  }
}

// The number of streams that a link settles on, which is `rate(n)` bytes a second fast with n.
size_t settled(size_t most, const std::function<double(size_t)>& rate) {
  constexpr uint64_t kBytes = 4 << 20;
  std::vector<size_t> numbers = tcp::numbers_of_streams(most);
  FasterWay faster = tcp::fastest_of(numbers.size());
  for (int i = 0; i < 200; i++)
    faster.did(kBytes, seconds(kBytes / rate(numbers[faster.next(kBytes)])));
  return numbers[faster.next(kBytes)];
}

TEST(NumberOfStreams, IsOneThatPays) {
  EXPECT_EQ(settled(4, [](size_t) { return 1e9; }), 1u);
  EXPECT_EQ(settled(4, [](size_t n) { return 1e9 * static_cast<double>(n); }), 4u);
  EXPECT_EQ(settled(4, [](size_t n) { return n == 2 ? 1.5e9 : 1e9; }), 2u);
  EXPECT_EQ(settled(4, [](size_t n) { return 1e9 + 5e7 * static_cast<double>(n > 1); }), 1u);
  EXPECT_EQ(settled(3, [](size_t n) { return 1e9 * static_cast<double>(n); }), 2u);
  EXPECT_EQ(settled(1, [](size_t) { return 1e9; }), 1u);
}

TEST(NumberOfStreams, IsNotDecidedByOnePause) {
  int calls = 0;
  // During one measurement with 4 streams no rank ran for seconds.
  size_t streams = settled(4, [&](size_t n) {
    return n == 4 && calls++ == 10 ? double{1 << 20} : 1e9 * static_cast<double>(n);
  });
  EXPECT_EQ(streams, 4u);
}

// Such as one in which the kernel took all at once.
TEST(NumberOfStreams, IsNotDecidedByOneBurst) {
  int calls = 0;
  size_t streams = settled(
      4, [&](size_t n) { return n == 1 && calls++ == 10 ? 1e11 : 1e9 * static_cast<double>(n); });
  EXPECT_EQ(streams, 4u);
}

}  // namespace
}  // namespace ringcoll

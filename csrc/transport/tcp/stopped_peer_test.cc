// A peer that is stopped while its window is full, for longer than the kernel waits for one.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>
#include <vector>

#include "transport/tcp/stream.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using std::chrono::milliseconds;
using testing::connected_sockets;

// Instead of the 25 s of a tuned socket.
constexpr unsigned kPatienceMs = 200;
constexpr Duration kStopped = milliseconds(2500);
constexpr size_t kPieceBytes = 1 << 16;

/// What is at offset `at` of all that is sent.
std::byte byte_at(uint64_t at) { return static_cast<std::byte>(at * 7 + at / 251); }

/// A child that reads, until it is stopped, with the socket to it.
class Reader {
 public:
  Reader() {
    auto [here, there] = connected_sockets();
    EXPECT_EQ(::setsockopt(here.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kPatienceMs, sizeof(int)),
              0);
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    int inherited = ::dup(there.get());  // no Fd: those are not a child's
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      uint64_t got = read_all(inherited);
      ::_exit(::write(ends[1], &got, sizeof got) == sizeof got ? 0 : 1);
    }
    ::close(inherited);
    ::close(ends[1]);
    result_ = ends[0];
    here_ = std::move(here);
  }
  ~Reader() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(result_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Fd& socket() { return here_; }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void go_on() const { ::kill(pid_, SIGCONT); }
  /// How many bytes came, as they were sent, until the socket was closed.
  uint64_t got() const {
    uint64_t bytes = 0;
    EXPECT_EQ(::read(result_, &bytes, sizeof bytes), ssize_t{sizeof bytes});
    return bytes;
  }

 private:
  static uint64_t read_all(int fd) {
    std::array<std::byte, kPieceBytes> piece;
    for (uint64_t all = 0;;) {
      ssize_t got = ::read(fd, piece.data(), piece.size());
      if (got <= 0) return all;
      for (ssize_t i = 0; i < got; i++, all++)
        if (piece[static_cast<size_t>(i)] != byte_at(all)) return all;
    }
  }

  pid_t pid_;
  int result_;
  Fd here_;
};

/// Some bytes from offset `from` on.
std::vector<std::byte> piece_at(uint64_t from) {
  std::vector<std::byte> piece(kPieceBytes);
  for (size_t i = 0; i < piece.size(); i++) piece[i] = byte_at(from + i);
  return piece;
}

/// Sends until nothing has been taken for a while: the window is full. How many bytes went.
template <typename Send>
uint64_t fill(Send&& send, uint64_t from, uint64_t most) {
  uint64_t sent = from;
  for (int idle = 0; idle < 20 && sent < most;) {
    auto piece = piece_at(sent);
    uint64_t taken = send(piece.data(), std::min<uint64_t>(piece.size(), most - sent));
    sent += taken;
    idle = taken ? 0 : idle + 1;
    if (!taken) std::this_thread::sleep_for(milliseconds(10));
  }
  return sent;
}

TEST(TcpStream, OutlastsAPeerThatIsStoppedWithItsWindowFull) {
  Reader reader, other;
  tcp::Stream stream(std::move(reader.socket()), 1, "test", 0);
  for (Reader* one : {&reader, &other}) one->stop();
  auto by_stream = [&](std::byte* data, uint64_t bytes) {
    iovec part{data, bytes};
    return stream.send({&part, 1});
  };
  auto by_other = [&](std::byte* data, uint64_t bytes) {
    ssize_t sent = ::send(other.socket().get(), data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    return static_cast<uint64_t>(std::max<ssize_t>(sent, 0));
  };
  uint64_t sent = fill(by_stream, 0, UINT64_MAX);
  fill(by_other, 0, UINT64_MAX);
  std::this_thread::sleep_for(kStopped);
  std::byte more{};
  ASSERT_EQ(::send(other.socket().get(), &more, 1, MSG_DONTWAIT | MSG_NOSIGNAL), -1);
  ASSERT_EQ(errno, ETIMEDOUT) << "the kernel gives up one that was left as it was";
  reader.go_on();
  const uint64_t all = sent + (1 << 20);
  while (sent < all) {
    uint64_t before = sent;
    ASSERT_NO_THROW(sent = fill(by_stream, sent, all));
    ASSERT_GT(sent, before) << "nothing was taken, though it reads";
  }
  ::shutdown(stream.fd(), SHUT_WR);
  EXPECT_EQ(reader.got(), all);
}

}  // namespace
}  // namespace ringcoll

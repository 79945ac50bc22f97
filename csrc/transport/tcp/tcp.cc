#include "transport/tcp/tcp.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/knobs.h"
#include "net/interfaces.h"
#include "transport/tcp/endpoint.h"

namespace ringcoll {
namespace {

// The address of a transport, and of a part of one. The connector (bootstrap) knows the sockets'
// own addresses. Both ends must agree on how many there are.
struct TcpAddress {
  uint32_t magic = tcp::kMagic;
  uint16_t version = tcp::kVersion;
  uint8_t streams = 0;  // asked for; 0: measured
  uint8_t most = 0;     // that this rank can open
  int32_t rank = 0;
};
static_assert(sizeof(TcpAddress) == 12 && sizeof(TcpAddress) <= kMaxPartAddressBytes);

// The most streams of a link if no number is asked for. More gained nothing (perf/README.md,
// "Decisions that rest on a measurement").
constexpr uint32_t kMostMeasured = 4;
// A job may use one in so many of the process's descriptors for links. Half as many more are for
// links of parts that have more than one stream.
constexpr size_t kDescriptorShare = 2;
constexpr size_t kShareOfParts = 4;

size_t most_descriptors() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<size_t>(limit.rlim_cur) : 0;
}

// How many streams a link may have if there is one to every rank. A link takes the lifeline, the
// streams, and one descriptor for a part.
uint32_t affordable_streams(Rank size) {
  size_t a_link = most_descriptors() / kDescriptorShare / static_cast<size_t>(std::max(size, 1));
  return static_cast<uint32_t>(std::clamp<size_t>(a_link, 3, 2 + kMostMeasured) - 2);
}

/// The descriptors for further streams of parts. A job may have thousands of parts, so links of
/// those that are made when few are left have fewer streams. Any thread.
class SpareDescriptors {
 public:
  /// Takes up to `each` for each of so many links, and as many for all of them. Returns how many.
  size_t take(size_t links, size_t each) {
    std::lock_guard lock(mutex_);
    size_t taken = links > 0 ? std::min(each, left_ / links) * links : 0;
    left_ -= taken;
    return taken;
  }
  void give_back(size_t count) {
    std::lock_guard lock(mutex_);
    left_ += count;
  }

 private:
  std::mutex mutex_;
  size_t left_ = most_descriptors() / kShareOfParts;
};

// Bytes that are read ahead after a header, so that a small message takes one system call. What is
// read ahead is copied once more.
constexpr int64_t kLeastReadAhead = 1 << 10;
constexpr int64_t kMostReadAhead = 16 << 10;

/// Limits of messages, in the whole and in its parts.
struct Framing {
  explicit Framing(const TransportOptions& options)
      : read_ahead_bytes(sizeof(tcp::Header) +
                         static_cast<size_t>(std::clamp<int64_t>(options.config.inline_bytes,
                                                                 kLeastReadAhead, kMostReadAhead))),
        most_bytes(std::max<uint64_t>(options.arena.bytes(),
                                      static_cast<uint64_t>(options.config.inline_bytes))) {}

  size_t read_ahead_bytes;
  uint64_t most_bytes;  // a message is a piece, which fits into the arena
};

/// How many streams a link has.
struct Streams {
  uint32_t wanted = 0;  // asked for; 0: measured
  uint32_t most = 1;    // that are opened
};

Streams streams_of(const TransportOptions& options) {
  auto wanted = static_cast<uint32_t>(options.config.tcp_streams);
  return {wanted, wanted > 0 ? wanted : affordable_streams(options.size)};
}

class TcpTransport final : public Transport {
 public:
  /// `whole`: for a part, the spare descriptors of the whole, which outlives it; null: this is the
  /// whole. `taken`: how many of them a part has taken.
  TcpTransport(Rank rank, size_t size, Streams streams, const Framing& framing,
               SpareDescriptors* whole = nullptr, size_t taken = 0)
      : rank_(rank),
        streams_(streams),
        framing_(framing),
        most_of_(size, 1),
        own_spare_(whole ? nullptr : std::make_unique<SpareDescriptors>()),
        spare_(whole ? *whole : *own_spare_),
        taken_(taken) {}
  ~TcpTransport() override { spare_.give_back(taken_); }

  std::string address() const override {
    TcpAddress address{.streams = static_cast<uint8_t>(streams_.wanted),
                       .most = static_cast<uint8_t>(streams_.most),
                       .rank = rank_};
    return std::string(reinterpret_cast<const char*>(&address), sizeof address);
  }

  // The lifeline shows that a connection can be made: every pair has it before any data stream.
  std::string reach(Rank peer, std::string_view text) override {
    TcpAddress theirs;
    if (text.size() != sizeof theirs) return "its address is not one of this version of ringcoll";
    std::memcpy(&theirs, text.data(), sizeof theirs);
    if (theirs.magic != tcp::kMagic || theirs.version != tcp::kVersion)
      return "its address is not one of this version of ringcoll";
    if (theirs.rank != peer) return fmt::format("it is rank {} and not rank {}", theirs.rank, peer);
    if (theirs.streams != streams_.wanted)
      return fmt::format("RINGCOLL_TCP_STREAMS differs: {} there, {} here", theirs.streams,
                         streams_.wanted);
    most_of_[peer] = std::clamp<uint32_t>(theirs.most, 1, streams_.most);
    return "";
  }

  size_t sockets_to(Rank peer) const override { return most_of_[peer]; }
  std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> sockets,
                                    Deadline /*deadline*/) override {
    size_t most = sockets_to(peer);
    invariant(sockets.size() == most, "tcp: {} sockets for {} streams to rank {}", sockets.size(),
              most, peer);
    auto numbers = streams_.wanted > 0 ? std::vector{most} : tcp::numbers_of_streams(most);
    return std::make_unique<tcp::TcpEndpoint>(rank_, peer, std::move(sockets), std::move(numbers),
                                              framing_.read_ahead_bytes, framing_.most_bytes,
                                              endpoints_);
  }

  bool connected_by(Rank /*peer*/) override { return false; }
  bool may_be_ready(Sleep* sleep) override {
    bool any = false;
    for (tcp::TcpEndpoint* endpoint : endpoints_)
      any |= endpoint->may_be_ready(sleep ? &sleep->fds : nullptr);
    return any;
  }
  void end_wait() override {
    for (tcp::TcpEndpoint* endpoint : endpoints_) endpoint->end_wait();
  }

  bool sends_from_anywhere() const override { return true; }
  // The kernel reads from, and writes to, any memory.
  void lend(std::span<Loan> loans, size_t /*in_flight*/) override {
    for (Loan& loan : loans) loan.granted = true;
  }

  // A part is a transport like any other. For calls a link has as many streams as one of the whole,
  // while there are descriptors. Messages have one, since a job has many parts.
  std::unique_ptr<Transport> part(const TransportPart& part) override {
    size_t links = part.members.size() - 1;
    uint32_t most = part.has_streams ? streams_.most : 1;
    size_t taken = spare_.take(links, most - 1);
    if (links > 0) most = static_cast<uint32_t>(1 + taken / links);
    return std::make_unique<TcpTransport>(part.rank, part.members.size(),
                                          Streams{streams_.wanted, most}, framing_, &spare_, taken);
  }

 private:
  const Rank rank_;
  const Streams streams_;
  const Framing framing_;
  std::vector<uint32_t> most_of_;  // by peer: the fewer of both ends' streams
  const std::unique_ptr<SpareDescriptors> own_spare_;
  SpareDescriptors& spare_;
  const size_t taken_;
  tcp::Endpoints endpoints_;
};

// Makes a connection to this process, and sends one byte through it. "" if that worked.
std::string try_loopback() {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener) return errno_text("socket", errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (::bind(listener.get(), name, length) != 0) return errno_text("bind(127.0.0.1)", errno);
  if (::listen(listener.get(), 1) != 0) return errno_text("listen", errno);
  if (::getsockname(listener.get(), name, &length) != 0) return errno_text("getsockname", errno);
  Fd out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!out) return errno_text("socket", errno);
  // The backlog takes the connection, so neither call waits for the other.
  if (::connect(out.get(), name, length) != 0) return errno_text("connect(127.0.0.1)", errno);
  Fd in(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!in) return errno_text("accept", errno);
  timeval limit{1, 0};
  ::setsockopt(in.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char byte = 'r';
  if (::send(out.get(), &byte, 1, MSG_NOSIGNAL) != 1) return errno_text("send", errno);
  if (::recv(in.get(), &byte, 1, 0) != 1) return errno_text("recv", errno);
  return "";
}

}  // namespace

// Where loopback is down, local sockets join the ranks of a host, which need no network.
Probe probe_tcp(const Config&) {
  if (!look_at_links().loopback_is_up)
    return {true, "loopback is down: ranks of this host are joined by local sockets"};
  std::string reason = try_loopback();
  if (!reason.empty())
    return {false, fmt::format("{}: a connection on 127.0.0.1 cannot be made: is the loopback "
                               "interface up, and are sockets allowed here?",
                               reason)};
  return {true, "a connection on 127.0.0.1 works"};
}

std::unique_ptr<Transport> make_tcp(const TransportOptions& options) {
  return std::make_unique<TcpTransport>(options.rank, static_cast<size_t>(options.size),
                                        streams_of(options), Framing(options));
}

const std::vector<KnobRow>& tcp_knobs() {
  static const std::vector<KnobRow> rows = {
      {"RINGCOLL_TCP_STREAMS", "tcp", Agreement::kAgreed,
       knob::Integer{&Config::tcp_streams, 0, 16}, "0",
       "TCP connections to each peer that carry data. 0: up to 4, as many as are found to be "
       "faster"},
  };
  return rows;
}

}  // namespace ringcoll

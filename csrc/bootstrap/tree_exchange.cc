// An exchange over connections between the ranks. Blobs go up a binomial tree to rank 0, and all of
// them go down again. A rank has at most ceil(log2(size)) connections, and uses each of them
// once in each direction.
//
// The children of rank r are r + 1, r + 2, r + 4, …, one for each 0 bit at the end of r. The
// subtree of r + 2^k holds the ranks from there to r + 2^(k+1) - 1. So the data of the children,
// one after another, is in rank order.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/long_wait.h"
#include "bootstrap/compress.h"
#include "bootstrap/exchange.h"
#include "net/socket.h"
#include "net/wire.h"

namespace ringcoll {
namespace {

constexpr uint32_t kTreeMagic = 0x54584352;  // "RCXT"
constexpr Duration kTreeLook = std::chrono::milliseconds(200);
// A rank waits this much longer than its child, so that the rank that waits for the missing one is
// the first to name it.
constexpr Duration kSlack = std::chrono::milliseconds(200);

// Sent as it is; `bytes` bytes follow.
struct Header {
  uint32_t magic = kTreeMagic;
  uint32_t bytes = 0;
};
static_assert(sizeof(Header) == 8);

class TreeExchange final : public Exchange {
 public:
  TreeExchange(Rank rank, Rank size, Dialer& dialer) : rank_(rank), size_(size), dialer_(dialer) {
    while (Rank{1} << height_ < size) height_++;
  }

  Rank rank() const override { return rank_; }
  Rank size() const override { return size_; }
  std::vector<std::string> all_gather(const std::string& mine, Deadline deadline) override;

 private:
  struct Link {
    Rank peer = kNobody;
    Fd fd;
  };
  void connect(Deadline deadline);
  std::string receive(const Link& link, Deadline deadline);
  void send(const Link& link, const std::string& bytes, Deadline deadline);
  template <typename Move>
  void move(const Link& link, short events, size_t bytes, Deadline deadline, Move&& some);
  std::vector<std::string> split(std::string_view all) const;

  const Rank rank_;
  const Rank size_;
  Dialer& dialer_;
  int height_ = 0;  // of the tree
  bool connected_ = false;
  Link parent_;
  std::vector<Link> children_;  // rising; below the i-th is a tree of height i
};

// Of a pair the lower rank connects, in dial(). It needs only that the higher rank listens.
void TreeExchange::connect(Deadline deadline) {
  bool lowest = true;  // no bit of this rank up to `bit` is set
  for (Rank bit = 1; bit < size_ && lowest; bit <<= 1) {
    lowest = (rank_ & bit) == 0;
    if (lowest && rank_ + bit < size_)
      children_.push_back({rank_ + bit, dialer_.dial(rank_ + bit, kMeetingChannel, deadline)});
  }
  if (rank_ != 0) {
    parent_.peer = rank_ & (rank_ - 1);
    parent_.fd = dialer_.dial(parent_.peer, kMeetingChannel, deadline);
  }
  connected_ = true;
}

std::vector<std::string> TreeExchange::all_gather(const std::string& mine, Deadline deadline) {
  if (!connected_) connect(deadline);
  WireWriter writer;
  writer.put_text(mine);
  std::string all = writer.take();
  Deadline patience = deadline;
  for (const Link& child : children_) {
    all += receive(child, patience);
    patience.extend(kSlack);
  }
  std::string compressed;
  if (rank_ == 0) {
    compressed = compress(all);
  } else {
    send(parent_, all, patience);
    patience.extend((height_ + 1) * kSlack);
    compressed = receive(parent_, patience);
    all = decompress(compressed, kMaxValueBytes);
  }
  // The child with the largest subtree comes first.
  for (auto child = children_.rbegin(); child != children_.rend(); ++child)
    send(*child, compressed, patience);
  auto blobs = split(all);
  check(blobs[rank_] == mine, Code::kTransport,
        "rank 0 did not return what rank {} had sent: install the same version of ringcoll on all "
        "hosts",
        rank_);
  return blobs;
}

std::vector<std::string> TreeExchange::split(std::string_view all) const {
  WireReader reader(all, "the messages of all ranks at the start");
  std::vector<std::string> blobs;
  for (Rank r = 0; r < size_; r++) blobs.push_back(reader.get_text(kMaxValueBytes));
  reader.finish();
  return blobs;
}

// Repeats `some` until `bytes` bytes are moved. `some` returns how many it has moved, or 0 if none
// can be moved now.
template <typename Move>
void TreeExchange::move(const Link& link, short events, size_t bytes, Deadline deadline,
                        Move&& some) {
  LongWait long_wait;
  while (bytes > 0) {
    long_wait.tell(
        Clock::now(), [this] { return fmt::format("rank {}", rank_); },
        [] { return "an exchange of the start"; },
        [&] { return fmt::format("rank {}", link.peer); });
    size_t moved = 0;
    try {
      moved = some();
    } catch (const Error& error) {
      look();  // look() may throw the cause
      throw Error(error.code(), error.what(), link.peer);
    }
    bytes -= moved;
    if (moved > 0) continue;
    look();
    if (deadline.passed())
      throw Error(
          Code::kTimeout,
          fmt::format("rank {} has not taken part in an exchange of the start before the deadline; "
                      "it may be stopped, or wait for another rank",
                      link.peer),
          link.peer);
    pollfd entry{link.fd.get(), events, 0};
    ::poll(&entry, 1, Deadline(std::min(kTreeLook, deadline.left())).left_ms());
  }
}

std::string TreeExchange::receive(const Link& link, Deadline deadline) {
  std::string name = fmt::format("exchanges of the start, rank {} -> {}", link.peer, rank_);
  auto fill = [&](char* place, size_t bytes) {
    move(link, POLLIN, bytes, deadline, [&, bytes]() mutable {
      size_t got = try_recv_some(link.fd.get(), place, bytes, name);
      place += got;
      bytes -= got;
      return got;
    });
  };
  Header header;
  fill(reinterpret_cast<char*>(&header), sizeof header);
  check(header.magic == kTreeMagic && header.bytes <= kMaxValueBytes, Code::kTransport,
        "{}: the data received is no message; do all hosts have the same version of ringcoll?",
        name);
  std::string bytes(header.bytes, 0);
  fill(bytes.data(), bytes.size());
  return bytes;
}

void TreeExchange::send(const Link& link, const std::string& bytes, Deadline deadline) {
  check(bytes.size() <= kMaxValueBytes, Code::kTransport,
        "a message of the start has {} bytes; at most {} are allowed", bytes.size(),
        kMaxValueBytes);
  Header header{.bytes = static_cast<uint32_t>(bytes.size())};
  std::string message(reinterpret_cast<const char*>(&header), sizeof header);
  message += bytes;
  size_t sent = 0;
  move(link, POLLOUT, message.size(), deadline, [&]() -> size_t {
    ssize_t now = ::send(link.fd.get(), message.data() + sent, message.size() - sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
    if (now < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    check(now >= 0, Code::kTransport, "exchanges of the start, rank {} -> {}: {}", rank_, link.peer,
          errno_text("send", errno));
    sent += static_cast<size_t>(now);
    return static_cast<size_t>(now);
  });
}

}  // namespace

std::unique_ptr<Exchange> make_tree_exchange(Rank rank, Rank size, Dialer& dialer) {
  return std::make_unique<TreeExchange>(rank, size, dialer);
}

}  // namespace ringcoll

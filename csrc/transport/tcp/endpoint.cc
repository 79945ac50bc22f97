#include "transport/tcp/endpoint.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "base/error.h"

namespace ringcoll::tcp {
namespace {

// Messages handed to the kernel in one system call. More gains nothing: 16 small ones fill a
// segment, one large one fills the socket.
constexpr size_t kBatch = 16;

std::byte* bytes_of(Header& header) { return reinterpret_cast<std::byte*>(&header); }

}  // namespace

TcpEndpoint::TcpEndpoint(Rank rank, Rank peer, std::vector<Fd> sockets, size_t read_ahead_bytes,
                         uint64_t most_bytes, Endpoints& all)
    : rank_(rank),
      peer_(peer),
      most_bytes_(most_bytes),
      all_(all),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  check(bool(wake_), Code::kTransport, "{} [rank {} -> {}, tcp]", errno_text("eventfd", errno),
        rank, peer);
  lanes_.reserve(sockets.size());
  for (size_t i = 0; i < sockets.size(); i++) {
    auto link = fmt::format("[rank {} -> {}, tcp stream {}]", rank, peer, i);
    lanes_.push_back({Stream(std::move(sockets[i]), peer, link, read_ahead_bytes), i + 1});
  }
  all_.push_back(this);
}

TcpEndpoint::~TcpEndpoint() { std::erase(all_, this); }

bool TcpEndpoint::try_send(const Signature& signature, const void* data, uint64_t bytes) {
  uint64_t number = sent_ + 1;
  if (number > kQueue && lane_of(number - kQueue).next <= number - kQueue) {
    flush(lane_of(number - kQueue));
    wants_credit_ = true;
    if (lane_of(number - kQueue).next <= number - kQueue) return false;
  }
  Lane& lane = lane_of(number);
  bool idle = !queued(lane);
  Outgoing& message = queue_[number % kQueue];
  message.header.bytes = bytes;
  message.header.signature = signature;
  message.data = static_cast<const std::byte*>(data);
  sent_ = number;
  // Behind others in the queue it waits: the kernel had no room for those.
  if (idle) flush(lane);
  return true;
}

// Gives the kernel as much of the lane's queue as it takes in one call. True if it took anything.
bool TcpEndpoint::flush(Lane& lane) {
  if (!queued(lane)) return false;
  std::array<iovec, 2 * kBatch> parts;
  size_t count = 0;
  uint64_t skip = lane.sent_of_next;
  auto add = [&](const std::byte* data, uint64_t bytes) {
    uint64_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (bytes > skipped) parts[count++] = {const_cast<std::byte*>(data) + skipped, bytes - skipped};
  };
  for (uint64_t n = lane.next; n <= sent_ && count + 2 <= parts.size(); n += lanes_.size()) {
    Outgoing& message = queue_[n % kQueue];
    add(bytes_of(message.header), sizeof(Header));
    add(message.data, message.header.bytes);
  }
  uint64_t taken = lane.stream.send({parts.data(), count});
  if (taken == 0) return false;
  lane.sent_of_next += taken;
  while (queued(lane)) {
    uint64_t whole = sizeof(Header) + queue_[lane.next % kQueue].header.bytes;
    if (lane.sent_of_next < whole) break;
    lane.sent_of_next -= whole;
    lane.next += lanes_.size();
  }
  return true;
}

bool TcpEndpoint::flush_all() {
  bool moved = false;
  if (completed_ == sent_) return moved;
  for (Lane& lane : lanes_) moved |= flush(lane);
  return moved;
}

uint64_t TcpEndpoint::completed() {
  if (completed_ == sent_) return completed_;
  flush_all();
  uint64_t before = completed_;
  while (completed_ < sent_ && lane_of(completed_ + 1).next > completed_ + 1) completed_++;
  if (completed_ == before) wants_credit_ = true;
  return completed_;
}

bool TcpEndpoint::progress() { return flush_all(); }

bool TcpEndpoint::busy() const {
  for (const Lane& lane : lanes_)
    if (queued(lane)) return true;
  return false;
}

std::byte* TcpEndpoint::own_buffer(uint64_t bytes) {
  if (!spare_.empty()) {
    arriving_ = std::move(spare_.back());
    spare_.pop_back();
  }
  // At least one byte, so that an empty message has an address too.
  bytes = std::max<uint64_t>(bytes, 1);
  if (arriving_.size() < bytes) {
    arriving_ = Buffer();  // first, so that there are never two
    arriving_.resize(bytes);
  }
  return arriving_.data();
}

bool TcpEndpoint::read_header(Lane& lane, std::byte* place, uint64_t capacity) {
  lane.header_got += lane.stream.receive(bytes_of(lane.header) + lane.header_got,
                                         sizeof(Header) - lane.header_got);
  if (lane.header_got < sizeof(Header)) return false;
  const Header& header = lane.header;
  if (header.magic != kMagic || header.version != kVersion || header.bytes > most_bytes_)
    throw Error(
        Code::kTransport,
        fmt::format("the stream is corrupt: message {} begins with magic {:#x}, version {}, "
                    "{} bytes [rank {} -> {}, tcp]; do all ranks run the same ringcoll?",
                    received_ + 1, header.magic, header.version, header.bytes, peer_, rank_),
        peer_);
  lane.payload_got = 0;
  lane.place = nullptr;
  if (header.bytes <= capacity) lane.place = place ? place : own_buffer(header.bytes);
  return true;
}

bool TcpEndpoint::read_payload(Lane& lane) {
  while (lane.payload_got < lane.header.bytes) {
    uint64_t left = lane.header.bytes - lane.payload_got;
    uint64_t got = lane.place ? lane.stream.receive(lane.place + lane.payload_got, left)
                              : lane.stream.discard(left);
    if (got == 0) return false;
    lane.payload_got += got;
  }
  return true;
}

bool TcpEndpoint::try_recv(void* place, uint64_t capacity, View* view) {
  flush_all();
  Lane& lane = lane_of(received_ + 1);
  bool known = lane.header_got == sizeof(Header) ||
               read_header(lane, static_cast<std::byte*>(place), capacity);
  if (!known || !read_payload(lane)) {
    wants_message_ = true;
    return false;
  }
  received_++;
  lane.header_got = 0;
  view->data = lane.place;
  view->bytes = lane.header.bytes;
  view->signature = lane.header.signature;
  views_.push_back(std::move(arriving_));
  arriving_.clear();
  return true;
}

void TcpEndpoint::release() {
  invariant(!views_.empty(), "release() without a view [rank {} -> {}, tcp]", peer_, rank_);
  if (!views_.front().empty()) spare_.push_back(std::move(views_.front()));
  views_.pop_front();
}

void TcpEndpoint::wait(Duration limit) {
  bool any = !wants_message_ && !wants_credit_;
  bool message = wants_message_ || any;
  wants_message_ = wants_credit_ = false;
  Lane& next = lane_of(received_ + 1);
  if (message && next.stream.has_read_ahead()) return;
  std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
  if (message) fds.push_back({next.stream.fd(), POLLIN, 0});
  for (TcpEndpoint* endpoint : all_)
    for (Lane& lane : endpoint->lanes_)
      if (endpoint->queued(lane)) fds.push_back({lane.stream.fd(), POLLOUT, 0});
  auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::max(limit, Duration::zero()));
  timespec timeout{static_cast<time_t>(ns.count() / 1'000'000'000),
                   static_cast<long>(ns.count() % 1'000'000'000)};
  if (::ppoll(fds.data(), fds.size(), &timeout, nullptr) <= 0) return;
  if (fds[0].revents != 0) {
    uint64_t count;
    [[maybe_unused]] ssize_t got = ::read(wake_.get(), &count, sizeof count);
  }
  // Errors of the streams are found, and thrown with their cause, where the stream is used.
  for (TcpEndpoint* endpoint : all_)
    if (endpoint != this) endpoint->flush_all();
}

void TcpEndpoint::wake() {
  uint64_t one = 1;
  // Fails only when the counter is full, and then the waiter is being woken anyway.
  [[maybe_unused]] ssize_t put = ::write(wake_.get(), &one, sizeof one);
}

}  // namespace ringcoll::tcp

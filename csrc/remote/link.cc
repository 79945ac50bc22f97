#include "remote/link.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "net/socket.h"

namespace ringcoll::remote {
namespace {

// The links of an agent share its thread. After so many bytes the others have their turn.
constexpr uint64_t kBytesOfATurn = 4 << 20;
// What a link has outstanding: enough to fill a network of 10 Gb/s over 3 ms, little enough that
// the last chunks of a copy do not queue on a slow link.
constexpr uint64_t kWindowBytes = 4 * kChunkBytes;
// A process that is ending closes its sockets in any order. So an address where a connection is
// closed at once is tried again, until nobody listens there or the tries are used up.
constexpr int kMostTimesClosed = 4;
constexpr Duration kClosedPause = std::chrono::milliseconds(60);
// How long a goodbye may wait behind what is being sent.
constexpr Duration kLeaving = std::chrono::milliseconds(500);

LinkEnd end_of(int connect_error) {
  if (connect_error == ECONNREFUSED) return LinkEnd::kAbsent;
  // Made, and reset by a listener that is being closed.
  if (connect_error == ECONNRESET) return LinkEnd::kClosed;
  return LinkEnd::kUnreached;
}

}  // namespace

uint64_t Link::Outgoing::bytes() const {
  return sizeof head + (has_body(head.kind) ? head.bytes : 0);
}

std::shared_ptr<Link> Link::dial(EventLoop& loop, Listener& listener,
                                 std::vector<Address> addresses, std::string key, GroupId group,
                                 Duration patience, bool for_messages) {
  invariant(!addresses.empty(), "a link to nowhere");
  std::shared_ptr<Link> link(new Link(loop, listener));
  link->addresses_ = std::move(addresses);
  link->key_ = std::move(key);
  link->group_ = group;
  link->patience_ = patience;
  link->for_messages = for_messages;
  link->connect_later(Duration::zero());
  return link;
}

std::shared_ptr<Link> Link::accepted(EventLoop& loop, Listener& listener, Fd fd) {
  std::shared_ptr<Link> link(new Link(loop, listener));
  link->peer_text_ = peer_address(fd.get()).text();
  link->fd_ = std::move(fd);
  link->stage_ = Stage::kOpen;
  link->watch(false);
  return link;
}

Link::~Link() = default;

// The loop keeps the link while its descriptor is watched.
void Link::watch(bool writable) {
  loop_.watch(fd_.get(), [self = shared_from_this()](uint32_t events) { self->ready(events); });
  if (writable) loop_.also_writable(fd_.get(), true);
}

// --- Making the link. With the lock, on the loop's thread.

void Link::connect_later(Duration pause) {
  stage_ = Stage::kConnecting;
  loop_.after(pause, [self = shared_from_this()] {
    std::unique_lock lock(self->mutex_);
    if (self->stage_ == Stage::kConnecting) self->begin_connect();
    bool over = self->stage_ == Stage::kEnded;
    lock.unlock();
    if (over) self->finish();
  });
}

void Link::begin_connect() {
  const Address& address = addresses_[next_address_];
  peer_text_ = address.text();
  int error = 0;
  fd_ = ringcoll::begin_connect(address, &error);
  if (!fd_) return try_next(end_of(error), errno_text("connect", error));
  watch(true);
  // Several addresses share the patience, so that one that does not answer leaves time for others.
  Duration share = patience_ / static_cast<int>(addresses_.size());
  loop_.after(share, [self = shared_from_this(), attempt = attempt_] {
    std::unique_lock lock(self->mutex_);
    bool late = self->attempt_ == attempt && self->stage_ < Stage::kOpen;
    if (late) self->try_next(LinkEnd::kUnreached, "no answer");
    bool over = self->stage_ == Stage::kEnded;
    lock.unlock();
    if (late && over) self->finish();
  });
}

void Link::try_next(LinkEnd end, const std::string& why) {
  if (fd_) loop_.forget(fd_.get());
  fd_.reset();
  attempt_++;
  prover_.reset();
  proof_.clear();
  if (end == LinkEnd::kClosed && ++times_closed_ < kMostTimesClosed)
    return connect_later(kClosedPause);
  times_closed_ = 0;
  worst_ = std::max(worst_, end);
  causes_ +=
      fmt::format("{}{}: {}", causes_.empty() ? "" : "; ", addresses_[next_address_].text(), why);
  if (++next_address_ < addresses_.size()) {
    stage_ = Stage::kConnecting;
    return begin_connect();
  }
  stage_ = Stage::kEnded;
  end_ = worst_;
  why_ = causes_;
}

void Link::end_connect() {
  int error = ringcoll::end_connect(fd_.get(), addresses_[next_address_]);
  if (error == EINPROGRESS) return;
  if (error != 0) return try_next(end_of(error), errno_text("connect", error));
  loop_.also_writable(fd_.get(), false);
  tune(fd_.get());
  stage_ = Stage::kProving;
  prover_.emplace(key_, Identity{.from = 0, .to = 0, .channel = 0, .group = group_});
  const std::string& hello = prover_->hello();
  // The buffer of a fresh connection has room for these few bytes, or the connection is broken.
  if (::send(fd_.get(), hello.data(), hello.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
      static_cast<ssize_t>(hello.size()))
    try_next(LinkEnd::kClosed, errno_text("send", errno));
}

void Link::prove() {
  while (size_t wanted = prover_->wanted()) {
    char buffer[128];
    size_t most = std::min(sizeof buffer, wanted - proof_.size());
    ssize_t got = ::recv(fd_.get(), buffer, most, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return try_next(LinkEnd::kClosed, explain(Verdict::kClosed));
    proof_.append(buffer, static_cast<size_t>(got));
    if (proof_.size() < wanted) continue;
    std::string answer = prover_->answer(std::exchange(proof_, {}));
    if (::send(fd_.get(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
        static_cast<ssize_t>(answer.size()))
      return try_next(LinkEnd::kClosed, errno_text("send", errno));
  }
  if (prover_->verdict() == Verdict::kAccepted) {
    stage_ = Stage::kOpen;
    attempt_++;
    return;
  }
  if (prover_->verdict() == Verdict::kWrongSecret)
    return try_next(LinkEnd::kForbidden, "the key is wrong: both ends must have the same");
  if (prover_->verdict() == Verdict::kOtherGroup)
    return try_next(LinkEnd::kForbidden, "it admits nobody under this name");
  try_next(LinkEnd::kForbidden, explain(prover_->verdict()));
}

// --- Sending.

bool Link::send(FrameHead head, std::string body) {
  head.bytes = has_body(head.kind) ? body.size() : head.bytes;
  std::lock_guard lock(mutex_);
  if (stage_ == Stage::kEnded || leaving_) return false;
  queue_.push_back({.head = head, .text = std::move(body)});
  queued_bytes_ += queue_.back().bytes();
  if (stage_ == Stage::kOpen && !waits_writable_) flush();
  return true;
}

bool Link::send(FrameHead head, const std::byte* body, std::shared_ptr<void> owner,
                const std::function<bool()>& wanted) {
  std::lock_guard lock(mutex_);
  if (stage_ == Stage::kEnded || leaving_) return false;
  if (wanted && !wanted()) return true;
  queue_.push_back({.head = head, .body = body, .owner = std::move(owner)});
  queued_bytes_ += queue_.back().bytes();
  if (stage_ == Stage::kOpen && !waits_writable_) flush();
  return true;
}

// With the lock. Sends what the kernel takes. False if the connection is broken; the loop's thread
// then notices the same.
bool Link::flush() {
  while (!queue_.empty()) {
    Outgoing& next = queue_.front();
    const auto* head = reinterpret_cast<const std::byte*>(&next.head);
    const auto* body = next.body ? next.body : reinterpret_cast<const std::byte*>(next.text.data());
    uint64_t head_sent = std::min<uint64_t>(next.sent, sizeof next.head);
    uint64_t body_sent = next.sent - head_sent;
    uint64_t body_bytes = has_body(next.head.kind) ? next.head.bytes : 0;
    iovec parts[2] = {{const_cast<std::byte*>(head + head_sent), sizeof next.head - head_sent},
                      {const_cast<std::byte*>(body + body_sent), body_bytes - body_sent}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent > 0) next.sent += static_cast<uint64_t>(sent);
    if (next.sent == next.bytes()) {
      queued_bytes_ -= next.bytes();
      queue_.pop_front();
    } else if (sent < 0) {
      if (!std::exchange(waits_writable_, true)) loop_.also_writable(fd_.get(), true);
      return true;
    }
  }
  if (std::exchange(waits_writable_, false)) loop_.also_writable(fd_.get(), false);
  return true;
}

uint64_t Link::window_bytes() const { return kWindowBytes; }

void Link::ask(const Request& request, const std::function<bool()>& wanted) {
  const RegionHandle& region = *request.source->region;
  FrameHead head{.kind = request.kind,
                 .id = request.id,
                 .secret = region.secret,
                 .offset = request.kind == FrameKind::kNotice ? *request.copy->notice
                                                              : request.region_offset(),
                 .bytes = request.bytes,
                 .region = region.index};
  const std::byte* body = head.kind == FrameKind::kWrite ? request.local() : nullptr;
  send(head, body, request.batch, wanted);
}

void Link::abandon(const void* owner) {
  std::unique_lock lock(mutex_);
  if (place_.owner.get() == owner) place_ = {};
  bool begun = false;
  std::erase_if(queue_, [&](const Outgoing& each) {
    if (each.owner.get() != owner) return false;
    if (each.sent > 0) return begun = true, false;
    queued_bytes_ -= each.bytes();
    return true;
  });
  if (!begun) return;
  // The peer expects the rest of the body, which nobody has any more.
  queue_.clear();
  stage_ = Stage::kEnded;
  end_ = LinkEnd::kLost;
  why_ = "a write was given up half way";
  ::shutdown(fd_.get(), SHUT_RDWR);  // wakes the loop, which calls finish()
}

void Link::end(LinkEnd how, std::string why) {
  std::unique_lock lock(mutex_);
  if (stage_ == Stage::kEnded) return;
  stage_ = Stage::kEnded;
  end_ = how;
  why_ = std::move(why);
  lock.unlock();
  loop_.after(Duration::zero(), [self = shared_from_this()] { self->finish(); });
}

void Link::leave() {
  {
    std::lock_guard lock(mutex_);
    if (stage_ == Stage::kOpen && !leaving_) {
      queue_.push_back({.head = {.kind = FrameKind::kGoodbye}});
      if (!waits_writable_) flush();
      leaving_ = true;
      if (!queue_.empty()) {
        loop_.after(kLeaving, [self = shared_from_this()] { self->end(LinkEnd::kGoodbye); });
        return;
      }
    }
  }
  end(LinkEnd::kGoodbye);
}

// --- On the loop's thread.

void Link::ready(uint32_t events) {
  auto self = shared_from_this();
  std::unique_lock lock(mutex_);
  bool was_open = stage_ == Stage::kOpen;
  if (stage_ == Stage::kConnecting)
    end_connect();
  else if (stage_ == Stage::kProving)
    prove();
  if (stage_ == Stage::kOpen && !was_open) {
    key_.clear();
    lock.unlock();
    listener_.made(*this);
    lock.lock();
    if (stage_ == Stage::kOpen) flush();
  }
  if (stage_ == Stage::kOpen && (events & EPOLLOUT) && waits_writable_) {
    flush();
    if (leaving_ && queue_.empty()) {
      stage_ = Stage::kEnded;
      end_ = LinkEnd::kGoodbye;
    }
  }
  if (stage_ == Stage::kOpen && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) receive(lock);
  bool over = stage_ == Stage::kEnded;
  lock.unlock();
  if (over) finish();
}

void Link::receive(std::unique_lock<std::mutex>& lock) {
  turn_bytes_ = 0;
  while (stage_ == Stage::kOpen && turn_bytes_ < kBytesOfATurn && receive_some(lock)) {
  }
}

// Where the next bytes go. Those of a body without a place go to `dropped`.
std::span<std::byte> Link::next_room(std::span<std::byte> dropped) {
  if (head_filled_ < sizeof head_)
    return std::as_writable_bytes(std::span(&head_, 1)).subspan(head_filled_);
  uint64_t left = head_.bytes - body_filled_;
  if (place_.data) return {place_.data + body_filled_, left};
  if (!text_.empty()) return {reinterpret_cast<std::byte*>(text_.data()) + body_filled_, left};
  return dropped.first(std::min<uint64_t>(left, dropped.size()));
}

// One recv() into the head or the body. False: nothing is there now, or the link has ended.
bool Link::receive_some(std::unique_lock<std::mutex>& lock) {
  std::array<std::byte, 16 << 10> dropped;
  std::span<std::byte> room = next_room(dropped);
  ssize_t got = ::recv(fd_.get(), room.data(), room.size(), MSG_DONTWAIT);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    stage_ = Stage::kEnded;
    end_ = leaving_ ? LinkEnd::kGoodbye : LinkEnd::kLost;
    why_ = got == 0 ? "closed by the peer" : errno_text("recv", errno);
    return false;
  }
  heard_.store(Clock::now(), std::memory_order_relaxed);
  turn_bytes_ += static_cast<uint64_t>(got);
  if (head_filled_ < sizeof head_) {
    head_filled_ += static_cast<size_t>(got);
    if (head_filled_ < sizeof head_) return true;
    if (!take_head()) return false;
  } else {
    body_filled_ += static_cast<uint64_t>(got);
  }
  bool complete = !has_body(head_.kind) || body_filled_ == head_.bytes;
  if (complete) take_frame(lock);
  return true;
}

// With the lock. Decides where the body goes. False: the peer broke the protocol.
bool Link::take_head() {
  auto longest = [this]() -> uint64_t {
    switch (head_.kind) {
      case FrameKind::kData:
      case FrameKind::kWrite:
        return kChunkBytes;
      case FrameKind::kMessage:
        return kLongestMessage;
      default:
        return kLongestText;
    }
  };
  body_filled_ = 0;
  if (head_.magic != FrameHead::kMagic || (has_body(head_.kind) && head_.bytes > longest())) {
    stage_ = Stage::kEnded;
    end_ = LinkEnd::kLost;
    why_ = head_.magic != FrameHead::kMagic
               ? "the peer speaks another version of this protocol; install the same version of "
                 "ringcoll on all hosts"
               : "the peer sends more than the protocol allows";
    return false;
  }
  if (head_.kind == FrameKind::kData || head_.kind == FrameKind::kWrite)
    place_ = listener_.place_for(*this, head_);
  else if (has_body(head_.kind))
    text_.resize(head_.bytes);
  return true;
}

void Link::take_frame(std::unique_lock<std::mutex>& lock) {
  FrameHead head = std::exchange(head_, {});
  std::string text = std::exchange(text_, {});
  Place place = std::exchange(place_, {});
  head_filled_ = 0;
  body_filled_ = 0;
  if (head.kind == FrameKind::kGoodbye) {
    stage_ = Stage::kEnded;
    end_ = LinkEnd::kGoodbye;
    return;
  }
  lock.unlock();
  listener_.take(*this, head, std::move(text));
  place = {};
  lock.lock();
}

// Once, after the stage has become kEnded.
void Link::finish() {
  std::unique_lock lock(mutex_);
  if (finished_) return;
  finished_ = true;
  if (fd_) loop_.forget(fd_.get());
  fd_.reset();
  auto queue = std::exchange(queue_, {});
  Place place = std::exchange(place_, {});
  LinkEnd how = end_;
  std::string why = why_;
  lock.unlock();
  queue.clear();
  place = {};
  listener_.ended(*this, how, why);
}

}  // namespace ringcoll::remote

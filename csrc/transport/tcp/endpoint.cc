#include "transport/tcp/endpoint.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"

namespace ringcoll::tcp {
namespace {

std::byte* bytes_of(Header& header) { return reinterpret_cast<std::byte*>(&header); }

}  // namespace

std::vector<size_t> numbers_of_streams(size_t most) {
  std::vector<size_t> numbers;
  for (size_t number = 1; number <= most; number *= 2) numbers.push_back(number);
  return numbers;
}

FasterWay fastest_of(size_t numbers) {
  constexpr double kPays = 1.1;
  // A number is timed once what was under way on other streams before has arrived. All numbers are
  // tried again after a while, since the network may have changed.
  FasterWay::Options options{.weights = {1},
                             .first_warm_up_bytes = 16 << 20,
                             .warm_up_bytes = 16 << 20,
                             .rest_bytes = uint64_t{8} << 30,
                             .rest_of_others_bytes = uint64_t{8} << 30};
  while (options.weights.size() < numbers)
    options.weights.push_back(options.weights.back() * kPays);
  return FasterWay(std::move(options));
}

TcpEndpoint::TcpEndpoint(Rank rank, Rank peer, std::vector<Fd> sockets, std::vector<size_t> numbers,
                         size_t read_ahead_bytes, uint64_t most_bytes, Endpoints& all)
    : rank_(rank),
      peer_(peer),
      most_bytes_(most_bytes),
      all_(all),
      numbers_(std::move(numbers)),
      faster_(fastest_of(numbers_.size())) {
  flows_.reserve(sockets.size());
  for (size_t i = 0; i < sockets.size(); i++) {
    auto link = fmt::format("[rank {} -> {}, tcp stream {}]", rank, peer, i);
    flows_.push_back({Stream(std::move(sockets[i]), peer, link, read_ahead_bytes)});
  }
  all_.push_back(this);
}

TcpEndpoint::~TcpEndpoint() { std::erase(all_, this); }

uint64_t TcpEndpoint::try_send(const Envelope& envelope, const void* data, uint64_t bytes) {
  if (revoked_ > 0) return 0;
  uint64_t number = sent_ + 1;
  if (number > completed_ + kQueue) {
    flush_all();
    if (number > completed_ + kQueue) return 0;
  }
  Outgoing& message = outgoing(number);
  message = {};
  size_t streams = bytes > kStretchBytes ? numbers_[faster_.next(kMeasuredBytes)] : 1;
  message.header.streams = static_cast<uint16_t>(streams);
  message.header.number = number;
  message.header.bytes = bytes;
  message.header.envelope = envelope;
  message.data = static_cast<const std::byte*>(data);
  if (completed_ == sent_) begin_to_count(bytes > kStretchBytes);
  sent_ = number;
  if (message.header.streams > 1) {
    flush_all();
  } else if (flows_[0].count == 0) {
    // If others are queued, the kernel had no room for them, and this message waits behind them.
    flush(0);
    count_completed();
  }
  return number;
}

// Gives a stream the stretches that it is to send next. It gets all short messages that there are,
// but only one long stretch, so that the next one is left for an idle stream.
void TcpEndpoint::take_stretches(size_t k) {
  Flow& flow = flows_[k];
  while (cutting_ <= sent_ && flow.count < kBatch && flow.waiting_bytes < kStretchBytes) {
    Outgoing& message = outgoing(cutting_);
    bool begins = k == 0 && !message.begun;
    uint64_t left = message.header.bytes - message.header.offset;
    if (!begins && (left == 0 || k >= message.header.streams)) return;
    message.header.here = message.header.streams > 1 ? std::min(left, kStretchBytes) : left;
    flow.frame(flow.count++) = {message.header, message.data + message.header.offset};
    flow.waiting_bytes += message.header.here;
    message.header.offset += message.header.here;
    message.begun |= begins;
    message.frames++;
    if (message.cut()) cutting_++;
  }
}

// Gives the kernel as much of the stream's stretches as it takes in one call. True if it took all
// of them.
bool TcpEndpoint::flush(size_t k) {
  take_stretches(k);
  Flow& flow = flows_[k];
  if (flow.count == 0) return false;
  std::array<iovec, 2 * kBatch> parts;
  size_t count = 0;
  uint64_t skip = flow.sent_of_first, offered = 0;
  auto add = [&](const std::byte* data, uint64_t bytes) {
    uint64_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (bytes == skipped) return;
    parts[count++] = {const_cast<std::byte*>(data) + skipped, bytes - skipped};
    offered += bytes - skipped;
  };
  for (size_t i = 0; i < flow.count; i++) {
    add(bytes_of(flow.frame(i).header), sizeof(Header));
    add(flow.frame(i).data, flow.frame(i).header.here);
  }
  uint64_t taken = flow.stream.send({parts.data(), count});
  bytes_sent_ += taken;
  drop_sent_frames(flow, taken);
  return taken == offered;
}

void TcpEndpoint::drop_sent_frames(Flow& flow, uint64_t taken) {
  flow.sent_of_first += taken;
  while (flow.count > 0) {
    const Header& header = flow.frame(0).header;
    uint64_t whole = sizeof(Header) + header.here;
    if (flow.sent_of_first < whole) return;
    flow.sent_of_first -= whole;
    flow.waiting_bytes -= header.here;
    outgoing(header.number).frames--;
    flow.first = (flow.first + 1) % kBatch;
    flow.count--;
  }
}

// Flushes the streams in turn, a stretch each, until none has room or nothing is left. True if
// anything moved.
bool TcpEndpoint::flush_all() {
  if (completed_ == sent_) return false;
  uint64_t before = bytes_sent_;
  uint64_t open = (uint64_t{1} << flows_.size()) - 1;
  while (open != 0)
    for (size_t k = 0; k < flows_.size(); k++)
      if ((open >> k & 1) && !flush(k)) open &= ~(uint64_t{1} << k);
  count_completed();
  return bytes_sent_ != before;
}

void TcpEndpoint::count_completed() {
  while (completed_ + 1 < cutting_ && outgoing(completed_ + 1).frames == 0) {
    completed_++;
    if (outgoing(completed_).header.bytes <= kStretchBytes) continue;
    auto now = Clock::now();
    uint64_t delivered = bytes_sent_ - unacknowledged();
    if (counting_) measure(delivered - delivered_, now - busy_since_);
    counting_ = true;
    busy_since_ = now;
    delivered_ = delivered;
  }
}

// The peer has received so many bytes in this time, in which the link was never idle.
void TcpEndpoint::measure(uint64_t bytes, Duration busy) {
  measured_bytes_ += bytes;
  measured_time_ += busy;
  if (measured_bytes_ < kMeasuredBytes) return;
  faster_.did(measured_bytes_, measured_time_);
  measured_bytes_ = 0;
  measured_time_ = {};
}

// Decides whether the link was idle until now. While bytes that the kernel has taken are still
// under way, it was busy, even if nothing is queued here. If the kernel has none either, the link
// may have been idle for some time, so the measurement begins anew. A short message does not ask
// the kernel, and ends the measurement.
void TcpEndpoint::begin_to_count(bool is_long) {
  if (!is_long) {
    counting_ = false;
    return;
  }
  uint64_t left = unacknowledged();
  if (counting_ && left > 0) return;
  counting_ = true;
  busy_since_ = Clock::now();
  delivered_ = bytes_sent_ - left;
}

uint64_t TcpEndpoint::unacknowledged() const {
  uint64_t bytes = 0;
  for (const Flow& flow : flows_) bytes += flow.stream.unacknowledged();
  return std::min(bytes, bytes_sent_);
}

uint64_t TcpEndpoint::completed() {
  if (completed_ < sent_) flush_all();
  return std::max(completed_, revoked_);
}

// Drops the first message with a payload that the kernel does not have, and all messages behind it.
// The peer may have got a part of it, and learns of the failure by its lifeline. Nor does a message
// that is arriving go where the caller wanted it.
void TcpEndpoint::revoke() noexcept {
  if (place_ != arriving_.data()) place_ = nullptr;
  uint64_t first = completed_ + 1;
  while (first <= sent_ && outgoing(first).header.bytes == 0) first++;
  if (first > sent_) return;
  for (Flow& flow : flows_) {
    while (flow.count > 0 && flow.frame(flow.count - 1).header.number >= first)
      flow.waiting_bytes -= flow.frame(--flow.count).header.here;
    if (flow.count == 0) flow.sent_of_first = 0;
  }
  cutting_ = std::min(cutting_, first);
  revoked_ = std::exchange(sent_, first - 1);
}

bool TcpEndpoint::progress() { return flush_all(); }

bool TcpEndpoint::busy() const { return completed_ != sent_; }

std::byte* TcpEndpoint::own_buffer(uint64_t bytes) {
  if (!spare_.empty()) {
    arriving_ = std::move(spare_.back());
    spare_.pop_back();
  }
  // At least one byte, so that an empty message has an address, too.
  bytes = std::max<uint64_t>(bytes, 1);
  if (arriving_.size() < bytes) {
    arriving_ = Buffer();  // frees the old buffer first, so that there are never two
    arriving_.resize(bytes);
  }
  return arriving_.data();
}

void TcpEndpoint::corrupt(size_t k, const std::string& what) const {
  throw Error(
      Code::kTransport,
      fmt::format("the stream is corrupt: message {} was expected, and {} came [rank {} -> {}, tcp "
                  "stream {}]; do all ranks run the same version of ringcoll?",
                  received_ + 1, what, peer_, rank_, k),
      peer_);
}

// True if a whole header is there; it may be of a later message.
bool TcpEndpoint::read_header(size_t k) {
  Flow& flow = flows_[k];
  if (flow.header_got == sizeof(Header)) return true;
  flow.header_got += flow.stream.receive(bytes_of(flow.header) + flow.header_got,
                                         sizeof(Header) - flow.header_got);
  if (flow.header_got < sizeof(Header)) return false;
  check_header(k);
  flow.payload_got = 0;
  flow.begun = false;
  return true;
}

void TcpEndpoint::check_header(size_t k) const {
  const Header& header = flows_[k].header;
  if (header.magic != kMagic || header.version != kVersion)
    corrupt(k, fmt::format("magic {:#x}, version {}", header.magic, header.version));
  if (header.number <= received_) corrupt(k, fmt::format("message {} once more", header.number));
  if (header.bytes > most_bytes_)
    corrupt(k, fmt::format("a message of {} bytes, of at most {}", header.bytes, most_bytes_));
  if (header.offset > header.bytes || header.here > header.bytes - header.offset)
    corrupt(k, fmt::format("a stretch of {} bytes at {} of a message of {}", header.here,
                           header.offset, header.bytes));
  if (header.streams > flows_.size() || k >= header.streams || (k > 0 && header.here == 0))
    corrupt(k, fmt::format("a stretch of {} bytes of a message on {} streams", header.here,
                           header.streams));
}

bool TcpEndpoint::begin_message(std::byte* place, uint64_t capacity) {
  if (!read_header(0)) return false;
  message_ = flows_[0].header;
  if (message_.number != received_ + 1)
    corrupt(0, fmt::format("the beginning of message {}", message_.number));
  known_ = true;
  claimed_ = arrived_ = 0;
  place_ = nullptr;
  if (message_.bytes <= capacity) place_ = place ? place : own_buffer(message_.bytes);
  if (message_.here == 0) flows_[0].header_got = 0;
  return true;
}

void TcpEndpoint::begin_stretch(size_t k) {
  Flow& flow = flows_[k];
  if (std::exchange(flow.begun, true)) return;
  if (flow.header.bytes != message_.bytes || flow.header.streams != message_.streams)
    corrupt(k,
            fmt::format("a stretch of a message of {} bytes on {} streams, of one of {} on {}",
                        flow.header.bytes, flow.header.streams, message_.bytes, message_.streams));
  if (flow.header.here > message_.bytes - claimed_)
    corrupt(k, fmt::format("more than its {} bytes", message_.bytes));
  claimed_ += flow.header.here;
}

// Reads the stretches of the message on one stream as far as they have come. True if anything came.
bool TcpEndpoint::read_stretches(size_t k) {
  Flow& flow = flows_[k];
  bool moved = false;
  while (arrived_ < message_.bytes && read_header(k) && !holds_a_later_message(flow)) {
    begin_stretch(k);
    while (flow.payload_got < flow.header.here) {
      uint64_t left = flow.header.here - flow.payload_got;
      std::byte* to = place_ + flow.header.offset + flow.payload_got;
      uint64_t got = place_ ? flow.stream.receive(to, left) : flow.stream.discard(left);
      if (got == 0) return moved;
      flow.payload_got += got;
      arrived_ += got;
      moved = true;
    }
    flow.header_got = 0;
  }
  return moved;
}

// True if all of the message is there.
bool TcpEndpoint::read_message() {
  for (bool moved = true; moved && arrived_ < message_.bytes;) {
    moved = false;
    for (size_t k = 0; k < message_.streams; k++) moved |= read_stretches(k);
  }
  return arrived_ == message_.bytes;
}

bool TcpEndpoint::try_peek(Envelope* envelope, uint64_t* bytes) {
  flush_all();
  if (!known_ && !read_header(0)) {
    fail_if_ended();
    wants_message_ = true;
    return false;
  }
  const Header& header = known_ ? message_ : flows_[0].header;
  *envelope = header.envelope;
  *bytes = header.bytes;
  return true;
}

bool TcpEndpoint::try_recv(void* place, uint64_t capacity, View* view) {
  flush_all();
  bool known = known_ || begin_message(static_cast<std::byte*>(place), capacity);
  if (!known || !read_message()) {
    fail_if_ended();
    wants_message_ = true;
    return false;
  }
  received_++;
  known_ = false;
  view->data = place_;
  view->bytes = message_.bytes;
  view->envelope = message_.envelope;
  views_.push_back(std::move(arriving_));
  arriving_.clear();
  return true;
}

void TcpEndpoint::release() {
  invariant(!views_.empty(), "release() without a view [rank {} -> {}, tcp]", peer_, rank_);
  if (!views_.front().empty()) spare_.push_back(std::move(views_.front()));
  views_.pop_front();
}

bool TcpEndpoint::holds_a_later_message(const Flow& flow) const {
  return flow.header_got == sizeof(Header) && flow.header.number > received_ + 1;
}

// Throws if the rest of the message cannot come. A peer that leaves closes its streams one by one:
// what it has sent on the others still comes.
void TcpEndpoint::fail_if_ended() const {
  bool all = true;
  for (size_t k = 0; k < (known_ ? message_.streams : size_t{1}); k++) {
    const Flow& flow = flows_[k];
    if (holds_a_later_message(flow)) continue;
    if (flow.stream.ended() && flow.in_a_stretch()) flow.stream.fail_ended();
    all &= flow.stream.ended();
  }
  if (all) flows_[0].stream.fail_ended();
}

// Adds the streams on which more of the arriving message can come. False if bytes of it are here
// already.
bool TcpEndpoint::waits_for_more(std::vector<pollfd>* fds) {
  for (size_t k = 0; k < (known_ ? message_.streams : size_t{1}); k++) {
    if (holds_a_later_message(flows_[k]) || flows_[k].stream.ended()) continue;
    if (flows_[k].stream.has_read_ahead()) return false;
    fds->push_back({flows_[k].stream.fd(), POLLIN, 0});
  }
  return true;
}

void TcpEndpoint::add_writable(std::vector<pollfd>* fds) {
  for (Flow& flow : flows_)
    if (flow.count > 0) fds->push_back({flow.stream.fd(), POLLOUT, 0});
}

// Messages leave when the kernel takes them: whoever waits for credit waits for that.
bool TcpEndpoint::may_be_ready(std::vector<pollfd>* sleep) {
  if (told_of_end_) return false;
  try {
    bool sent = flush_all();
    if (wants_message_) {
      if (known_ ? read_message() : read_header(0)) return true;
      fail_if_ended();
      if (sleep && !waits_for_more(sleep)) return true;
    }
    if (sleep) add_writable(sleep);
    return sent;
  } catch (const Error&) {  // using the link throws it again
    return told_of_end_ = true;
  }
}

}  // namespace ringcoll::tcp

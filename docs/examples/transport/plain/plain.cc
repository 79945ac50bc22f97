// see the header
#include "transport/plain/plain.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>

#include "base/error.h"
#include "base/knobs.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

struct Header {
  uint64_t bytes = 0;
  Envelope envelope;
};
using Bytes = std::vector<std::byte>;

class PlainEndpoint;

/// What the links of one transport share.
struct Links {
  const Config& config;
  std::vector<PlainEndpoint*> all;
};

class PlainEndpoint final : public Endpoint {
 public:
  PlainEndpoint(std::string name, Rank peer, Fd socket, Links& links)
      : name_(std::move(name)), peer_(peer), socket_(std::move(socket)), links_(links) {
    wait_for_reader(socket_.get());  // a slow reader is not dead; lifelines notice dead hosts
    links_.all.push_back(this);
  }
  ~PlainEndpoint() override { std::erase(links_.all, this); }

  uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) override {
    progress();
    if (queued_ == static_cast<size_t>(links_.config.plain_depth)) return 0;
    queued_++;
    Header header{bytes, envelope};
    append(&header, sizeof header);
    append(data, bytes);
    progress();
    return ++sent_;
  }
  uint64_t completed() override {
    progress();
    return sent_ - queued_;
  }
  bool progress() override {
    if (out_.empty()) return false;
    ssize_t sent = ::send(socket_.get(), out_.data() + out_sent_, out_.size() - out_sent_,
                          MSG_DONTWAIT | MSG_NOSIGNAL);
    if (!moved(sent)) return false;
    out_sent_ += static_cast<size_t>(sent);
    if (out_sent_ < out_.size()) return true;
    out_.clear();
    out_sent_ = queued_ = 0;
    return true;
  }
  bool busy() const override { return !out_.empty(); }

  bool try_peek(Envelope* envelope, uint64_t* bytes) override {
    progress();
    if (!receive(reinterpret_cast<std::byte*>(&header_), 0, sizeof header_)) return false;
    *envelope = header_.envelope;
    *bytes = header_.bytes;
    return true;
  }
  // `place` is an offer, which this transport does not take.
  bool try_recv(void* /*place*/, uint64_t capacity, View* view) override {
    if (!try_peek(&view->envelope, &view->bytes)) return false;
    in_.resize(header_.bytes + 1);  // so that an empty message has an address, too
    if (!receive(in_.data(), sizeof header_, header_.bytes)) return false;
    views_.push_back(std::exchange(in_, {}));
    view->data = view->bytes <= capacity ? views_.back().data() : nullptr;
    got_ = 0;
    return true;
  }
  void release() override {
    invariant(!views_.empty(), "release() without a view {}", name_);
    views_.pop_front();
  }

  // A message that is not wanted yet must not end a wait for room.
  bool may_be_ready(Sleep* sleep) {
    if (has_failed_) return false;
    try {
      bool sent = progress();
      if (wants_message_ && receive_more()) return true;
      short events = static_cast<short>((wants_message_ ? POLLIN : 0) | (busy() ? POLLOUT : 0));
      if (sleep && events != 0) sleep->fds.push_back({socket_.get(), events, 0});
      return sent;
    } catch (const Error&) {  // whoever uses the link gets it again
      return has_failed_ = true;
    }
  }
  void end_wait() { wants_message_ = false; }

 private:
  void append(const void* data, size_t bytes) {
    auto* first = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), first, first + bytes);
  }
  /// Receives what is there of the message that arrives. True if it is complete, or has begun.
  bool receive_more() {
    size_t before = got_;
    if (got_ < sizeof header_)
      receive(reinterpret_cast<std::byte*>(&header_), 0, sizeof header_);
    else if (in_.size() > header_.bytes)
      receive(in_.data(), sizeof header_, header_.bytes);
    return got_ > before;
  }
  /// Receives bytes of the message up to `first` + `bytes`. True if all of them are there.
  bool receive(std::byte* to, size_t first, size_t bytes) {
    while (got_ < first + bytes) {
      size_t at = got_ - first;
      ssize_t got = ::recv(socket_.get(), to + at, bytes - at, MSG_DONTWAIT);
      if (got == 0) fail("closed the connection");
      if (!moved(got)) {
        wants_message_ = true;
        return false;
      }
      got_ += static_cast<size_t>(got);
    }
    return true;
  }
  bool moved(ssize_t bytes) const {
    if (bytes < 0 && errno != EAGAIN) fail("is lost: " + errno_text("send or recv", errno));
    return bytes > 0;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Code::kPeerLost, fmt::format("rank {} {} {}", peer_, what, name_), peer_);
  }

  const std::string name_;
  const Rank peer_;
  const Fd socket_;
  Links& links_;
  Bytes out_;            // the last `queued_` messages
  size_t out_sent_ = 0;  // bytes of them that the kernel has
  size_t queued_ = 0;
  uint64_t sent_ = 0;
  Header header_;               // of the message that arrives
  Bytes in_;                    // its payload
  size_t got_ = 0;              // bytes of both
  bool wants_message_ = false;  // it was looked for in vain since end_wait()
  bool has_failed_ = false;     // may_be_ready() has said so
  std::deque<Bytes> views_;     // not released
};

class PlainTransport final : public Transport {
 public:
  PlainTransport(Rank rank, const Config& config) : rank_(rank), links_{config} {}

  std::string address() const override { return fmt::format("plain {}", rank_); }
  // Every pair has a lifeline first, which shows that a connection can be made.
  std::string reach(Rank peer, std::string_view address) override {
    if (address == fmt::format("plain {}", peer)) return "";
    return fmt::format("its address is \"{}\"", address);
  }
  size_t sockets_to(Rank) const override { return 1; }
  std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> sockets, Deadline) override {
    return std::make_unique<PlainEndpoint>(fmt::format("[rank {} -> {}, plain]", rank_, peer), peer,
                                           std::move(sockets.at(0)), links_);
  }
  bool sends_from_anywhere() const override { return true; }
  bool may_be_ready(Sleep* sleep) override {
    bool any = false;
    for (PlainEndpoint* link : links_.all) any |= link->may_be_ready(sleep);
    return any;
  }
  void end_wait() override {
    for (PlainEndpoint* link : links_.all) link->end_wait();
  }
  std::unique_ptr<Transport> part(const TransportPart& part) override {
    return std::make_unique<PlainTransport>(part.rank, links_.config);
  }

 private:
  const Rank rank_;
  Links links_;
};

}  // namespace

Probe probe_plain(const Config&) { return {true, "sockets need nothing"}; }

std::unique_ptr<Transport> make_plain(const TransportOptions& options) {
  return std::make_unique<PlainTransport>(options.rank, options.config);
}

const std::vector<KnobRow>& plain_knobs() {
  static const std::vector<KnobRow> rows = {
      {"RINGCOLL_PLAIN_DEPTH", "plain", Agreement::kOwn,
       knob::Integer{&Config::plain_depth, kLeastCredits, 1024}, "64",
       "messages that a link queues"},
  };
  return rows;
}

}  // namespace ringcoll

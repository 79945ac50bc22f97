#include "remote/rdma.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "transport/verbs/ports.h"
#include "transport/verbs/sharing.h"

namespace ringcoll::remote {
namespace {

// The other end, or the path, is given up then, and the link carries the payload.
constexpr Duration kPatience = std::chrono::seconds(3);
// The end that waits for an offer has more, to hear from the other that it has given up.
constexpr Duration kOfferPatience = std::chrono::seconds(4);
// A region that is closed waits so long for peers in the middle of reading or writing it.
constexpr Duration kClosing = std::chrono::milliseconds(200);
// A queue pair that has failed is made anew, each time a bit later.
constexpr Duration kPause = std::chrono::milliseconds(50);
constexpr int kMostDoublings = 9;

// Of those whose registration is refused, the first tells the user.
void tell_unregistered(const std::string& why) {
  static std::atomic<bool> told = false;
  if (told.exchange(true))
    log_debug("a region is served over TCP: {}", why);
  else
    log_warning(
        "a region is served over TCP, and so may others be, for it cannot be registered "
        "for RDMA: {}",
        why);
}

}  // namespace

std::unique_ptr<Rdma> Rdma::open(const Config& config, uint64_t agent, Regions& regions,
                                 Dispatcher& dispatcher, EventLoop& loop) {
  bool is_only_way = config.transport == "verbs";
  if (!is_only_way && config.transport != "auto") return nullptr;
  try {
    auto ports = rdma::find_ports(config, 0, /*warn=*/true);
    return std::unique_ptr<Rdma>(
        new Rdma(config, agent, std::move(ports), regions, dispatcher, loop));
  } catch (const Error& error) {
    if (is_only_way) throw;
    log_debug("an agent without RDMA: {}", error.what());
    return nullptr;
  }
}

Rdma::Rdma(const Config& config, uint64_t agent, std::vector<verbs::UsablePort> ports,
           Regions& regions, Dispatcher& dispatcher, EventLoop& loop)
    : config_(config),
      agent_(agent),
      is_only_way_(config.transport == "verbs"),
      usable_(std::move(ports)),
      dispatcher_(dispatcher),
      loop_(loop),
      memory_(static_cast<uint64_t>(config.register_bytes)),
      keys_(regions, static_cast<uint64_t>(config.register_bytes)),
      open_(usable_.size()),
      slow_(std::make_unique<EventLoop>("ringcoll-rdma")) {
  for (const verbs::UsablePort& port : usable_) told_.push_back(rdma::address_of(port, 0, 0));
}

Rdma::~Rdma() = default;

void Rdma::close() {
  std::promise<void> ended;
  loop_.after(Duration::zero(), [this, &ended] {
    is_closed_ = true;
    for (auto& [link, joined] : std::exchange(joined_, {}))
      if (joined.pair) joined.pair->end("the agent is closed");
    ended.set_value();
  });
  ended.get_future().wait();
  std::unique_ptr<EventLoop> slow;
  {
    std::lock_guard lock(slow_mutex_);
    slow = std::move(slow_);
  }
}

void Rdma::forget(const Region& region) {
  keys_.forget(region, loop_.on_loop_thread() ? Duration::zero() : kClosing);
}

std::string Rdma::ports() const { return rdma::encode_ports(told_); }

void Rdma::slowly(std::function<void()> task) {
  std::lock_guard lock(slow_mutex_);
  if (slow_) slow_->after(Duration::zero(), std::move(task));
}

// --- On the thread for what takes long.

std::shared_ptr<rdma::OpenPort> Rdma::open_port(size_t number) {
  auto& port = open_.at(number);
  if (port && !port->failed()) {
    port->read_again(static_cast<int>(config_.gid_index));
    return port;
  }
  double patience = verbs::retry_seconds(static_cast<int>(config_.qp_timeout),
                                         static_cast<int>(config_.qp_retries));
  return port = std::make_shared<rdma::OpenPort>(usable_[number], patience);
}

std::shared_ptr<RdmaPair> Rdma::make_pair(const std::shared_ptr<Link>& link, size_t port,
                                          uint64_t number) {
  RdmaPair::Context context{loop_, dispatcher_, *this, memory_, config_, is_only_way_};
  auto pair = std::make_shared<RdmaPair>(context, link, open_port(port), number);
  pair->begin();
  return pair;
}

void Rdma::give_key(const std::shared_ptr<Link>& link, size_t port, const FrameHead& head) {
  FrameHead answer{.secret = head.secret, .region = head.region};
  std::string why;
  try {
    check(open_.at(port) != nullptr, Code::kTransport, "no queue pair was offered before");
    RdmaKey key = keys_.key_of(open_.at(port), head.region, head.secret, link);
    answer.kind = FrameKind::kKey;
    answer.id = key.rkey;
    answer.offset = key.address;
    answer.bytes = key.bytes;
    answer.code = key.writable ? 1 : 0;
  } catch (const Error& error) {
    answer.kind = FrameKind::kNoKey;
    answer.code = static_cast<uint16_t>(error.code());
    why = error.what();
    if (error.code() == Code::kTransport) tell_unregistered(why);
  }
  link->send(answer, why.substr(0, kLongestText));
}

// --- Setting up. On the loop's thread.

Rdma::Joined* Rdma::find(const Link& link, uint64_t number) {
  auto found = joined_.find(&link);
  return found != joined_.end() && found->second.number == number ? &found->second : nullptr;
}

// Both ends compute the same: the agent of the lower id is the lower rank of the rule.
size_t Rdma::port_to(const Joined& joined) const {
  rdma::Side mine{told_, 0}, theirs{joined.ports, 0};
  return agent_ < joined.link->agent ? rdma::join_ports(mine, theirs).lower
                                     : rdma::join_ports(theirs, mine).higher;
}

void Rdma::join(const std::shared_ptr<Link>& link, std::string_view ports) {
  if (is_closed_) return;
  Joined& joined =
      joined_[link.get()] = {.link = link, .ports = rdma::decode_ports(ports), .pair = nullptr};
  link->for_payload = !is_only_way_;
  if (joined.ports.empty()) return do_without(joined, "it has no RDMA");
  if (link->dialled()) return offer(joined);
  loop_.after(kOfferPatience, [this, link] {
    Joined* waits = is_closed_ ? nullptr : find(*link, 0);
    if (waits) do_without(*waits, "it has not offered RDMA");
  });
}

void Rdma::left(const Link& link) {
  keys_.left(link);
  auto found = joined_.find(&link);
  if (found == joined_.end()) return;
  Joined joined = std::move(found->second);
  joined_.erase(found);
  if (!joined.pair) return;
  joined.pair->end("its connection has ended");
  if (joined.stage == Stage::kUsable) dispatcher_.remove(*joined.pair);
}

void Rdma::excuse(Duration lag) {
  for (auto& [link, joined] : joined_)
    if (joined.pair) joined.pair->excuse(lag);
}

// Makes or connects a queue pair on the other thread, and then says so.
void Rdma::prepare(const Joined& joined, std::function<std::shared_ptr<RdmaPair>()> slow,
                   FrameKind says) {
  slowly([this, link = joined.link, number = joined.number, slow = std::move(slow), says] {
    std::shared_ptr<RdmaPair> pair;
    std::string why;
    try {
      pair = slow();
    } catch (const Error& error) {
      why = error.what();
    }
    loop_.after(Duration::zero(), [this, link, number, pair, why, says] {
      Joined* of = is_closed_ ? nullptr : find(*link, number);
      if (!of) return pair ? pair->end("it is not wanted any more") : void();
      if (!pair) return do_without(*of, why);
      of->pair = pair;
      if (says != FrameKind::kRdmaReady)
        link->send({.kind = says, .id = number}, encode(pair->offer()));
    });
  });
}

void Rdma::offer(Joined& joined) {
  joined.number++;
  joined.stage = Stage::kSettingUp;
  auto make = [this, link = joined.link, port = port_to(joined), number = joined.number] {
    return make_pair(link, port, number);
  };
  prepare(joined, make, FrameKind::kRdmaOffer);
  loop_.after(kPatience, [this, link = joined.link, number = joined.number] {
    Joined* waits = is_closed_ ? nullptr : find(*link, number);
    if (waits && waits->stage == Stage::kSettingUp)
      do_without(*waits, "no answer, or packets do not get through");
  });
}

void Rdma::take_offer(Joined& joined, const FrameHead& head, const std::string& body) {
  if (auto old = std::exchange(joined.pair, nullptr)) old->end("a new one takes its place");
  joined.stage = Stage::kSettingUp;
  joined.number = head.id;
  auto make = [this, link = joined.link, port = port_to(joined), number = head.id, body] {
    auto pair = make_pair(link, port, number);
    try {
      pair->connect(decode_offer(body));
    } catch (const Error& error) {
      pair->end(error.what());
      throw;
    }
    return pair;
  };
  prepare(joined, make, FrameKind::kRdmaAnswer);
}

void Rdma::take_answer(Joined& joined, const std::string& body) {
  if (!joined.pair) return;
  auto connect = [pair = joined.pair, body] {
    pair->connect(decode_offer(body));
    pair->prove();
    return pair;
  };
  prepare(joined, connect, FrameKind::kRdmaReady);
}

void Rdma::proven(RdmaPair& pair) {
  Joined* joined = is_closed_ ? nullptr : find(pair.link(), pair.number());
  if (!joined || joined->pair.get() != &pair) return;
  joined->link->send({.kind = FrameKind::kRdmaReady, .id = pair.number()});
  use(*joined);
}

void Rdma::use(Joined& joined) {
  if (!joined.pair || std::exchange(joined.stage, Stage::kUsable) == Stage::kUsable) return;
  joined.has_worked = true;
  log_debug("{} is reached by RDMA", joined.link->peer_text());
  dispatcher_.add(joined.pair);
  settle(joined);
}

void Rdma::settle(Joined& joined) {
  if (!std::exchange(joined.is_settled, true)) dispatcher_.add(joined.link);
}

// The queue pair that was to be made will not be.
void Rdma::do_without(Joined& joined, const std::string& why) {
  joined.stage = Stage::kNone;
  if (auto pair = std::exchange(joined.pair, nullptr)) pair->end(why);
  uint64_t number = joined.number++;  // answers about this one mean nothing any more
  if (number > 0) joined.link->send({.kind = FrameKind::kRdmaEnd, .id = number}, why);
  std::string text = fmt::format("{} is not reached by RDMA: {}", joined.link->peer_text(), why);
  if (is_only_way_) {
    if (!joined.link->dialled()) return;
    dispatcher_.unreachable(joined.link->agent,
                            Error(Code::kTransport, text + " (RINGCOLL_TRANSPORT=verbs)"));
    return joined.link->leave();
  }
  if (!joined.ports.empty() && !std::exchange(has_told_, true))
    log_info("{}. It is reached over TCP", text);
  else
    log_debug("{}", text);
  settle(joined);
  if (joined.has_worked) try_again(joined);
}

void Rdma::try_again(Joined& joined) {
  if (!joined.link->dialled()) return;
  Duration pause = kPause * (1 << std::min(joined.failures++, kMostDoublings));
  loop_.after(pause, [this, link = joined.link, number = joined.number] {
    Joined* again = is_closed_ ? nullptr : find(*link, number);
    if (again && again->stage == Stage::kNone) offer(*again);
  });
}

// --- While it is used. On the loop's thread.

void Rdma::ended(RdmaPair& pair, const std::string& why) {
  dispatcher_.remove(pair);
  Joined* joined = is_closed_ ? nullptr : find(pair.link(), pair.number());
  if (!joined || joined->pair.get() != &pair) return;
  if (joined->stage != Stage::kUsable) return do_without(*joined, why);
  log_info("RDMA to {} has ended, and is set up anew: {}", pair.peer_text(), why);
  joined->pair = nullptr;
  joined->stage = Stage::kNone;
  joined->link->send({.kind = FrameKind::kRdmaEnd, .id = pair.number()}, why);
  if (is_only_way_) return joined->link->end(LinkEnd::kLost, why);
  try_again(*joined);
}

void Rdma::take(Link& link, const FrameHead& head, const std::string& body) {
  auto found = is_closed_ ? joined_.end() : joined_.find(&link);
  if (found == joined_.end()) return;
  if (head.kind < FrameKind::kKeyAsk)
    take_setup(found->second, head, body);
  else
    take_key(found->second, head, body);
}

void Rdma::take_setup(Joined& joined, const FrameHead& head, const std::string& body) {
  bool is_offer = head.kind == FrameKind::kRdmaOffer && !joined.ports.empty();
  if (is_offer && !joined.link->dialled()) return take_offer(joined, head, body);
  if (head.id != joined.number) return;  // of a queue pair that is not wanted any more
  if (head.kind == FrameKind::kRdmaAnswer && joined.link->dialled()) take_answer(joined, body);
  if (head.kind == FrameKind::kRdmaReady && !joined.link->dialled()) use(joined);
  if (head.kind != FrameKind::kRdmaEnd) return;
  if (joined.pair) return joined.pair->end(body);
  if (joined.stage == Stage::kSettingUp || !joined.is_settled) do_without(joined, body);
}

void Rdma::take_key(Joined& joined, const FrameHead& head, const std::string& body) {
  const std::shared_ptr<RdmaPair>& pair = joined.pair;
  auto key = static_cast<uint32_t>(head.id);
  switch (head.kind) {
    case FrameKind::kKeyAsk:
      if (joined.ports.empty()) return;
      return slowly(
          [this, link = joined.link, port = port_to(joined), head] { give_key(link, port, head); });
    case FrameKind::kKey:
      if (pair)
        pair->take_key(head.region, head.secret, {head.offset, head.bytes, key, head.code == 1});
      return;
    case FrameKind::kNoKey:
      if (pair)
        pair->take_no_key(head.region, head.secret, Error(static_cast<Code>(head.code), body));
      return;
    case FrameKind::kKeyGone:
      if (pair) return pair->take_key_gone(head.region, head.secret);
      joined.link->send(
          {.kind = FrameKind::kKeyLeft, .secret = head.secret, .region = head.region});
      return;
    case FrameKind::kKeyLeft:
      return keys_.left(*joined.link, head.region, head.secret);
    default:
      return;
  }
}

}  // namespace ringcoll::remote

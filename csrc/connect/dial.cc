#include "connect/dial.h"

#include <fmt/ranges.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

// Pause between two tries if the gate of the peer was too busy and closed the connection.
constexpr Duration kRetryPause = std::chrono::milliseconds(50);
// How long each of several networks is tried in the first pass; each later pass doubles it.
constexpr Duration kFirstPatience = std::chrono::milliseconds(250);
// How often a rank that waits for a peer probes whether that still listens, and the time limit of a
// probe at each address.
constexpr Duration kDialLook = std::chrono::milliseconds(200);

// How long a dial holds its permit. A peer that has not answered by then is stopped or cannot be
// reached, and must not delay dials to other peers.
constexpr Duration kHoldsPermit = std::chrono::seconds(1);

// The value of `reach_` until the dial over a network begins.
constexpr Clock::time_point kNotBegun = Clock::time_point::max();

Code code_of(Verdict verdict) {
  return verdict == Verdict::kWrongSecret ? Code::kInvalidArgument : Code::kTransport;
}

bool has_passed(Clock::time_point time) { return Clock::now() >= time; }

// Errors of connect() that concern the peer's host or the network.
bool is_silence(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == EHOSTDOWN || error == ENETDOWN;
}

}  // namespace

// ---- Connections that this rank makes ----

Connector::State::Outward::Outward(State& state, const Target& to, std::vector<int> networks,
                                   Deadline reach, Deadline deadline, Permits& permits)
    : Dial(state, to, deadline),
      networks_(std::move(networks)),
      patience_(kFirstPatience),
      reach_(networks_.size() == 1 ? Clock::now() + reach.left() : kNotBegun),
      permits_(permits) {}

// Clears `dialled`: from now on a connection of the peer is accepted, and this rank may dial again.
Connector::State::Outward::~Outward() {
  if (!entered_ || stage_ == Stage::kMade) return;
  std::lock_guard lock(state_.mutex);
  auto found = state_.either.find({to_.peer, to_.channel});
  if (found != state_.either.end()) found->second.dialled = false;
}

std::string Connector::State::Outward::link() const {
  return fmt::format("connecting rank {} -> {} at {}, channel {}", state_.rank, to_.peer,
                     offer().address.text(), to_.channel);
}

pollfd Connector::State::Outward::polled() const {
  return {fd_.get(), static_cast<short>(stage_ == Stage::kConnecting ? POLLOUT : POLLIN), 0};
}

Clock::time_point Connector::State::Outward::due() const {
  Clock::time_point next = stage_ == Stage::kConnecting ? std::min(reach_, end_) : end_;
  if (permit_) next = std::min(next, patient_until_);
  bool may_begin = stage_ == Stage::kIdle && (permit_ || permits_.any());
  return may_begin ? std::min(pause_over_, end_) : next;
}

bool Connector::State::Outward::is_nearly_made() const {
  return stage_ == Stage::kLetIn || (stage_ == Stage::kProving && prover_->has_proven());
}

bool Connector::State::Outward::advance(short events) {
  while (stage_ != Stage::kMade) {
    bool moves = true;
    try {
      moves = step(events);
    } catch (const Error& error) {
      go_on_to_next(error);
    }
    if (!moves && stage_ != Stage::kIdle && has_passed(patient_until_)) permit_.give_back();
    if (!moves) return false;
    events = 0;
  }
  return true;
}

// False: it must wait for a descriptor or for time to pass.
bool Connector::State::Outward::step(short events) {
  switch (stage_) {
    case Stage::kIdle:
      return begin();
    case Stage::kConnecting:
      return end(events);
    case Stage::kProving:
      return prove();
    case Stage::kLetIn:
      return hear_whether_let_in();
    case Stage::kMade:
      break;
  }
  return true;
}

bool Connector::State::Outward::begin() {
  if (is_either(to_.channel) && !enter()) return stage_ == Stage::kMade;
  return has_passed(pause_over_) && connect();
}

// For a connection that either end may make. False: the peer has made it, so this dial is over, or
// another dial of this rank makes it.
bool Connector::State::Outward::enter() {
  {
    std::lock_guard lock(state_.mutex);
    if (state_.take_made(to_, &fd_)) {
      stage_ = Stage::kMade;
      return false;
    }
    if (entered_) return true;
    entered_ = !std::exchange(state_.either[{to_.peer, to_.channel}].dialled, true);
  }
  return entered_ || wait_for_the_peers();
}

bool Connector::State::Outward::connect() {
  if (!permit_.take(permits_)) {
    check(!has_passed(end_), Code::kTimeout,
          "{}: the connection was not attempted before the deadline, since too many other ranks "
          "did not answer",
          link());
    return false;
  }
  patient_until_ = Clock::now() + kHoldsPermit;
  if (reach_ == kNotBegun) reach_ = Clock::now() + patience_;
  int error = 0;
  fd_ = begin_connect(offer().address, &error);
  throw_unless_connected(error);
  stage_ = Stage::kConnecting;
  return true;
}

bool Connector::State::Outward::end(short events) {
  if (events == 0 && !has_passed(std::min(reach_, end_))) return false;
  throw_unless_connected(events == 0 ? ETIMEDOUT : end_connect(fd_.get(), offer().address));
  prover_.emplace(state_.secret, Identity{state_.rank, to_.peer, to_.channel, state_.group});
  filled_ = 0;
  stage_ = Stage::kProving;
  return say(prover_->hello()) || try_again();
}

void Connector::State::Outward::throw_unless_connected(int error) {
  peer_ = error == ECONNREFUSED ? Unmade::PeerState::kEnded
          : is_silence(error)   ? Unmade::PeerState::kSilent
                                : Unmade::PeerState::kUnknown;
  if (error == 0) return;
  // The peer listened before it published its address. So "refused" means that its process has
  // ended, and "reset" that it ended just then.
  check(error != ECONNREFUSED && error != ECONNRESET, Code::kPeerLost,
        "{}: {}; the process has ended, or a firewall rejects the connection", link(),
        errno_text("connect", error));
  std::string where = fmt::format(
      "this rank has {}, the peer {}; if the hosts have several networks, name the right ones "
      "with RINGCOLL_INTERFACE",
      describe_offers(state_.offers), describe_offers(state_.of_rank[to_.peer]));
  check(error != ETIMEDOUT, Code::kTimeout, "{}: connect: no answer before the deadline; {}",
        link(), where);
  throw Error(Code::kTransport,
              fmt::format("{}: {}; {}", link(), errno_text("connect", error), where));
}

// Not retried: the send buffer of a fresh connection has room for a message, or the connection is
// broken.
bool Connector::State::Outward::say(const std::string& message) {
  ssize_t sent = ::send(fd_.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(message.size());
}

bool Connector::State::Outward::prove() {
  while (size_t wanted = prover_->wanted()) {
    ssize_t got = ::recv(fd_.get(), buffer_.data() + filled_, wanted - filled_, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      throw_at_deadline();
      return false;
    }
    if (got <= 0) return try_again();
    filled_ += static_cast<size_t>(got);
    if (filled_ < wanted) continue;
    filled_ = 0;
    std::string reply = prover_->answer({buffer_.data(), wanted});
    if (!reply.empty() && !say(reply)) return try_again();
  }
  Verdict verdict = prover_->verdict();
  // Another process has the peer's address now.
  if (verdict != Verdict::kAccepted) peer_ = Unmade::PeerState::kEnded;
  check(verdict == Verdict::kAccepted, code_of(verdict), "{}: {}", link(), explain(verdict));
  if (!entered_ || to_.peer > state_.rank) return made();
  stage_ = Stage::kLetIn;
  return true;
}

void Connector::State::Outward::throw_at_deadline() const {
  check(!has_passed(end_), Code::kTimeout, "{}: no answer before the deadline", link());
}

// The peer has closed the connection before the authentication was complete.
bool Connector::State::Outward::try_again() {
  check(!has_passed(std::min(reach_, end_)), code_of(Verdict::kClosed), "{}: {}", link(),
        explain(Verdict::kClosed));
  fd_.reset();
  permit_.give_back();
  pause_over_ = std::min(Clock::now() + kRetryPause, reach_);
  stage_ = Stage::kIdle;
  return true;
}

// Reads the byte by which the lower rank accepts or drops this connection (connect/either.cc).
bool Connector::State::Outward::hear_whether_let_in() {
  char word = 0;
  ssize_t got = ::recv(fd_.get(), &word, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    throw_at_deadline();
    return false;
  }
  // A peer that accepts no connection any more has left.
  check(got > 0, Code::kPeerLost, "{}: {}", link(),
        got == 0 ? "closed by the peer" : errno_text("recv", errno));
  check(word == kLetIn || word == kCrossed, Code::kTransport,
        "{}: the answer is unknown; do all hosts have the same version of ringcoll?", link());
  return word == kLetIn ? made() : wait_for_the_peers();
}

// A connection of the peer, or of another dial, is under way. If that fails, this dial goes on.
bool Connector::State::Outward::wait_for_the_peers() {
  throw_at_deadline();
  fd_.reset();
  permit_.give_back();
  pause_over_ = std::min(Clock::now() + kRetryPause, end_);
  stage_ = Stage::kIdle;
  return false;
}

bool Connector::State::Outward::made() {
  stage_ = Stage::kMade;
  if (!entered_) return true;
  std::lock_guard lock(state_.mutex);
  if (!state_.ended.find(to_.channel / kChannelsOfGroup))
    state_.either[{to_.peer, to_.channel}].there = true;
  return true;
}

// Goes on to the next network. After the last one it starts again, as long as one of them has
// merely not answered.
void Connector::State::Outward::go_on_to_next(const Error& error) {
  fd_.reset();
  permit_.give_back();
  if (networks_.size() == 1 || error.code() == Code::kInvalidArgument) throw Error(error);
  in_doubt_ |= error.code() == Code::kTimeout;
  causes_ += fmt::format("{}{}", causes_.empty() ? "" : "; ", error.what());
  if (++at_ == networks_.size()) {
    at_ = networks_.size() - 1;
    if (!in_doubt_) throw Error(error.code(), causes_);
    check(!has_passed(end_), Code::kTimeout, "{}", causes_);
    at_ = 0;
    patience_ *= 2;
    causes_.clear();
    in_doubt_ = false;
  }
  reach_ = kNotBegun;
  stage_ = Stage::kIdle;
  pause_over_ = {};
}

// ---- Connections that the peer makes ----

Connector::State::Inward::Inward(State& state, const Target& to, Deadline deadline,
                                 Permits& permits)
    : Dial(state, to, deadline),
      networks_(state.networks_for(to.peer, to.channel)),
      permits_(permits),
      next_(Clock::now() + kDialLook) {}

std::string Connector::State::Inward::link() const {
  return fmt::format("waiting at {} for rank {} to connect to rank {}, channel {}",
                     describe_offers(state_.offers), to_.peer, state_.rank, to_.channel);
}

bool Connector::State::Inward::advance(short events) {
  if (has_come()) return true;
  if (has_passed(end_)) throw_late();
  look(events);
  return false;
}

bool Connector::State::Inward::has_come() {
  std::lock_guard lock(state_.mutex);
  if (state_.take_made(to_, &fd_)) return true;
  auto refused = state_.refusals.find(to_.peer);
  if (refused != state_.refusals.end())
    throw Error(Code::kInvalidArgument, fmt::format("{}: {}", link(), refused->second));
  return false;
}

void Connector::State::Inward::throw_late() const {
  uint64_t rejected = state_.rejected();
  std::string strangers =
      rejected ? fmt::format(" ({} connections of strangers were rejected)", rejected) : "";
  throw Error(Code::kTimeout,
              fmt::format("{}: it did not connect before the deadline{}; it may be stopped or have "
                          "failed (see its log), a firewall may drop what comes to this address, "
                          "or it has no network in common with this rank: it has {}",
                          link(), strangers, describe_offers(state_.of_rank[to_.peer])));
}

void Connector::State::Inward::look(short events) {
  if (!look_ || events == 0) {
    if (!has_passed(next_)) return;
    if (look_ && !is_refusal(ETIMEDOUT)) return;
  } else if (!is_refusal(end_connect(look_.get(), address()))) {
    return;
  }
  for (int error = 0;; error = 0) {
    next_ = Clock::now() + kDialLook;
    if (!permit_.take(permits_)) return;
    look_ = begin_connect(address(), &error);
    if (error == 0 || !is_refusal(error)) return;
  }
}

// The peer has ended if all its addresses that may be used refuse. A single address may belong to
// another machine by now. An address that does not answer proves nothing, and ends this probe.
bool Connector::State::Inward::is_refusal(int error) {
  std::string text = address().text();
  look_.reset();
  permit_.give_back();
  if (error != ECONNREFUSED) {
    refused_.clear();
    next_ = Clock::now() + kDialLook;
    return false;
  }
  refused_.push_back(std::move(text));
  check(refused_.size() < networks_.size(), Code::kPeerLost,
        "{}: no process listens at {} any more; the process has ended, or a firewall rejects the "
        "connection",
        link(), fmt::join(refused_, ", "));
  return true;
}

}  // namespace ringcoll

#include "mesh/group/opening.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/interruption.h"
#include "mesh/mesh.h"

namespace ringcoll {
namespace {

// How often a rank that waits for connections looks for peers that have left, for errors of the
// group, and whether to log the wait.
constexpr Duration kOpeningLook = std::chrono::milliseconds(20);

}  // namespace

// ---- One link ----

struct Opening::Inbox {
  std::mutex mutex;
  bool has_lifeline = false;
  std::vector<Fd> sockets;
  size_t missing = 0;  // sockets still to come
  std::optional<Error> why;

  void take_lifeline(const std::optional<Unmade>& unmade) {
    std::lock_guard lock(mutex);
    if (unmade) why = unmade->why;
    has_lifeline = true;
  }
  void take_socket(size_t which, Fd socket, const std::optional<Unmade>& unmade) {
    std::lock_guard lock(mutex);
    if (unmade && !why) why = unmade->why;
    sockets[which] = std::move(socket);
    missing--;
  }
};

Opening::Opening(const Of& of, Peer peer, Transport* transport, Deadline deadline)
    : of_(of),
      peer_(peer),
      transport_(transport),
      deadline_(deadline),
      inbox_(std::make_shared<Inbox>()) {}

Opening::State Opening::advance() {
  if (why_) throw Error(*why_);
  try {
    step();
  } catch (const Error& error) {
    why_ = Error(error.code(), error.what(), peer_.rank);
    throw Error(*why_);
  }
  return state_;
}

void Opening::step() {
  if (state_ == State::kLifeline && has_lifeline()) begin_sockets();
  if (state_ == State::kSockets && has_sockets()) connect();
  if (state_ < State::kEstablishing) look_for_gone();
  if (state_ == State::kEstablishing && endpoint_->try_establish(deadline_))
    state_ = State::kProving;
  if (state_ == State::kProving && endpoint_->try_prove(deadline_)) state_ = State::kOpen;
}

// A peer that left without opening the link makes no connection, so waiting for one would last
// until the deadline.
void Opening::look_for_gone() {
  if (farewell_.is_over(of_.health, peer_.rank))
    throw Error(Code::kPeerLost, fmt::format("{} has left the communicator",
                                             of_.mesh.topology().describe(peer_.in_mesh)));
}

// The lifeline comes first, so that the peer's death is noticed while the sockets are made.
bool Opening::has_lifeline() {
  if (of_.mesh.lifelines().has(peer_.in_mesh)) return true;
  if (!std::exchange(dials_, true))
    of_.mesh.begin_lifeline(peer_.in_mesh, of_.group, of_.ends, deadline_,
                            [inbox = inbox_, notify = of_.notify](const auto& unmade) {
                              inbox->take_lifeline(unmade);
                              notify();
                            });
  std::lock_guard lock(inbox_->mutex);
  if (inbox_->why) throw Error(*inbox_->why);
  return inbox_->has_lifeline;
}

void Opening::begin_sockets() {
  state_ = transport_ ? State::kSockets : State::kOpen;
  if (!transport_) return;
  size_t sockets = transport_->sockets_to(peer_.rank);
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->why.reset();  // there is a lifeline, though this rank may not have made one
    inbox_->sockets.resize(sockets);
    inbox_->missing = sockets;
  }
  for (uint32_t i = 0; i < sockets; i++)
    of_.mesh.connector().begin(
        {peer_.in_mesh, of_.first_channel + i, of_.group, of_.ends}, deadline_,
        [inbox = inbox_, notify = of_.notify, i](Fd socket, const std::optional<Unmade>& unmade) {
          inbox->take_socket(i, std::move(socket), unmade);
          notify();
        });
}

bool Opening::has_sockets() {
  std::lock_guard lock(inbox_->mutex);
  if (inbox_->why) throw Error(*inbox_->why);
  return inbox_->missing == 0;
}

void Opening::connect() {
  link_ = transport_->connect(peer_.rank, std::move(inbox_->sockets), deadline_);
  endpoint_ = link_.get();
  state_ = State::kEstablishing;
}

// ---- Those of a call ----

struct Openings::News {
  std::mutex mutex;
  std::condition_variable changed;
  bool any = false;

  void tell() {
    std::lock_guard lock(mutex);
    any = true;
    changed.notify_all();
  }
  void await(Duration limit) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, limit, [this] { return any; });
    any = false;
  }
};

Openings::Openings(Mesh& mesh, GroupNumber group, Health& health, Deadline deadline,
                   std::function<std::string()> doing)
    : mesh_(mesh),
      health_(health),
      deadline_(deadline),
      doing_(std::move(doing)),
      news_(std::make_shared<News>()),
      of_{mesh,
          group,
          health,
          Connector::Ends::kLower,
          kFirstDataChannel,
          [news = news_] { news->tell(); }} {}

void Openings::add(Opening::Peer peer, Transport* transport) {
  openings_.push_back(std::make_unique<Opening>(of_, peer, transport, deadline_));
}

void Openings::await(const std::function<void(Opening&)>& connected) {
  health_.throw_if_poisoned();
  try {
    while (const Opening* missing = advance(connected)) {
      tell_of(*missing);
      news_->await(kOpeningLook);
      Interruption::look();
      health_.throw_if_poisoned();
    }
  } catch (const Error& error) {
    health_.throw_if_poisoned();
    throw Error(error);
  }
  health_.set_waiting_for(kNobody);
}

// Returns the first peer that is missing, or null. At the deadline the dials end one by one, in any
// order, and the error of the first missing peer counts.
Opening* Openings::advance(const std::function<void(Opening&)>& connected) {
  Opening* missing = nullptr;
  for (const auto& opening : openings_) {
    bool was_connected = opening->state() >= Opening::State::kEstablishing;
    try {
      if (opening->advance() < Opening::State::kEstablishing)
        missing = missing ? missing : opening.get();
      else if (!was_connected)
        connected(*opening);
    } catch (const Error& error) {
      if (!missing || error.code() != Code::kTimeout || !deadline_.passed()) throw;
    }
  }
  return missing;
}

void Openings::tell_of(const Opening& missing) {
  health_.set_waiting_for(missing.peer());
  long_wait_.tell(
      Clock::now(), [&] { return mesh_.topology().describe(mesh_.rank()); }, doing_,
      [&] { return mesh_.topology().describe(missing.in_mesh()); });
}

}  // namespace ringcoll

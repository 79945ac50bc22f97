#include "mesh/group/opening.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/interruption.h"
#include "base/log.h"
#include "mesh/mesh.h"

namespace ringcoll {
namespace {

// How often a rank checks for another thread's lifeline, or for a peer that has left.
constexpr Duration kOpeningLook = std::chrono::milliseconds(20);
// How often a rank that waits for its own connections wakes up to log the wait.
constexpr Duration kLongestLook = std::chrono::seconds(1);
// Long enough for a lifeline to a peer that answers.
constexpr Duration kMomentForLines = std::chrono::milliseconds(200);

}  // namespace

Opening::Opening(Mesh& mesh, GroupNumber group, Health& health, Deadline deadline,
                 std::function<std::string()> doing)
    : mesh_(mesh),
      health_(health),
      deadline_(deadline),
      dials_(mesh.connector(), group, deadline),
      doing_(std::move(doing)) {}

void Opening::settle(Duration limit) {
  try {
    for (Dials::Made& made : dials_.settle_lifelines(limit))
      if (made.fd) mesh_.lifelines().add(made.peer, std::move(made.fd));
  } catch (const std::exception& error) {  // there may be no memory left
    log_debug("lifelines are given up: {}", error.what());
  }
}

Opening::~Opening() {
  settle(kMomentForLines);
  for (const Peer& peer : peers_)
    if (peer.state == Peer::State::kLine) mesh_.end_lifeline(peer.in_mesh);
}

void Opening::add(Rank peer, Rank in_mesh, size_t sockets) {
  by_mesh_[in_mesh] = peers_.size();
  Peer& added = peers_.emplace_back();
  added = {.rank = peer, .in_mesh = in_mesh, .missing = sockets};
  added.sockets.resize(sockets);
  others_lines_++;  // begin_line() finds out who makes it
}

std::optional<Opening::Opened> Opening::next() {
  health_.throw_if_poisoned();
  try {
    while (open_.empty() && opened_ < peers_.size()) advance();
  } catch (const Error& error) {
    health_.throw_if_poisoned();
    throw named(error);
  }
  health_.set_waiting_for(kNobody);
  if (open_.empty()) return {};
  Peer& peer = peers_[open_.front()];
  open_.pop_front();
  return Opened{peer.rank, std::move(peer.sockets)};
}

void Opening::advance() {
  Interruption::look();
  health_.throw_if_poisoned();
  if (others_lines_ > 0)
    for (Peer& peer : peers_)
      if (peer.state == Peer::State::kOthersLine) begin_line(peer);
  if (!open_.empty()) return;
  auto missing = std::ranges::find_if(
      peers_, [](const Peer& peer) { return peer.state != Peer::State::kOpen; });
  health_.set_waiting_for(missing->rank);
  long_wait_.tell(
      Clock::now(), [&] { return mesh_.topology().describe(mesh_.rank()); }, doing_,
      [&] { return mesh_.topology().describe(missing->in_mesh); });
  bool looks_often = look_for_gone() || others_lines_ > 0;
  if (dials_.empty()) return mesh_.wait_for_lifelines(kOpeningLook);
  Duration look = Interruption::watches() ? Interruption::kEvery : kLongestLook;
  if (auto made = dials_.next(looks_often ? kOpeningLook : look)) take(std::move(*made));
}

// A peer that left without a call of this group makes no connection, so waiting for one would last
// until the deadline. Returns true if some peer has left, since its connection may have been made
// before.
bool Opening::look_for_gone() {
  bool any = false;
  for (Peer& peer : peers_) {
    if (peer.state == Peer::State::kOpen) continue;
    if (peer.farewell.is_over(health_, peer.rank))
      throw Error(
          Code::kPeerLost,
          fmt::format("{} has left the communicator", mesh_.topology().describe(peer.in_mesh)),
          peer.in_mesh);
    any |= peer.farewell.has_begun();
  }
  return any;
}

void Opening::begin_line(Peer& peer) {
  switch (mesh_.claim_lifeline(peer.in_mesh)) {
    case Mesh::Line::kAnothers:
      if (deadline_.passed())
        throw Error(Code::kTimeout,
                    fmt::format("another group's lifeline to {} is not made before the deadline",
                                mesh_.topology().describe(peer.in_mesh)),
                    peer.in_mesh);
      return;
    case Mesh::Line::kClaimed:
      peer.state = Peer::State::kLine;
      dials_.dial_lifeline(peer.in_mesh);
      break;
    case Mesh::Line::kThere:
      begin_sockets(peer);
      break;
  }
  others_lines_--;
}

void Opening::begin_sockets(Peer& peer) {
  peer.state = Peer::State::kSockets;
  for (uint32_t i = 0; i < peer.missing; i++) dials_.dial(peer.in_mesh, kFirstDataChannel + i);
  if (peer.missing == 0) end(peer);
}

void Opening::take(Dials::Made made) {
  Peer& peer = peers_[by_mesh_.at(made.peer)];
  if (peer.state == Peer::State::kLine) {
    if (made.fd) mesh_.lifelines().add(made.peer, std::move(made.fd));
    mesh_.end_lifeline(made.peer);
    return begin_sockets(peer);
  }
  peer.sockets.at(made.channel - kFirstDataChannel) = std::move(made.fd);
  if (--peer.missing == 0) end(peer);
}

void Opening::end(Peer& peer) {
  peer.state = Peer::State::kOpen;
  open_.push_back(static_cast<size_t>(&peer - peers_.data()));
  opened_++;
}

// Converts an error that blames a mesh rank to the group's rank numbers.
Error Opening::named(const Error& error) const {
  auto peer = by_mesh_.find(error.rank());
  if (peer == by_mesh_.end()) return error;
  return {error.code(), error.what(), peers_[peer->second].rank};
}

}  // namespace ringcoll

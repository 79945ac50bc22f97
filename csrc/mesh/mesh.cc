#include "mesh/mesh.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <set>
#include <thread>
#include <utility>

#include "base/descriptors.h"
#include "base/log.h"
#include "base/process.h"
#include "mesh/group/group.h"
#include "mesh/group/opening.h"
#include "mesh/saying.h"

namespace ringcoll {
namespace {

// How long a rank that fails during the start stays for late neighbours.
constexpr Duration kFarewell = std::chrono::seconds(5);
// How long the cause of a failure may travel along the ring, and how often a rank checks for it.
constexpr Duration kNews = std::chrono::seconds(2), kNewsLook = std::chrono::milliseconds(1);
// A rank may talk to all others (rank 0 of a gather). Each peer takes a lifeline, a stream of the
// whole mesh and a stream of one part, times 2, since links may use half of all descriptors
// (transport/tcp/tcp.cc). The usual limit, 1,024, is for programs that use select(); it is raised
// if it is too low.
constexpr size_t kDescriptorsOfAPeer = 6, kOwnDescriptors = 256;
// Above this number, ranks make the later rounds among themselves. Over a store, each round loads
// one process or host in proportion to the number of ranks.
constexpr Rank kMostOverStore = 16;

}  // namespace

Mesh::Mesh(Config config, Exchange& exchange)
    : config_(std::move(config)), rank_(exchange.rank()), size_(exchange.size()) {
  Deadline deadline(seconds(config_.timeout_s));
  links_.resize(size_);
  allow_descriptors(kOwnDescriptors + static_cast<size_t>(size_) * kDescriptorsOfAPeer);
  Introduction mine;
  try {
    mine = introduce();
  } catch (const std::exception& error) {
    throw refuse(exchange, config_, as_error(error));
  }
  agree(exchange, std::move(mine), deadline);
  std::unique_ptr<Exchange> tree;
  if (exchange.is_over_store() && size_ > kMostOverStore)
    tree = make_tree_exchange(rank_, size_, *connector_);
  Exchange& rounds = tree ? *tree : exchange;
  auto look = [this] { health_->throw_if_poisoned(); };
  rounds.while_waiting(look);
  exchange.while_waiting(look);
  try {
    join_ring();
    ring_is_joined_ = true;
    make_transports(rounds, deadline);
    settle_costs(rounds);
  } catch (const std::exception& error) {  // std::bad_alloc, too
    rounds.while_waiting({});
    exchange.while_waiting({});
    // The others learn the cause from this rank, not only that it has left.
    Error raised = fail(as_error(error));
    tell_neighbours(raised);
    if (whole_) whole_->leave();
    if (raised.code() == Code::kPeerLost && raised.rank() != kNobody)
      exchange.has_died(raised.rank());
    throw raised;
  }
  finish(exchange);
}

// A rank that is lost by now, or has failed in its first call, does not concern the start: calls
// raise its error.
void Mesh::finish(Exchange& exchange) {
  try {
    exchange.finish();
  } catch (const Error& error) {
    log_debug("some ranks have not read the result of the last exchange: {}", error.what());
    if (error.code() == Code::kPeerLost && error.rank() != kNobody) exchange.has_died(error.rank());
  }
  exchange.while_waiting({});
}

// Ends the extents first: their readers look at memory of the transports, which are destroyed
// before the thread that asks the readers.
Mesh::~Mesh() {
  whole_->leave();
  for (auto* extents : {&short_extents_, &call_extents_, &message_extents_}) (*extents)->end();
}

void Mesh::make_whole(bool one_domain) {
  std::lock_guard lock(whole_mutex_);
  whole_ = std::make_unique<Group>(*this, *health_, one_domain);
}

void Mesh::wake_whole() {
  connector_->interrupt(0);
  std::lock_guard lock(whole_mutex_);
  if (whole_) whole_->wake();
}

// The first step after the ranks know one another. One lifeline in each direction of the ring joins
// all ranks, so that errors and deaths during the start reach all of them.
void Mesh::join_ring() {
  Deadline deadline(seconds(config_.timeout_s));
  Openings lifelines(*this, 0, *health_, deadline, [] { return "joining the ranks of the job"; });
  for (Rank peer : neighbours()) lifelines.add({peer, peer}, nullptr);
  lifelines.await([](Opening&) {});
}

// The neighbours in the ring, the highest rank first.
std::vector<Rank> Mesh::neighbours() const {
  const auto& order = topology_->ring_order();
  auto at = std::ranges::find(order, rank_) - order.begin();
  std::set<Rank> both = {order[(at + 1) % size_], order[(at + size_ - 1) % size_]};
  both.erase(rank_);
  return {both.rbegin(), both.rend()};
}

// Runs what a rank does on its own between two rounds. A failure is told to all, so that nobody
// waits for this rank there. This rank then brings its error to the next round, since the others
// may wait there in a function of the caller, without a deadline. If the error blames a rank that
// is gone or stopped, that round cannot succeed, so this rank raises the error at once.
std::optional<Error> Mesh::attempt(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const std::exception& caught) {
    Error error = fail(as_error(caught));
    if (error.code() == Code::kPeerLost || error.code() == Code::kTimeout) throw Error(error);
    return error;
  }
}

// Once the ring is joined, the neighbours of a dead rank report its death. Another rank may find a
// peer unreachable, or a round broken, because that peer has heard of the death and left. So such a
// rank first waits for the neighbours' report.
Error Mesh::fail(const Error& error) {
  bool may_be_a_consequence = error.code() == Code::kPeerLost || error.code() == Code::kTransport;
  bool blames_another = error.rank() != kNobody && error.rank() != rank_;
  if (ring_is_joined_ && may_be_a_consequence && blames_another) {
    Deadline told(kNews);
    while (!health_->poisoned() && !told.passed()) std::this_thread::sleep_for(kNewsLook);
  }
  if (whole_) return whole_->fail(error);
  health_->fail(error);
  return health_->error();
}

// A neighbour in the ring without a lifeline to this rank would find nobody here and blame this
// rank. So this rank stays until both neighbours know why it leaves, or have ended.
void Mesh::tell_neighbours(const Error& error) {
  try {
    std::vector<std::future<void>> attempts;
    for (Rank peer : neighbours()) {
      if (peer == error.rank() || lifelines_->has(peer)) continue;
      auto over = std::make_shared<std::promise<void>>();
      attempts.push_back(over->get_future());
      begin_lifeline(peer, kNoGroup, Connector::Ends::kLower, Deadline(kFarewell),
                     [over](const auto& /*unmade*/) { over->set_value(); });
    }
    for (auto& attempt : attempts) attempt.wait();
  } catch (const std::exception& failure) {  // there may be no memory left
    log_debug("the neighbours cannot be told of an error: {}", failure.what());
  }
}

void Mesh::begin_lifeline(Rank peer, GroupNumber group, Connector::Ends ends, Deadline deadline,
                          LifelineDone done) {
  connector_->begin({peer, kLifelineChannel, group, ends}, deadline,
                    [this, peer, done = std::move(done)](Fd fd, const auto& unmade) {
                      if (unmade) log_debug("no lifeline to {}: {}", peer, unmade->why.what());
                      if (fd) add_lifeline(peer, std::move(fd));
                      done(unmade);
                    });
}

void Mesh::add_lifeline(Rank peer, Fd fd) {
  try {
    lifelines_->add(peer, std::move(fd));
  } catch (const std::exception& error) {  // such as a second lifeline: it is closed
    log_debug("a lifeline of rank {} is not taken: {}", peer, error.what());
  }
}

Mesh::EndOfConnections::~EndOfConnections() {
  if (connector) connector->stop();
}

GroupNumber Mesh::new_group_number() {
  std::lock_guard lock(groups_mutex_);
  return static_cast<GroupNumber>(rank_) << 32 | ++groups_made_;
}

std::span<std::byte> Mesh::memory_for_calls() const {
  return {arena_.data(), static_cast<size_t>(config_.arena_bytes)};
}

std::span<std::byte> Mesh::memory_for_messages() const {
  std::span<std::byte> calls = memory_for_calls();
  return {calls.data() + calls.size(), message_extents_->bytes()};
}

void Mesh::make_arena(const GroupSizes& sizes) {
  size_t whole = static_cast<size_t>(config_.arena_bytes) + sizes.messages.each;
  arena_ = SharedMemory::create(whole + sizes.arena_bytes());
  std::byte* at = arena_.data() + whole;
  auto make = [&](const GroupSizes::Region& region, std::string_view what) {
    std::span<std::byte> memory(std::exchange(at, at + region.bytes()), region.bytes());
    return std::make_unique<Extents>(arena_, memory, region.each, what, *loop_);
  };
  short_extents_ = make(sizes.short_calls, "one more group");
  call_extents_ = make(sizes.calls, "the calls of one more group");
  message_extents_ = make(sizes.messages, "the messages of one more group");
}

// A killed process takes nothing more and does not say so. But a lifeline may break while both ends
// live. Memory that such a peer may write to is reserved until its process has ended.
void Mesh::forget_lost() {
  for (Rank rank : lifelines_->lost())
    if (!topology_->same_host(rank, rank_) || has_ended(topology_->at(rank).pid))
      for (auto& transport : made_) transport->ended(rank);
}

}  // namespace ringcoll

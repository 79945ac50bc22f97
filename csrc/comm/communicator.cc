#include "comm/communicator.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/log.h"

namespace ringcoll {
namespace {

using Json = nlohmann::json;

// Changes when ranks of different builds could not understand each other.
constexpr int kWireVersion = 6;
// A wait that blocks looks up again after this time, in case a wake-up was lost to a race.
constexpr Duration kLongestBlock = std::chrono::milliseconds(50);
// The same while other links have sends queued that only this thread moves.
constexpr Duration kShortestBlock = std::chrono::microseconds(200);
// Polls of the one link that is waited for, before looking at anything else.
constexpr int kPolls = 64;
// Where ranks share CPUs a wait polls so many times longer before it blocks: between two polls the
// others run, and it is woken up late by a CPU that is busy.
constexpr int kMoreYielding = 16;
// How long after a broken link its cause may still arrive on a lifeline.
constexpr Duration kCauseGrace = std::chrono::milliseconds(100);
// How long, and for how many turns of a wait, what a rank sent before it left may be on its way: on
// a busy machine time alone may pass without a look at the link.
constexpr Duration kFarewell = std::chrono::seconds(1);
constexpr int kFarewellTurns = 8;
// How long a rank that waited in vain lets those nearer to the cause report it.
constexpr Duration kBlameGrace = std::chrono::milliseconds(500);

// How long a rank that leaves waits for its last messages to be with those who are still there.
constexpr Duration kLongestDrain = std::chrono::seconds(1);

// A turn of a wait, which blocks for kLongestBlock at most, that took so long: the process did not
// run.
constexpr Duration kSurelyStopped = std::chrono::seconds(1);

std::string to_blob(const Json& json) {
  auto bytes = Json::to_cbor(json);
  return {bytes.begin(), bytes.end()};
}

Json from_blob(const std::string& blob, Rank rank) {
  Json json = Json::from_cbor(blob, true, false);
  check(json.is_object(), Code::kTransport,
        "the introduction of rank {} cannot be read: another program, or another version of "
        "ringcoll, uses the same store",
        rank);
  return json;
}

// What a rank raises, as the others are to raise it.
Json to_json(const Error& error) {
  return {{"code", static_cast<int>(error.code())},
          {"rank", error.rank()},
          {"text", std::string(error.what())}};
}

Error error_of(const Json& json) {
  return {static_cast<Code>(json.at("code").get<int>()), json.at("text"), json.at("rank")};
}

// Before anything else of an introduction is read. Ranks of different releases may cut and order
// their calls in different ways, though they understand one another.
void check_version(const Json& theirs, Rank rank, Rank own) {
  check(
      theirs.at("wire") == kWireVersion && theirs.at("version") == RINGCOLL_VERSION,
      Code::kTransport,
      "rank {} runs ringcoll {} (wire version {}), this rank {} {} (wire version {}): install the "
      "same version on all hosts",
      rank, theirs.at("version").get<std::string>(), theirs.at("wire").get<int>(), own,
      RINGCOLL_VERSION, kWireVersion);
}

Location location_of(const Json& theirs, Rank rank) {
  try {
    return Location::decode(theirs.at("location").get<std::string>());
  } catch (const Error& error) {
    throw error.within(fmt::format("rank {}", rank));
  }
}

Json agreed_values(const Config& c) {
  return {{"algorithm", c.algorithm},         {"arena_bytes", c.arena_bytes},
          {"segment_bytes", c.segment_bytes}, {"slots", c.slots},
          {"inline_bytes", c.inline_bytes},   {"tcp_streams", c.tcp_streams}};
}

void adopt(const Json& values, Config* c) {
  values.at("algorithm").get_to(c->algorithm);
  values.at("arena_bytes").get_to(c->arena_bytes);
  values.at("segment_bytes").get_to(c->segment_bytes);
  values.at("slots").get_to(c->slots);
  values.at("inline_bytes").get_to(c->inline_bytes);
  values.at("tcp_streams").get_to(c->tcp_streams);
}

// Time in which this process did not run (a signal, a debugger, a suspended machine) counts against
// nobody: the peers may have been stopped with it. `seen` is when it last ran, a short wait ago.
void forgive_stop(Clock::time_point* seen, Deadline* deadline) {
  auto now = Clock::now();
  if (now - *seen > kSurelyStopped) deadline->extend(now - *seen);
  *seen = now;
}

bool poll(const std::function<bool()>& ready, int times) {
  for (int i = 0; i < times; i++)
    if (ready()) return true;
  return false;
}

}  // namespace

Communicator::Communicator(Config config, std::string name, Exchange& exchange,
                           const Communicator* whole)
    : config_(std::move(config)),
      name_(std::move(name)),
      rank_(exchange.rank()),
      size_(exchange.size()),
      costs_(whole ? whole->costs() : Costs{}),
      loop_(std::make_unique<EventLoop>("ringcoll")) {
  Deadline deadline(seconds(config_.timeout_s));
  links_.resize(size_);
  agree(exchange, whole, deadline);
  exchange.while_waiting([this] { throw_if_poisoned(); });
  try {
    join_ring();
    make_transports(exchange, whole, deadline);
    settle_costs(exchange);
  } catch (const std::exception& error) {  // std::bad_alloc and what JSON throws, too
    exchange.while_waiting({});
    // The others learn why from this rank, and not that it has left.
    throw fail(as_error(error));
  }
  exchange.while_waiting({});
  if (rank_ == 0) say_hello();
}

// The first thing after ranks know one another: one lifeline in each direction of the ring joins
// all of them, so that an error, and the death of a rank while it sets up, reaches everybody.
void Communicator::join_ring() {
  Deadline deadline(seconds(config_.timeout_s));
  for (Rank peer : neighbours()) add_lifeline(peer, deadline);
}

// In the ring, from the highest on.
std::vector<Rank> Communicator::neighbours() const {
  const auto& order = topology_.ring_order();
  auto at = std::ranges::find(order, rank_) - order.begin();
  std::set<Rank> both = {order[(at + 1) % size_], order[(at + size_ - 1) % size_]};
  both.erase(rank_);
  return {both.rbegin(), both.rend()};
}

Communicator::~Communicator() {
  Deadline sending(seconds(std::min(config_.timeout_s, 5.0))), draining(kLongestDrain);
  try {
    while (!poisoned() && progress_others(nullptr) && !sending.passed()) {
    }
  } catch (const Error& error) {
    log_debug("closing {}: {}", name_, error.what());
  }
  for (Rank peer : connected_) drain(peer, draining);
}

void Communicator::drain(Rank peer, Deadline deadline) {
  Endpoint& link = *links_[peer].endpoint;
  try {
    while (!poisoned() && !lifelines_->gone(peer) && !deadline.passed() && !link.drained())
      link.wait(kShortestBlock);
  } catch (const Error& error) {
    log_debug("closing {}: {}", name_, error.what());
  }
}

// What a rank does on its own between two rounds. Should it fail, it says so to all, so that nobody
// waits for it there, and goes on to the next round with its error, so that nobody waits for it
// here: over a function of the caller that wait has no deadline. Not after one who is gone or
// stopped, and does not come either.
std::optional<Error> Communicator::attempt(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const std::exception& caught) {
    Error error = fail(as_error(caught));
    if (error.code() == Code::kPeerLost || error.code() == Code::kTimeout) throw Error(error);
    return error;
  }
}

// What every rank says, or the failure of one, which all raise.
std::vector<Json> Communicator::round(Exchange& exchange, Json mine,
                                      const std::optional<Error>& failure,
                                      Deadline deadline) const {
  mine["failure"] = failure ? to_json(*failure) : Json();
  auto blobs = exchange.all_gather(to_blob(mine), deadline);
  std::vector<Json> all;
  for (Rank r = 0; r < size_; r++) {
    all.push_back(from_blob(blobs[r], r));
    const Json& failed = all.back().at("failure");
    if (!failed.is_null()) throw error_of(failed);
  }
  return all;
}

// First round: who and where everybody is, rank 0's agreed knobs and secret.
void Communicator::agree(Exchange& exchange, const Communicator* whole, Deadline deadline) {
  bool own_secret = !config_.secret.empty();
  std::string failure, given_costs;
  Location location;
  try {
    location = whole ? whole->topology().at(whole->rank()) : Location::here(config_, rank_);
    if (!whole) given_costs = costs_json(read_costs(config_.costs));
    connector_ = std::make_unique<Connector>(rank_, config_, *loop_);
  } catch (const Error& error) {
    failure = error.what();
  }
  Json mine = {{"wire", kWireVersion},
               {"version", RINGCOLL_VERSION},
               {"location", location.encode()},
               {"offers", connector_ ? connector_->offers() : ""},
               {"failure", failure},
               {"own_secret", own_secret},
               {"costs_file", whole ? "" : config_.costs},
               {"costs", given_costs}};
  if (rank_ == 0) mine["agreed"] = agreed_values(config_);
  if (rank_ == 0 && !own_secret) mine["secret"] = random_secret();
  auto blobs = exchange.all_gather(to_blob(mine), deadline);

  std::vector<Json> introductions;
  for (Rank r = 0; r < size_; r++) {
    introductions.push_back(from_blob(blobs[r], r));
    check_version(introductions.back(), r, rank_);
  }
  const Json& first = introductions[0];
  std::vector<Location> locations;
  std::vector<std::string> offers;
  for (Rank r = 0; r < size_; r++) {
    const Json& theirs = introductions[r];
    locations.push_back(location_of(theirs, r));
    offers.push_back(theirs.at("offers"));
    std::string text = theirs.at("failure");
    if (!text.empty())
      throw Error(Code::kTransport,
                  fmt::format("rank {}: {} [on {}]", r, text, locations[r].host_name), r);
    check(theirs.at("own_secret") == first.at("own_secret"), Code::kInvalidArgument,
          "RINGCOLL_SECRET is set on rank {} but not on rank {}: set it to the same value on all "
          "ranks, or on none",
          own_secret == first.at("own_secret").get<bool>() ? rank_ : 0, r);
  }
  adopt(first.at("agreed"), &config_);
  topology_ = Topology(find_places(std::move(locations)));
  adopt_given_costs(introductions);
  std::string secret = own_secret ? config_.secret : first.at("secret").get<std::string>();
  connector_->set_peers(offers, secret);
  lifelines_ = std::make_unique<Lifelines>(
      rank_, size_, *loop_,
      [this] {
        connector_->interrupt();
        wake_all();
      },
      // A copy, for the loop's thread may ask while the hosts are settled.
      [topology = topology_](Rank rank) { return topology.describe(rank); });

  for (Rank r = 0; r < size_; r++) oversubscribed_ |= topology_.crowded(r);
  yield_ = topology_.crowded(rank_);
  spin_ = std::chrono::microseconds(config_.spin_us) * (yield_ ? kMoreYielding : 1);
}

std::string_view Communicator::transport_of(Rank peer) const {
  return links_[peer].row ? links_[peer].row->name : "self";
}

std::string Communicator::port_of(Rank rank) const { return far_ ? far_->port_of(rank) : ""; }

LinkClass Communicator::link_of(Rank peer) const {
  return links_[peer].row ? links_[peer].row->link : LinkClass::kProcess;
}

void Communicator::connect(std::span<const Rank> peers) {
  Deadline deadline(seconds(config_.timeout_s));
  std::vector<Rank> fresh;
  for (bool higher : {true, false})
    for (Rank peer : peers)
      if (peer != rank_ && (peer > rank_) == higher && !links_[peer].endpoint) {
        connect_one(peer, deadline);
        fresh.push_back(peer);
      }
  for (auto step : {&Endpoint::try_establish, &Endpoint::try_prove})
    for (Rank peer : fresh) set_up(peer, step, deadline);
}

void Communicator::set_up(Rank peer, bool (Endpoint::*step)(Deadline), Deadline deadline) {
  Endpoint& link = endpoint(peer);
  throw_if_poisoned();
  wait(
      peer, link, [&] { return (link.*step)(deadline); },
      [&] { return fmt::format("setting up the link to rank {}", peer); });
}

// `body` may wait for this peer: should it hang, others are told whom this rank waits for. It is
// interrupted when the communicator fails, which is what is raised then.
void Communicator::waiting_for(Rank peer, const std::function<void()>& body) {
  throw_if_poisoned();
  lifelines_->set_waiting_for(peer);
  try {
    body();
  } catch (const Error&) {
    throw_if_poisoned();
    throw;
  }
  lifelines_->set_waiting_for(kNobody);
}

void Communicator::add_lifeline(Rank peer, Deadline deadline) {
  if (lifelines_->has(peer)) return;
  waiting_for(peer,
              [&] { lifelines_->add(peer, connector_->dial(peer, kLifelineChannel, deadline)); });
}

void Communicator::connect_one(Rank peer, Deadline deadline) {
  add_lifeline(peer, deadline);
  std::unique_ptr<Endpoint> endpoint;
  waiting_for(peer, [&] { endpoint = links_[peer].transport->connect(peer, deadline); });
  std::lock_guard lock(links_mutex_);
  links_[peer].endpoint = std::move(endpoint);
  connected_.push_back(peer);
}

bool Communicator::progress_others(const Endpoint* but) {
  bool busy = false;
  for (Rank peer : connected_) {
    Endpoint* link = links_[peer].endpoint.get();
    if (link == but || !link->busy()) continue;
    link->progress();
    busy |= link->busy();
  }
  return busy;
}

void Communicator::flush(const std::function<std::string()>& doing) {
  for (Rank peer : connected_) {
    Endpoint& link = *links_[peer].endpoint;
    if (!link.busy()) continue;
    wait(
        peer, link,
        [&] {
          link.progress();
          return !link.busy();
        },
        doing);
  }
}

// In one wait, since its peer has left.
struct Communicator::Farewell {
  int turns = 0;
  Deadline over{kFarewell};
};

void Communicator::wait_slowly(Rank peer, Endpoint& link, const std::function<bool()>& ready,
                               const std::function<std::string()>& doing) {
  lifelines_->set_waiting_for(peer);
  Deadline deadline(seconds(config_.timeout_s)), spinning(spin_);
  Farewell farewell;
  auto seen = Clock::now();
  bool blocking = false, moved = false;
  while (!poll(ready, blocking || yield_ ? 1 : kPolls)) {
    throw_if_poisoned();
    bool busy = progress_others(&link);
    if (!blocking) {
      if (yield_) ::sched_yield();
      blocking = spinning.passed();
      // Once, for who only polls does not look at the deadline.
      if (blocking && !moved && move_away_from(link)) {
        moved = true;
        spinning = Deadline(spin_);
        blocking = false;
      }
      counters_.blocked_waits += blocking;
      continue;
    }
    throw_if_gone(peer, &farewell);
    forgive_stop(&seen, &deadline);
    if (deadline.passed()) {
      poison(lifelines_->blame(peer, doing(), kBlameGrace));
      throw_if_poisoned();
    }
    link.wait(std::min({deadline.left(), busy ? kShortestBlock : kLongestBlock}));
  }
  lifelines_->set_waiting_for(kNobody);
}

// Two ranks on one CPU keep each other from running. Where ranks have to share CPUs, that is so
// wherever they are.
bool Communicator::move_away_from(const Endpoint& link) {
  if (!config_.spread || yield_ || link.peer_cpu() < 0 || link.peer_cpu() != current_cpu())
    return false;
  std::vector<int> taken;
  for (Rank peer : connected_) taken.push_back(links_[peer].endpoint->peer_cpu());
  bool moved = spreader_.leave(taken);
  counters_.cpu_moves += moved;
  return moved;
}

// A peer that has said goodbye sends nothing more; what it sent before may still be on its way.
void Communicator::throw_if_gone(Rank peer, Farewell* farewell) const {
  if (!lifelines_->gone(peer)) return;
  if (farewell->turns++ == 0) farewell->over = Deadline(kFarewell);
  if (farewell->turns > kFarewellTurns && farewell->over.passed())
    throw Error(Code::kPeerLost,
                fmt::format("{} has left the communicator", topology_.describe(peer)), peer);
}

void Communicator::wake_all() {
  std::lock_guard lock(links_mutex_);
  for (Rank peer : connected_) links_[peer].endpoint->wake();
}

Error Communicator::fail(const Error& error) {
  bool may_be_a_consequence = error.code() == Code::kPeerLost || error.code() == Code::kTransport;
  Deadline grace(may_be_a_consequence ? kCauseGrace : Duration::zero());
  while (!poisoned() && !grace.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  poison(error);
  if (far_) far_->revoke();
  return this->error();
}

}  // namespace ringcoll

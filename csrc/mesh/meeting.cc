// How the ranks of a mesh meet: who and where everybody is, and the knobs that all have to share.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "mesh/mesh.h"
#include "mesh/saying.h"

namespace ringcoll {
namespace {

Location location_of(const Introduction& theirs, Rank rank) {
  try {
    return Location::decode(theirs.location);
  } catch (const Error& error) {
    throw error.within(fmt::format("rank {}", rank));
  }
}

std::vector<Introduction> read_all(const std::vector<std::string>& blobs, Rank own) {
  for (Rank r = 0; r < static_cast<Rank>(blobs.size()); r++)
    Introduction::check_release(blobs[r], r, own);
  std::vector<Introduction> introductions;
  introductions.reserve(blobs.size());
  for (const std::string& blob : blobs) introductions.push_back(Introduction::decode(blob));
  return introductions;
}

void check_introduction(const Introduction& theirs, const Introduction& first, Rank rank,
                        const Location& location) {
  if (!theirs.failure.empty())
    throw Error(Code::kTransport,
                fmt::format("rank {}: {} [on {}]", rank, theirs.failure, location.host_name), rank);
  check_agreed(first.agreed, theirs.agreed, rank, location.host_name);
}

}  // namespace

// What every rank says, or the failure of one, which all raise.
std::vector<std::string> Mesh::round(Exchange& exchange, const std::string& mine,
                                     const std::optional<Error>& failure, Deadline deadline) const {
  auto blobs = exchange.all_gather(with_failure(failure, mine), deadline);
  for (Rank r = 0; r < size_; r++) blobs[r] = without_failure(blobs[r], r);
  return blobs;
}

// Who this rank is and where, and what it fails at, which the others are to hear.
Introduction Mesh::introduce() {
  Introduction mine{.release = own_release(), .agreed = agreed_values(config_)};
  Location location;
  try {
    location = Location::here(config_, rank_);
    mine.costs = costs_json(read_costs(config_.costs));
    connector_ = std::make_unique<Connector>(rank_, config_, *loop_);
    mine.offers = connector_->offers();
  } catch (const Error& error) {
    mine.failure = error.what();
  }
  mine.location = location.encode();
  mine.group_bytes = affordable_group_bytes();
  mine.costs_file = config_.costs;
  if (rank_ == 0 && config_.secret.empty()) mine.secret = random_secret();
  return mine;
}

// First round: who and where everybody is, that the knobs are agreed, and rank 0's secret.
void Mesh::agree(Exchange& exchange, Deadline deadline) {
  auto introductions = read_all(exchange.all_gather(introduce().encode(), deadline), rank_);
  const Introduction& first = introductions[0];
  std::vector<Location> locations;
  std::vector<std::string> offers;
  locations.reserve(introductions.size());
  offers.reserve(introductions.size());
  for (Rank r = 0; r < size_; r++) {
    locations.push_back(location_of(introductions[r], r));
    check_introduction(introductions[r], first, r, locations[r]);
    offers.push_back(std::move(introductions[r].offers));
  }
  group_bytes_ = SIZE_MAX;
  for (const Introduction& theirs : introductions)
    group_bytes_ = std::min(group_bytes_, static_cast<size_t>(theirs.group_bytes));
  topology_ = std::make_shared<const Topology>(find_placements(std::move(locations)));
  adopt_given_costs(introductions);
  connector_->set_peers(offers, config_.secret.empty() ? first.secret : config_.secret);
  watch_health();
  for (Rank r = 0; r < size_; r++) oversubscribed_ |= topology_->crowded(r);
}

void Mesh::watch_health() {
  // The loop's thread may ask while the hosts are settled.
  auto describe = [topology = topology_](Rank rank) { return topology->describe(rank); };
  lifelines_ = std::make_unique<Lifelines>(rank_, size_, *loop_, describe);
  connector_->adopt_lifelines([this](Rank peer, Fd fd) {
    try {
      lifelines_->add(peer, std::move(fd));
    } catch (const std::exception& error) {  // a second one, say: it is closed
      log_debug("a lifeline of rank {} is not taken: {}", peer, error.what());
    }
  });
  std::vector<Rank> all(size_);
  std::iota(all.begin(), all.end(), 0);
  health_ =
      std::make_unique<Health>(*lifelines_, Health::Options{.group = 0,
                                                            .members = std::move(all),
                                                            .on_poison = [this] { wake_whole(); },
                                                            .describe = describe});
}

}  // namespace ringcoll

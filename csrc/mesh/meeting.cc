// How the ranks of a mesh meet: their names and places, and the knobs that all must share.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/machine.h"
#include "connect/networks.h"
#include "mesh/mesh.h"
#include "mesh/saying.h"
#include "net/interfaces.h"

namespace ringcoll {
namespace {

// The pause between two checks whether a link has come up, and how near the deadline the last one
// is.
constexpr Duration kLinkPause = std::chrono::milliseconds(500);
constexpr Duration kLastLook = std::chrono::seconds(3);
constexpr size_t kMostHostsNamed = 8;

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
  if (!theirs.failure.empty()) without_failure(theirs.failure, rank);
  check_agreed(first.agreed, theirs.agreed, rank, location.host_name);
}

Error refusal_of(Rank rank, const Error& error) {
  return {error.code(),
          fmt::format("rank {} cannot start: {} [on {}]", rank, error.what(), host_name()), rank};
}

// The introduction of a rank that cannot start.
Introduction refusal(const Config& config, const Error& told) {
  return {.release = own_release(),
          .failure = with_failure(told, ""),
          .location = Location{}.encode(),
          .agreed = agreed_values(config)};
}

/// No network joins the hosts.
struct MissingNetworks {
  std::vector<Rank> first_of_stacks;
  bool may_come = true;  // on each host without a network, and no deadline is near
};
std::optional<MissingNetworks> missing_networks(const std::vector<std::string>& offers,
                                                const std::vector<Introduction>& introductions) {
  std::vector<std::vector<Offer>> of_rank;
  for (Rank r = 0; r < static_cast<Rank>(offers.size()); r++) {
    try {
      of_rank.push_back(decode_offers(offers[r]));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("rank {}: {}", r, error.what()), r);
    }
  }
  if (!joint_networks(of_rank).empty()) return {};
  MissingNetworks missing{first_of_stacks(of_rank)};
  for (size_t r = 0; r < of_rank.size(); r++) {
    bool has_none = std::ranges::all_of(of_rank[r], &Offer::is_of_stack);
    missing.may_come &= !introductions[r].is_last;
    missing.may_come &= !has_none || introductions[r].more_may_come;
  }
  return missing;
}

std::string no_common_network(const std::vector<Rank>& ranks,
                              const std::vector<std::string>& offers,
                              const std::vector<Location>& locations) {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMostHostsNamed); i++)
    text += fmt::format("{}rank {} on {} has {}", i == 0 ? "" : "; ", ranks[i],
                        locations[ranks[i]].host_name,
                        describe_offers(decode_offers(offers[ranks[i]])));
  if (ranks.size() > kMostHostsNamed)
    text += fmt::format("; and {} more", ranks.size() - kMostHostsNamed);
  return fmt::format(
      "no network joins the hosts: {}. Loopback joins no two hosts, nor containers that have "
      "networks of their own: bring up an interface with an address on each of them, and if "
      "RINGCOLL_INTERFACE is set, let it name these interfaces.",
      text);
}

}  // namespace

// Returns what every rank says. Throws the failure of a rank, if any, on all ranks.
std::vector<std::string> Mesh::round(Exchange& exchange, const std::string& mine,
                                     const std::optional<Error>& failure, Deadline deadline) const {
  auto blobs = exchange.all_gather(with_failure(failure, mine), deadline);
  for (Rank r = 0; r < size_; r++) blobs[r] = without_failure(blobs[r], r);
  return blobs;
}

// Tells the name and place of this rank.
Introduction Mesh::introduce() {
  if (!loop_) loop_ = std::make_unique<EventLoop>("ringcoll");
  Introduction mine{.release = own_release(), .agreed = agreed_values(config_)};
  mine.location = Location::here(config_, rank_).encode();
  mine.costs = costs_json(read_costs(config_.costs));
  connector_ = std::make_unique<Connector>(rank_, config_, *loop_);
  mine.offers = connector_->offers();
  mine.more_may_come = look_at_links().more_may_come;
  mine.group_bytes = affordable_group_bytes();
  mine.costs_file = config_.costs;
  if (rank_ == 0 && config_.secret.empty()) mine.secret = random_secret();
  return mine;
}

// Tells the others at once if the exchange can. Otherwise all must come to a round in which this
// rank says it.
Error Mesh::refuse(Exchange& exchange, const Config& config, const Error& error) {
  Rank rank = exchange.rank();
  if (exchange.size() == 1) return error;
  Error told(error.code(),
             fmt::format("rank {} cannot start: {} [on {}]", rank, error.what(), host_name()),
             rank);
  log_warning("{}", told.what());
  try {
    double patience_s = std::min(config.timeout_s, kTellingSeconds);
    if (exchange.refuse(told, Deadline(seconds(patience_s)))) return told;
    exchange.all_gather(refusal(config, told).encode(), Deadline(seconds(config.timeout_s)));
  } catch (const std::exception& failure) {
    log_debug("other ranks could not be told why this rank does not start: {}", failure.what());
  }
  return told;
}

/// The results of the first round, by rank.
struct Mesh::Met {
  std::vector<Introduction> introductions;
  std::vector<Location> locations;
  std::vector<std::string> offers;

  Met(const std::vector<std::string>& blobs, Rank own) : introductions(read_all(blobs, own)) {
    for (Rank r = 0; r < static_cast<Rank>(introductions.size()); r++) {
      locations.push_back(location_of(introductions[r], r));
      check_introduction(introductions[r], introductions[0], r, locations[r]);
      offers.push_back(introductions[r].offers);
    }
  }
};

// First round: the ranks' names and places, a check of the agreed knobs, and rank 0's secret. The
// round is repeated if hosts have no network in common but a card that may join them: its link may
// be about to come up.
void Mesh::agree(Exchange& exchange, Introduction mine, Deadline deadline) {
  std::optional<Met> met;
  for (;;) {
    mine.is_last = deadline.left() < kLastLook;
    met.emplace(exchange.all_gather(mine.encode(), deadline), rank_);
    auto missing = missing_networks(met->offers, met->introductions);
    if (!missing) break;
    std::string text = no_common_network(missing->first_of_stacks, met->offers, met->locations);
    check(missing->may_come, Code::kTransport, "{}", text);
    if (rank_ == 0) log_warning("{} The ranks try again until the deadline", text);
    std::this_thread::sleep_for(kLinkPause);
    mine = introduce_again();
  }
  const Introduction& first = met->introductions[0];
  group_bytes_ = SIZE_MAX;
  for (const Introduction& theirs : met->introductions)
    group_bytes_ = std::min(group_bytes_, static_cast<size_t>(theirs.group_bytes));
  topology_ = std::make_shared<const Topology>(find_placements(std::move(met->locations)));
  adopt_given_costs(met->introductions);
  connector_->set_peers(met->offers, config_.secret.empty() ? first.secret : config_.secret);
  watch_health();
}

// Never throws: the others wait for this rank in the round.
Introduction Mesh::introduce_again() {
  try {
    connector_.reset();
    return introduce();
  } catch (const std::exception& caught) {
    return refusal(config_, refusal_of(rank_, as_error(caught)));
  }
}

void Mesh::watch_health() {
  // The loop's thread may call it while the hosts are settled, so it keeps its own topology.
  auto describe = [topology = topology_](Rank rank) { return topology->describe(rank); };
  lifelines_ = std::make_unique<Lifelines>(rank_, size_, *loop_, describe);
  connector_->adopt_lifelines([this](Rank peer, Fd fd) { add_lifeline(peer, std::move(fd)); });
  std::vector<Rank> all(size_);
  std::iota(all.begin(), all.end(), 0);
  health_ =
      std::make_unique<Health>(*lifelines_, Health::Options{.group = 0,
                                                            .members = std::move(all),
                                                            .on_poison = [this] { wake_whole(); },
                                                            .describe = describe});
}

}  // namespace ringcoll

// How the ranks of a mesh meet: who and where everybody is, and the knobs that all have to share.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "mesh/mesh.h"

namespace ringcoll {
namespace {

using Json = nlohmann::json;

// Changes when ranks of different builds could not understand each other.
constexpr int kWireVersion = 7;

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

}  // namespace

// What every rank says, or the failure of one, which all raise.
std::vector<Json> Mesh::round(Exchange& exchange, Json mine, const std::optional<Error>& failure,
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
void Mesh::agree(Exchange& exchange, Deadline deadline) {
  bool own_secret = !config_.secret.empty();
  std::string failure, given_costs;
  Location location;
  try {
    location = Location::here(config_, rank_);
    given_costs = costs_json(read_costs(config_.costs));
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
               {"extent_bytes", affordable_extent()},
               {"costs_file", config_.costs},
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
  extent_bytes_ = static_cast<size_t>(config_.arena_bytes);
  for (const Json& theirs : introductions)
    extent_bytes_ = std::min(extent_bytes_, theirs.at("extent_bytes").get<size_t>());
  topology_ = Topology(find_places(std::move(locations)));
  adopt_given_costs(introductions);
  std::string secret = own_secret ? config_.secret : first.at("secret").get<std::string>();
  connector_->set_peers(offers, secret);
  // Copies, for the loop's thread may ask while the hosts are settled.
  auto describe = [topology = topology_](Rank rank) { return topology.describe(rank); };
  lifelines_ = std::make_unique<Lifelines>(rank_, size_, *loop_, describe);
  std::vector<Rank> all(size_);
  std::iota(all.begin(), all.end(), 0);
  health_ =
      std::make_unique<Health>(*lifelines_, Health::Options{.group = 0,
                                                            .members = std::move(all),
                                                            .on_poison = [this] { wake_whole(); },
                                                            .describe = describe});

  for (Rank r = 0; r < size_; r++) oversubscribed_ |= topology_.crowded(r);
}

}  // namespace ringcoll

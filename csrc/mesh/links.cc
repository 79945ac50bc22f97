// How a mesh comes by its transports, and every pair of ranks by its link.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "mesh/mesh.h"
#include "topology/numa.h"

namespace ringcoll {
namespace {

using Json = nlohmann::json;

// No bit set, and a printable character.
constexpr char kNothing = '@';

char bit_of(const TransportRow& row) {
  return static_cast<char>(1 << (&row - transports().data()));
}

// The bits of all transports with links of this class.
int bits_of(LinkClass link) {
  int mask = 0;
  for (const TransportRow& row : transports())
    if (row.link == link) mask |= bit_of(row);
  return mask;
}

// The first transport, in order of preference, whose bit is set.
const TransportRow* common_row(int mask) {
  for (size_t i = 0; i < transports().size(); i++)
    if (mask & bit_of(transports()[i])) return &transports()[i];
  return nullptr;
}

}  // namespace

// Machines, and not hosts: containers share the ports that they have in common.
Seats Mesh::seats() const {
  std::map<std::string_view, int> machines;
  Seats seats{.order = topology_.ring_order(),
              .node_distances = numa_distances(topology_.at(rank_).numa_node)};
  for (Rank r = 0; r < size_; r++)
    seats.machine_of.push_back(
        machines.try_emplace(topology_.at(r).machine, static_cast<int>(machines.size()))
            .first->second);
  return seats;
}

// Second round: the arena, the addresses of every transport that works here, and what was found out
// about the networks.
void Mesh::make_transports(Exchange& exchange, Deadline deadline) {
  // A peer that does not answer is named before the round ends, which would name others too.
  std::string networks = connector_->try_networks(Deadline(deadline.left() * 3 / 4));
  std::optional<Error> failure;
  std::vector<const TransportRow*> rows;
  Json addresses = Json::object();
  try {
    make_arena();
    TransportOptions options{
        rank_,       size_,    config_, arena_,
        *connector_, deadline, seats(), static_cast<size_t>(config_.arena_bytes)};
    bool named = config_.transport != "auto";
    check(!named || find_transport(config_.transport), Code::kInvalidArgument,
          "RINGCOLL_TRANSPORT={}: this build has no such transport", config_.transport);
    for (const TransportRow& row : transports()) {
      if (named ? row.name != config_.transport : !row.automatic) continue;
      Probe probe = row.probe(config_);
      check(probe.usable || !named, Code::kTransport, "RINGCOLL_TRANSPORT={} cannot be used: {}",
            row.name, probe.detail);
      if (!probe.usable || !make_transport(row, options, named)) continue;
      rows.push_back(&row);
      addresses[std::string(row.name)] = made_.back()->address();
    }
    check(!rows.empty(), Code::kTransport, "no transport works here; `ringcoll doctor` says why");
  } catch (const Error& error) {
    failure = Error(Code::kTransport, fmt::format("rank {}: {}", rank_, error.what()), rank_);
  }
  auto introductions =
      round(exchange, {{"addresses", addresses}, {"networks", networks}}, failure, deadline);
  settle_networks(introductions);
  choose_links(exchange, introductions, rows, deadline);
}

void Mesh::settle_networks(const std::vector<Json>& introductions) {
  std::vector<std::string> findings;
  for (const Json& theirs : introductions) findings.push_back(theirs.at("networks"));
  connector_->settle_networks(findings, [this](Rank r) { return topology_.describe(r); });
}

// A transport that was not asked for by name and fails here (memory that may not be locked, say) is
// not used; that is said.
bool Mesh::make_transport(const TransportRow& row, const TransportOptions& options, bool named) {
  try {
    made_.push_back(row.make(options));
    return true;
  } catch (const Error& error) {
    if (named) throw;
    log_warning("{} is not used: {}", row.name, error.what());
    return false;
  }
}

// Third round: what every rank reaches, as one character a peer (a bit for each row of the
// registry). Every rank then derives the link of every pair by the same rule: within a host the
// first transport by which both reach each other; of the networks one for all, the first that joins
// every pair that has no nearer link, so that a mixed cluster runs at one pace.
void Mesh::choose_links(Exchange& exchange, const std::vector<Json>& introductions,
                        const std::vector<const TransportRow*>& rows, Deadline deadline) {
  Json answer = Json::object();
  auto failure = attempt([&] { answer = look_around(introductions, rows); });
  assign_links(round(exchange, std::move(answer), failure, deadline), rows);
}

// Reasons go with it for ranks of this host, where they may decide what is a host, and for the
// first of the others that nothing reaches, which is in the pair that is reported: reasons for all
// would be more than a store takes from some thousand ranks.
Json Mesh::look_around(const std::vector<Json>& introductions,
                       const std::vector<const TransportRow*>& rows) {
  std::string reached(size_, kNothing);
  Json why = Json::object();
  bool all_reached = true;
  for (const TransportRow* row : rows) reached[rank_] |= bit_of(*row);  // what is offered here
  for (Rank r = 0; r < size_; r++) {
    if (r == rank_) continue;
    const Json& addresses = introductions[r].at("addresses");
    std::string reasons;
    for (size_t i = 0; i < rows.size(); i++) {
      std::string name(rows[i]->name), reason = "not offered there";
      if (rows[i]->link == LinkClass::kHost && !topology_.same_host(r, rank_))
        reason = "other host";
      else if (addresses.contains(name))
        reason = made_[i]->reach(r, addresses.at(name).get<std::string>());
      if (reason.empty())
        reached[r] |= bit_of(*rows[i]);
      else
        reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name, reason);
    }
    bool first = reached[r] == kNothing && std::exchange(all_reached, false);
    if (!reasons.empty() && (first || topology_.same_host(r, rank_)))
      why[std::to_string(r)] = reasons;
  }
  return {{"reached", reached}, {"why", why}};
}

// `answers`: the masks of all ranks, and their reasons. Equal on all ranks, but for the endpoints.
void Mesh::assign_links(const std::vector<Json>& answers,
                        const std::vector<const TransportRow*>& rows) {
  std::vector<std::string> masks;
  for (const Json& answer : answers) masks.push_back(answer.at("reached"));
  settle_hosts(masks, answers);
  bool one_domain = topology_.hosts() <= 1;
  auto common = [&](Rank a, Rank b) {
    int within = topology_.same_host(a, b) ? ~0 : ~bits_of(LinkClass::kHost);
    return masks.at(a).at(b) & masks.at(b).at(a) & within;
  };
  int networks = ~0;
  for_each_pair([&](Rank a, Rank b) {
    const TransportRow* row = common_row(common(a, b));
    if (row && row->link == LinkClass::kNetwork) networks &= common(a, b);
  });
  for_each_pair([&](Rank a, Rank b) {
    const TransportRow* row = common_row(common(a, b));
    if (row && row->link == LinkClass::kNetwork) row = common_row(networks);
    if (!row) throw no_link(a, b, answers);
    one_domain &= row->link != LinkClass::kNetwork;
    if (a != rank_ && b != rank_) return;
    auto mine = std::ranges::find(rows, row) - rows.begin();
    links_[a == rank_ ? b : a] = {row, made_[mine].get()};
    if (row->link == LinkClass::kNetwork) far_ = made_[mine].get();
  });
  make_whole(one_domain);
}

// Ranks that were supposed to be of one host but cannot map one another's memory are of several.
// Where nobody offers shared memory (RINGCOLL_TRANSPORT=tcp, say) nothing is known against it.
void Mesh::settle_hosts(const std::vector<std::string>& masks, const std::vector<Json>& answers) {
  const int near = bits_of(LinkClass::kHost);
  bool offered = false;
  for (Rank r = 0; r < size_; r++) offered |= (masks.at(r).at(r) & near) != 0;
  if (!offered) return;
  std::vector<Location> locations;
  for (Rank r = 0; r < size_; r++) locations.push_back(topology_.at(r));
  topology_ = Topology(separate_hosts(locations, [&](Rank a, Rank b) {
    bool maps = (masks.at(a).at(b) & masks.at(b).at(a) & near) != 0;
    if (!maps && locations[a].host_given)
      throw Error(Code::kInvalidArgument,
                  fmt::format("RINGCOLL_HOSTID={} is set on {} and on {}, but they cannot map one "
                              "another's memory: give them different ids, or none. {}",
                              locations[a].host_id, topology_.describe(a), topology_.describe(b),
                              reasons(a, b, answers)));
    return maps;
  }));
}

void Mesh::for_each_pair(const std::function<void(Rank, Rank)>& visit) const {
  for (Rank a = 0; a < size_; a++)
    for (Rank b = a + 1; b < size_; b++) visit(a, b);
}

// Why links of two ranks are missing, in the words of both.
std::string Mesh::reasons(Rank a, Rank b, const std::vector<Json>& answers) {
  auto seen = [&](Rank from, Rank to) {
    return answers[from].at("why").value(std::to_string(to), "it is reached");
  };
  return fmt::format("Seen from rank {}: {}. Seen from rank {}: {}", a, seen(a, b), b, seen(b, a));
}

Error Mesh::no_link(Rank a, Rank b, const std::vector<Json>& answers) const {
  return Error(Code::kTransport,
               fmt::format("no transport joins {} and {}. {}", topology_.describe(a),
                           topology_.describe(b), reasons(a, b, answers)));
}

}  // namespace ringcoll

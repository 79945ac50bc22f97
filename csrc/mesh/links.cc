// How a mesh gets its transports, and each pair of ranks its link.
#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "mesh/mesh.h"
#include "mesh/saying.h"
#include "topology/numa.h"

namespace ringcoll {

// Machines, not hosts: containers on one machine share its ports.
Seats Mesh::seats() const {
  std::map<std::string_view, int> machines;
  Seats seats{.order = topology_->ring_order(),
              .node_distances = numa_distances(topology_->at(rank_).numa_node)};
  for (Rank r = 0; r < size_; r++)
    seats.machine_of.push_back(
        machines.try_emplace(topology_->at(r).machine, static_cast<int>(machines.size()))
            .first->second);
  return seats;
}

// Second round: makes the arena, and tells the addresses of every transport that works here and the
// findings about the networks.
void Mesh::make_transports(Exchange& exchange, Deadline deadline) {
  // A peer that does not answer is named before the round ends; the round could name other ranks.
  // The division comes first, since an endless deadline of a century would overflow when
  // multiplied.
  std::string networks = connector_->try_networks(Deadline(deadline.left() / 4 * 3));
  std::optional<Error> failure;
  std::vector<const TransportRow*> rows;
  Addresses mine{.networks = std::move(networks)};
  try {
    Seats where = seats();
    auto machine = static_cast<size_t>(
        std::ranges::count(where.machine_of, where.machine_of[static_cast<size_t>(rank_)]));
    GroupSizes sizes =
        sizes_of_groups(group_bytes_, static_cast<size_t>(config_.arena_bytes), machine);
    make_arena(sizes);
    TransportOptions options{rank_,
                             size_,
                             config_,
                             arena_,
                             deadline,
                             std::move(where),
                             memory_for_calls().size(),
                             sizes.part_bytes};
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
      mine.of_transport[std::string(row.name)] = made_.back()->address();
    }
    check(!rows.empty(), Code::kTransport, "no transport works here; `ringcoll doctor` says why");
  } catch (const Error& error) {
    failure = Error(Code::kTransport, fmt::format("rank {}: {}", rank_, error.what()), rank_);
  }
  std::vector<Addresses> addresses;
  for (const std::string& theirs : round(exchange, mine.encode(), failure, deadline))
    addresses.push_back(Addresses::decode(theirs));
  settle_networks(addresses);
  choose_links(exchange, addresses, rows, deadline);
}

void Mesh::settle_networks(const std::vector<Addresses>& addresses) {
  std::vector<std::string> findings;
  for (const Addresses& theirs : addresses) findings.push_back(theirs.networks);
  connector_->settle_networks(findings, [this](Rank r) { return topology_->describe(r); });
}

// A transport that the user did not name and that fails here (locked memory may be refused) is left
// out with a warning.
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

// Third round: what every rank reaches. All ranks then derive the link of each pair by the same
// rule. Within a host it is the first transport by which both reach each other. Between hosts one
// network serves all: the first that joins every pair without a nearer link, so that a mixed
// cluster runs at one pace.
void Mesh::choose_links(Exchange& exchange, const std::vector<Addresses>& addresses,
                        const std::vector<const TransportRow*>& rows, Deadline deadline) {
  Answer mine;
  auto failure = attempt([&] { mine = look_around(addresses, rows); });
  std::vector<Answer> answers;
  for (const std::string& theirs : round(exchange, mine.encode(), failure, deadline))
    answers.push_back(Answer::decode(theirs, size_));
  assign_links(std::move(answers), rows);
}

// Sends reasons for ranks of this host, where they may decide what a host is. Of other hosts it
// sends those of the first rank that nothing reaches, which is in the pair that is reported.
// Reasons for all would be too much for a store with some thousand ranks.
Answer Mesh::look_around(const std::vector<Addresses>& addresses,
                         const std::vector<const TransportRow*>& rows) {
  TransportBits offered = 0;
  for (const TransportRow* row : rows) offered |= bit_of(*row);
  std::vector<TransportBits> reached(size_);
  Answer answer;
  bool all_reached = true;
  for (Rank r = 0; r < size_; r++) {
    if (r == rank_) continue;
    std::string reasons;
    reached[r] = reach_one(r, addresses[r], rows, &reasons);
    bool first = reached[r] == 0 && std::exchange(all_reached, false);
    if (!reasons.empty() && (first || topology_->same_host(r, rank_))) answer.why[r] = reasons;
  }
  const std::vector<Rank>& order = topology_->ring_order();
  std::vector<TransportBits> by_position;
  for (Rank rank : order) by_position.push_back(reached[rank]);
  answer.reached = Reached::of(
      offered, by_position, static_cast<size_t>(std::ranges::find(order, rank_) - order.begin()));
  return answer;
}

TransportBits Mesh::reach_one(Rank peer, const Addresses& theirs,
                              const std::vector<const TransportRow*>& rows, std::string* reasons) {
  TransportBits reached = 0;
  for (size_t i = 0; i < rows.size(); i++) {
    std::string reason = "the peer does not offer it";
    auto address = theirs.of_transport.find(rows[i]->name);
    if (rows[i]->link == LinkClass::kHost && !topology_->same_host(peer, rank_))
      reason = "the peer is on another host";
    else if (address != theirs.of_transport.end())
      reason = made_[i]->reach(peer, address->second);
    if (reason.empty())
      reached |= bit_of(*rows[i]);
    else
      *reasons += fmt::format("{}{}: {}", reasons->empty() ? "" : "; ", rows[i]->name, reason);
  }
  return reached;
}

// `answers`: what all ranks reach, and their reasons. The result is equal on all ranks, except for
// the endpoints.
void Mesh::assign_links(std::vector<Answer> answers, const std::vector<const TransportRow*>& rows) {
  std::vector<Reached> said;
  for (Answer& answer : answers) said.push_back(std::move(answer.reached));
  Reach reach(std::move(said), topology_->ring_order());
  settle_hosts(reach, answers);
  Reach::Links links = reach.links(*topology_);
  if (links.missing) throw no_link(links.missing->first, links.missing->second, answers);
  for (Rank peer = 0; peer < size_; peer++) {
    if (peer == rank_) continue;
    const TransportRow* row = Reach::row_of(reach.common(*topology_, rank_, peer), links.networks);
    auto mine = std::ranges::find(rows, row) - rows.begin();
    links_[peer] = {row, made_[mine].get()};
    if (row->link == LinkClass::kNetwork) far_.insert(made_[mine].get());
  }
  log_debug("rank {}: {} pairs of ranks were looked at one by one", rank_, reach.pairs_visited());
  make_whole(topology_->hosts() <= 1 && !links.needs_network);
}

// Ranks that were thought to share a host but cannot map one another's memory are put on different
// hosts. If no rank offers shared memory (RINGCOLL_TRANSPORT=tcp), they stay on one host.
void Mesh::settle_hosts(const Reach& reach, const std::vector<Answer>& answers) {
  const TransportBits near = bits_of(LinkClass::kHost);
  if (!reach.offered(near) || reach.hosts_share(*topology_, near)) return;
  std::vector<Location> locations;
  for (Rank r = 0; r < size_; r++) locations.push_back(topology_->at(r));
  topology_ = std::make_shared<const Topology>(separate_hosts(locations, [&](Rank a, Rank b) {
    bool maps = (reach.both(a, b) & near) != 0;
    if (!maps && locations[a].host_given)
      throw Error(Code::kInvalidArgument,
                  fmt::format("RINGCOLL_HOSTID={} is set on {} and on {}, but they cannot map one "
                              "another's memory: give them different ids, or none. {}",
                              locations[a].host_id, topology_->describe(a), topology_->describe(b),
                              reasons(a, b, answers)));
    return maps;
  }));
}

std::string Mesh::port_of(Rank rank) const {
  for (Transport* transport : far_)
    if (std::string port = transport->port_of(rank); !port.empty()) return port;
  return "";
}

// Why two ranks have no link, as both see it.
std::string Mesh::reasons(Rank a, Rank b, const std::vector<Answer>& answers) {
  auto seen = [&](Rank from, Rank to) -> std::string {
    auto why = answers[from].why.find(to);
    return why == answers[from].why.end() ? "this rank reaches the other" : why->second;
  };
  return fmt::format("Seen from rank {}: {}. Seen from rank {}: {}", a, seen(a, b), b, seen(b, a));
}

Error Mesh::no_link(Rank a, Rank b, const std::vector<Answer>& answers) const {
  return Error(Code::kTransport,
               fmt::format("no transport joins {} and {}. {}", topology_->describe(a),
                           topology_->describe(b), reasons(a, b, answers)));
}

}  // namespace ringcoll

#include "mesh/reach.h"

#include <algorithm>

#include "base/error.h"
#include "net/wire.h"

namespace ringcoll {
namespace {

constexpr const char* kReach = "what a rank reaches";

}  // namespace

TransportBits bit_of(const TransportRow& row) {
  return TransportBits{1} << (&row - transports().data());
}

TransportBits bits_of(LinkClass link) {
  TransportBits bits = 0;
  for (const TransportRow& row : transports())
    if (row.link == link) bits |= bit_of(row);
  return bits;
}

const TransportRow* first_row(TransportBits bits) {
  for (const TransportRow& row : transports())
    if (bits & bit_of(row)) return &row;
  return nullptr;
}

Reached Reached::of(TransportBits offered, const std::vector<TransportBits>& bits, size_t own) {
  Reached reached{.offered = offered};
  Rank unsaid = 0;  // 1: the rank itself is first, not yet in a stretch
  for (size_t position = 0; position < bits.size(); position++) {
    bool again = !reached.stretches.empty() &&
                 (position == own || reached.stretches.back().bits == bits[position]);
    if (again)
      reached.stretches.back().ranks++;
    else if (position == own)
      unsaid = 1;
    else
      reached.stretches.push_back({1 + std::exchange(unsaid, 0), bits[position]});
  }
  if (unsaid) reached.stretches.push_back({unsaid, 0});  // the rank is alone
  return reached;
}

std::string Reached::encode() const {
  WireWriter writer;
  writer.put(offered);
  writer.put(static_cast<uint32_t>(stretches.size()));
  for (const Stretch& stretch : stretches) {
    writer.put(stretch.ranks);
    writer.put(stretch.bits);
  }
  return writer.take();
}

Reached Reached::decode(std::string_view text, Rank size) {
  WireReader reader(text, kReach);
  Reached reached{.offered = reader.get<TransportBits>()};
  auto stretches = reader.get<uint32_t>();
  check(stretches <= static_cast<uint32_t>(size), Code::kTransport, "{}: {} stretches of {} ranks",
        kReach, stretches, size);
  int64_t ranks = 0;
  for (uint32_t i = 0; i < stretches; i++) {
    Stretch stretch{.ranks = reader.get<Rank>()};
    stretch.bits = reader.get<TransportBits>();
    check(stretch.ranks > 0, Code::kTransport, "{}: a stretch of {} ranks", kReach, stretch.ranks);
    ranks += stretch.ranks;
    reached.stretches.push_back(stretch);
  }
  reader.finish();
  check(ranks == size, Code::kTransport, "{}: {} ranks instead of {}", kReach, ranks, size);
  return reached;
}

Reach::Reach(std::vector<Reached> said, const std::vector<Rank>& order)
    : rows_(said.size()), order_(order), position_(said.size()) {
  for (size_t position = 0; position < order_.size(); position++)
    position_[order_[position]] = position;
  for (size_t rank = 0; rank < said.size(); rank++) {
    Row& row = rows_[rank];
    row.offered = said[rank].offered;
    size_t end = 0;
    for (const Reached::Stretch& stretch : said[rank].stretches) {
      row.ends.push_back(end += static_cast<size_t>(stretch.ranks));
      row.bits.push_back(stretch.bits);
    }
  }
}

TransportBits Reach::said(Rank from, Rank to) const {
  const Row& row = rows_[from];
  if (from == to) return row.offered;
  auto stretch = std::ranges::upper_bound(row.ends, position_[to]);
  return row.bits[stretch - row.ends.begin()];
}

bool Reach::offered(TransportBits bits) const {
  return std::ranges::any_of(rows_, [&](const Row& row) { return (row.offered & bits) != 0; });
}

// If all entries have the same first transport, every pair has it: what both ranks of a pair reach
// lies between `all` and `some`.
bool Reach::Seen::is_decided() const { return first_row(all) && first_row(all) == first_row(some); }

void Reach::see(Rank from, Positions positions, Seen* seen) const {
  const Row& row = rows_[from];
  size_t begin = 0;
  for (size_t stretch = 0; stretch < row.ends.size() && begin < positions.end; stretch++) {
    if (std::max(begin, positions.first) < std::min(row.ends[stretch], positions.end)) {
      seen->all &= row.bits[stretch];
      seen->some |= row.bits[stretch];
    }
    begin = row.ends[stretch];
  }
}

// Returns none if the ranks of some host are not neighbours in the order, because an assumed host
// was separated.
std::optional<std::vector<Reach::Positions>> Reach::positions_of_hosts(
    const Topology& topology) const {
  std::vector<Positions> hosts;
  for (size_t position = 0; position < order_.size(); position++) {
    bool same = position > 0 && topology.same_host(order_[position - 1], order_[position]);
    if (same)
      hosts.back().end++;
    else
      hosts.push_back({position, position + 1});
  }
  if (static_cast<int>(hosts.size()) != topology.hosts()) return {};
  return hosts;
}

Reach::Seen Reach::within(Positions host) const {
  Seen seen;
  for (size_t position = host.first; position < host.end; position++) {
    see(order_[position], {host.first, position}, &seen);
    see(order_[position], {position + 1, host.end}, &seen);
  }
  return seen;
}

Reach::Seen Reach::beyond(const std::vector<Positions>& hosts) const {
  Seen seen;
  for (const Positions& host : hosts)
    for (size_t position = host.first; position < host.end; position++) {
      see(order_[position], {0, host.first}, &seen);
      see(order_[position], {host.end, order_.size()}, &seen);
    }
  return seen;
}

template <typename Visit>
void Reach::for_each_pair(Visit&& visit) const {
  auto size = static_cast<Rank>(rows_.size());
  pairs_visited_ += static_cast<uint64_t>(size) * static_cast<uint64_t>(size - 1) / 2;
  for (Rank a = 0; a < size; a++)
    for (Rank b = a + 1; b < size; b++) visit(a, b);
}

bool Reach::hosts_share(const Topology& topology, TransportBits bits) const {
  auto hosts = positions_of_hosts(topology);
  if (hosts)
    return std::ranges::all_of(*hosts, [&](const Positions& host) {
      return host.end - host.first == 1 || (within(host).all & bits) != 0;
    });
  bool share = true;
  for_each_pair(
      [&](Rank a, Rank b) { share &= !topology.same_host(a, b) || (both(a, b) & bits) != 0; });
  return share;
}

TransportBits Reach::common(const Topology& topology, Rank a, Rank b) const {
  return both(a, b) & (topology.same_host(a, b) ? ~TransportBits{0} : ~bits_of(LinkClass::kHost));
}

const TransportRow* Reach::row_of(TransportBits common, TransportBits networks) {
  const TransportRow* row = first_row(common);
  return row && row->link == LinkClass::kNetwork ? first_row(networks) : row;
}

Reach::Links Reach::links(const Topology& topology) const {
  auto found = links_by_hosts(topology);
  return found ? *found : links_by_pairs(topology);
}

// Returns none if each pair must be looked at, which a thousand ranks would do half a million times
// each.
std::optional<Reach::Links> Reach::links_by_hosts(const Topology& topology) const {
  auto hosts = positions_of_hosts(topology);
  if (!hosts) return {};
  Links links;
  for (const Positions& host : *hosts)
    if (host.end - host.first > 1 && !look_within(host, &links)) return {};
  if (hosts->size() > 1) {
    Seen seen = beyond(*hosts);
    seen.all &= ~bits_of(LinkClass::kHost);
    seen.some &= ~bits_of(LinkClass::kHost);
    // If only networks are left, it does not matter which one each pair would prefer.
    bool networks_alone = (seen.some & ~bits_of(LinkClass::kNetwork)) == 0;
    if (seen.all == 0 || !(networks_alone || seen.is_decided())) return {};
    if (first_row(seen.all)->link == LinkClass::kNetwork) {
      links.networks &= seen.all;
      links.needs_network = true;
    }
  }
  if (links.needs_network && links.networks == 0) return {};
  return links;
}

// Returns false if each pair must be looked at.
bool Reach::look_within(Positions host, Links* links) const {
  Seen seen = within(host);
  if (!seen.is_decided()) return false;
  if (first_row(seen.all)->link != LinkClass::kNetwork) return true;
  links->networks &= seen.all;
  links->needs_network = true;
  return true;
}

Reach::Links Reach::links_by_pairs(const Topology& topology) const {
  Links links;
  for_each_pair([&](Rank a, Rank b) {
    TransportBits bits = common(topology, a, b);
    const TransportRow* row = first_row(bits);
    if (!row || row->link != LinkClass::kNetwork) return;
    links.networks &= bits;
    links.needs_network = true;
  });
  for_each_pair([&](Rank a, Rank b) {
    if (!links.missing && !row_of(common(topology, a, b), links.networks)) links.missing = {a, b};
  });
  return links;
}

}  // namespace ringcoll

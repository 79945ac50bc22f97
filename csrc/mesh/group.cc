#include "mesh/group.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace ringcoll {
namespace {

std::vector<Rank> all_ranks(Rank size) {
  std::vector<Rank> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

uint8_t row_and_one(const TransportRow& row) {
  return static_cast<uint8_t>(&row - transports().data() + 1);
}

Topology restricted(const Topology& whole, const std::vector<Rank>& members) {
  std::vector<Location> locations;
  for (Rank rank : members) locations.push_back(whole.at(rank));
  return Topology(std::move(locations));
}

}  // namespace

/// Dials members, on channels that no other group has.
class Group::GroupDialer final : public Dialer {
 public:
  explicit GroupDialer(const Group& group) : group_(group) {}
  Fd dial(Rank peer, uint32_t channel, Deadline deadline) override {
    return group_.mesh_.connector().dial(group_.members_.at(peer), channel, deadline,
                                         group_.own_->number);
  }

 private:
  const Group& group_;
};

Group::Group(Mesh& mesh, Health& health, bool one_domain)
    : mesh_(mesh),
      members_(all_ranks(mesh.size())),
      rank_(mesh.rank()),
      health_(&health),
      one_domain_(one_domain),
      extent_(mesh.arena().data(), static_cast<size_t>(mesh.config().arena_bytes)) {
  find_links();
  channels_ = std::make_unique<Channels>(*this);
}

Group::Group(std::shared_ptr<Mesh> mesh, std::vector<Rank> members)
    : mesh_(*mesh),
      members_(std::move(members)),
      rank_(static_cast<Rank>(std::ranges::find(members_, mesh_.rank()) - members_.begin())),
      own_(std::make_unique<Own>()) {
  invariant(rank_ < size(), "rank {} is not of the group that it makes", mesh_.rank());
  own_->mesh = std::move(mesh);
  own_->topology = restricted(mesh_.topology(), members_);
  own_->dialer = std::make_unique<GroupDialer>(*this);
  extent_ = mesh_.take_extent();
  try {
    make_parts();
    find_links();
  } catch (...) {
    own_->parts.clear();
    mesh_.give_back(extent_);
    throw;
  }
  own_->offer.number = mesh_.new_group_number();
  own_->offer.near = far_ ? 0 : 1;
}

Group::~Group() {
  leave();
  if (!own_) return;
  own_->parts.clear();
  mesh_.give_back(extent_);
}

// Of each transport that joins this rank and one of the others.
void Group::make_parts() {
  for (Rank member : members_) {
    const Mesh::Link& link = mesh_.link(member);
    if (!link.row || own_->parts.contains(link.transport)) continue;
    auto part = link.transport->part({rank_, members_, *own_->dialer, extent_});
    std::string text = part->address();
    own_->parts.emplace(link.transport, std::move(part));
    if (text.empty()) continue;
    auto& addresses = own_->offer.addresses;
    auto free = std::ranges::find(addresses, 0, &Offer::Address::row_and_one);
    invariant(free != addresses.end() && text.size() <= kMaxPartAddressBytes,
              "{}: an address of {} bytes too much", link.row->name, text.size());
    free->row_and_one = row_and_one(*link.row);
    free->bytes = static_cast<uint8_t>(text.size());
    std::ranges::copy(text, free->text.begin());
  }
}

void Group::find_links() {
  links_.resize(members_.size());
  for (Rank peer = 0; peer < size(); peer++) {
    const Mesh::Link& link = mesh_.link(members_[peer]);
    if (!link.row) continue;
    Transport* transport = own_ ? own_->parts.at(link.transport).get() : link.transport;
    links_[peer] = {link.row, transport};
    if (link.row->link == LinkClass::kNetwork) far_ = transport;
    wants_places_ |= transport->wants_places();
  }
  for (Rank rank = 0; rank < size(); rank++) oversubscribed_ |= topology().crowded(rank);
}

// A rank without a link to this one is this one.
void Group::reach(std::span<const Offer> offers) {
  for (Rank peer = 0; peer < size(); peer++) {
    const Mesh::Link& link = links_[peer];
    if (!link.row) continue;
    std::string_view text;
    for (const Offer::Address& address : offers[peer].addresses)
      if (address.row_and_one == row_and_one(*link.row))
        text = {address.text.data(), std::min<size_t>(address.bytes, address.text.size())};
    std::string why = link.transport->reach(peer, text);
    if (!why.empty())
      throw Error(Code::kTransport,
                  fmt::format("{} is not reached by {} in the group: {}", describe(peer),
                              link.row->name, why),
                  peer);
  }
}

void Group::join(std::span<const Offer> offers) {
  own_->number = offers[numbered_by()].number;
  try {
    enter(offers);
  } catch (const std::exception& error) {  // of whatever kind
    mesh_.lifelines().fail(own_->number, as_error(error));
    if (!health_) {  // there is nothing to leave
      mesh_.connector().forget(own_->number);
      channels_.reset();
    }
    throw;
  }
}

void Group::enter(std::span<const Offer> offers) {
  one_domain_ = std::ranges::all_of(offers, [](const Offer& offer) { return offer.near != 0; });
  own_->costs =
      agree_on_costs(topology(), {}, mesh_.costs().levels, mesh_.costs().source, oversubscribed_);
  channels_ = std::make_unique<Channels>(*this);
  own_->health = std::make_unique<Health>(
      mesh_.lifelines(), Health::Options{.group = own_->number,
                                         .members = members_,
                                         .on_poison =
                                             [this] {
                                               mesh_.connector().interrupt(own_->number);
                                               channels_->wake();
                                             },
                                         .describe = [this](Rank rank) { return describe(rank); }});
  health_ = own_->health.get();
  reach(offers);
}

std::string Group::port_of(Rank rank) const {
  return one_domain_ ? "" : mesh_.port_of(members_[rank]);
}

std::unique_ptr<Endpoint> Group::open(Rank peer, Deadline deadline) {
  mesh_.add_lifeline(members_[peer], deadline, own_ ? own_->number : 0, *health_, peer);
  std::unique_ptr<Endpoint> channel;
  health_->waiting_for(peer, [&] { channel = links_[peer].transport->connect(peer, deadline); });
  return channel;
}

Error Group::fail(const Error& error) {
  health_->fail(error);
  if (far_) far_->revoke();
  return health_->error();
}

void Group::leave() {
  if (!channels_) return;
  channels_->finish();
  health_->leave();
  if (own_) mesh_.connector().forget(own_->number);
  channels_.reset();
}

}  // namespace ringcoll

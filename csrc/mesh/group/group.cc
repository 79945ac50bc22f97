#include "mesh/group/group.h"

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

Topology restricted(const Topology& whole, const std::vector<Rank>& members) {
  std::vector<Location> locations;
  for (Rank rank : members) locations.push_back(whole.at(rank));
  return Topology(std::move(locations));
}

}  // namespace

Group::Group(Mesh& mesh, Health& health, bool one_domain)
    : mesh_(mesh),
      members_(all_ranks(mesh.size())),
      rank_(mesh.rank()),
      health_(&health),
      one_domain_(one_domain),
      memory_(mesh.memory_for_calls(), mesh.call_extents()) {
  find_links();
  channels_ = std::make_unique<Channels>(*this);
  messages_ = std::make_unique<GroupMessages>(*this, mesh.memory_for_messages());
}

Group::Group(std::shared_ptr<Mesh> mesh, std::vector<Rank> members)
    : mesh_(*mesh),
      members_(std::move(members)),
      rank_(static_cast<Rank>(std::ranges::find(members_, mesh_.rank()) - members_.begin())),
      own_(std::make_unique<Own>(std::move(mesh))),
      registered_(has_device()),
      kept_(*this),
      memory_(kept_.memory, mesh_.call_extents()) {
  invariant(rank_ < size(), "rank {} is not of the group that it makes", mesh_.rank());
  own_->topology = restricted(mesh_.topology(), members_);
  std::span<std::byte> extent = registered_ ? kept_.memory : mesh_.extents_for_calls();
  own_->parts = std::make_unique<Parts>(mesh_, TransportPart{rank_, members_, extent});
  find_links();
  messages_ = std::make_unique<GroupMessages>(*this, std::span<std::byte>());
  own_->offer = {mesh_.new_group_number(), own_->parts->addresses(), messages_->addresses(),
                 has_network() ? uint64_t{0} : uint64_t{1}};
}

Group::~Group() {
  leave();
  messages_.reset();
  if (!own_) return;
  memory_.end(readers());
  kept_.readers = readers();
  own_->parts.reset();
  mesh_.forget_lost();
}

// Parts use the memory until they are destroyed.
Group::Kept::Kept(Group& owner) : group(owner) {
  Mesh& mesh = group.mesh_;
  mesh.forget_lost();
  memory = (group.registered_ ? mesh.call_extents() : mesh.short_extents()).take(&group);
}
Group::Kept::~Kept() {
  if (memory.empty()) return;
  Mesh& mesh = group.mesh_;
  (group.registered_ ? mesh.call_extents() : mesh.short_extents())
      .give_back(memory, std::move(readers));
}

bool Group::has_device() const {
  return std::ranges::any_of(members_, [this](Rank member) {
    const Mesh::Link& link = mesh_.link(member);
    return link.row && link.transport->registers_extents();
  });
}

ReaderList Group::readers() const {
  ReaderList readers;
  if (own_ && own_->parts) own_->parts->add_readers(&readers);
  return readers;
}

void Group::find_links() {
  for (Rank peer = 0; peer < size(); peer++) {
    const Mesh::Link& of_mesh = mesh_.link(members_[peer]);
    links_.push_back(own_ ? own_->parts->links()[peer]
                          : Parts::Link{of_mesh.row, of_mesh.transport});
    if (links_.back().row) wants_places_ |= links_.back().transport->wants_places();
  }
  lenders_ = transports_of(links_, has_network() ? LinkClass::kNetwork : LinkClass::kHost);
}

uint64_t Group::copies_up_to() const {
  uint64_t least = lenders_.empty() ? 0 : UINT64_MAX;
  for (const Transport* transport : lenders_) least = std::min(least, transport->copies_up_to());
  return least;
}

bool Group::has_network() const { return !transports_of(links_, LinkClass::kNetwork).empty(); }

// Only the rank itself has no link.
void Group::reach(std::span<const Offer> offers) {
  for (Rank peer = 0; peer < size(); peer++) {
    if (!links_[peer].row) continue;
    std::string why = own_->parts->reach(peer, offers[peer].for_calls);
    if (!why.empty())
      throw Error(Code::kTransport,
                  fmt::format("{} is not reached by {} in the group: {}", describe(peer),
                              links_[peer].row->name, why),
                  peer);
  }
}

void Group::join(std::span<const Offer> offers) {
  own_->number = offers[numbered_by()].number;
  try {
    enter(offers);
  } catch (const std::exception& error) {  // of any kind
    // The others may have joined, and would wait in their first call for this rank.
    mesh_.lifelines().fail(own_->number, as_error(error));
    if (!health_) {  // the group was not entered, so there is nothing to leave
      mesh_.connector().forget(own_->number);
      channels_.reset();
    }
    throw;
  }
}

void Group::enter(std::span<const Offer> offers) {
  one_domain_ = std::ranges::all_of(offers, [](const Offer& offer) { return offer.near != 0; });
  own_->costs = costs_of_part(topology(), mesh_.costs());
  channels_ = std::make_unique<Channels>(*this);
  std::vector<Parts::Addresses> addresses;
  for (const Offer& offer : offers) addresses.push_back(offer.for_messages);
  messages_->set_peers(std::move(addresses));
  own_->health = std::make_unique<Health>(
      mesh_.lifelines(), Health::Options{.group = own_->number,
                                         .members = members_,
                                         .on_poison =
                                             [this] {
                                               mesh_.connector().interrupt(own_->number);
                                               wake();
                                             },
                                         .describe = [this](Rank rank) { return describe(rank); }});
  health_ = own_->health.get();
  reach(offers);  // last: from here on a rank that fails can tell the others through its health
}

std::string Group::port_of(Rank rank) const {
  return one_domain_ ? "" : mesh_.port_of(members_[rank]);
}

Error Group::fail(const Error& error) {
  health_->fail(error);
  for (Transport* transport : lenders_) transport->revoke();
  channels_->revoke();
  return health_->error();
}

MessageChannels& Group::messages() {
  std::lock_guard lock(beginning_);
  if (!begun_) messages_->begin();
  begun_ = true;
  return *messages_;
}

void Group::wake() {
  channels_->wake();
  messages_->wake();
}

void Group::leave() {
  if (!channels_) return;
  // Messages in flight arrive before the goodbye: after it, peers take nothing more from this rank.
  channels_->finish();
  messages_->finish();
  health_->leave();
  messages_->close();
  if (own_) mesh_.connector().forget(own_->number);
  channels_.reset();
}

}  // namespace ringcoll

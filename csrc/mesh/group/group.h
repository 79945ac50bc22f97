// A group: some ranks of a mesh in an order, with their own channels and their own error state.
// Transports, memory, lifelines and bells are the mesh's. A group has no thread, and on one host no
// descriptor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "life/lifelines.h"
#include "mesh/extents.h"
#include "mesh/group/channels.h"
#include "mesh/group/group_messages.h"
#include "mesh/group/parts.h"
#include "mesh/mesh.h"

namespace ringcoll {

/// Ranks are group ranks. One thread at a time, unless a method says otherwise.
class Group {
 public:
  /// The group of all ranks, which the mesh owns. `one_domain`: see one_domain().
  Group(Mesh& mesh, Health& health, bool one_domain);
  /// A group of these mesh ranks, of which this process is one. It is usable after join(). Throws
  /// Error(kTransport) if there is no room for it.
  Group(std::shared_ptr<Mesh> mesh, std::vector<Rank> members);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// What each rank tells the others before all of them join(). Fixed widths, no padding.
  struct Offer {
    GroupNumber number = 0;      // the group's, if this is its lowest rank
    Parts::Addresses for_calls;  // of its parts
    Parts::Addresses for_messages;
    uint64_t near = 0;  // 1: none of its links is of class kNetwork
  };
  const Offer& offer() const { return own_->offer; }
  /// Takes the offers of all ranks, by rank. If it throws, the group fails with that error on the
  /// others, which may be using it by then.
  void join(std::span<const Offer> offers);
  /// The rank whose offer carries the group's number: the lowest of the mesh.
  Rank numbered_by() const {
    return static_cast<Rank>(std::ranges::min_element(members_) - members_.begin());
  }

  // Methods for any thread.
  Rank rank() const { return rank_; }
  Rank size() const { return static_cast<Rank>(members_.size()); }
  const std::vector<Rank>& members() const { return members_; }  // mesh ranks
  Mesh& mesh() const { return mesh_; }
  GroupNumber number() const { return own_ ? own_->number : 0; }
  /// Precondition: this is not the group of all ranks.
  std::shared_ptr<Mesh> shared_mesh() const { return own_->mesh; }
  const Config& config() const { return mesh_.config(); }
  const Topology& topology() const { return own_ ? own_->topology : mesh_.topology(); }
  const Costs& costs() const { return own_ ? own_->costs : mesh_.costs(); }
  /// The transport of a pair, "shm".
  std::string_view transport_of(Rank peer) const {
    return links_[peer].row ? links_[peer].row->name : "self";
  }
  LinkClass link_of(Rank peer) const {
    return links_[peer].row ? links_[peer].row->link : LinkClass::kProcess;
  }
  /// The transport, or the part of it, by which calls reach the peer; null: the rank itself.
  Transport* part_to(Rank peer) const { return links_[peer].transport; }
  /// The port through which a rank reaches other hosts, "mlx5_0:1"; "" if links have no ports.
  std::string port_of(Rank rank) const;
  /// True if every pair talks through shared memory or inside one process.
  bool one_domain() const { return one_domain_; }
  /// True if memory that the group sends from is registered with a device, so that it cannot move.
  bool registers_extents() const { return registered_; }
  /// True if channels want to know ahead where a payload is to go (Endpoint::expect).
  bool wants_places() const { return wants_places_; }
  /// The longest message that the links copy when it is sent (HostLink::try_copy): those of the
  /// network, or those of the host if there is no network.
  uint64_t copies_up_to() const;
  /// The memory that calls are sent from.
  CallMemory& memory() { return memory_; }
  const CallMemory& memory() const { return memory_; }
  /// Precondition: no call is in flight, and all sends are complete, except that peers may still
  /// read this rank's memory (links of class kHost). Another group may then take the extent until
  /// this one needs it again.
  void park_memory() { memory_.park(readers()); }
  Health& health() const { return *health_; }

  Channels& channels() { return *channels_; }
  /// The channels for messages. Each rank makes them for itself on first use, after all ranks have
  /// joined. Any thread may call this, but one thread at a time uses the result. Throws
  /// Error(kTransport).
  MessageChannels& messages();
  /// Addresses for messages() of the group of all ranks, which has no join(): those of this rank,
  /// and those of all ranks, by rank.
  const Parts::Addresses& message_addresses() const { return messages_->addresses(); }
  void set_message_addresses(std::vector<Parts::Addresses> addresses) {
    messages_->set_peers(std::move(addresses));
  }
  /// Makes waits for calls and for messages in other threads check their condition again. Any
  /// thread.
  void wake();
  /// Offers memory of a call to the transports of the network, or to those of the host if there is
  /// no network. On links that take it (HostLink::takes_lent), granted memory is sent from and
  /// received into without a copy. See Transport::lend().
  void lend(std::span<Loan> loans, size_t in_flight) { lend_to(lenders_, loans, in_flight); }
  /// Poisons the group with `error`. If the error may follow from another (a peer closed after an
  /// error of its own), that cause may arrive first and then counts. When this returns,
  /// neither a device nor a peer uses lent memory. Returns the error to raise.
  Error fail(const Error& error);
  /// Closes the channels once peers have received what they depend on. The group is unusable
  /// afterwards.
  void leave();

 private:
  /// The state of a group of some ranks; the group of all ranks does not have it.
  struct Own {
    explicit Own(std::shared_ptr<Mesh> of) : mesh(std::move(of)) {}

    std::shared_ptr<Mesh> mesh;
    Topology topology;
    Costs costs;
    GroupNumber number = 0;  // 0: has not joined
    std::unique_ptr<Parts> parts;
    std::unique_ptr<Health> health;
    Offer offer;
  };

  /// Memory that a group of some ranks keeps for its calls: a short extent, or a long one if memory
  /// is registered with a device.
  struct Kept {
    explicit Kept(Group& owner);  // takes an extent
    Kept(Group& owner, std::span<std::byte> nothing) : group(owner), memory(nothing) {}
    ~Kept();
    Group& group;
    std::span<std::byte> memory;
    ReaderList readers;
  };

  bool has_device() const;
  ReaderList readers() const;
  void find_links();
  bool has_network() const;
  void reach(std::span<const Offer> offers);
  void enter(std::span<const Offer> offers);
  std::string describe(Rank rank) const { return topology().describe(rank); }

  Mesh& mesh_;
  std::vector<Rank> members_;
  Rank rank_ = 0;
  std::unique_ptr<Own> own_;  // null: the group of all ranks
  Health* health_ = nullptr;
  std::vector<Parts::Link> links_;
  std::vector<Transport*> lenders_;  // those of links_ that calls lend memory to
  bool one_domain_ = false, wants_places_ = false;
  const bool registered_ = false;
  Kept kept_{*this, {}};
  CallMemory memory_;
  std::unique_ptr<Channels> channels_;  // the last two members use the others
  std::unique_ptr<GroupMessages> messages_;
  std::mutex beginning_;  // orders the first calls of messages()
  bool begun_ = false;
};

}  // namespace ringcoll

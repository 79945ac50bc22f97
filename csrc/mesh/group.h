// A group: some ranks of a mesh in an order, with channels and failures of their own. What one is
// made of is the mesh's; it has no thread, and on one host no descriptor.
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

#include "mesh/channels.h"
#include "mesh/extents.h"
#include "mesh/group_messages.h"
#include "mesh/lifelines.h"
#include "mesh/mesh.h"
#include "mesh/parts.h"

namespace ringcoll {

/// Ranks are the group's. One thread at a time, but for what is said of others.
class Group {
 public:
  /// All ranks of the mesh, which owns it. `one_domain`: as below.
  Group(Mesh& mesh, Health& health, bool one_domain);
  /// These ranks of the mesh, this one among them. Of use after join(). Throws Error(kTransport) if
  /// there is no room for it.
  Group(std::shared_ptr<Mesh> mesh, std::vector<Rank> members);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// What a rank tells the others of the group before all join(). Fixed widths, no padding.
  struct Offer {
    GroupNumber number = 0;      // for the group, if this is its lowest rank
    Parts::Addresses for_calls;  // of its parts
    Parts::Addresses for_messages;
    uint64_t near = 0;  // whether it reaches all by shared memory, or inside one process
  };
  const Offer& offer() const { return own_->offer; }
  /// What all have offered. Should it throw, the others, who may be in it by then, learn why.
  void join(std::span<const Offer> offers);
  /// The rank whose offer has the group's number.
  Rank numbered_by() const {
    return static_cast<Rank>(std::ranges::min_element(members_) - members_.begin());
  }

  // Any thread.
  Rank rank() const { return rank_; }
  Rank size() const { return static_cast<Rank>(members_.size()); }
  const std::vector<Rank>& members() const { return members_; }  // ranks of the mesh
  Mesh& mesh() const { return mesh_; }
  GroupNumber number() const { return own_ ? own_->number : 0; }
  std::shared_ptr<Mesh> shared_mesh() const { return own_->mesh; }  // not of the whole
  const Config& config() const { return mesh_.config(); }
  const Topology& topology() const { return own_ ? own_->topology : mesh_.topology(); }
  const Costs& costs() const { return own_ ? own_->costs : mesh_.costs(); }
  /// The transport of the pair, "shm".
  std::string_view transport_of(Rank peer) const {
    return links_[peer].row ? links_[peer].row->name : "self";
  }
  LinkClass link_of(Rank peer) const {
    return links_[peer].row ? links_[peer].row->link : LinkClass::kProcess;
  }
  /// The port by which a rank reaches other hosts, "mlx5_0:1"; "" if links have none of their own.
  std::string port_of(Rank rank) const;
  /// Every pair by shared memory, or inside one process.
  bool one_domain() const { return one_domain_; }
  bool oversubscribed() const { return oversubscribed_; }  // some host has more ranks than CPUs
  /// Whether what it sends from is registered with a device, and so has to stay where it is.
  bool registers_extents() const { return registered_; }
  /// Whether what a channel receives is wanted ahead (Endpoint::expect).
  bool wants_places() const { return wants_places_; }
  /// What its calls are sent from.
  CallMemory& memory() { return memory_; }
  const CallMemory& memory() const { return memory_; }
  /// No call is in flight, and all that was sent has left but what peers read in this rank's memory
  /// (links of class kHost): another group may have its extent until it needs it again.
  void park_memory() { memory_.park(readers()); }
  Health& health() const { return *health_; }

  Channels& channels() { return *channels_; }
  /// Made on first use, by any rank for itself. Any thread, after all have joined; what it gives is
  /// for one at a time. Throws Error(kTransport).
  MessageChannels& messages();
  /// What the others say of themselves for messages(), by rank; of the group of all, which cannot
  /// be joined.
  const Parts::Addresses& message_addresses() const { return messages_->addresses(); }
  void set_message_addresses(std::vector<Parts::Addresses> addresses) {
    messages_->set_peers(std::move(addresses));
  }
  /// Makes waits for calls and for messages in other threads look again. Any thread.
  void wake();
  /// To each of the peers a lifeline, if there is none yet, and then the channel, which has to be
  /// set up: all at once, and `opened` gets them as they come. At the deadline the first of `peers`
  /// that has not come is named. Blocks until all have.
  using Opened = std::function<void(Rank peer, std::unique_ptr<Endpoint> channel)>;
  void open(std::span<const Rank> peers, Deadline deadline,
            const std::function<std::string()>& doing, const Opened& opened);
  /// Offers memory for a call to the network, or to the host where all ranks are on one: what is
  /// granted can be sent to, and received from, ranks with such links without a copy, if they take
  /// it (Endpoint::takes_lent). As Transport::lend().
  void lend(std::span<Loan> loans, size_t in_flight) {
    if (Transport* transport = far_ ? far_ : near_) transport->lend(loans, in_flight);
  }
  /// Poisons with `error`, unless the cause behind it (a peer that closed after an error of its
  /// own) arrives first. What was lent is not touched any more. Returns the error to raise.
  Error fail(const Error& error);
  /// Channels are closed, when peers have what they cannot do without; it is of no use any more.
  void leave();

 private:
  /// What a group of some ranks has and that of all has not.
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

  /// Of a group of some ranks, what its calls always have: little, or an extent where that is
  /// registered with a device.
  struct Kept {
    explicit Kept(Group& owner);  // takes it
    Kept(Group& owner, std::span<std::byte> nothing) : group(owner), memory(nothing) {}
    ~Kept();
    Group& group;
    std::span<std::byte> memory;
    ReaderList readers;
  };

  bool has_device() const;
  ReaderList readers() const;
  void find_links();
  void reach(std::span<const Offer> offers);
  void enter(std::span<const Offer> offers);
  std::string describe(Rank rank) const { return topology().describe(rank); }

  Mesh& mesh_;
  std::vector<Rank> members_;
  Rank rank_ = 0;
  std::unique_ptr<Own> own_;  // null: all ranks
  Health* health_ = nullptr;
  std::vector<Parts::Link> links_;
  Transport* far_ = nullptr;   // of the links of class kNetwork; null: there are none
  Transport* near_ = nullptr;  // the same of kHost
  bool one_domain_ = false, oversubscribed_ = false, wants_places_ = false;
  const bool registered_ = false;
  Kept kept_{*this, {}};
  CallMemory memory_;
  std::unique_ptr<Channels> channels_;  // the last two: they use the rest
  std::unique_ptr<GroupMessages> messages_;
  std::mutex beginning_;  // of messages, against wake()
  bool begun_ = false;
};

}  // namespace ringcoll

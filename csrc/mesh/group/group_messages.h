// The channels of a group for messages. They use parts of the mesh's transports that nothing else
// uses.
//
// Opening. Either end may begin (mesh/group/opening.h). Inside a host the peer then notices when it
// polls (Transport::connected_by), over a network by the connection. No thread waits for a link.
//
// Waiting. A wait is for all links at once, while it polls, too (transport/wait_set.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "mesh/extents.h"
#include "mesh/group/messages.h"
#include "mesh/group/opening.h"
#include "mesh/group/parts.h"
#include "transport/wait_set.h"

namespace ringcoll {

class Group;

class GroupMessages final : public MessageChannels {
 public:
  /// `group` outlives this object, and already knows its mesh, members and rank. `staging` lies in
  /// the arena. If it is empty, this object takes an extent when messages begin.
  GroupMessages(Group& group, std::span<std::byte> staging);
  ~GroupMessages() override;
  GroupMessages(const GroupMessages&) = delete;
  GroupMessages& operator=(const GroupMessages&) = delete;

  /// The addresses for the peers, and those that the peers told, by rank. begin() needs the latter.
  const Parts::Addresses& addresses() const { return parts_.addresses(); }
  void set_peers(std::vector<Parts::Addresses> addresses) { addresses_ = std::move(addresses); }
  /// Makes what messages need; before that this object costs next to nothing. Throws
  /// Error(kTransport).
  void begin();
  /// Called before this rank leaves the group. Moves queued sends for 5 s at most, then waits up to
  /// kLongestDrain until peers have what they depend on.
  void finish();
  /// Closes all channels; nothing can be used afterwards.
  void close();

  Rank rank() const override;
  Rank size() const override;
  bool try_open(Rank peer) override;
  bool progress() override;
  const std::vector<Rank>& open() const override { return open_; }
  Endpoint& operator[](Rank peer) override { return *peers_[peer].channel; }
  void drop(Rank rank) override;
  std::span<std::byte> staging() override { return staging_; }
  uint64_t inline_bytes() const override;
  uint64_t copies_up_to(Rank peer) const override;
  bool sends_from_anywhere(Rank peer) const override;
  uint64_t lend(Rank peer, Loan loan, uint64_t oldest) override;
  void revoke() noexcept override;
  void wait(Duration limit, uint64_t bytes) override;
  void wake() override { set_.wake(); }

 private:
  /// One of these at most is set. If none is, the channel is closed, and nothing opens it.
  struct Peer {
    std::unique_ptr<Opening> opening;
    std::unique_ptr<Endpoint> channel;  // while it is open
    std::optional<Error> why;           // once it has failed, or could not be opened
  };
  /// Set by other threads when a connection was made.
  struct News;

  void begin_opening(Rank peer);
  bool advance(Rank peer);
  bool advance_all();
  bool answer();
  bool is_roused() const;

  /// An extent, held from its creation until its readers have finished.
  struct Staging {
    explicit Staging(Extents& extents) : extents(extents), memory(extents.take(this)) {}
    ~Staging() { extents.give_back(memory, std::move(readers)); }
    Extents& extents;
    const std::span<std::byte> memory;
    ReaderList readers;
  };

  TransportPart part_of_mesh();
  void take_staging();

  Group& group_;
  std::unique_ptr<Staging> own_staging_;  // before the parts, which use it
  std::span<std::byte> staging_;
  Parts parts_;
  std::vector<Parts::Addresses> addresses_;
  WaitSet set_;                    // of all parts
  std::vector<Peer> peers_;        // after the parts: destroyed before them
  std::vector<Rank> near_closed_;  // within this host, not being opened
  std::vector<Rank> opening_;
  std::vector<Rank> open_;
  uint64_t lent_ = 0;  // loans offered to transports of the network
  std::shared_ptr<News> news_;
};

}  // namespace ringcoll

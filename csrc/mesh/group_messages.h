// The channels of a group for messages, over parts of the mesh's transports that are for them
// alone.
//
// Opening. Inside a host the part is connected at once, without the peer, who sees it when it looks
// (Transport::called_by). Over a network a connection is needed, which is asked for and comes
// whoever of the two asked (Connector::call); who executes never waits for it. The opener also has
// a lifeline made to the peer, if there is none.
//
// Waiting. A wait polls as one for a call does, and then sleeps on a bell and on whatever the
// transports name, for all links at once (Transport::stirs).
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "mesh/extents.h"
#include "mesh/messages.h"
#include "mesh/parts.h"
#include "shm/bell.h"

namespace ringcoll {

class Group;

class GroupMessages final : public MessageChannels {
 public:
  /// `group` outlives it, and has its mesh, members and rank. `staging` is of the arena; empty: it
  /// takes an extent for itself when messages begin.
  GroupMessages(Group& group, std::span<std::byte> staging);
  ~GroupMessages() override;
  GroupMessages(const GroupMessages&) = delete;
  GroupMessages& operator=(const GroupMessages&) = delete;

  /// For the peers, and what they told, by rank. Until both is known, nothing can be begun.
  const Parts::Addresses& addresses() const { return parts_.addresses(); }
  void set_peers(std::vector<Parts::Addresses> addresses) { addresses_ = std::move(addresses); }
  /// Makes what it takes to be used; before that it has cost next to nothing. Throws
  /// Error(kTransport).
  void begin();
  /// Before this rank leaves the group: hands on what is queued, and waits a moment for what peers
  /// cannot do without.
  void finish();
  /// Of no use any more.
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
  bool sends_from_anywhere(Rank peer) const override;
  uint64_t lend(Rank peer, Loan loan, uint64_t oldest) override;
  void revoke() noexcept override;
  void wait(Duration limit, uint64_t bytes) override;
  void wake() override;

 private:
  /// In the order in which a channel goes through them.
  enum class State : uint8_t { kClosed, kCalling, kEstablishing, kProving, kOpen, kFailed };
  struct Peer {
    State state = State::kClosed;
    Deadline deadline{Duration::zero()};  // of the opening
    std::vector<Fd> sockets;              // of the link
    std::unique_ptr<Endpoint> channel;
    std::optional<Error> why;  // it has failed
  };
  /// Told from other threads that a peer has called.
  struct News;

  void begin_opening(Rank peer);
  void connect(Rank peer);
  bool advance(Rank peer);
  void step(Rank peer);
  bool advance_all();
  bool take_calls();
  bool is_called() const;
  bool stirs(std::vector<pollfd>* sleep);
  bool is_roused();
  void rested();
  bool spin(Deadline over, uint64_t bytes);
  void sleep(Duration limit);

  /// An extent, from when it is taken to when nobody reads it any more.
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
  Bell bell_;
  Parts parts_;
  std::vector<Parts::Addresses> addresses_;
  std::vector<Transport*> used_;   // the parts, each once
  std::vector<Peer> peers_;        // after the parts: destroyed before them
  std::vector<Rank> near_closed_;  // within this host, and not connected
  std::vector<Rank> opening_;
  std::vector<Rank> open_;
  uint64_t lent_ = 0;  // loans that the network's transport was asked for
  std::vector<pollfd> fds_;
  std::shared_ptr<News> news_;
  std::atomic<bool> woken_{false};
};

}  // namespace ringcoll

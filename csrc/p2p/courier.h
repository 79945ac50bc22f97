// Moves messages with tags over the channels of a group. Nothing here waits: advance() does what
// can be done now. All that comes is taken at once, so nothing is ever behind what nobody wants.
//
// - A **short** message goes with its envelope. The receiver's courier keeps what no receive has
//   asked for, at most Limits::kept bytes of each sender, who counts them and is told when they
//   have been received. What is beyond that is announced like a long one.
// - A **long** message is announced. When its receive is there the receiver copies it out of the
//   sender's memory, where the channel can (HostLink::read_peer), and says so; else it asks for it,
//   and the sender sends it in stretches, between which everything else goes on.
//
// On some processors the kernel copies slower than a program: it looks at each page (perf/README.md
// has numbers). There the receiver does not copy alone. It asks the sender for **help**, which
// sends stretches from the end on if it has nothing else to do, and takes those, until they meet
// what it has copied from the beginning. Nobody waits for the other: without help the receiver
// copies all, and stretches that come too late are dropped.
//
// What is announced lies in memory of the sender's caller. If the sender's communicator fails, or
// the sender withdraws the message, that memory is the caller's again at once. The receiver, who
// may not have heard of it, must not take for a message what stands there then: each courier has a
// **seal**, a word that it changes before it gives memory back, and who has copied looks at it
// afterwards.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/faster_way.h"
#include "mesh/group/channels.h"
#include "mesh/group/messages.h"
#include "p2p/matching.h"
#include "p2p/seal.h"
#include "p2p/staging.h"
#include "p2p/transfer.h"
#include "p2p/wire.h"

namespace ringcoll {

/// Of one communicator, since it was made. Written under the lock of who moves.
struct MessageCounts {
  Count sent, sent_bytes;          // messages whose send has ended well, and their bytes
  Count received, received_bytes;  // the same of receives
  Count kept;                      // short messages that came before their receive
  Count read;            // long messages copied out of the sender's memory, at least in part
  Count helped;          // long messages of which the sender sent a part while the rest was read
  Count packed_bytes;    // copied to the arena, to be sent from there
  Count unpacked_bytes;  // copied to a receive from where the channel had put them
};

/// One thread at a time.
class Courier {
 public:
  struct Limits {
    uint64_t short_bytes = 64 << 10;  // the longest message that goes with its envelope
    uint64_t small_bytes = 8 << 10;   // the longest for which there are chunks of their own
    uint64_t kept_bytes = 256 << 10;  // of one sender
    uint64_t stretch_bytes = 512 << 10;
    uint64_t lent_bytes = 2 << 20;     // a stretch that a device takes: it costs a round trip
    uint64_t staged_bytes = 64 << 10;  // a stretch that is copied to be sent
    // Copied out of a peer's memory at a time; if it does not help, as many as before together.
    uint64_t read_bytes = 64 << 10;
    uint64_t most_read_bytes = 1 << 20;
  };
  /// What a kept message counts besides its bytes.
  static constexpr uint64_t kKeptOverhead = 64;

  /// `over` is told of each transfer that is: its outcome is known, and its memory not touched any
  /// more. `channels` outlives this.
  Courier(MessageChannels& channels, const Limits& limits, std::function<void(Transfer*)> over);
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // These two do not use the channels, and may be called while another thread is in their wait().

  /// A new transfer, whose `peer` and `tag` are what they may be.
  void begin(Transfer* transfer);
  /// Ends a transfer that no peer takes part in, as far as is known here (kPosted, kOwn, kOffered):
  /// its memory is the caller's again. The peer may have received a send that had been announced.
  void withdraw(Transfer* transfer, const Error& error);
  /// The same of a send whose bytes are with the channel, and not in its memory any more. False: it
  /// is none.
  bool end_early(Transfer* send);
  /// Whether it is a send whose peer has only to look, as long as that lives: all of it is with the
  /// channel.
  bool has_taken(const Transfer& transfer) const;

  /// Sends to one peer what can be sent.
  void push(Rank peer);
  /// Does all that can be done now. True if anything moved.
  bool advance();
  /// The same, and looks at what it passes over most of the time: before a wait.
  bool advance_thoroughly();

  /// Whether something is left to be said that a peer may wait for.
  bool has_notes() const { return owed_ > 0; }
  /// Whether that, or what channels have queued, is to be moved though no transfer is left. Not
  /// while another thread is in their wait().
  bool owes() const;
  /// Whether it owes nothing, and no channel has memory of a caller.
  bool quiet() const;
  bool lends() const;
  /// Bytes that some peer may be copying out of memory of this process; no more than it copies at a
  /// time, for it may not have begun.
  uint64_t copying() const;
  /// Peers that were found not to be there any more, one after the other.
  size_t broken() const { return broken_; }
  bool broke(Rank rank) const { return find_peer(rank) && find_peer(rank)->broken; }
  /// The channel to the peer is not used any more.
  void break_off(Rank peer, const Error& error);
  /// Why a transfer cannot go on: the error of a peer that takes part in it or should. Null: it
  /// can.
  const Error* trouble_of(const Transfer& transfer) const;
  /// Breaks the seal and forgets all transfers, without telling anybody.
  void give_up();

  const MessageCounts& counts() const { return counts_; }

 private:
  /// What comes in on a channel now.
  struct Incoming {
    bool begun = false;
    Head head;
    uint64_t bytes = 0;           // of the payload
    std::byte* place = nullptr;   // where it is wanted
    Transfer* receive = nullptr;  // whose memory that is; null: what is kept
    Arrival* kept = nullptr;
    ArrivalPtr taken;  // `kept`, once a receive waits for it
  };
  /// What is to be sent, copied to where it can be sent from.
  struct Filled {
    Staging::Chunk chunk;
    uint64_t bytes = 0;
    bool empty() const { return chunk.empty(); }
  };
  /// How a short message goes that has a chunk of its own in the arena, or could be read.
  enum Way : size_t { kByArena, kAsItLies };
  /// How a long one is read.
  enum Read : size_t { kWithHelp, kAlone };
  /// What became of one try to read.
  enum class Piece : uint8_t { kSome, kLast, kUnknown };
  struct Lent {
    uint64_t number;  // of the message that is sent from it
    Staging::Chunk chunk;
  };
  /// A rank as this one talks with it.
  struct Peer {
    Rank rank = kNobody;
    Endpoint* channel = nullptr;  // once it is open
    HostLink* host = nullptr;     // the same, within a host
    bool opening = false;
    bool reads = false, from_anywhere = false;
    uint64_t copied_bytes = 0;  // the longest message that the channel copies when it is sent
    std::optional<Error> broken;
    // To it.
    std::deque<Head> notes;
    Transfers queue;      // sends of which it has not heard
    Transfers announced;  // for which it has not asked, or with which no more help is needed
    Transfers helped;     // which it reads, and this rank sends from the end
    Transfers asked;      // the first is being sent
    Transfers leaving;    // sent, but their memory may still be read
    std::deque<Lent> lent;
    uint64_t announcements = 0;
    uint64_t keeps = 0;  // bytes of short messages that it may be keeping
    bool sealed = false;
    uint64_t last_stretch = 0;
    // Of what had no credit: the first of `queue`, of `asked` and of `helped`.
    Filled short_chunk, asked_chunk, helped_chunk;
    // From it.
    Incoming incoming;
    Transfers awaited;  // receives that it was asked for
    uint64_t announcements_in = 0;
    uint64_t seal = 0, seal_address = 0;
    uint64_t to_return = 0;
  };

  Peer& peer(Rank rank);
  const Peer* find_peer(Rank rank) const { return peers_[static_cast<size_t>(rank)].get(); }
  void pack(Filled* filled, Staging::Chunk chunk, const std::byte* data, uint64_t bytes);
  void lend(Peer& peer, Transfer* transfer);
  uint64_t oldest_loan() const;
  void want_channel(Peer& peer);
  bool open_channels();
  void adopt(Rank rank);
  bool advance(Peer& peer);
  bool settle(Peer& peer);
  uint64_t cost_of(uint64_t bytes) const { return bytes + kKeptOverhead; }

  void begin_send(Transfer* send);
  void begin_own_send(Transfer* send);
  void begin_receive(Transfer* receive);
  Transfer* take_receive(Rank source, int32_t tag, uint64_t bytes);
  void too_long(Transfer* receive, Rank source, int32_t tag, uint64_t bytes);
  void end(Transfer* transfer, std::optional<Error> error = {});

  bool receive(Peer& peer);
  void choose_place(Peer& peer);
  void choose_for_short(Peer& peer);
  void choose_for_stretch(Peer& peer);
  void check_helping(Peer& peer) const;
  void take(Peer& peer, const View& view);
  void take_note(Peer& peer, const Head& head);
  void take_short(Peer& peer);
  void take_announcement(Peer& peer, const Head& head);
  void take_stretch(Peer& peer, Transfer* receive, uint64_t bytes);
  void take_helping(Peer& peer, const View& view);
  void ask_for(Peer& peer, Transfer* receive);
  void take_want(Peer& peer, uint64_t number);
  void take_taken(Peer& peer, uint64_t number);
  void take_withdrawn(Peer& peer, uint64_t number);
  void begin_again(Transfer* receive);
  void fetch(Peer& peer, Transfer* receive, uint64_t number, uint64_t address);
  void fill(Transfer* receive, ArrivalPtr arrival);
  void return_credit(Peer& peer, uint64_t bytes);
  void note(Peer& peer, const Head& head);
  Transfer* announced(Peer& peer, uint64_t number);
  Transfer* no_longer_helped(Peer& peer, uint64_t number);
  bool read_on();
  void count_time(Transfer* receive);
  Piece read_some(Peer& peer, Transfer* receive);
  bool end_if_whole(Peer& peer, Transfer* receive);
  Error corrupt(const Peer& peer, const char* what) const;

  bool send(Peer& peer);
  bool send_note(Peer& peer);
  bool send_queued(Peer& peer);
  bool send_short(Peer& peer, Transfer* send, bool* announce);
  bool goes_as_it_lies(Peer& peer, Transfer* send);
  Head seal() const;
  bool announce(Peer& peer, Transfer* send);
  bool send_stretch(Peer& peer);
  bool send_help(Peer& peer);
  bool is_far_ahead(Peer& peer) const;
  uint64_t most_of_stretch(const Peer& peer, const Transfer& send) const;
  uint64_t send_staged(Peer& peer, const Head& head, Filled* filled);
  void sent_from(Peer& peer, Transfer* send, uint64_t number);
  void withdraw_offered(Transfer* send);
  void end_sent(Transfer* send);

  MessageChannels& channels_;
  const Limits limits_;
  std::function<void(Transfer*)> over_;
  const uint64_t inline_bytes_;
  Matching matching_;
  Staging staging_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null: nothing was said to it or by it yet
  std::vector<Rank> opening_;                 // whose channels are wanted
  std::vector<Peer*> open_;                   // in the order of channels_.open()
  Transfers reading_;                         // receives that are copied out of peers' memory
  Clock::time_point first_since_;             // the first of these has been that
  size_t broken_ = 0;
  bool gave_up_ = false;
  size_t owed_ = 0;  // notes to peers that are still there
  uint64_t own_keeps_ = 0;
  uint64_t turns_ = 0;
  FasterWayBySize ways_;   // of Way, by what a send takes
  FasterWayBySize reads_;  // of Read, by what reading takes
  MessageCounts counts_;
  Seal seal_;
};

}  // namespace ringcoll

// Moves messages with tags over the channels of a group. Nothing here waits: advance() does what
// can be done now. It takes whatever arrives at once, so no message waits behind one that nobody
// has asked for.
//
// - A **short** message is eager: its payload goes with its envelope. If no receive matches it, the
//   receiver's courier keeps it, up to Limits::kept_bytes of each sender. The sender counts these
//   bytes, and gets them back as credit when the messages have been received. A message for which
//   the credit does not suffice is announced like a long one.
// - A **long** message uses rendezvous: the sender announces it. Once a receive matches, the
//   receiver copies it out of the sender's memory, where the channel can (HostLink::read_peer), and
//   tells the sender. Otherwise the receiver asks for it. The sender then sends it in stretches,
//   and moves everything else between them.
//
// On some processors the kernel copies slower than a program, since it looks at each page
// (perf/README.md has numbers). There the receiver asks the sender for **help**. A sender that has
// nothing else to send sends stretches from the end, until they meet what the receiver has copied
// from the beginning. Neither waits for the other: without help the receiver copies everything, and
// it drops stretches that come too late.
//
// An announced message lies in memory of the sender's caller. If the sender withdraws the message,
// or its communicator fails, that memory is the caller's again at once. The receiver may not know
// that yet, and must not take the memory's new content for the message. So each courier has a
// **seal**: a word that it changes before it gives memory back. A receiver checks the sender's seal
// after each copy.
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

/// Counts of one communicator since it was made. Written with the driver's lock.
struct MessageCounts {
  Count sent, sent_bytes;          // sends that have succeeded, and their bytes
  Count received, received_bytes;  // receives that have succeeded, and their bytes
  Count kept;                      // short messages that came before their receive
  Count read;            // long messages copied out of the sender's memory, at least in part
  Count helped;          // long messages of which the sender sent a part during the copy
  Count packed_bytes;    // copied to the arena, to be sent from there
  Count unpacked_bytes;  // copied from where the channel had put them
};

/// One thread at a time.
class Courier {
 public:
  struct Limits {
    uint64_t short_bytes = 64 << 10;     // the longest eager message
    uint64_t small_bytes = 8 << 10;      // the longest message that small chunks hold (Staging)
    uint64_t kept_bytes = 256 << 10;     // of one sender, each message with kKeptOverhead
    uint64_t stretch_bytes = 512 << 10;  // a stretch that the channel sends from any memory
    uint64_t lent_bytes = 2 << 20;  // a stretch that a device reads; long, as it costs a round trip
    uint64_t staged_bytes = 64 << 10;  // a stretch that is copied to the arena
    // One step of copying out of a peer's memory. Without help, a step is as long as all steps
    // before it together, from read_bytes up to most_read_bytes.
    uint64_t read_bytes = 64 << 10;
    uint64_t most_read_bytes = 1 << 20;
  };
  /// What each kept message counts in addition to its bytes.
  static constexpr uint64_t kKeptOverhead = 64;

  /// Calls `over` for each transfer whose outcome is known and whose memory is no longer used.
  /// `channels` outlives this object.
  Courier(MessageChannels& channels, const Limits& limits, std::function<void(Transfer*)> over);
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // The next four functions do not use the channels. They may be called while another thread is in
  // MessageChannels::wait().

  /// Begins a transfer. Precondition: its `peer` and `tag` are valid.
  void begin(Transfer* transfer);
  /// Ends a transfer that no peer takes part in, as far as this rank knows (kPosted, kOwn,
  /// kOffered). Its memory is the caller's again. The peer may already have received a send that
  /// was announced.
  void withdraw(Transfer* transfer, const Error& error);
  /// Ends a send, without an error, whose bytes were copied to the arena and are with the channel.
  /// Returns false for any other transfer.
  bool end_early(Transfer* send);
  /// Whether it is a send whose bytes are all with the channel. If its peer is alive, the peer only
  /// has to poll.
  bool has_taken(const Transfer& transfer) const;

  /// Sends to one peer what can be sent now.
  void push(Rank peer);
  /// Does all that can be done now. True if anything moved.
  bool advance();
  /// The same, and also does what advance() skips in most calls. Called before a wait.
  bool advance_thoroughly();

  /// Whether there are unsent control messages (notes). A peer may wait for one.
  bool has_notes() const { return owed_ > 0; }
  /// Whether notes, or messages that channels have queued, must be moved although no transfer is
  /// left. Not while another thread is in MessageChannels::wait().
  bool owes() const;
  /// Whether it owes nothing, and no channel uses memory of a caller.
  bool quiet() const;
  bool lends() const;
  /// The most bytes that one peer may be copying out of this process now. At most one step of the
  /// copy counts, since the peer may not have begun.
  uint64_t copying() const;
  /// How many peers were broken off so far.
  size_t broken() const { return broken_; }
  bool broke(Rank rank) const { return find_peer(rank) && find_peer(rank)->broken; }
  /// Closes the channel to the peer for good. `error` is the reason (trouble_of).
  void break_off(Rank peer, const Error& error);
  /// Why a transfer cannot continue: the error of a peer that was broken off, and takes part in it
  /// or should. Null: it can continue.
  const Error* trouble_of(const Transfer& transfer) const;
  /// Breaks the seal and forgets all transfers, without a call of `over`.
  void give_up();

  const MessageCounts& counts() const { return counts_; }

 private:
  /// The message that is arriving on a channel.
  struct Incoming {
    bool begun = false;
    Head head;
    uint64_t bytes = 0;           // of the payload
    std::byte* place = nullptr;   // where the payload is wanted
    Transfer* receive = nullptr;  // the receive that owns `place`; null: none
    Arrival* kept = nullptr;      // the kept message that owns `place`; null: none
    ArrivalPtr taken;             // `kept`, once a receive waits for it
  };
  /// A payload that was copied to the arena, to be sent from there.
  struct Filled {
    Staging::Chunk chunk;
    uint64_t bytes = 0;
    bool empty() const { return chunk.empty(); }
  };
  /// How a short message is sent that the peer could read: from a chunk of the arena, or from the
  /// caller's memory.
  enum Way : size_t { kByArena, kAsItLies };
  /// How a long message is read: with help of the sender, or without it.
  enum Read : size_t { kWithHelp, kAlone };
  /// The result of one step of reading.
  enum class Piece : uint8_t { kSome, kLast, kUnknown };
  struct Lent {
    uint64_t number;  // of the message that is sent from the chunk
    Staging::Chunk chunk;
  };
  /// What this rank keeps about one peer.
  struct Peer {
    Rank rank = kNobody;
    Endpoint* channel = nullptr;  // null until it is open
    HostLink* host = nullptr;     // the same channel, if it is one within a host
    bool opening = false;
    bool reads = false, from_anywhere = false;
    uint64_t copied_bytes = 0;  // the longest message for HostLink::try_copy()
    std::optional<Error> broken;
    // Outgoing.
    std::deque<Head> notes;  // control messages
    Transfers queue;         // sends that have not been sent or announced
    Transfers announced;     // sends that the peer has not asked for, or that need no more help
    Transfers helped;        // sends that the peer reads, and this rank sends from the end
    Transfers asked;         // sends that the peer has asked for; the first is being sent
    Transfers leaving;       // sent, but their memory may still be read
    std::deque<Lent> lent;
    uint64_t announcements = 0;
    uint64_t keeps = 0;         // bytes of short messages that the peer may be keeping
    bool sealed = false;        // the peer knows the seal
    uint64_t last_stretch = 0;  // number of the last message with a stretch
    // Payloads that wait for a credit: of the first of `queue`, `asked` and `helped`.
    Filled short_chunk, asked_chunk, helped_chunk;
    // Incoming.
    Incoming incoming;
    Transfers awaited;  // receives whose payload this rank has asked for
    uint64_t announcements_in = 0;
    uint64_t seal = 0, seal_address = 0;
    uint64_t to_return = 0;  // credit that was not returned yet
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
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null until the first transfer or message
  std::vector<Rank> opening_;                 // peers whose channels are being opened
  std::vector<Peer*> open_;                   // in the order of channels_.open()
  Transfers reading_;                         // receives that are copied out of peers' memory
  Clock::time_point first_since_;             // since when the first of reading_ is timed
  size_t broken_ = 0;
  bool gave_up_ = false;
  size_t owed_ = 0;  // notes to peers that are not broken
  uint64_t own_keeps_ = 0;
  uint64_t turns_ = 0;
  FasterWayBySize ways_;   // chooses a Way, by the time of sends
  FasterWayBySize reads_;  // chooses a Read, by the time of reads
  MessageCounts counts_;
  Seal seal_;
};

}  // namespace ringcoll

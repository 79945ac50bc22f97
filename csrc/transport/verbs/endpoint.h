// The link between two ranks over a reliable connected queue pair.
//
// Each side has an inbox: registered memory, with kWindow slots, that only the peer writes.
//
// A short message is one write of header and payload into the next slot. A registered payload (the
// arena, lent memory) of more than kCopyBytes is gathered from where it lies. Another payload is
// copied behind the header in the outbox, which otherwise holds headers and places.
//
// A long payload goes straight to where the receiver wants it. The receiver names a place: in
// expect(), or when it sees that the message is due. The sender writes the payload there and the
// header into its slot. A sender that does not know the place yet sends the header alone, so that
// ranks that disagree find out. progress() sends the payload when the place has come; hence busy().
//
// A release is reported to the sender (credit) at the latest when a quarter of the window is owed.
//
// Sending is complete when the device says so: the peer's device has acknowledged every byte.
// Writes whose completion nobody needs complete silently. Every kSignalEvery-th is signaled all the
// same, which makes room in the send queue.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "transport/transport.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/open_port.h"
#include "transport/verbs/registrations.h"
#include "transport/verbs/wire.h"
#include "verbs/queue_pair.h"

struct pollfd;

namespace ringcoll::rdma {

class VerbsEndpoint;

// Immediates that may be under way to this end. They are a header and a "done" for each message of
// the window, and places and credits for messages of the other direction.
inline constexpr uint32_t kReceiveRequests = 5 * kWindow;
// Up to so many bytes, copying payload behind its header costs less than one more entry in a gather
// list.
inline constexpr uint32_t kCopyBytes = 256;

/// The settings of all endpoints of a rank, in the whole and in its parts.
struct Settings {
  int gid_index = -1;         // RINGCOLL_GID_INDEX, and the rest of the knobs
  uint32_t slot_bytes = 0;    // of an inbox
  uint32_t copied_bytes = 0;  // longest payload from memory that is not registered
  uint64_t register_bytes = 0;
  int64_t traffic_class = 0;
  int64_t service_level = 0;
  int64_t qp_timeout = 0;
  int64_t qp_retries = 0;
  uint64_t most_bytes = 0;   // a message that claims to be longer is corrupt
  double retry_seconds = 0;  // until the device gives up on a peer
};

/// What the endpoints of one transport have of an open port. A sleep takes all events of a channel,
/// so each transport has a channel of its own. This costs a descriptor for each port and each part
/// that uses RDMA. One thread at a time.
struct PortUse {
  /// Registers `extent`. Throws Error(kTransport).
  PortUse(OpenPort& port, std::span<std::byte> extent);

  OpenPort& open;
  verbs::CompletionChannel channel;
  verbs::MemoryRegion extent_region;  // none if the extent is empty
  Landing landing;
};

/// What the endpoints of a transport share, whatever their ports. One thread at a time.
struct Shared {
  Shared(const Settings& settings, std::span<std::byte> extent, CommonWatch& watch)
      : settings(settings), extent(extent), lent(settings.register_bytes, watch) {}

  const Settings settings;
  const std::span<std::byte> extent;            // of the arena
  std::vector<std::unique_ptr<PortUse>> ports;  // by the port's number; null: not used
  Registrations lent;
  std::vector<VerbsEndpoint*> endpoints;
};

class VerbsEndpoint final : public Endpoint {
 public:
  /// Makes the queue pair and the inbox. Throws Error(kTransport).
  VerbsEndpoint(Rank rank, Rank peer, Shared& shared, PortUse& port);
  ~VerbsEndpoint() override;

  /// The port as it was when this endpoint was made, which is what the peer is told.
  const verbs::UsablePort& port() const { return usable_; }
  /// Sends the hello over `socket`, an authenticated connection to the peer. `mine` is this rank's
  /// port.
  void connect(Fd socket, const Address& mine, Deadline deadline);
  /// Receives the peer's hello and connects the queue pair.
  bool try_establish(Deadline deadline) override;
  /// True once a write that takes a packet of full length is acknowledged.
  bool try_prove(Deadline deadline) override;
  bool drained() override;
  void expect(void* place, uint64_t capacity) override;
  uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) override;
  uint64_t completed() override;
  bool try_peek(Envelope* envelope, uint64_t* bytes) override;
  bool try_recv(void* place, uint64_t capacity, View* view) override;
  void release() override;
  bool progress() override;
  bool busy() const override { return !waiting_.empty() || owed_places_ > 0 || owes_credit_; }
  /// Transport::may_be_ready() and end_wait(), for this link. The caller watches the channel of the
  /// port.
  bool may_be_ready(std::vector<pollfd>* sleep);
  void end_wait() { wants_message_ = wants_other_ = false; }
  /// Stops the link: nothing goes out or comes in any more.
  void stop() noexcept;

 private:
  /// A message on its way out.
  struct Out {
    uint64_t last_write = 0;  // number of the last write; 0: the memory was free at once
    bool waits = false;       // for a place
  };
  /// A long message whose receiver has not named a place yet.
  struct Waiting {
    uint64_t number = 0;
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  /// A message on its way in.
  struct In {
    bool has_header = false;
    bool done = false;                   // all of it is there
    Header header;                       // copied when it came: what is checked is what is used
    Place place;                         // named, or to be named, to the peer; bytes == 0: none
    bool owed = false;                   // to be named when there is room
    std::unique_ptr<Registered> buffer;  // if the place is one of the transport's
  };
  Out& out(uint64_t number) { return out_[number % kWindow]; }
  In& in(uint64_t number) { return in_[number % kWindow]; }
  const verbs::MemoryRegion* region_of(const void* data, uint64_t bytes, bool written) const;

  // Posting. Writes are numbered 1, 2, 3 …
  bool room(uint64_t writes) const;
  uint64_t writes_for(uint64_t bytes) const;
  uint64_t post(verbs::Write write, bool signaled);
  uint64_t post_word(Kind kind, uint64_t number, bool signaled);
  uint64_t post_message(const Header& header, uint64_t copied, const verbs::Slice& gathered,
                        bool signaled);
  void post_payload(const std::byte* data, uint64_t bytes, const Place& place);
  void send_here(Header header, const std::byte* data);
  void send_long(Header header, const std::byte* data);
  bool send_waiting();
  void name_place(uint64_t number, void* place, uint64_t bytes);
  bool tell_places();
  bool tell_credit();
  bool named(uint64_t number, uint64_t bytes) const;

  // Polling.
  bool poll_queue();
  bool next_is_due();
  [[noreturn]] void fail(const verbs::Completion& completion);
  void take_immediate(uint32_t immediate);
  void take_header(uint64_t number);
  void take_place(uint64_t number);
  void take_done(uint64_t number);
  void take_credit(uint64_t number);
  [[noreturn]] void corrupt(const std::string& what) const;
  void throw_if_failed() const;
  std::string link() const;

  // Connecting, in handshake.cc.
  bool hear(void* into, size_t bytes);
  uint32_t path_mtu_bytes() const;
  verbs::Connection connection() const;
  void post_proof();
  bool setup_has_ended();

  const Rank rank_;
  const Rank peer_;
  Shared& shared_;
  const Settings& settings_;
  PortUse& port_;
  const verbs::UsablePort usable_;
  const Layout layout_;       // of the inboxes of both
  const Layout sent_layout_;  // of the outbox
  Registered inbox_;
  Registered outbox_;
  verbs::CompletionQueue queue_;
  verbs::QueuePair pair_;
  uint32_t psn_ = 0;
  Fd socket_;         // until both ends have proven the path
  size_t heard_ = 0;  // bytes received of the peer's next setup message
  bool told_proven_ = false;
  uint64_t proof_ = 0;  // the write that shows that the path carries RDMA; 0: not yet posted
  Hello mine_;
  Hello theirs_;
  std::optional<Error> failed_;
  bool told_of_end_ = false;  // may_be_ready() has reported the end
  // What the caller looked for in vain since end_wait(): a message; a credit, a completion or a
  // step of the setup. A message that it does not want yet must not keep it from sleeping.
  bool wants_message_ = false;
  bool wants_other_ = false;

  uint64_t posted_ = 0;       // writes
  uint64_t reclaimed_ = 0;    // writes known to be complete
  uint64_t last_needed_ = 0;  // the last write that the peer needs
  uint64_t last_asked_ = 0;   // the last write that drained() posted

  uint64_t sent_ = 0;
  uint64_t completed_ = 0;
  uint64_t peer_released_ = 0;
  std::array<Out, kWindow> out_;
  std::deque<Waiting> waiting_;
  std::array<Place, kWindow> named_;  // by the peer, for messages to it

  uint64_t arrived_ = 0;  // headers that have come
  uint64_t received_ = 0;
  uint64_t released_ = 0;
  uint64_t told_ = 0;  // releases that were reported to the peer
  uint64_t expected_ = 0;
  uint64_t owed_places_ = 0;
  bool owes_credit_ = false;
  std::array<In, kWindow> in_;
};

}  // namespace ringcoll::rdma

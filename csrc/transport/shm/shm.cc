#include "transport/shm/shm.h"

#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/nonce.h"
#include "base/order.h"
#include "shm/own_memory.h"
#include "transport/shm/endpoint.h"
#include "transport/shm/layout.h"
#include "transport/shm/reserve.h"

namespace ringcoll {
namespace {

using shm::Layout;
using shm::PartAddress;

/// Memory that the whole and its parts share. Once the whole has been asked to reach all peers,
/// only the reserve, the ropes and `ended` change.
struct Common {
  struct Peer {
    SharedMemory control;
    SharedMemory arena;
    SharedMemory handed;
    int pid = 0;
    PeerMemory memory;
    bool reads = false;  // `memory` can be read
  };

  explicit Common(const TransportOptions& options)
      : rank(options.rank),
        machine_of(options.seats.machine_of),
        arena(options.arena),
        inline_bytes(static_cast<uint64_t>(options.config.inline_bytes)),
        handed_bytes(static_cast<uint64_t>(options.config.handed_bytes)),
        layout(options.size, inline_bytes, sharers(options.size), handed_bytes, options.part_bytes),
        control(SharedMemory::create(layout.bytes())),
        handed(SharedMemory::create(layout.handed(layout.units_with_buffers()))),
        reserve(control, handed, layout),
        peers(static_cast<size_t>(options.size)),
        ropes(static_cast<size_t>(options.size)),
        ended(static_cast<size_t>(options.size)) {}

  /// Whether a rank may share memory with this one, by what all ranks know alike.
  bool near(Rank other) const {
    if (machine_of.empty()) return true;
    auto machine = [this](Rank r) { return machine_of.at(static_cast<size_t>(r)); };
    return machine(other) == machine(rank);
  }
  Rank sharers(Rank size) const {
    Rank count = 0;
    for (Rank r = 0; r < size; r++) count += near(r);
    return count;
  }
  bool reached(Rank peer) const {
    return peers.at(static_cast<size_t>(peer)).control.data() != nullptr;
  }
  shm::PeerLines* lines(uint32_t unit) {
    return reinterpret_cast<shm::PeerLines*>(control.data() + layout.lines(unit));
  }
  const shm::PeerLines* lines_of(Rank peer, uint32_t unit) const {
    const SharedMemory& memory = peers[static_cast<size_t>(peer)].control;
    return reinterpret_cast<const shm::PeerLines*>(memory.data() + layout.lines(unit));
  }
  /// The longest copied message on links whose units have buffers, or have none.
  uint64_t copies_up_to(bool with_buffers) const {
    return with_buffers ? std::max(inline_bytes, handed_bytes) : inline_bytes;
  }
  /// The pair of this rank and `peer`, a rank of the whole, in these units of theirs. `their_lead`:
  /// the first unit of the peer's block.
  shm::Pair pair(Rank peer, uint32_t my_unit, uint32_t their_unit, uint32_t their_lead) {
    const Peer& mapped = peers[static_cast<size_t>(peer)];
    shm::Pair pair;
    pair.inline_bytes = inline_bytes;
    pair.stride = layout.stride();
    pair.mine = lines(my_unit);
    pair.theirs = lines_of(peer, their_unit);
    pair.their_lead = lines_of(peer, their_lead);
    pair.ropes = &ropes[static_cast<size_t>(peer)];
    pair.out_ring = control.data() + layout.ring(my_unit);
    pair.in_ring = mapped.control.data() + layout.ring(their_unit);
    if (std::max(my_unit, their_unit) < layout.units_with_buffers()) {
      pair.my_buffers = {handed.data() + layout.handed(my_unit), layout.handed_unit_bytes()};
      pair.their_buffers = {mapped.handed.data() + layout.handed(their_unit),
                            layout.handed_unit_bytes()};
    }
    pair.leads = rank < peer;
    pair.arena = &arena;
    pair.their_arena = &mapped.arena;
    pair.pid = mapped.pid;
    pair.memory = mapped.reads ? &mapped.memory : nullptr;
    return pair;
  }

  const Rank rank;
  const std::vector<int> machine_of;  // by rank; empty: nothing is known
  const SharedMemory& arena;
  const uint64_t inline_bytes;
  const uint64_t handed_bytes;
  const Layout layout;
  SharedMemory control;
  SharedMemory handed;  // buffers, which peers also write
  shm::Reserve reserve;
  std::vector<Peer> peers;
  std::vector<BellRopes> ropes;          // to the peers' bells
  std::vector<std::atomic<bool>> ended;  // by peer: its process has ended
};

// Peers that read this process need no preparation (HostLink::takes_lent).
void grant(std::span<Loan> loans) {
  for (Loan& loan : loans) loan.granted = can_be_read(loan.data, loan.bytes);
}

class ShmReaders final : public Readers {
 public:
  void add(const shm::Reader& reader) { readers_.push_back(reader); }
  bool any() override {
    std::erase_if(readers_, [](const shm::Reader& reader) { return !reader.may_read(); });
    return !readers_.empty();
  }

 private:
  std::vector<shm::Reader> readers_;
};

/// A part has a block of units in the control memory of each of its ranks on this machine. A block
/// has one unit for each of these ranks, in the order of the part, which all know alike.
class ShmPart final : public Transport {
 public:
  ShmPart(Common& common, const TransportPart& part);
  ~ShmPart() override;

  std::string address() const override;
  std::string reach(Rank peer, std::string_view text) override;
  std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> /*sockets*/,
                                    Deadline deadline) override;
  std::unique_ptr<Transport> part(const TransportPart&) override {
    throw Error(Code::kInternal, "shm: a part has no parts");
  }
  void lend(std::span<Loan> loans, size_t /*in_flight*/) override { grant(loans); }
  uint64_t copies_up_to() const override;
  std::unique_ptr<Readers> readers() override;
  bool connected_by(Rank peer) override;
  bool may_be_ready(Sleep* sleep) override { return set_.may_be_ready(sleep); }
  void end_wait() override { set_.end_wait(); }

 private:
  /// A rank of the part.
  struct Member {
    Rank in_whole = 0;
    uint32_t place = 0;  // its unit in every block, if it is near
    PartAddress address;
    bool reached = false;
    bool connected = false;
    shm::ShmEndpoint* link = nullptr;  // while it lives
    uint64_t unread = 0;               // last_unread() of the link when it ended
  };
  Member& member(Rank rank) { return members_.at(static_cast<size_t>(rank)); }
  /// The peer's unit for this rank.
  uint32_t unit_of(const Member& peer) const {
    return peer.address.first + members_.at(static_cast<size_t>(rank_)).place;
  }
  shm::Witness witness_of(const Member& peer) const {
    return {&common_.lines_of(peer.in_whole, peer.address.first)->open, peer.address.base,
            &common_.ended[static_cast<size_t>(peer.in_whole)]};
  }

  Common& common_;
  const Rank rank_;
  const std::span<const std::byte> extent_;
  std::vector<Member> members_;
  shm::Block block_;
  shm::LinkSet set_;
};

ShmPart::ShmPart(Common& common, const TransportPart& part)
    : common_(common), rank_(part.rank), extent_(part.extent) {
  uint32_t near = 0;
  for (Rank rank : part.members) {
    members_.push_back({.in_whole = rank, .place = near});
    near += common.near(rank);
  }
  block_ = common.reserve.take(near);
  set_.mine = common.lines(block_.first);
}

// A peer may have linked to this rank although this rank has not connected. So every reached peer
// is a witness.
ShmPart::~ShmPart() {
  std::vector<shm::Witness> witnesses;
  for (const Member& peer : members_)
    if (peer.reached) witnesses.push_back(witness_of(peer));
  common_.reserve.give_back(block_, std::move(witnesses));
}

uint64_t ShmPart::copies_up_to() const {
  bool with_buffers = std::ranges::all_of(members_, [this](const Member& peer) {
    uint32_t last = std::max(block_.first + peer.place, peer.reached ? unit_of(peer) : 0);
    return last < common_.layout.units_with_buffers();
  });
  return common_.copies_up_to(with_buffers);
}

std::unique_ptr<Readers> ShmPart::readers() {
  auto readers = std::make_unique<ShmReaders>();
  for (const Member& peer : members_) {
    uint64_t unread = peer.link ? peer.link->last_unread() : peer.unread;
    if (unread > 0)
      readers->add({witness_of(peer), &common_.lines_of(peer.in_whole, unit_of(peer))->released,
                    peer.address.base, unread});
  }
  return readers->any() ? std::move(readers) : nullptr;
}

std::string ShmPart::address() const {
  PartAddress address{block_.base, block_.first, rank_};
  return std::string(reinterpret_cast<const char*>(&address), sizeof address);
}

// The address is checked against this rank's layout, since the peer's is the same.
std::string ShmPart::reach(Rank rank, std::string_view text) {
  Member& peer = member(rank);
  PartAddress theirs;
  if (text.size() != sizeof theirs) return "its address is not one of this version of ringcoll";
  std::memcpy(&theirs, text.data(), sizeof theirs);
  if (theirs.rank != rank)
    return fmt::format("it is rank {} of the group and not rank {}", theirs.rank, rank);
  const Layout& layout = common_.layout;
  uint32_t first = layout.whole_units(), end = first + layout.spare_units();
  if (theirs.first < first || theirs.first > end || end - theirs.first < block_.units ||
      theirs.base == 0 || theirs.base % shm::kBaseStep != 0)
    return fmt::format(
        "its address makes no sense: unit {}, which is not from {} to {}, or base {}", theirs.first,
        first, end, theirs.base);
  if (!common_.near(peer.in_whole) || !common_.reached(peer.in_whole))
    return "its memory is not mapped here";
  peer.address = theirs;
  peer.reached = true;
  return "";
}

std::unique_ptr<Endpoint> ShmPart::connect(Rank rank, std::vector<Fd> /*sockets*/,
                                           Deadline /*deadline*/) {
  Member& peer = member(rank);
  invariant(peer.reached && !peer.connected, "shm: rank {} of a group is to be connected {}", rank,
            peer.connected ? "twice" : "unreached");
  peer.connected = true;
  shm::Pair pair =
      common_.pair(peer.in_whole, block_.first + peer.place, unit_of(peer), peer.address.first);
  pair.rank = rank_;
  pair.peer = rank;
  pair.my_base = block_.base;
  pair.their_base = peer.address.base;
  pair.extent = extent_;
  pair.on_end = [&peer](uint64_t unread) {
    peer.unread = unread;
    peer.link = nullptr;
  };
  pair.set = &set_;
  auto link = std::make_unique<shm::ShmEndpoint>(pair);
  peer.link = link.get();
  link->call_peer();
  return link;
}

// The acquire makes visible what the peer wrote in its unit before. The peer stores the word once
// when it connects, then reads whether this rank sleeps (ShmEndpoint::call_peer). This rank calls
// may_be_ready(), which announces its sleep, before it reads the word here.
bool ShmPart::connected_by(Rank rank) {
  const Member& peer = member(rank);
  return peer.reached &&
         observe(common_.lines_of(peer.in_whole, unit_of(peer))->connected) == peer.address.base;
}

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(const TransportOptions& options)
      : size_(options.size),
        extent_(options.own_arena()),
        common_(options),
        connected_(static_cast<size_t>(options.size)) {
    set_.mine = common_.lines(kLead);
    page() = {shm::kMagic, random_nonce()};
  }

  std::string address() const override;
  std::string reach(Rank peer, std::string_view text) override;
  std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> /*sockets*/,
                                    Deadline deadline) override;
  std::unique_ptr<Transport> part(const TransportPart& part) override {
    return std::make_unique<ShmPart>(common_, part);
  }
  void lend(std::span<Loan> loans, size_t /*in_flight*/) override { grant(loans); }
  uint64_t copies_up_to() const override { return common_.copies_up_to(true); }
  void ended(Rank peer) override { common_.ended.at(static_cast<size_t>(peer)) = true; }
  bool may_be_ready(Sleep* sleep) override { return set_.may_be_ready(sleep); }
  void end_wait() override { set_.end_wait(); }

 private:
  static constexpr uint32_t kLead = 0;  // the first unit of every rank
  shm::ControlPage& page() const {
    return *reinterpret_cast<shm::ControlPage*>(common_.control.data());
  }

  const Rank size_;
  const std::span<const std::byte> extent_;
  Common common_;
  std::vector<bool> connected_;  // by peer
  shm::LinkSet set_;
};

std::string ShmTransport::address() const {
  shm::Address address;
  address.rank = common_.rank;
  address.size = size_;
  address.pid = ::getpid();
  address.control_fd = common_.control.fd();
  address.arena_fd = common_.arena.fd();
  address.control_bytes = common_.layout.bytes();
  address.arena_bytes = common_.arena.bytes();
  address.nonce = page().nonce;
  address.nonce_at = reinterpret_cast<uintptr_t>(&page().nonce);
  address.inline_bytes = common_.inline_bytes;
  address.handed_bytes = common_.handed_bytes;
  address.handed_fd = common_.handed.fd();
  std::string id = boot_id();
  std::memcpy(address.boot_id, id.data(), std::min(id.size(), sizeof address.boot_id - 1));
  return std::string(reinterpret_cast<const char*>(&address), sizeof address);
}

std::string ShmTransport::reach(Rank peer, std::string_view text) {
  shm::Address theirs;
  if (text.size() != sizeof theirs) return "its address is not one of this version of ringcoll";
  std::memcpy(&theirs, text.data(), sizeof theirs);
  if (theirs.magic != shm::kMagic || theirs.version != shm::kVersion)
    return "its address is not one of this version of ringcoll";
  if (std::string_view(theirs.boot_id, ::strnlen(theirs.boot_id, sizeof theirs.boot_id)) !=
      boot_id())
    return "other host";
  if (theirs.rank != peer || theirs.size != size_)
    return fmt::format("it is rank {} of {} and not rank {} of {}", theirs.rank, theirs.size, peer,
                       size_);
  if (theirs.inline_bytes != common_.inline_bytes || theirs.control_bytes != common_.layout.bytes())
    return fmt::format("RINGCOLL_INLINE_BYTES differs: {} there, {} here", theirs.inline_bytes,
                       common_.inline_bytes);
  if (theirs.handed_bytes != common_.handed_bytes)
    return fmt::format("RINGCOLL_HANDED_BYTES differs: {} there, {} here", theirs.handed_bytes,
                       common_.handed_bytes);
  try {
    Common::Peer mapped;
    mapped.control = SharedMemory::open(theirs.pid, theirs.control_fd, theirs.control_bytes, false);
    auto* page = reinterpret_cast<const shm::ControlPage*>(mapped.control.data());
    if (page->magic != shm::kMagic || page->nonce != theirs.nonce)
      return "its memory is not where its address says: the ranks do not share a PID namespace";
    mapped.arena = SharedMemory::open(theirs.pid, theirs.arena_fd, theirs.arena_bytes, false);
    mapped.handed = SharedMemory::open(theirs.pid, theirs.handed_fd, common_.handed.bytes(), true);
    mapped.pid = theirs.pid;
    mapped.memory = PeerMemory(theirs.pid, theirs.nonce_at, theirs.nonce);
    mapped.reads = mapped.memory.can_be_read();
    invariant(!connected_.at(static_cast<size_t>(peer)), "shm: rank {} is connected", peer);
    common_.peers[static_cast<size_t>(peer)] = std::move(mapped);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::unique_ptr<Endpoint> ShmTransport::connect(Rank peer, std::vector<Fd> /*sockets*/,
                                                Deadline /*deadline*/) {
  bool connected = connected_.at(static_cast<size_t>(peer));
  invariant(common_.reached(peer) && !connected, "shm: rank {} is to be connected {}", peer,
            connected ? "twice" : "unreached");
  connected_[static_cast<size_t>(peer)] = true;
  shm::Pair pair =
      common_.pair(peer, static_cast<uint32_t>(peer), static_cast<uint32_t>(common_.rank), kLead);
  pair.rank = common_.rank;
  pair.peer = peer;
  pair.extent = extent_;
  pair.set = &set_;
  return std::make_unique<shm::ShmEndpoint>(pair);
}

}  // namespace

Probe probe_shm(const Config&) {
  try {
    constexpr size_t kBytes = 64 << 10;
    auto memory = SharedMemory::create(kBytes);
    auto view = SharedMemory::open(::getpid(), memory.fd(), kBytes, false);
    memory.data()[kBytes - 1] = std::byte{0x5a};
    if (view.data()[kBytes - 1] != std::byte{0x5a})
      return {false, "shared memory mapped twice does not show the same bytes"};
    return {true,
            fmt::format("memfd mapped through /proc/{}/fd, boot id {}", ::getpid(), boot_id())};
  } catch (const Error& error) {
    return {false, error.what()};
  }
}

std::unique_ptr<Transport> make_shm(const TransportOptions& options) {
  return std::make_unique<ShmTransport>(options);
}

}  // namespace ringcoll

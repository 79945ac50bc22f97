#include "transport/shm/shm.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/nonce.h"
#include "transport/shm/endpoint.h"
#include "transport/shm/layout.h"

namespace ringcoll {
namespace {

using shm::Address;
using shm::Layout;

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(const TransportOptions& options)
      : rank_(options.rank),
        size_(options.size),
        arena_(options.arena),
        inline_bytes_(static_cast<uint64_t>(options.config.inline_bytes)),
        layout_(options.size, inline_bytes_),
        control_(SharedMemory::create(layout_.bytes(), false)),
        peers_(static_cast<size_t>(options.size)) {
    page() = {shm::kMagic, random_nonce()};
  }

  std::string address() const override;
  std::string reach(Rank peer, std::string_view text) override;
  std::unique_ptr<Endpoint> connect(Rank peer, Deadline deadline) override;

 private:
  struct Peer {
    SharedMemory control;
    SharedMemory arena;
    bool connected = false;
  };

  shm::ControlPage& page() const { return *reinterpret_cast<shm::ControlPage*>(control_.data()); }

  const Rank rank_;
  const Rank size_;
  const SharedMemory& arena_;
  const uint64_t inline_bytes_;
  const Layout layout_;
  SharedMemory control_;
  std::vector<Peer> peers_;
};

std::string ShmTransport::address() const {
  Address address;
  address.rank = rank_;
  address.size = size_;
  address.pid = ::getpid();
  address.control_fd = control_.fd();
  address.arena_fd = arena_.fd();
  address.control_bytes = layout_.bytes();
  address.arena_bytes = arena_.bytes();
  address.nonce = page().nonce;
  address.inline_bytes = inline_bytes_;
  std::string id = boot_id();
  std::memcpy(address.boot_id, id.data(), std::min(id.size(), sizeof address.boot_id - 1));
  return std::string(reinterpret_cast<const char*>(&address), sizeof address);
}

std::string ShmTransport::reach(Rank peer, std::string_view text) {
  Address theirs;
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
  if (theirs.inline_bytes != inline_bytes_ || theirs.control_bytes != layout_.bytes())
    return fmt::format("RINGCOLL_INLINE_BYTES differs: {} there, {} here", theirs.inline_bytes,
                       inline_bytes_);
  try {
    Peer mapped;
    mapped.control = SharedMemory::open(theirs.pid, theirs.control_fd, theirs.control_bytes, false);
    auto* page = reinterpret_cast<const shm::ControlPage*>(mapped.control.data());
    if (page->magic != shm::kMagic || page->nonce != theirs.nonce)
      return "its memory is not where its address says: the ranks do not share a PID namespace";
    mapped.arena = SharedMemory::open(theirs.pid, theirs.arena_fd, theirs.arena_bytes, false);
    invariant(!peers_.at(static_cast<size_t>(peer)).connected, "shm: rank {} is connected", peer);
    peers_[static_cast<size_t>(peer)] = std::move(mapped);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::unique_ptr<Endpoint> ShmTransport::connect(Rank peer, Deadline /*deadline*/) {
  Peer& mapped = peers_.at(static_cast<size_t>(peer));
  invariant(mapped.control.data() != nullptr && !mapped.connected,
            "shm: rank {} is to be connected {}", peer, mapped.connected ? "twice" : "unreached");
  mapped.connected = true;
  shm::Pair pair;
  pair.rank = rank_;
  pair.peer = peer;
  pair.inline_bytes = inline_bytes_;
  pair.stride = layout_.stride();
  pair.mine = reinterpret_cast<shm::PeerLines*>(control_.data() + layout_.lines(peer));
  pair.theirs =
      reinterpret_cast<const shm::PeerLines*>(mapped.control.data() + layout_.lines(rank_));
  pair.out_ring = control_.data() + layout_.ring(peer);
  pair.in_ring = mapped.control.data() + layout_.ring(rank_);
  pair.my_arena = &arena_;
  pair.their_arena = &mapped.arena;
  return std::make_unique<shm::ShmEndpoint>(pair);
}

}  // namespace

Probe probe_shm(const Config&) {
  try {
    constexpr size_t kBytes = 64 << 10;
    auto memory = SharedMemory::create(kBytes, false);
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

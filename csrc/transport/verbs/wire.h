// What two ranks joined by RDMA write into each other's memory, and what they tell each other
// first.
//
// Every write that the peer must act on ends with an immediate. When the peer's receive has
// completed, all bytes of that write, and of all writes before it, are there (InfiniBand
// specification, volume 1, 9.7.5.1). Nothing is inferred from the bytes themselves.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"
#include "verbs/port.h"

namespace ringcoll::rdma {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

inline constexpr uint32_t kMagic = 0x616d6472;  // "rdma"
inline constexpr uint32_t kVersion = 4;

/// Messages of one direction that may be unreleased.
inline constexpr uint64_t kWindow = 32;
/// The receiver reports releases when it owes so many.
inline constexpr uint64_t kOwedReleases = kWindow / 4;
static_assert(kWindow - (kOwedReleases - 1) >= kLeastCredits);

/// A port that a rank may use. All ranks learn the ports of all, as Transport::address(), and
/// compute from them who uses which (sharing.h). Two ranks that connect tell each other their ports
/// again, since GIDs may have changed.
struct Address {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t rank = 0;
  uint32_t slot_bytes = 0;
  uint32_t mtu_bytes = 0;
  uint16_t lid = 0;
  uint8_t link_layer = 0;   // verbs::LinkLayer
  uint8_t gid_type = 0;     // verbs::GidType
  uint8_t prefix_bits = 0;  // of the IP network that the GID is in; 0: not known
  uint8_t distance = 0;     // from the rank's NUMA node; alike for all if it has none
  uint8_t named = 0;        // RINGCOLL_DEVICES names it
  uint8_t reserved = 0;
  verbs::Gid gid;
  char name[32] = {};  // "mlx5_0:1", for messages
};
/// Ports that a rank may use, at most. More would not fit into what is exchanged.
inline constexpr size_t kMostPorts = 16;
static_assert(sizeof(Address) == 76 && kMostPorts * sizeof(Address) <= kMaxAddressBytes);

/// The ports of a rank, as Transport::address() has them.
std::string encode_ports(const std::vector<Address>& ports);
/// Empty if they are not of this version.
std::vector<Address> decode_ports(std::string_view text);

/// Why a queue pair cannot join these two, in words with what to do; "" if it can.
std::string mismatch(const Address& theirs, const Address& mine);
/// "mlx5_0:1", and "mlx5_0:1 (Ethernet, 10.0.0.1)".
std::string name_of(const Address& address);
std::string text_of(const Address& address);

/// What the ranks of a pair tell each other over an authenticated connection when they connect.
/// Nobody else gets the keys of an inbox.
struct Hello {
  Address address;
  uint32_t qp_num = 0;
  uint64_t inbox = 0;  // where the inbox begins
  uint32_t psn = 0;
  uint32_t rkey = 0;  // of the inbox
};
static_assert(sizeof(Hello) == 96);

/// What an immediate says: a kind in the upper three bits, and in the others the number of its
/// message, modulo 2^29.
enum class Kind : uint32_t {
  kMessage = 1,   // the message's header is in its slot
  kPlace = 2,     // the message's entry says where its payload is wanted
  kDone = 3,      // the payload is where it was wanted
  kReleased = 4,  // this message and all before it may be overwritten
};
inline constexpr uint32_t kNumberBits = 29;
inline constexpr uint32_t kNumberMask = (1u << kNumberBits) - 1;

inline uint32_t immediate_of(Kind kind, uint64_t number) {
  return static_cast<uint32_t>(kind) << kNumberBits | (number & kNumberMask);
}

/// The header at the start of a slot.
struct Header {
  enum Form : uint32_t {
    kHere = 1,    // the payload follows
    kPlaced = 2,  // it is at the place that the receiver named
    kLater = 3,   // it will be at the place that the receiver names; then kDone follows
  };
  uint64_t number = 0;
  uint64_t bytes = 0;
  Envelope envelope;
  uint32_t form = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Header) == 48);

/// Where the receiver wants the payload of a message.
struct Place {
  uint64_t number = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t rkey = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Place) == 32);

/// Offsets in an inbox, and in the outbox that its writes are made from, whose slots are shorter.
class Layout {
 public:
  explicit Layout(uint32_t slot_bytes) : slot_bytes_(slot_bytes) {}

  uint64_t place(uint64_t number) const { return number % kWindow * sizeof(Place); }
  uint64_t slot(uint64_t number) const {
    return kWindow * sizeof(Place) + number % kWindow * slot_bytes_;
  }
  uint64_t bytes() const { return kWindow * (sizeof(Place) + slot_bytes_); }
  /// Longest payload that follows its header.
  uint64_t most_here() const { return slot_bytes_ - sizeof(Header); }

 private:
  uint64_t slot_bytes_;
};

}  // namespace ringcoll::rdma

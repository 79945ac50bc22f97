// What is said on a lifeline (mesh/lifelines.h): messages of one header and a text, as they are on
// the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "bootstrap/connector.h"
#include "mesh/survivors.h"

namespace ringcoll::lifeline {

// Longer texts of errors are cut: a message has to fit into a socket whose peer does not read.
inline constexpr size_t kMaxTextBytes = 4096;

enum class Type : uint8_t {
  kGoodbye = 1,
  kFailed = 2,
  kPing = 3,
  kPong = 4,
  kHello = 5,
  kLost = 6,
  kLeft = 7,
  kBallot = 8,
  kCalls = 9,
};

// On the wire as it is; text_bytes of text follow.
struct Header {
  uint32_t magic;
  uint8_t version;
  uint8_t type;
  uint16_t text_bytes;
  int32_t code;    // failed, lost: of the error; ballot: 1 if it is decided
  int32_t rank;    // failed: whom to blame; pong: whom the sender waits for; ballot: who says it
                   // (all the group's); lost: who is (the mesh's)
  uint64_t token;  // ping, and the pong to it; ballot: the round
  uint64_t group;  // failed, left, ping, pong, ballot, calls
};
static_assert(sizeof(Header) == 32);

Header header_of(Type type, GroupNumber group = 0, Rank rank = kNobody, uint64_t token = 0);

std::string encode(const Header& header);
/// Failed, lost.
std::string encode(Type type, GroupNumber group, const Error& error);
std::string encode(GroupNumber group, uint64_t round, const Survivors::Ballot& ballot);
/// Calls; of the text the first kMaxTextBytes.
std::string encode_calls(GroupNumber group, std::string_view calls);

/// Whether it may be one, of a mesh of so many ranks.
bool is_sound(const Header& header, Rank size);
/// A ballot that says that a set is decided, of a group that need not be known: what its last byte
/// has beyond the group's ranks counts as gone. None: it is a vote.
std::optional<Survivors::Ballot> decision_of(const std::string& message);
/// Of a message that is a ballot, of a group of so many ranks; none if it is not of such a group.
std::optional<Survivors::Ballot> ballot_of(const std::string& message, size_t ranks);

}  // namespace ringcoll::lifeline

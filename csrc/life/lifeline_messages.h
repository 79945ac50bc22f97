// The messages of a lifeline (life/lifelines.h) as they are on the wire: one header and a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "connect/connector.h"
#include "life/survivors.h"

namespace ringcoll::lifeline {

// Longer error texts are cut: a message must fit into a socket whose peer does not read.
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
  int32_t rank;    // failed: the rank to blame; pong: the rank waited for;
                   // ballot: its sender (all group ranks); lost: the lost rank (of the mesh)
  uint64_t token;  // ping, and its pong; ballot: the round
  uint64_t group;  // failed, left, ping, pong, ballot, calls
};
static_assert(sizeof(Header) == 32);

Header header_of(Type type, GroupNumber group = 0, Rank rank = kNobody, uint64_t token = 0);

std::string encode(const Header& header);
/// For kFailed and kLost.
std::string encode(Type type, GroupNumber group, const Error& error);
std::string encode(GroupNumber group, uint64_t round, const Survivors::Ballot& ballot);
/// For kCalls; only the first kMaxTextBytes of the text are sent.
std::string encode_calls(GroupNumber group, std::string_view calls);

/// True if it may be a header of a mesh of `size` ranks.
bool is_sound(const Header& header, Rank size);
/// The ballot if it announces a decision, of a group whose size need not be known; none for a vote.
/// Bits of the last byte beyond the group's ranks count as gone.
std::optional<Survivors::Ballot> decision_of(const std::string& message);
/// Decodes a ballot of a group of `ranks` ranks; none if it is too short for such a group.
std::optional<Survivors::Ballot> ballot_of(const std::string& message, size_t ranks);

}  // namespace ringcoll::lifeline

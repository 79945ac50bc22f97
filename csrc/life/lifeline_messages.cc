#include "life/lifeline_messages.h"

#include <cstring>

namespace ringcoll::lifeline {
namespace {

constexpr uint32_t kLifelineMagic = 0x4e494c52;  // "RLIN"
constexpr uint8_t kVersion = 4;
constexpr auto kLastType = static_cast<uint8_t>(Type::kCalls);

std::string encode_with(Header header, std::string_view text) {
  text = text.substr(0, kMaxTextBytes);
  header.magic = kLifelineMagic;
  header.version = kVersion;
  header.text_bytes = static_cast<uint16_t>(text.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  return bytes.append(text);
}

bool is_error(int32_t code) { return code >= RC_INVALID_ARGUMENT && code <= RC_ABORTED; }

}  // namespace

Header header_of(Type type, GroupNumber group, Rank rank, uint64_t token) {
  return {.magic = 0,
          .version = 0,
          .type = static_cast<uint8_t>(type),
          .text_bytes = 0,
          .code = 0,
          .rank = rank,
          .token = token,
          .group = group};
}

std::string encode(const Header& header) { return encode_with(header, {}); }

std::string encode(Type type, GroupNumber group, const Error& error) {
  Header header = header_of(type, group, error.rank());
  header.code = static_cast<int32_t>(error.code());
  return encode_with(header, error.what());
}

bool is_sound(const Header& header, Rank size) {
  bool known = header.magic == kLifelineMagic && header.version == kVersion && header.type >= 1 &&
               header.type <= kLastType && header.rank >= kNobody && header.rank < size;
  if (!known || header.text_bytes > kMaxTextBytes) return false;
  bool error = is_error(header.code);
  switch (static_cast<Type>(header.type)) {
    case Type::kFailed:
      return error;
    case Type::kLost:
      return error && header.rank != kNobody;
    case Type::kBallot:
      return header.rank != kNobody && (header.code == 0 || header.code == 1);
    case Type::kCalls:
      return true;
    default:
      return header.text_bytes == 0;
  }
}

// The text has one bit for each rank, then the offer of a vote. Unused bits of the last byte are
// set.
std::string encode(GroupNumber group, uint64_t round, const Survivors::Ballot& ballot) {
  const size_t ranks = ballot.gone.size();
  std::string text((ranks + 7) / 8, '\0');
  for (size_t r = 0; r < 8 * text.size(); r++)
    if (r >= ranks || ballot.gone[r]) text[r / 8] = static_cast<char>(text[r / 8] | 1 << r % 8);
  invariant(text.size() + ballot.offer.size() <= kMaxTextBytes, "a ballot of {} ranks", ranks);
  Header header = header_of(Type::kBallot, group, ballot.from, round);
  header.code = ballot.decided ? 1 : 0;
  return encode_with(header, text + ballot.offer);
}

std::optional<Survivors::Ballot> decision_of(const std::string& message) {
  Header header;
  std::memcpy(&header, message.data(), sizeof header);
  if (header.code != 1) return {};
  return ballot_of(message, 8 * size_t{header.text_bytes});
}

std::string encode_calls(GroupNumber group, std::string_view calls) {
  return encode_with(header_of(Type::kCalls, group), calls);
}

std::optional<Survivors::Ballot> ballot_of(const std::string& message, size_t ranks) {
  Header header;
  std::memcpy(&header, message.data(), sizeof header);
  size_t set_bytes = (ranks + 7) / 8;
  if (header.text_bytes < set_bytes) return {};
  Survivors::Ballot ballot{
      .from = header.rank, .gone = Survivors::Set(ranks), .decided = header.code == 1, .offer = {}};
  for (size_t r = 0; r < ranks; r++) ballot.gone[r] = message[sizeof header + r / 8] >> r % 8 & 1;
  ballot.offer = message.substr(sizeof header + set_bytes);
  return ballot;
}

}  // namespace ringcoll::lifeline

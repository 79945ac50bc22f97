#include "connect/auth.h"

#include <sodium.h>

#include <cstring>
#include <mutex>

#include "base/error.h"
#include "connect/connector.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

constexpr uint32_t kAuthMagic = 0x4c434752;  // "RGCL"
constexpr uint16_t kVersion = 2;
constexpr size_t kNonceBytes = 32;
using Nonce = std::array<uint8_t, kNonceBytes>;
using Mac = std::array<uint8_t, crypto_auth_hmacsha256_BYTES>;

// Sent as they are.
struct Hello {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  int32_t from;
  int32_t to;
  uint64_t channel;
  GroupId group;
  Nonce nonce;
};
static_assert(sizeof(Hello) == 88);
struct Challenge {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  Nonce nonce;
};
static_assert(sizeof(Challenge) == 40);
struct VerdictMessage {
  uint32_t magic;
  uint32_t code;
  Mac mac;
};
static_assert(sizeof(VerdictMessage) == 40);

template <typename T>
std::string bytes_of(const T& message) {
  return std::string(reinterpret_cast<const char*>(&message), sizeof message);
}
template <typename T>
T message_of(std::string_view bytes) {
  T message;
  invariant(bytes.size() == sizeof message, "a message of {} bytes, not {}", bytes.size(),
            sizeof message);
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}

void need_crypto() {
  static std::once_flag once;
  std::call_once(once, [] { invariant(sodium_init() >= 0, "sodium_init failed"); });
}

Nonce fresh_nonce() {
  need_crypto();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Mac sign(const std::string& secret, std::string_view role, std::string_view hello,
         std::string_view challenge) {
  need_crypto();
  crypto_auth_hmacsha256_state state;
  auto feed = [&](std::string_view bytes) {
    crypto_auth_hmacsha256_update(&state, reinterpret_cast<const uint8_t*>(bytes.data()),
                                  bytes.size());
  };
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const uint8_t*>(secret.data()),
                              secret.size());
  feed(role);
  feed(hello);  // fixed widths: different inputs never concatenate to the same bytes
  feed(challenge);
  Mac mac;
  crypto_auth_hmacsha256_final(&state, mac.data());
  sodium_memzero(&state, sizeof state);
  return mac;
}
constexpr std::string_view kActive = "ringcoll active ", kPassive = "ringcoll passive";

bool equal(const Mac& a, const Mac& b) { return sodium_memcmp(a.data(), b.data(), a.size()) == 0; }

Verdict conclude(const VerdictMessage& message, const Mac& expected) {
  if (message.magic != kAuthMagic) return Verdict::kStranger;
  auto verdict = static_cast<Verdict>(message.code);
  switch (verdict) {
    case Verdict::kAccepted:
      return equal(message.mac, expected) ? verdict : Verdict::kStranger;
    case Verdict::kWrongSecret:
    case Verdict::kOtherGroup:
    case Verdict::kWrongRank:
      return verdict;
    default:
      return Verdict::kStranger;
  }
}

Verdict converse(int fd, Prover prover, Deadline deadline, const std::string& link) {
  send_all(fd, prover.hello().data(), prover.hello().size(), deadline, link);
  while (size_t wanted = prover.wanted()) {
    std::string message(wanted, 0);
    recv_all(fd, message.data(), wanted, deadline, link);
    std::string reply = prover.answer(message);
    send_all(fd, reply.data(), reply.size(), deadline, link);
  }
  return prover.verdict();
}

}  // namespace

GroupId make_group_id(std::string_view text) {
  need_crypto();
  GroupId id;
  static_assert(id.size() == crypto_hash_sha256_BYTES);
  crypto_hash_sha256(id.data(), reinterpret_cast<const uint8_t*>(text.data()), text.size());
  return id;
}

std::string derive_secret(const std::string& secret, std::string_view purpose) {
  Mac mac = sign(secret, "ringcoll derived", purpose, "");
  std::string hex(mac.size() * 2 + 1, 0);
  sodium_bin2hex(hex.data(), hex.size(), mac.data(), mac.size());
  hex.pop_back();
  return hex;
}

std::string random_secret() {
  Nonce bytes = fresh_nonce();
  std::string hex(bytes.size() * 2 + 1, 0);
  sodium_bin2hex(hex.data(), hex.size(), bytes.data(), bytes.size());
  hex.pop_back();
  return hex;
}

const char* explain(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAccepted:
      return "accepted";
    case Verdict::kWrongSecret:
      return "the two ends have different secrets; RINGCOLL_SECRET must be the same on all ranks "
             "of the job, or set on none";
    case Verdict::kOtherGroup:
      return "it belongs to another communicator or another job with the same secret";
    case Verdict::kWrongRank:
      return "it belongs to another rank than expected; two processes may claim one rank";
    case Verdict::kOtherVersion:
      return "it speaks another version of ringcoll's protocol; install the same version on all "
             "hosts";
    case Verdict::kClosed:
      return "the connection was closed before both ends had proven who they are";
    case Verdict::kStranger:
      return "no rank of this job answers; another program has this port";
  }
  return "?";
}

Verdict prove(int fd, const std::string& secret, const Identity& identity, Deadline deadline,
              const std::string& link) {
  try {
    return converse(fd, Prover(secret, identity), deadline, link);
  } catch (const Error& error) {
    if (error.code() == Code::kTimeout) throw;
    return Verdict::kClosed;
  }
}

Prover::Prover(const std::string& secret, const Identity& identity)
    : secret_(secret),
      hello_(bytes_of(Hello{kAuthMagic, kVersion, 0, identity.from, identity.to, identity.channel,
                            identity.group, fresh_nonce()})) {}

size_t Prover::wanted() const {
  if (over_) return 0;
  return has_proven() ? sizeof(VerdictMessage) : sizeof(Challenge);
}

std::string Prover::answer(std::string_view message) {
  invariant(message.size() == wanted() && wanted() > 0, "a message of {} bytes, not {}",
            message.size(), wanted());
  if (!has_proven()) return take_challenge(message);
  over_ = true;
  verdict_ =
      conclude(message_of<VerdictMessage>(message), sign(secret_, kPassive, hello_, challenge_));
  return "";
}

std::string Prover::take_challenge(std::string_view message) {
  auto challenge = message_of<Challenge>(message);
  over_ = challenge.magic != kAuthMagic || challenge.version != kVersion;
  verdict_ = challenge.magic == kAuthMagic ? Verdict::kOtherVersion : Verdict::kStranger;
  if (over_) return "";
  challenge_ = message;
  Mac proof = sign(secret_, kActive, hello_, challenge_);
  return {reinterpret_cast<const char*>(proof.data()), proof.size()};
}

Challenger::Challenger(const AuthPolicy& policy) : policy_(policy) {}

size_t Challenger::wanted() const {
  if (state_ == State::kHello) return sizeof(Hello);
  return state_ == State::kProof ? sizeof(Mac) : 0;
}

Identity Challenger::identity() const {
  if (hello_.empty()) return {};
  auto hello = message_of<Hello>(hello_);
  return {hello.from, hello.to, hello.channel, hello.group};
}

std::string Challenger::answer(std::string_view message) {
  invariant(message.size() == wanted() && wanted() > 0, "a message of {} bytes, not {}",
            message.size(), wanted());
  return state_ == State::kHello ? take_hello(message) : take_proof(message);
}

std::string Challenger::refuse(Verdict verdict, std::string last_words) {
  state_ = State::kRefused;
  verdict_ = verdict;
  return last_words;
}

std::string Challenger::take_hello(std::string_view message) {
  auto hello = message_of<Hello>(message);
  if (hello.magic != kAuthMagic) return refuse(Verdict::kStranger, "");
  challenge_ = bytes_of(Challenge{kAuthMagic, kVersion, 0, fresh_nonce()});
  // The challenge tells the other end which version this end speaks.
  if (hello.version != kVersion) return refuse(Verdict::kOtherVersion, challenge_);
  hello_ = message;
  state_ = State::kProof;
  return challenge_;
}

std::string Challenger::take_proof(std::string_view message) {
  auto say = [](Verdict verdict, const Mac& mac = {}) {
    return bytes_of(VerdictMessage{kAuthMagic, static_cast<uint32_t>(verdict), mac});
  };
  auto no = [&](Verdict verdict) { return refuse(verdict, say(verdict)); };
  if (!equal(message_of<Mac>(message), sign(policy_.secret, kActive, hello_, challenge_)))
    return no(Verdict::kWrongSecret);
  Identity claimed = identity();
  if (claimed.group != policy_.group) return no(Verdict::kOtherGroup);
  if (claimed.to != policy_.self || claimed.from < policy_.lowest || claimed.from > policy_.highest)
    return no(Verdict::kWrongRank);
  state_ = State::kAccepted;
  return say(Verdict::kAccepted, sign(policy_.secret, kPassive, hello_, challenge_));
}

}  // namespace ringcoll

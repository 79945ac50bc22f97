// Mutual authentication of a fresh connection: each end proves that it knows the job's secret. The
// active end is the one that connected.
//
//   active  -> passive  Hello{from, to, channel, group, nonce}
//   passive -> active   Challenge{nonce}
//   active  -> passive  HMAC-SHA256(secret, "active"  + Hello + Challenge)
//   passive -> active   Verdict{code, HMAC-SHA256(secret, "passive" + Hello + Challenge)}
//
// Both nonces are fresh, and the proofs cover the hello. So a recorded connection cannot be
// replayed, and a proof is worthless for another rank, channel or job. Messages have fixed widths
// and a version. Before the proof, an end interprets only magic and version.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/types.h"

namespace ringcoll {

/// Identifies the job or store to which a connection belongs: a hash that all its ranks share.
using GroupId = std::array<uint8_t, 32>;
/// SHA-256 of `text`.
GroupId make_group_id(std::string_view text);

/// A secret made of another, which it does not reveal: HMAC-SHA256 of `purpose`, in hex.
std::string derive_secret(const std::string& secret, std::string_view purpose);

/// Which rank opened a connection, to which rank, and for which channel.
struct Identity {
  Rank from = kNobody;
  Rank to = kNobody;
  uint64_t channel = 0;
  GroupId group{};
};

enum class Verdict : uint32_t {
  kAccepted = 1,
  kWrongSecret = 2,
  kOtherGroup = 3,    // the peer knows the secret, but belongs to another job or store
  kWrongRank = 4,     // addressed to another rank, or from a rank that may not connect here
  kOtherVersion = 5,  // the peer speaks another version of this protocol
  // Conclusions of one end, which are never sent.
  kClosed = 100,   // the peer closed before a verdict: it is too busy, or gone
  kStranger = 101  // the peer does not speak this protocol, or accepted us without a valid proof
};
/// The cause in words, with the remedy.
const char* explain(Verdict verdict);

/// Runs the active end, and blocks. Throws Error(kTimeout) at the deadline; `link` names the
/// connection in that error.
Verdict prove(int fd, const std::string& secret, const Identity& identity, Deadline deadline,
              const std::string& link);

/// The active end as a state machine without I/O: it takes messages and returns answers. One
/// thread.
class Prover {
 public:
  /// `secret` is borrowed.
  Prover(const std::string& secret, const Identity& identity);
  /// The first message to send.
  const std::string& hello() const { return hello_; }
  /// Bytes of the next message; 0 when it is over.
  size_t wanted() const;
  /// Takes exactly wanted() bytes and returns what to send, which may be nothing.
  std::string answer(std::string_view message);
  /// Whether answer() has returned the proof. From then on the passive end may have accepted.
  bool has_proven() const { return !challenge_.empty(); }
  /// Valid once wanted() is 0.
  Verdict verdict() const { return verdict_; }

 private:
  std::string take_challenge(std::string_view message);

  const std::string& secret_;
  const std::string hello_;
  std::string challenge_;
  bool over_ = false;
  Verdict verdict_ = Verdict::kStranger;
};

/// Which connections the passive end accepts.
struct AuthPolicy {
  std::string secret;
  Rank self = 0;
  Rank lowest = 0;  // ranks lowest to highest may connect
  Rank highest = 0;
  GroupId group{};
};

/// The passive end as a state machine without I/O: it takes messages and returns answers. One
/// thread.
class Challenger {
 public:
  enum class State { kHello, kProof, kAccepted, kRefused };

  /// `policy` is borrowed.
  explicit Challenger(const AuthPolicy& policy);
  /// Bytes of the next message; 0 when it is over.
  size_t wanted() const;
  /// Takes exactly wanted() bytes and returns what to send, which may be nothing.
  std::string answer(std::string_view message);

  State state() const { return state_; }
  /// The reason, in state kRefused.
  Verdict verdict() const { return verdict_; }
  /// What the other end claims to be. It is proven in state kAccepted and must be distrusted
  /// before.
  Identity identity() const;

 private:
  std::string take_hello(std::string_view message);
  std::string take_proof(std::string_view message);
  std::string refuse(Verdict verdict, std::string last_words);

  const AuthPolicy& policy_;
  State state_ = State::kHello;
  Verdict verdict_ = Verdict::kStranger;
  std::string hello_;
  std::string challenge_;
};

}  // namespace ringcoll

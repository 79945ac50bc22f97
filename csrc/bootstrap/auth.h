// Proof that both ends of a fresh connection know the job's secret. The active end (who connected)
// says hello, the passive one sends a challenge, the active one its proof, the passive one a
// verdict with a proof of its own:
//
//   active  -> passive  Hello{who, to whom, what for, nonce}
//   passive -> active   Challenge{nonce}
//   active  -> passive  HMAC-SHA256(secret, "active"  + Hello + Challenge)
//   passive -> active   Verdict{code, HMAC-SHA256(secret, "passive" + Hello + Challenge)}
//
// Both nonces are fresh, and the hello is under the proofs, so that neither a recorded connection
// nor a proof for another rank, channel or communicator is of use. Messages have fixed widths and a
// version; nothing but magic and version is looked at before the proof.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/types.h"

namespace ringcoll {

/// What a connection belongs to: a hash, equal on the ranks of one communicator and nowhere else.
using GroupId = std::array<uint8_t, 32>;
/// SHA-256 of `text`.
GroupId make_group_id(std::string_view text);

/// Who opened a connection, to whom, and what for.
struct Identity {
  Rank from = kNobody;
  Rank to = kNobody;
  uint64_t channel = 0;
  GroupId group{};
};

enum class Verdict : uint32_t {
  kAccepted = 1,
  kWrongSecret = 2,
  kOtherGroup = 3,    // knows the secret, but belongs to another communicator or store
  kWrongRank = 4,     // meant for another rank, or not of a rank that connects to this one
  kOtherVersion = 5,  // another version of this protocol
  // Not sent; conclusions of one end.
  kClosed = 100,   // closed before a verdict: too busy, or gone
  kStranger = 101  // does not speak this protocol, or does not know the secret but says so of us
};
/// The cause in words, and the remedy.
const char* explain(Verdict verdict);

/// The active end. Throws Error(kTimeout) at the deadline; `link` names the connection in it.
Verdict prove(int fd, const std::string& secret, const Identity& identity, Deadline deadline,
              const std::string& link);

/// The active end, without I/O: takes messages, gives answers. One thread.
class Prover {
 public:
  /// `secret` is borrowed.
  Prover(const std::string& secret, const Identity& identity);
  /// What is said first.
  const std::string& hello() const { return hello_; }
  /// Bytes of the next message; 0 when it is over.
  size_t wanted() const;
  /// Takes exactly wanted() bytes and returns what to send, which may be nothing.
  std::string answer(std::string_view message);
  /// Whether the proof was given out: the passive end may have let this one in by now.
  bool has_proven() const { return !challenge_.empty(); }
  /// When it is over.
  Verdict verdict() const { return verdict_; }

 private:
  std::string take_challenge(std::string_view message);

  const std::string& secret_;
  const std::string hello_;
  std::string challenge_;
  bool over_ = false;
  Verdict verdict_ = Verdict::kStranger;
};

/// Whom the passive end lets in.
struct AuthPolicy {
  std::string secret;
  Rank self = 0;
  Rank lowest = 0;  // ranks that may connect
  Rank highest = 0;
  GroupId group{};
};

/// The passive end, without I/O: takes messages, gives answers. One thread.
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
  /// Why it was refused.
  Verdict verdict() const { return verdict_; }
  /// What the other end claims to be; proven if accepted, to be distrusted before.
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

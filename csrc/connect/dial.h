// One connection that is being made, as a state machine that never blocks. A Batch waits for many
// of them at once (connect/batch.h).
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "connect/auth.h"
#include "connect/connector_state.h"

namespace ringcoll {

/// Limits the descriptors that the dials of one batch have in flight. One thread.
class Permits {
 public:
  explicit Permits(size_t free) : free_(free) {}
  bool any() const { return free_ > 0; }

  /// Holds one permit or none. The destructor gives it back.
  class Permit {
   public:
    /// Returns whether it holds a permit now.
    bool take(Permits& permits) {
      if (of_ == nullptr && permits.any()) of_ = &permits, permits.free_--;
      return of_ != nullptr;
    }
    void give_back() {
      if (of_ != nullptr) of_->free_++;
      of_ = nullptr;
    }
    explicit operator bool() const { return of_ != nullptr; }
    Permit() = default;
    ~Permit() { give_back(); }
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;

   private:
    Permits* of_ = nullptr;
  };

 private:
  size_t free_;
};

/// The base of both kinds of dials. One thread.
class Connector::State::Dial {
 public:
  Dial(State& state, const Target& to, Deadline deadline)
      : state_(state), to_(to), end_(Clock::now() + deadline.left()) {}
  virtual ~Dial() = default;
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;

  /// Advances as far as it can without blocking, and returns true once the connection is made.
  /// `events` is what poll() reported for polled(). 0 means that time has passed, or that a
  /// connection was accepted. Throws as Connector::dial(), but its errors carry no rank.
  virtual bool advance(short events) = 0;
  /// What to poll; no descriptor if fd is -1.
  virtual pollfd polled() const = 0;
  /// When to call advance() although poll() has reported nothing.
  virtual Clock::time_point due() const = 0;
  /// Whether advance() may succeed when this rank accepts a connection or another dial ends.
  virtual bool is_awaited() const = 0;
  /// Whether the peer may have accepted already while this end does not know it yet.
  virtual bool is_nearly_made() const = 0;
  /// What the error tells about the peer, after advance() has thrown.
  virtual Unmade::PeerState says_of_peer() const { return Unmade::PeerState::kUnknown; }
  /// Names the connection: "connecting rank 0 -> 3 …".
  virtual std::string link() const = 0;
  /// The connection, after advance() has returned true. Empty for a lifeline that the peer has made
  /// and that was adopted.
  Fd take() { return std::move(fd_); }
  const Target& to() const { return to_; }

 protected:
  State& state_;
  const Target to_;
  const Clock::time_point end_;  // the deadline
  Fd fd_;
};

/// A connection that this rank makes.
class Connector::State::Outward final : public Dial {
 public:
  /// Tries these networks in turn until one answers. With a single network, the TCP connection must
  /// be made before `reach`; authentication may take until `deadline`.
  Outward(State& state, const Target& to, std::vector<int> networks, Deadline reach,
          Deadline deadline, Permits& permits);
  ~Outward() override;

  bool advance(short events) override;
  pollfd polled() const override;
  Clock::time_point due() const override;
  bool is_awaited() const override { return stage_ == Stage::kIdle && is_either(to_.channel); }
  bool is_nearly_made() const override;
  Unmade::PeerState says_of_peer() const override { return peer_; }
  std::string link() const override;

 private:
  enum class Stage : uint8_t { kIdle, kConnecting, kProving, kLetIn, kMade };

  const Offer& offer() const { return state_.offer_of(to_.peer, networks_[at_]); }
  bool step(short events);
  bool begin();
  bool enter();
  bool connect();
  bool end(short events);
  void throw_unless_connected(int error);
  bool prove();
  bool say(const std::string& message);
  bool try_again();
  bool wait_for_the_peers();
  bool hear_whether_let_in();
  bool made();
  void throw_at_deadline() const;
  void go_on_to_next(const Error& error);

  const std::vector<int> networks_;
  size_t at_ = 0;            // index into networks_ of the one being tried
  Duration patience_;        // for each of several networks
  Clock::time_point reach_;  // deadline of connect() over this network
  std::string causes_;       // why other networks failed in this pass over all of them
  bool in_doubt_ = false;    // a network of this pass timed out, and may answer later
  Permits& permits_;
  Permits::Permit permit_;
  Clock::time_point patient_until_{};  // when it gives up its permit
  Stage stage_ = Stage::kIdle;
  Unmade::PeerState peer_ = Unmade::PeerState::kUnknown;  // according to the last attempt
  Clock::time_point pause_over_{};
  bool entered_ = false;  // recorded as `dialled` in State::either
  std::optional<Prover> prover_;
  std::array<char, 128> buffer_{};  // larger than any message
  size_t filled_ = 0;
};

/// A connection that the peer makes. From time to time it probes whether the peer still listens.
class Connector::State::Inward final : public Dial {
 public:
  Inward(State& state, const Target& to, Deadline deadline, Permits& permits);

  bool advance(short events) override;
  pollfd polled() const override { return {look_.get(), POLLOUT, 0}; }
  Clock::time_point due() const override { return std::min(next_, end_); }
  bool is_awaited() const override { return true; }
  bool is_nearly_made() const override { return false; }
  std::string link() const override;

 private:
  bool has_come();
  [[noreturn]] void throw_late() const;
  void look(short events);
  bool is_refusal(int error);
  const Address& address() const {
    return state_.offer_of(to_.peer, networks_[refused_.size()]).address;
  }

  const std::vector<int> networks_;
  Permits& permits_;
  Permits::Permit permit_;
  Fd look_;                           // the connection attempt of a probe
  Clock::time_point next_;            // when a probe begins, or the current one times out
  std::vector<std::string> refused_;  // addresses of the peer that refused in this probe
};

}  // namespace ringcoll

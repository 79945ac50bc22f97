// One connection that is being made, as a small state machine that never waits. Who waits, for many
// of them at once, is a Batch (bootstrap/batch.h).
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "bootstrap/auth.h"
#include "bootstrap/connector_state.h"

namespace ringcoll {

/// Descriptors that those have in flight that are made together. One thread.
class Permits {
 public:
  explicit Permits(size_t free) : free_(free) {}
  bool any() const { return free_ > 0; }

  /// None, or one that is given back.
  class Permit {
   public:
    /// True: it has one.
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

/// One thread.
class Connector::State::Dial {
 public:
  Dial(State& state, const Target& to, Deadline deadline)
      : state_(state), to_(to), end_(Clock::now() + deadline.left()) {}
  virtual ~Dial() = default;
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;

  /// Goes on as far as it can without waiting. `events` are what poll() says of polled(); 0: only
  /// time has passed, or there is news of what was accepted. True: it is made. Throws Error as
  /// Connector::dial(), without a rank.
  virtual bool advance(short events) = 0;
  /// What it waits for; descriptor -1: nothing.
  virtual pollfd polled() const = 0;
  /// When there is something to do though nothing has come.
  virtual Clock::time_point due() const = 0;
  /// Whether it waits for what is accepted here.
  virtual bool is_awaited() const = 0;
  /// Whether the peer may have let it in, and this end does not know.
  virtual bool is_nearly_made() const = 0;
  /// Of one that has thrown.
  virtual Unmade::Peer says_of_peer() const { return Unmade::Peer::kUnknown; }
  /// "connecting rank 0 -> 3 …".
  virtual std::string link() const = 0;
  /// When it is made. None: the peer has made it, and it was adopted.
  Fd take() { return std::move(fd_); }
  const Target& to() const { return to_; }

 protected:
  State& state_;
  const Target to_;
  const Clock::time_point end_;  // the deadline
  Fd fd_;
};

/// That this rank makes.
class Connector::State::Outward final : public Dial {
 public:
  /// Over these networks, in turn, until one answers. Of one alone, `reach` is until when the
  /// connection has to be made, before it is authenticated.
  Outward(State& state, const Target& to, std::vector<int> networks, Deadline reach,
          Deadline deadline, Permits& permits);
  ~Outward() override;

  bool advance(short events) override;
  pollfd polled() const override;
  Clock::time_point due() const override;
  bool is_awaited() const override { return false; }
  bool is_nearly_made() const override;
  Unmade::Peer says_of_peer() const override { return peer_; }
  std::string link() const override;

 private:
  enum class Stage : uint8_t { kIdle, kConnecting, kProving, kLetIn, kMade };

  const Offer& offer() const { return state_.offer_of(to_.peer, networks_[at_]); }
  bool step(short events);
  bool enter();
  bool begin();
  bool end(short events);
  void throw_unless_connected(int error);
  bool prove();
  bool say(const std::string& message);
  bool try_again();
  bool hear_whether_let_in();
  bool made();
  void throw_at_deadline() const;
  void go_on_to_next(const Error& error);

  const std::vector<int> networks_;
  size_t at_ = 0;            // of the networks, that is tried
  Duration patience_;        // with each of several
  Clock::time_point reach_;  // until when the connection has to be made
  std::string causes_;       // why others of this turn of several did not do
  bool in_doubt_ = false;    // one of them has not answered
  Permits& permits_;
  Permits::Permit permit_;
  Clock::time_point patient_until_{};  // for so long it keeps its permit
  Stage stage_ = Stage::kIdle;
  Unmade::Peer peer_ = Unmade::Peer::kUnknown;  // as far as the last try tells
  Clock::time_point pause_over_{};
  bool entered_ = false;  // as one that is dialled here, of those that either may make
  std::optional<Prover> prover_;
  std::array<char, 128> buffer_{};  // larger than any message
  size_t filled_ = 0;
};

/// That the peer makes. Looks now and then whether it still listens.
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
  Fd look_;                           // a connection to the peer that is being made
  Clock::time_point next_;            // when a look begins, or this one has to have an answer
  std::vector<std::string> refused_;  // addresses of the peer, in this look
};

}  // namespace ringcoll

// Channels between ranks of one process that behave as badly as their contract allows, in several
// ways, at random.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "mesh/group/messages.h"

namespace ringcoll::testing {

struct Behaviour {
  std::string name;
  uint64_t inline_bytes = 64;
  uint64_t copied_bytes = 0;  // copied when they are sent, from anywhere
  size_t staging_bytes = 64 << 10;
  uint64_t credits = 8;        // messages that may be unreleased
  bool reads_peer = false;     // copies out of the peer's memory
  bool from_anywhere = false;  // sends memory as it lies, and reads it late
  bool takes_lent = false;     // the same where it is asked to
  bool registers = false;      // grants loans, sends from them, and writes to them
  int one_in = 4;              // what can be put off is, once in so many times; 0: never
};
/// As shm with and without process_vm_readv, with buffers for short messages, with it for these,
/// tcp and verbs are (where nothing and where everything can be registered), and with next to no
/// memory; where who reads has no help, or often too late.
std::vector<Behaviour> behaviours();

class FakeWorld {
 public:
  FakeWorld(Rank size, Behaviour behaviour, uint64_t seed);
  ~FakeWorld();

  MessageChannels& channels(Rank rank);
  /// From now on reading its memory fails, or its endpoints throw, as if its process were gone.
  void forget_memory_of(Rank rank);
  void break_link(Rank from, Rank to, Code code);
  /// How often anybody's wait() has blocked.
  int waits() const { return waits_; }
  /// Messages that were sent from where they lay (HostLink::takes_lent, MessageChannels::lend).
  int lent() const { return lent_; }

  /// Called first of all by wait() and wake() of a rank, without any lock: what may happen while
  /// whoever uses the channels has opened its own. Set before anybody uses them.
  std::function<void(Rank)> on_wait, on_wake;

 private:
  class Channel;
  class Channels;
  struct Message {
    Envelope envelope;
    const std::byte* data = nullptr;  // in the sender's memory; null: in `copy`
    uint64_t bytes = 0;
    std::vector<std::byte> copy;
    bool borrowed = false;  // until it is released
    bool lent = false, gone = false;
    bool left = false;  // can be received
  };
  /// From one rank to another.
  struct Pipe {
    std::deque<Message> messages;  // not released
    uint64_t sent = 0, taken = 0, released = 0, completed = 0;
    bool offered = false;  // the first that is not taken was begun to be read, to
    std::byte* place = nullptr;
    std::optional<Code> broken;
    Message& at(uint64_t number) { return messages[number - released - 1]; }
  };
  struct Seat {
    std::vector<std::byte> staging;
    std::vector<Rank> open;
    std::vector<bool> is_open, opened_by_peer, dropped;
    uint64_t events = 0, seen = 0;
    bool woken = false;
    bool memory_gone = false;
    bool waits = false;
    std::map<uint64_t, Loan> loans;  // by their numbers
    uint64_t last_loan = 0;
    std::condition_variable changed;
    std::unique_ptr<MessageChannels> channels;
    std::vector<std::unique_ptr<Endpoint>> endpoints;
  };

  bool unlucky() {
    return behaviour_.one_in > 0 && static_cast<int>(random_() % behaviour_.one_in) == 0;
  }
  Pipe& pipe(Rank from, Rank to) { return pipes_[from * size_ + to]; }
  void notify(Rank rank);
  void let_leave(Pipe& pipe, Rank to);
  bool is_lent(Rank rank, const void* data, uint64_t bytes, bool written) const;

  const Rank size_;
  const Behaviour behaviour_;
  std::mutex mutex_;  // of everything
  std::mt19937_64 random_;
  std::vector<Pipe> pipes_;
  std::vector<std::unique_ptr<Seat>> seats_;
  std::atomic<int> waits_{0}, lent_{0};
};

}  // namespace ringcoll::testing

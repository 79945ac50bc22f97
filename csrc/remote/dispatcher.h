// Shares copies out among carriers. A copy is cut into chunks. Each carrier has a few requests
// outstanding and takes the next chunk when one is answered, so carriers and holders share a copy
// by what they serve. A chunk whose carrier or holder fails goes to another that has the same
// bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "net/event_loop.h"
#include "remote/batch.h"
#include "remote/carrier.h"
#include "remote/link.h"

namespace ringcoll::remote {

/// Any thread, unless a comment says otherwise.
class Dispatcher {
 public:
  /// Begins a link for payload to an agent. If that fails at once, calls unreachable() later.
  using Dial = std::function<void(const AgentFacts&)>;

  explicit Dispatcher(Dial dial) : dial_(std::move(dial)) {}

  /// Makes the copies of `batch` with these numbers, and ends the batch. Notices of copies whose
  /// bytes have been written in another way are given too (`notice_only`).
  void submit(const std::shared_ptr<Batch>& batch, const std::vector<size_t>& copies,
              const std::vector<size_t>& notice_only);
  /// Ends the batch with this error, unless it has ended. Its memory is free then.
  void cancel(const std::shared_ptr<Batch>& batch, const Error& error);
  /// Ends all batches, and refuses new ones.
  void close(const Error& why);

  // On the loop's thread.

  /// A carrier to an agent can be used.
  void add(const std::shared_ptr<Carrier>& carrier);
  /// A carrier has ended; its chunks go elsewhere.
  void remove(const Carrier& carrier);
  /// No link to this agent can be made.
  void unreachable(uint64_t agent, const Error& why);
  /// Where the bytes of an answer go. Called with the lock of a link.
  Place place_for(const FrameHead& head);
  /// kData, kDone or kFailed.
  void take(const Carrier& carrier, const FrameHead& head, const std::string& text);
  /// The carrier has not begun this request, and does not suit its region any more.
  void give_back(const Carrier& carrier, uint64_t id);
  /// To be called a few times a second.
  void look();

  struct Served {
    uint64_t agent;
    uint64_t bytes;  // that this process has read from it or written to it
  };
  std::vector<Served> served();
  /// Counts bytes that this process has copied itself.
  void count_here(uint64_t agent, uint64_t bytes);
  /// Bytes by the way that they have travelled.
  std::map<Way, uint64_t> ways();

 private:
  struct Work;
  struct Chunk {
    std::shared_ptr<Work> work;
    size_t copy = 0;
    uint64_t offset = 0;  // in the copy
    uint64_t bytes = 0;
    bool notice = false;
    int tries = 0;
    bool writes() const { return work->batch->copies()[copy].writes; }
  };
  /// A batch in flight.
  struct Work {
    std::shared_ptr<Batch> batch;
    std::deque<Chunk> pending;
    std::vector<uint32_t> left;  // chunks of each copy that have not ended, without the notice
    size_t unfinished = 0;       // chunks, with those of notices to come
    std::set<const RegionHandle*> failed;  // sources that are not asked any more
    std::optional<Error> last_error;
  };
  struct Outstanding {
    Chunk chunk;
    const Source* source;
    std::shared_ptr<Carrier> carrier;
  };
  struct Load {
    size_t requests = 0;
    uint64_t read_bytes = 0, written_bytes = 0;
    bool silent = false;
    Clock::time_point busy_since{};  // when it was asked while it had nothing to do
    Clock::time_point pinged{};
    uint64_t& bytes(bool writes) { return writes ? written_bytes : read_bytes; }
  };
  struct Peer {
    std::map<std::shared_ptr<Carrier>, Load> carriers;
    bool dialling = false;
  };
  struct Chosen {
    const Source* source = nullptr;
    std::shared_ptr<Carrier> carrier;
  };
  struct Plan {  // what is to be done without the lock
    std::vector<std::pair<std::shared_ptr<Carrier>, Request>> requests;
    std::vector<AgentFacts> dials;
    std::vector<std::pair<std::shared_ptr<Batch>, std::optional<Error>>> ended;
    std::vector<std::pair<std::shared_ptr<Carrier>, std::shared_ptr<Batch>>> abandoned;
    std::vector<std::shared_ptr<Carrier>> pings;
  };

  // With the lock.
  void feed(Plan& plan);
  bool place(Chunk& chunk, Plan& plan);
  Chosen choose(const Chunk& chunk, Plan& plan);
  void ask(Chunk chunk, const Chosen& chosen, Plan& plan);
  std::vector<const Source*> nearest(const Chunk& chunk) const;
  void put_back(Outstanding outstanding);
  void fail(const std::shared_ptr<Work>& work, const Error& error, Plan& plan);
  void finish_chunk(Outstanding& outstanding, Plan& plan);
  Outstanding forget(std::map<uint64_t, Outstanding>::iterator entry);
  Load* load_of(const std::shared_ptr<Carrier>& carrier);
  void look_at(Peer& peer, Clock::time_point now, Plan& plan);
  void move_from_silent(const std::shared_ptr<Carrier>& carrier, Plan& plan);

  void carry_out(Plan plan);
  bool is_wanted(uint64_t id);

  const Dial dial_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Work>> works_;
  std::map<uint64_t, Peer> peers_;
  std::map<uint64_t, Outstanding> outstanding_;  // by the id of the request
  std::map<uint64_t, uint64_t> served_;          // bytes, by agent
  std::map<Way, uint64_t> ways_;
  uint64_t next_id_ = 1;
  std::optional<Error> closed_;
};

}  // namespace ringcoll::remote

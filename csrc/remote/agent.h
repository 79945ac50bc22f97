// What a process has to share memory with others: doors at which it admits them, regions that they
// read and write, copies to and from theirs, and messages. Agents are equals: any may dial any
// other of which it knows an address and the key of a door. None has a rank, and that one is lost
// concerns only those who copy to or from it.
//
// A copy takes the shortest way: memory of this process is copied at once, that of another process
// of the host by the calling thread (remote/host_peer.h), and that of another host by RDMA
// (remote/rdma.h) or by links, which the owner's thread serves (remote/dispatcher.h).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "net/interfaces.h"
#include "remote/batch.h"
#include "remote/host_peer.h"
#include "remote/network.h"
#include "remote/regions.h"

namespace ringcoll::remote {

/// The address of a door, as users write it.
struct Target {
  std::string host;  // a name or an address
  uint16_t port = 0;
  std::string name;

  /// Reads "ringcoll://10.0.0.5:4711/weights", with or without the scheme. Throws
  /// Error(kInvalidArgument).
  static Target parse(std::string_view text);
  std::string text() const;
};

/// Any thread, unless a comment says otherwise.
class Agent {
 public:
  /// `interfaces`: where doors listen. `host`: a name; agents of one machine with equal names may
  /// map one another's memory. `config`: the knobs of RDMA (remote/rdma.h); null: there is none.
  /// Throws Error(kTransport).
  Agent(std::vector<Interface> interfaces, const std::string& host, const Config* config = nullptr);
  /// Ends all links with a goodbye, and all batches with kAborted. Not from a `done` of a batch.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  uint64_t id() const { return id_; }
  /// AgentFacts::host.
  uint64_t host() const { return network_.host(); }
  /// Opens a door: admits whoever knows `key` under `name`, on this port of all interfaces; 0: a
  /// free one. The same name and key again do nothing. Returns the addresses, those for other hosts
  /// first. Throws Error(kInvalidArgument, kTransport).
  std::vector<Target> admit(const std::string& name, const std::string& key, uint16_t port = 0);
  /// The addresses of all doors.
  std::vector<Target> addresses();

  /// `data` stays the caller's, who keeps it until close() has returned.
  std::shared_ptr<Region> open(void* data, uint64_t bytes, bool writable);
  /// As Regions::close(). Links in the middle of the region's bytes are given up.
  void close(const std::shared_ptr<Region>& region, Deadline deadline);
  std::string handle_of(const Region& region);

  /// Runs the batch: makes copies on this host in this thread, and waits for the others. Throws its
  /// error. An Interruption of the thread ends it with kAborted.
  void run(const std::shared_ptr<Batch>& batch);
  /// Makes the copies on this host in this thread, and starts the others.
  void begin(const std::shared_ptr<Batch>& batch);
  /// Starts it. A thread of the agent makes the copies on this host.
  void start(std::shared_ptr<Batch> batch);
  /// Ends a batch that was begun with kAborted, unless it has ended. Its memory is free then.
  void cancel(const std::shared_ptr<Batch>& batch);
  /// Whether begin() makes copies to and from the region itself, so that they have ended when it
  /// returns.
  bool is_here(const RegionHandle& region);

  /// Waits for notices of any region of this agent, and for ring().
  Listening listen() { return regions_.listen(); }
  void ring() { regions_.ring(); }

  /// Makes a link for messages to the agent at this address, whose key this agent knows. Throws
  /// Error: kRefused (wrong key), kPeerLost (nobody listens), kTimeout, kTransport (no such host).
  uint64_t dial(const Target& target, Deadline deadline);
  /// Queues a message. Throws Error: kPeerLost if the link has ended, kInvalidArgument if the
  /// message is too long, kTransport if 256 MiB wait already.
  void send(uint64_t connection, std::string text);
  /// Takes the next event; nothing at the deadline. Each link has kOpened, if the peer made it, and
  /// kClosed last, unless hang_up() was called. Throws Error(kAborted) once the agent is closing.
  std::optional<Event> receive(Deadline deadline);
  void hang_up(uint64_t connection);

  struct Stats {
    size_t regions;
    size_t links;
    std::vector<Dispatcher::Served> served;
    std::map<Way, uint64_t> ways;  // the same bytes, by how they have travelled
    uint64_t answered;  // bytes that peers have copied, and this process' thread for them
  };
  Stats stats();

 private:
  /// Copies that a batch has left after those of this host.
  struct Rest {
    std::vector<size_t> copies;
    std::vector<size_t> notices;
    std::optional<Error> error;
  };
  Rest make_copies_here(const Batch& batch);
  // `notice`: that of the copy, reset once it is given.
  bool copy_here(const Copy& copy, std::optional<uint64_t>* notice);
  bool copy_from_here(const Copy& copy, const Source& source, std::optional<uint64_t>* notice);
  std::shared_ptr<HostPeer> host_peer(const AgentFacts& facts);
  void work();

  const uint64_t id_;
  Regions regions_;
  Network network_;

  std::mutex peers_mutex_;
  std::map<uint64_t, std::shared_ptr<HostPeer>> host_peers_;  // by agent; null: not of this host

  // The thread that makes the copies of started batches.
  std::mutex mutex_;
  std::condition_variable started_changed_;
  std::deque<std::shared_ptr<Batch>> started_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ringcoll::remote

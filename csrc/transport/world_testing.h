// Ranks for tests of transports: arenas, addresses, sockets and endpoints without a communicator.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "shm/bell.h"
#include "transport/transport.h"
#include "transport/wait_set.h"

namespace ringcoll::testing {

/// Of all of the registry.
inline std::vector<std::string_view> transport_names() {
  std::vector<std::string_view> names;
  for (const TransportRow& row : transports()) names.push_back(row.name);
  return names;
}

/// Two connected TCP sockets on 127.0.0.1.
inline std::pair<Fd, Fd> connected_sockets() {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  Fd out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  bool good = ::bind(listener.get(), name, length) == 0 && ::listen(listener.get(), 1) == 0 &&
              ::getsockname(listener.get(), name, &length) == 0 &&
              ::connect(out.get(), name, length) == 0;
  Fd in(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  invariant(good && in, "no connection on 127.0.0.1");
  return {std::move(out), std::move(in)};
}

/// The sockets of all pairs, numbered: whoever takes one first makes both ends, the other finds its
/// own waiting.
class Switchboard {
 public:
  Fd take(Rank rank, Rank peer, size_t number) {
    std::lock_guard lock(mutex_);
    auto found = waiting_.find({rank, peer, number});
    if (found != waiting_.end()) {
      Fd mine = std::move(found->second);
      waiting_.erase(found);
      return mine;
    }
    auto [mine, theirs] = connected_sockets();
    waiting_.emplace(std::tuple(peer, rank, number), std::move(theirs));
    return std::move(mine);
  }
  void put(Rank rank, Rank peer, size_t number, Fd fd) {
    std::lock_guard lock(mutex_);
    waiting_.emplace(std::tuple(rank, peer, number), std::move(fd));
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<Rank, Rank, size_t>, Fd> waiting_;
};

inline constexpr uint64_t kTestInlineBytes = 256;

inline Config test_config() {
  Config config;
  config.inline_bytes = kTestInlineBytes;
  config.handed_bytes = 4096;
  config.tcp_streams = 2;
  config.timeout_s = 20;
  config.register_bytes = 64 << 20;
  config.qp_timeout = 17;
  config.qp_retries = 6;
  return config;
}

/// The wait set of each link. Links that a test makes by itself have none.
class WaitSets {
 public:
  static WaitSets& get() {
    static WaitSets all;
    return all;
  }
  void add(const Endpoint* link, WaitSet* set) {
    std::lock_guard lock(mutex_);
    of_[link] = set;
  }
  void remove(const WaitSet* set) {
    std::lock_guard lock(mutex_);
    std::erase_if(of_, [&](const auto& item) { return item.second == set; });
  }
  WaitSet* find(const Endpoint* link) {
    std::lock_guard lock(mutex_);
    auto found = of_.find(link);
    return found != of_.end() ? found->second : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<const Endpoint*, WaitSet*> of_;
};

/// Sleeps as the owner of the link does, who has just looked in vain. Without a wait set, lets
/// others run.
inline void sleep_on(Endpoint& link, Duration limit) {
  if (WaitSet* set = WaitSets::get().find(&link)) return set->sleep(limit);
  std::this_thread::yield();
}

/// A transport, its wait set, and the links that were made by it.
struct Linked {
  Linked(Bells& bells, Switchboard& board, Rank own, size_t peers)
      : board(board), own(own), waits(bells), links(peers) {}
  ~Linked() { WaitSets::get().remove(&waits); }
  void use(std::unique_ptr<Transport> made) {
    transport = std::move(made);
    waits.add(*transport);
  }
  void connect(Rank peer, std::string_view address) {
    std::string reason = transport->reach(peer, address);
    check(reason.empty(), Code::kTransport, "rank {} is out of reach: {}", peer, reason);
    std::vector<Fd> sockets;
    for (size_t i = 0; i < transport->sockets_to(peer); i++)
      sockets.push_back(board.take(own, peer, i));
    auto& link = links[static_cast<size_t>(peer)];
    link = transport->connect(peer, std::move(sockets), Deadline(seconds(20)));
    WaitSets::get().add(link.get(), &waits);
  }
  /// Makes a step of the setup on all links.
  void each(bool (Endpoint::*step)(Deadline)) {
    Deadline deadline(seconds(20));
    for (auto& link : links)
      while (link && !((*link).*step)(deadline)) {
        check(!deadline.passed(), Code::kTimeout, "a link is not set up");
        waits.sleep(std::min<Duration>(deadline.left(), seconds(1)));
      }
  }
  Endpoint& operator[](Rank peer) { return *links[static_cast<size_t>(peer)]; }

  Switchboard& board;
  const Rank own;
  WaitSet waits;
  std::unique_ptr<Transport> transport;
  std::vector<std::unique_ptr<Endpoint>> links;  // destroyed before the transport
};

/// What a transport needs that outlives it.
struct Ground {
  Config config;
  SharedMemory arena;
  Bells bells = {};
};

/// One rank: what a communicator would give a transport.
struct TestRank : Ground, Linked {
  /// The first `own_bytes` of the arena are the transport's own; 0: all.
  TestRank(const TransportRow& row, Rank rank, Rank size, Switchboard& board, size_t arena_bytes,
           const Config& config = test_config(), const Seats& seats = {}, size_t own_bytes = 0)
      : Ground{config, SharedMemory::create(arena_bytes)},
        Linked(bells, board, rank, static_cast<size_t>(size)) {
    Deadline deadline(seconds(config.timeout_s));
    use(row.make({rank, size, this->config, arena, deadline, seats, own_bytes}));
  }
};

/// All ranks in one process, every pair connected.
class World {
 public:
  World(const TransportRow& row, Rank size, size_t arena_bytes, const Seats& seats = {},
        size_t own_bytes = 0, const Config& config = test_config()) {
    for (Rank r = 0; r < size; r++)
      ranks_.push_back(
          std::make_unique<TestRank>(row, r, size, board_, arena_bytes, config, seats, own_bytes));
    for (Rank r = 0; r < size; r++)
      for (Rank p = 0; p < size; p++)
        if (p != r) ranks_[r]->transport->reach(p, ranks_[p]->transport->address());
    for (Rank r = 0; r < size; r++)
      for (Rank p = 0; p < size; p++)
        if (p != r) ranks_[r]->connect(p, ranks_[p]->transport->address());
    for (auto step : {&Endpoint::try_establish, &Endpoint::try_prove})
      for (auto& rank : ranks_) rank->each(step);
  }
  TestRank& operator[](Rank rank) { return *ranks_[static_cast<size_t>(rank)]; }
  void remove(Rank rank) { ranks_[static_cast<size_t>(rank)].reset(); }

 private:
  Switchboard board_;
  std::vector<std::unique_ptr<TestRank>> ranks_;
};

/// One rank of a part.
struct PartRank : Linked {
  PartRank(TestRank& whole, Rank rank, const std::vector<Rank>& members, Switchboard& board,
           std::span<std::byte> part_extent)
      : Linked(whole.bells, board, rank, members.size()), extent(part_extent) {
    use(whole.transport->part({rank, members, extent}));
  }
  std::span<std::byte> extent;
};

/// Part of a World, every pair of its ranks connected unless told otherwise. Has `bytes` of each
/// rank's arena, from `offset` on.
class PartWorld {
 public:
  PartWorld(World& world, const std::vector<Rank>& members, size_t offset, size_t bytes,
            bool connected = true) {
    for (size_t r = 0; r < members.size(); r++) {
      TestRank& whole = world[members[r]];
      ranks_.push_back(std::make_unique<PartRank>(whole, static_cast<Rank>(r), members, board_,
                                                  std::span(whole.arena.data() + offset, bytes)));
    }
    if (connected) connect();
  }
  void connect() {
    auto size = static_cast<Rank>(ranks_.size());
    for (Rank r = 0; r < size; r++)
      for (Rank p = 0; p < size; p++)
        if (p != r) ranks_[r]->connect(p, ranks_[p]->transport->address());
    for (auto step : {&Endpoint::try_establish, &Endpoint::try_prove})
      for (auto& rank : ranks_) rank->each(step);
  }
  PartRank& operator[](Rank rank) { return *ranks_[static_cast<size_t>(rank)]; }
  void remove(Rank rank) { ranks_[static_cast<size_t>(rank)].reset(); }

 private:
  Switchboard board_;
  std::vector<std::unique_ptr<PartRank>> ranks_;
};

/// The i-th eight bytes of a pattern that differs from message to message and from place to place.
inline uint64_t pattern(uint64_t seed, uint64_t i) {
  return (seed * 0x9e3779b97f4a7c15 + i + 1) * 0x2545f4914f6cdd1d;
}
inline void fill(std::byte* to, uint64_t bytes, uint64_t seed) {
  for (uint64_t at = 0; at < bytes; at += 8) {
    uint64_t word = pattern(seed, at);
    std::memcpy(to + at, &word, std::min<uint64_t>(8, bytes - at));
  }
}
inline bool filled(const std::byte* from, uint64_t bytes, uint64_t seed) {
  for (uint64_t at = 0; at < bytes; at += 8) {
    uint64_t word = pattern(seed, at);
    if (std::memcmp(from + at, &word, std::min<uint64_t>(8, bytes - at)) != 0) return false;
  }
  return true;
}

inline Envelope envelope_of(uint64_t number) { return {{number, number * 3, ~number}}; }

/// Repeats `ready` until it is true, sleeping in between; throws Timeout after 20 s.
template <typename Ready>
void until(Endpoint& link, const char* what, Ready&& ready) {
  Deadline deadline(seconds(20));
  while (!ready()) {
    check(!deadline.passed(), Code::kTimeout, "{}", what);
    sleep_on(link, std::min<Duration>(deadline.left(), seconds(1)));
  }
}
inline void send(Endpoint& link, const Envelope& envelope, const void* data, uint64_t bytes) {
  until(link, "send", [&] { return link.try_send(envelope, data, bytes); });
}
/// Until all that was sent is on its way.
inline void flush(Endpoint& link) {
  until(link, "flush", [&] {
    link.progress();
    return !link.busy();
  });
}
/// Until the peer has all of it, as a caller that leaves waits.
inline void drain(Endpoint& link) {
  until(link, "drain", [&] { return link.drained(); });
}
inline View receive(Endpoint& link, void* place = nullptr, uint64_t capacity = UINT64_MAX) {
  View view;
  until(link, "receive", [&] { return link.try_recv(place, capacity, &view); });
  return view;
}
inline void complete(Endpoint& link, uint64_t number) {
  until(link, "complete", [&] { return link.completed() >= number; });
}

}  // namespace ringcoll::testing

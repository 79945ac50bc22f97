// The state that Lifelines and Health (life/lifelines.h) share; private to the two.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/order.h"
#include "life/flooded.h"
#include "life/lifeline_messages.h"
#include "life/lifelines.h"
#include "life/line.h"
#include "net/socket.h"

namespace ringcoll {

using lifeline::encode;
using lifeline::encode_calls;
using lifeline::Header;
using lifeline::header_of;
using lifeline::kMaxTextBytes;
using lifeline::Line;
using lifeline::send_on;
using lifeline::Type;

// A lifeline may close before anything was said on it because its peer failed while making it. The
// peer then tells the cause through other ranks, within this time.
inline constexpr Duration kGraceOfASilentLine = std::chrono::milliseconds(300);
// A lifeline that has been silent for too long gets a second check. If this host itself was
// suspended, acknowledgements arrive in between.
inline constexpr Duration kSecondLook = std::chrono::seconds(1);

struct Health::State {
  explicit State(Options given) : options(std::move(given)) {}

  const Options options;
  std::atomic<bool> poisoned{false};
  std::atomic<Rank> waiting_for{kNobody};
  std::optional<Error> first;  // under the lifelines' lock
  std::mutex calling;          // orders on_poison and leave()
  bool left = false;           // under `calling`
  std::mutex listening;        // orders calls of the listener and listen()
  HealthListener* listener = nullptr;
  bool ticks = false;

  // Precondition: the lifelines' lock is held. Returns true if this is the first error.
  bool set(const Error& error) {
    if (first) return false;
    first = error;
    // A thread that observes the flag in Health::poisoned() sees the error.
    publish(poisoned, true);
    return true;
  }
  // Converts an error about a mesh rank to the group's rank numbers.
  Error lost(Rank rank, const Error& error) const {
    auto at = std::ranges::find(options.members, rank) - options.members.begin();
    auto own = static_cast<Rank>(at);
    if (own == rank) return error;
    return {error.code(), fmt::format("{} (rank {} of this group)", error.what(), own), own};
  }
  bool has(Rank rank) const { return std::ranges::count(options.members, rank) > 0; }
  void call() {
    std::lock_guard lock(calling);
    if (!left) options.on_poison();
  }
  void hear(Rank from, std::string_view calls) {  // `from`: mesh rank
    auto at = std::ranges::find(options.members, from) - options.members.begin();
    std::lock_guard lock(listening);
    if (listener && at < std::ssize(options.members)) listener->hear(static_cast<Rank>(at), calls);
  }
};

struct Lifelines::State : std::enable_shared_from_this<State> {
  enum class Reply { kPoisoned, kGone, kNoLine, kSilent, kAnswered };
  using Groups = std::vector<std::shared_ptr<Health::State>>;

  State(Rank own, Rank ranks, EventLoop& on, std::function<std::string(Rank)> describer)
      : rank(own), size(ranks), loop(on), describe(std::move(describer)), lines(ranks) {}

  const Rank rank;
  const Rank size;
  EventLoop& loop;
  const std::function<std::string(Rank)> describe;

  mutable std::mutex mutex;
  std::condition_variable changed;  // a pong, a closed lifeline, an error, ...
  std::vector<Line> lines;
  std::map<GroupNumber, std::shared_ptr<Health::State>> groups;  // of this rank
  // For each group that this rank has left: the ranks that had not. Their later "left" only ends
  // the entry.
  std::map<GroupNumber, std::set<Rank>> leave_later;
  // Errors of lost ranks. A loss is reported once.
  std::map<Rank, Error> lost;
  Flooded flooded;
  uint64_t next_token = 1;
  bool closing = false;  // pending callbacks no longer touch the lines

  void send(Rank peer, const std::string& message) {
    send_on(lines[peer], message);
    watch(peer);
  }
  void send_to_all(const std::string& message) {
    for (Rank peer = 0; peer < size; peer++) send(peer, message);
  }

  // The kernel notices the silence of a line on which nothing is sent (watch_host()).
  // Unacknowledged data restarts the kernel's count, so after a send this rank counts the silence
  // itself.
  void watch(Rank peer) {
    Line& line = lines[peer];
    if (line.is_watched || !line.fd) return;
    if (auto silence = unanswered_for(line.fd.get())) look_at(peer, kHostSilence - *silence);
  }
  void look_at(Rank peer, Duration delay) {
    lines[peer].is_watched = true;
    loop.after(std::max(delay, Duration::zero()), [self = weak_from_this(), peer] {
      if (auto state = self.lock()) state->look_at_silence(peer);
    });
  }
  void look_at_silence(Rank peer) {
    {
      std::lock_guard lock(mutex);
      Line& line = lines[peer];
      line.is_watched = false;
      if (closing || !line.fd) return;
      auto silence = unanswered_for(line.fd.get());
      bool was_silent = std::exchange(line.is_silent, silence && *silence >= kHostSilence);
      if (!line.is_silent) return watch(peer);
      if (!was_silent) return look_at(peer, kSecondLook);
      reset_on_close(line.fd.get());  // as in take_loss()
      close(peer);
    }
    lose(peer, Error(Code::kPeerLost, lifeline::why_lost(describe(peer), ETIMEDOUT), peer));
  }

  void announce(const Groups& poisoned) {
    changed.notify_all();
    for (const auto& group : poisoned) group->call();
  }

  // Precondition: none of the locks is held. This rank says that a group has failed.
  void fail(GroupNumber id, const Error& error) {
    std::unique_lock lock(mutex);
    Groups poisoned = take_failure(id, error);
    lock.unlock();
    announce(poisoned);
  }

  // The next three take what this rank or another one said. They run under the lock, so that nobody
  // sees that a rank has left and misses what it said before. The caller announces poisoned groups
  // after it has released the lock.
  Groups take_failure(GroupNumber id, const Error& error) {
    auto known = groups.find(id);
    if (known != groups.end() && known->second->first) return {};
    if (!flooded.add_failure(id, error)) return {};
    send_to_all(encode(Type::kFailed, id, error));
    auto group = groups.find(id);
    if (group == groups.end() || !group->second->set(error)) return {};
    return {group->second};
  }

  void take_ballot(GroupNumber id, uint64_t round, const std::string& message) {
    if (flooded.add_ballot(id, round, message)) send_to_all(message);
  }

  // A rank has ended; all its groups fail.
  Groups take_loss(Rank who, const Error& error) {
    Groups poisoned;
    if (lost.contains(who)) return poisoned;
    send_to_all(encode(Type::kLost, 0, error));
    // The lost rank may hear this one without being heard. A goodbye would wait for
    // acknowledgements; a reset does not.
    if (lines[who].fd) reset_on_close(lines[who].fd.get());
    const Error& known =
        lost.emplace(who, who == rank ? held_for_lost(error) : error).first->second;
    for (auto& [id, group] : groups)
      if (group->has(who) && group->set(group->lost(who, known))) poisoned.push_back(group);
    return poisoned;
  }
  void lose(Rank who, const Error& error) {
    std::unique_lock lock(mutex);
    Groups poisoned = take_loss(who, error);
    lock.unlock();
    announce(poisoned);
  }

  // Two ranks that cannot reach each other may each report the other, and both may hear the report.
  Error held_for_lost(const Error& error) const {
    return {error.code(),
            fmt::format("other ranks take this rank for lost and go on without it, although it "
                        "runs: {}",
                        error.what()),
            rank};
  }

  void add(const std::shared_ptr<Health::State>& group) {
    bool poisoned = false;
    {
      std::lock_guard lock(mutex);
      invariant(groups.emplace(group->options.group, group).second, "two groups with the id {}",
                group->options.group);
      if (const Error* told = flooded.failure_of(group->options.group))
        poisoned = group->set(*told);
      for (const auto& [who, error] : lost)
        if (group->has(who)) poisoned |= group->set(group->lost(who, error));
    }
    if (poisoned) announce({group});
  }

  void remove(GroupNumber id) {
    std::lock_guard lock(mutex);
    auto group = groups.find(id);
    if (group == groups.end()) return;
    std::set<Rank> later;
    for (Rank member : group->second->options.members) {
      Line& line = lines[member];
      if (line.left.erase(id) == 0 && line.fd && !line.gone) later.insert(member);
      send(member, encode(header_of(Type::kLeft, id)));
    }
    if (!later.empty()) leave_later.emplace(id, std::move(later));
    groups.erase(group);
  }

  void on_readable(Rank peer) {
    std::vector<std::function<void()>> news;
    {
      std::lock_guard lock(mutex);
      news = receive(peer);
    }
    changed.notify_all();
    for (const auto& tell : news) tell();
  }

  // Receives once. Returns what is to be done without the lock.
  std::vector<std::function<void()>> receive(Rank peer) {
    Line& line = lines[peer];
    if (closing || !line.fd) return {};
    char buffer[sizeof(Header) + kMaxTextBytes];
    ssize_t got = ::recv(line.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    int error = errno;
    if (got > 0) {
      line.in.append(buffer, static_cast<size_t>(got));
      return take_messages(peer, line);
    }
    if (got < 0 && (error == EAGAIN || error == EINTR)) return {};
    close(peer);
    if (line.goodbye) return {};
    Error end(Code::kPeerLost, lifeline::why_lost(describe(peer), got == 0 ? 0 : error), peer);
    if (line.heard) return {[this, poisoned = take_loss(peer, end)] { announce(poisoned); }};
    loop.after(kGraceOfASilentLine, [self = weak_from_this(), end, peer] {
      auto state = self.lock();
      if (state && !state->is_closing()) state->lose(peer, end);
    });
    return {};
  }

  bool is_closing() const {
    std::lock_guard lock(mutex);
    return closing;
  }

  void close(Rank peer) {
    Line& line = lines[peer];
    loop.forget(line.fd.get());
    line.fd.reset();
    forget(peer);
  }

  // The peer says nothing more, so no "left" of it is to come.
  void forget(Rank peer) {
    lines[peer].gone = true;
    for (auto& [id, ranks] : leave_later) ranks.erase(peer);
    std::erase_if(leave_later, [](const auto& later) { return later.second.empty(); });
  }

  std::vector<std::function<void()>> take_messages(Rank peer, Line& line) {
    std::vector<std::function<void()>> news;
    while (line.in.size() >= sizeof(Header)) {
      Header header;
      std::memcpy(&header, line.in.data(), sizeof header);
      if (!lifeline::is_sound(header, size)) {
        close(peer);
        Error nonsense(
            Code::kTransport,
            fmt::format("{} sent unknown data on its lifeline; do all hosts have the same version "
                        "of ringcoll?",
                        describe(peer)),
            peer);
        news.emplace_back([this, poisoned = take_loss(peer, nonsense)] { announce(poisoned); });
        return news;
      }
      size_t bytes = sizeof header + header.text_bytes;
      if (line.in.size() < bytes) break;
      line.heard = true;
      Error error(static_cast<Code>(header.code), line.in.substr(sizeof header, header.text_bytes),
                  header.rank);
      if (static_cast<Type>(header.type) == Type::kFailed)
        news.emplace_back(
            [this, poisoned = take_failure(header.group, error)] { announce(poisoned); });
      else if (static_cast<Type>(header.type) == Type::kLost)
        news.emplace_back(
            [this, poisoned = take_loss(error.rank(), error)] { announce(poisoned); });
      else if (static_cast<Type>(header.type) == Type::kCalls)
        news.emplace_back(
            [this, peer, id = header.group,
             calls = line.in.substr(sizeof header, header.text_bytes)] { hear(id, peer, calls); });
      else if (static_cast<Type>(header.type) == Type::kBallot)
        take_ballot(header.group, header.token, line.in.substr(0, bytes));
      else
        take(header, peer);
      line.in.erase(0, bytes);
    }
    return news;
  }

  void take(const Header& header, Rank peer) {
    Line& line = lines[peer];
    switch (static_cast<Type>(header.type)) {
      case Type::kGoodbye:
        line.goodbye = true;
        forget(peer);
        break;
      case Type::kLeft:
        take_leave(header.group, peer);
        break;
      case Type::kPing:
        send(peer,
             encode(header_of(Type::kPong, header.group, waiting_for(header.group), header.token)));
        break;
      case Type::kPong:
        line.pong_token = header.token;
        line.pong_waiting_for = header.rank;
        break;
      case Type::kHello:
      case Type::kFailed:
      case Type::kLost:
      case Type::kBallot:
      case Type::kCalls:
        break;
    }
  }

  void hear(GroupNumber id, Rank from, std::string_view calls) {
    std::unique_lock lock(mutex);
    auto found = groups.find(id);
    auto group = found == groups.end() ? nullptr : found->second;
    lock.unlock();
    if (group) group->hear(from, calls);
  }

  void tick_later(const std::shared_ptr<Health::State>& group) {
    loop.after(Health::kTick, [self = weak_from_this(), weak = std::weak_ptr(group)] {
      auto state = self.lock();
      auto ticking = weak.lock();
      if (!state || !ticking) return;
      {
        std::lock_guard lock(ticking->listening);
        ticking->ticks = ticking->listener && ticking->listener->tick();
        if (!ticking->ticks) return;
      }
      state->tick_later(ticking);
    });
  }

  void take_leave(GroupNumber id, Rank peer) {
    auto later = leave_later.find(id);
    if (later == leave_later.end() || later->second.erase(peer) == 0) {
      lines[peer].left.insert(id);  // this rank may be about to join it
      return;
    }
    if (later->second.empty()) leave_later.erase(later);
  }

  Rank waiting_for(GroupNumber id) const {
    auto group = groups.find(id);
    return group == groups.end() ? kNobody
                                 : group->second->waiting_for.load(std::memory_order_relaxed);
  }

  bool is_gone(GroupNumber id, Rank peer) const {
    return lines[peer].gone || lines[peer].left.contains(id);
  }

  // Pings a mesh rank. If it answers, `waits_for` is the group rank that it waits for.
  Reply ask(const Health::State& group, Rank peer, Duration patience, Rank* waits_for) {
    std::unique_lock lock(mutex);
    GroupNumber id = group.options.group;
    Line& line = lines[peer];
    if (group.first) return Reply::kPoisoned;
    if (is_gone(id, peer)) return Reply::kGone;
    if (!line.fd) return Reply::kNoLine;
    uint64_t token = next_token++;
    send(peer, encode(header_of(Type::kPing, id, kNobody, token)));
    changed.wait_for(lock, patience,
                     [&] { return group.first || is_gone(id, peer) || line.pong_token >= token; });
    if (group.first) return Reply::kPoisoned;
    if (line.pong_token >= token) {  // another thread may have asked later
      *waits_for = line.pong_waiting_for;
      return Reply::kAnswered;
    }
    return is_gone(id, peer) ? Reply::kGone : Reply::kSilent;
  }

  bool wait_for_poison(const Health::State& group, Duration patience) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, patience, [&] { return group.first.has_value(); });
  }
};

}  // namespace ringcoll

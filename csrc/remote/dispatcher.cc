#include "remote/dispatcher.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/log.h"

namespace ringcoll::remote {
namespace {

// A holder whose answer breaks so often is not asked again for the chunk.
constexpr int kMostTries = 8;
// Pending chunks that are looked at before a feed gives up: those behind them have the same sources
// nearly always.
constexpr size_t kMostStuck = 32;

constexpr uint64_t kLeastChunkBytes = 64 << 10;
constexpr uint64_t kChunksOfAShare = 8;

// Of one carrier, so that the last ones of a copy do not queue on a slow one.
constexpr size_t kMostRequests = 64;
constexpr Duration kPingEvery = std::chrono::milliseconds(300);
constexpr Duration kSilence = std::chrono::milliseconds(1000);

// Sources share a copy by whole chunks. So a short copy has smaller ones, several for each source.
// Their lengths divide stretches of registered memory (remote/rdma_memory.h).
uint64_t chunk_bytes(const Copy& copy) {
  if (copy.sources.size() == 1) return kChunkBytes;
  uint64_t share = copy.bytes / (copy.sources.size() * kChunksOfAShare);
  return std::clamp(std::bit_floor(share), kLeastChunkBytes, kChunkBytes);
}

}  // namespace

void Dispatcher::submit(const std::shared_ptr<Batch>& batch, const std::vector<size_t>& copies,
                        const std::vector<size_t>& notice_only) {
  auto work = std::make_shared<Work>();
  work->batch = batch;
  work->left.resize(batch->copies().size());
  for (size_t number : copies) {
    const Copy& copy = batch->copies()[number];
    uint64_t most = chunk_bytes(copy);
    for (uint64_t at = 0; at < copy.bytes; at += most) {
      uint64_t bytes = std::min(most, copy.bytes - at);
      work->pending.push_back({.work = work, .copy = number, .offset = at, .bytes = bytes});
      work->left[number]++;
    }
    work->unfinished += work->left[number] + (copy.notice && copy.bytes > 0 ? 1 : 0);
  }
  for (size_t number : notice_only) {
    work->pending.push_back({.work = work, .copy = number, .notice = true});
    work->unfinished++;
  }
  Plan plan;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || work->unfinished == 0) {
      plan.ended.push_back({batch, work->unfinished > 0 ? closed_ : std::nullopt});
      work->pending.clear();
    } else {
      works_.push_back(work);
      feed(plan);
    }
  }
  carry_out(std::move(plan));
}

// --- Choosing carriers. With the lock.

void Dispatcher::feed(Plan& plan) {
  std::vector<std::shared_ptr<Work>> hopeless;
  for (auto& work : works_) {
    size_t stuck = 0;
    for (size_t i = 0; i < work->pending.size() && stuck < kMostStuck;) {
      Chunk& chunk = work->pending[i];
      const Copy& copy = work->batch->copies()[chunk.copy];
      bool any = std::ranges::any_of(copy.sources, [&](const Source& source) {
        return !work->failed.contains(source.region.get());
      });
      if (!any) {
        hopeless.push_back(work);
        break;
      }
      if (place(chunk, plan)) {
        work->pending.erase(work->pending.begin() + static_cast<ptrdiff_t>(i));
      } else {
        stuck++, i++;
      }
    }
  }
  for (auto& work : hopeless)
    fail(work, work->last_error.value_or(Error(Code::kInternal, "a copy has no source left")),
         plan);
}

bool Dispatcher::place(Chunk& chunk, Plan& plan) {
  Chosen chosen = choose(chunk, plan);
  if (!chosen.carrier) return false;
  ask(std::move(chunk), chosen, plan);
  return true;
}

// Sources whose holder answers come before nearer ones whose holder is silent.
std::vector<const Source*> Dispatcher::nearest(const Chunk& chunk) const {
  std::vector<const Source*> found;
  for (const Source& source : chunk.work->batch->copies()[chunk.copy].sources) {
    if (chunk.work->failed.contains(source.region.get())) continue;
    auto peer = peers_.find(source.region->owner.id);
    bool silent = peer != peers_.end() && !peer->second.carriers.empty() &&
                  std::ranges::all_of(peer->second.carriers,
                                      [](const auto& each) { return each.second.silent; });
    if (silent) continue;
    if (!found.empty() && source.distance > found.front()->distance) continue;
    if (!found.empty() && source.distance < found.front()->distance) found.clear();
    found.push_back(&source);
  }
  return found;
}

// Of each peer the carriers that suit best, and of all these the one that has least to do.
Dispatcher::Chosen Dispatcher::choose(const Chunk& chunk, Plan& plan) {
  Chosen chosen;
  const bool writes = chunk.writes();
  uint64_t least = UINT64_MAX;
  for (const Source* each : nearest(chunk)) {
    Peer& peer = peers_[each->region->owner.id];
    if (peer.carriers.empty() && !std::exchange(peer.dialling, true))
      plan.dials.push_back(each->region->owner);
    int best = 1;
    for (auto& [carrier, load] : peer.carriers)
      if (!load.silent) best = std::max(best, carrier->suits(*each->region, chunk.notice));
    for (auto& [carrier, load] : peer.carriers) {
      const uint64_t bytes = load.bytes(writes);
      bool full = load.requests >= kMostRequests || bytes >= carrier->window_bytes();
      if (load.silent || full || bytes >= least) continue;
      if (carrier->suits(*each->region, chunk.notice) < best) continue;
      least = bytes;
      chosen = {each, carrier};
    }
  }
  return chosen;
}

void Dispatcher::ask(Chunk chunk, const Chosen& chosen, Plan& plan) {
  const Copy& copy = chunk.work->batch->copies()[chunk.copy];
  Request request{.id = next_id_++,
                  .kind = chunk.notice     ? FrameKind::kNotice
                          : chunk.writes() ? FrameKind::kWrite
                                           : FrameKind::kRead,
                  .batch = chunk.work->batch,
                  .copy = &copy,
                  .source = chosen.source,
                  .offset = chunk.offset,
                  .bytes = chunk.bytes};
  Load& load = *load_of(chosen.carrier);
  if (load.requests++ == 0) load.busy_since = Clock::now();
  load.bytes(chunk.writes()) += chunk.bytes;
  outstanding_.emplace(request.id, Outstanding{std::move(chunk), chosen.source, chosen.carrier});
  plan.requests.emplace_back(chosen.carrier, std::move(request));
}

Dispatcher::Load* Dispatcher::load_of(const std::shared_ptr<Carrier>& carrier) {
  auto peer = peers_.find(carrier->agent);
  if (peer == peers_.end()) return nullptr;
  auto found = peer->second.carriers.find(carrier);
  return found == peer->second.carriers.end() ? nullptr : &found->second;
}

// --- Answers.

Place Dispatcher::place_for(const FrameHead& head) {
  std::lock_guard lock(mutex_);
  auto found = outstanding_.find(head.id);
  if (found == outstanding_.end()) return {};
  const Chunk& chunk = found->second.chunk;
  const Copy& copy = chunk.work->batch->copies()[chunk.copy];
  if (copy.writes || chunk.bytes != head.bytes) return {};
  return {copy.local + chunk.offset, chunk.work->batch};
}

Dispatcher::Outstanding Dispatcher::forget(std::map<uint64_t, Outstanding>::iterator entry) {
  Outstanding outstanding = std::move(entry->second);
  outstanding_.erase(entry);
  if (Load* load = load_of(outstanding.carrier)) {
    load->requests--;
    load->bytes(outstanding.chunk.writes()) -= outstanding.chunk.bytes;
  }
  return outstanding;
}

void Dispatcher::take(const Carrier& carrier, const FrameHead& head, const std::string& text) {
  Plan plan;
  {
    std::lock_guard lock(mutex_);
    auto found = outstanding_.find(head.id);
    if (found == outstanding_.end() || found->second.carrier.get() != &carrier) return;
    Outstanding outstanding = forget(found);
    if (head.kind == FrameKind::kFailed) {
      auto& work = outstanding.chunk.work;
      work->last_error = Error(static_cast<Code>(head.code), text);
      work->failed.insert(outstanding.source->region.get());
      put_back(std::move(outstanding));
    } else if (head.kind == FrameKind::kData && head.bytes != outstanding.chunk.bytes) {
      put_back(std::move(outstanding));
    } else {
      finish_chunk(outstanding, plan);
    }
    feed(plan);
  }
  carry_out(std::move(plan));
}

void Dispatcher::give_back(const Carrier& carrier, uint64_t id) {
  Plan plan;
  {
    std::lock_guard lock(mutex_);
    auto found = outstanding_.find(id);
    if (found == outstanding_.end() || found->second.carrier.get() != &carrier) return;
    Outstanding outstanding = forget(found);
    outstanding.chunk.work->pending.push_front(std::move(outstanding.chunk));
    feed(plan);
  }
  carry_out(std::move(plan));
}

void Dispatcher::finish_chunk(Outstanding& outstanding, Plan& plan) {
  auto work = outstanding.chunk.work;
  const Copy& copy = work->batch->copies()[outstanding.chunk.copy];
  served_[outstanding.source->region->owner.id] += outstanding.chunk.bytes;
  ways_[outstanding.carrier->way()] += outstanding.chunk.bytes;
  work->unfinished--;
  if (!outstanding.chunk.notice && --work->left[outstanding.chunk.copy] == 0 && copy.notice)
    work->pending.push_back({.work = work, .copy = outstanding.chunk.copy, .notice = true});
  if (work->unfinished > 0) return;
  works_.remove(work);
  plan.ended.push_back({work->batch, std::nullopt});
}

void Dispatcher::put_back(Outstanding outstanding) {
  Chunk& chunk = outstanding.chunk;
  auto work = chunk.work;
  if (++chunk.tries >= kMostTries) work->failed.insert(outstanding.source->region.get());
  work->pending.push_front(std::move(chunk));
}

void Dispatcher::fail(const std::shared_ptr<Work>& work, const Error& error, Plan& plan) {
  works_.remove(work);
  for (auto entry = outstanding_.begin(); entry != outstanding_.end();) {
    auto next = std::next(entry);
    if (entry->second.chunk.work == work)
      plan.abandoned.push_back({forget(entry).carrier, work->batch});
    entry = next;
  }
  work->pending.clear();  // chunks hold the work
  plan.ended.push_back({work->batch, error});
}

void Dispatcher::cancel(const std::shared_ptr<Batch>& batch, const Error& error) {
  Plan plan;
  {
    std::lock_guard lock(mutex_);
    auto found = std::ranges::find(works_, batch, &Work::batch);
    if (found == works_.end()) return;
    fail(std::shared_ptr<Work>(*found), error, plan);
    feed(plan);
  }
  carry_out(std::move(plan));
}

void Dispatcher::close(const Error& why) {
  Plan plan;
  {
    std::lock_guard lock(mutex_);
    closed_ = why;
    while (!works_.empty()) fail(std::shared_ptr<Work>(works_.front()), why, plan);
    peers_.clear();
  }
  carry_out(std::move(plan));
}

// --- Carriers that come and go.

void Dispatcher::add(const std::shared_ptr<Carrier>& carrier) {
  Plan plan;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    Peer& peer = peers_[carrier->agent];
    peer.dialling = false;
    peer.carriers.emplace(carrier, Load{});
    feed(plan);
  }
  carry_out(std::move(plan));
}

void Dispatcher::remove(const Carrier& carrier) {
  Plan plan;
  {
    std::lock_guard lock(mutex_);
    auto peer = peers_.find(carrier.agent);
    if (peer == peers_.end()) return;
    for (auto entry = outstanding_.begin(); entry != outstanding_.end();) {
      auto next = std::next(entry);
      if (entry->second.carrier.get() == &carrier) {
        entry->second.chunk.work->last_error =
            Error(Code::kPeerLost, fmt::format("the connection to {} broke", carrier.peer_text()));
        put_back(forget(entry));
      }
      entry = next;
    }
    std::erase_if(peer->second.carriers,
                  [&](const auto& each) { return each.first.get() == &carrier; });
    if (peer->second.carriers.empty() && !peer->second.dialling) peers_.erase(peer);
    feed(plan);
  }
  carry_out(std::move(plan));
}

void Dispatcher::unreachable(uint64_t agent, const Error& why) {
  Plan plan;
  {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[agent];
    peer.dialling = false;
    if (peer.carriers.empty()) {
      for (auto& work : works_)
        for (const Copy& copy : work->batch->copies())
          for (const Source& source : copy.sources)
            if (source.region->owner.id == agent) {
              work->failed.insert(source.region.get());
              work->last_error = why;
            }
      peers_.erase(agent);
    }
    feed(plan);
  }
  carry_out(std::move(plan));
}

// --- Silence and deadlines.

void Dispatcher::look() {
  Plan plan;
  {
    std::lock_guard lock(mutex_);
    auto now = Clock::now();
    for (auto& [agent, peer] : peers_) look_at(peer, now, plan);
    auto late = [](const std::shared_ptr<Work>& work) { return work->batch->deadline().passed(); };
    std::vector<std::shared_ptr<Work>> over;
    std::ranges::copy_if(works_, std::back_inserter(over), late);
    for (auto& work : over) {
      std::string why = work->last_error ? work->last_error->what() : "no answer";
      fail(work, Error(Code::kTimeout, fmt::format("a copy has not ended in time: {}", why)), plan);
    }
    feed(plan);
  }
  carry_out(std::move(plan));
}

void Dispatcher::look_at(Peer& peer, Clock::time_point now, Plan& plan) {
  for (auto& [carrier, load] : peer.carriers) {
    if (load.requests == 0 && !load.silent) continue;
    // One that had nothing to do had nothing to say.
    Duration quiet = now - std::max(carrier->heard(), load.busy_since);
    if (quiet < kPingEvery) {
      load.silent = false;
      continue;
    }
    if (now - load.pinged >= kPingEvery) {
      load.pinged = now;
      plan.pings.push_back(carrier);
    }
    if (quiet < kSilence || std::exchange(load.silent, true)) continue;
    log_debug("{} is silent: nothing was heard for {:.1f} s of {} requests", carrier->peer_text(),
              to_seconds(quiet), load.requests);
    move_from_silent(carrier, plan);
  }
}

// Writes stay, since they have no other target. A read that has no other source is asked again once
// the holder answers.
void Dispatcher::move_from_silent(const std::shared_ptr<Carrier>& carrier, Plan& plan) {
  for (auto entry = outstanding_.begin(); entry != outstanding_.end();) {
    auto next = std::next(entry);
    const Chunk& chunk = entry->second.chunk;
    if (entry->second.carrier == carrier && !chunk.work->batch->copies()[chunk.copy].writes) {
      chunk.work->last_error =
          Error(Code::kTimeout, fmt::format("{} does not answer", carrier->peer_text()));
      plan.abandoned.push_back({carrier, chunk.work->batch});
      Outstanding outstanding = forget(entry);
      outstanding.chunk.work->pending.push_front(std::move(outstanding.chunk));
    }
    entry = next;
  }
}

// --- Without the lock.

bool Dispatcher::is_wanted(uint64_t id) {
  std::lock_guard lock(mutex_);
  return outstanding_.contains(id);
}

void Dispatcher::carry_out(Plan plan) {
  for (auto& carrier : plan.pings) carrier->ping();
  for (const AgentFacts& facts : plan.dials) dial_(facts);
  // A batch that is cancelled meanwhile is not wanted any more when its request would begin.
  for (auto& [carrier, request] : plan.requests)
    carrier->ask(request, [this, id = request.id] { return is_wanted(id); });
  for (auto& [carrier, batch] : plan.abandoned) carrier->abandon(batch.get());
  for (auto& [batch, error] : plan.ended) batch->end(error);
}

std::vector<Dispatcher::Served> Dispatcher::served() {
  std::lock_guard lock(mutex_);
  std::vector<Served> all;
  for (auto [agent, bytes] : served_) all.push_back({agent, bytes});
  return all;
}

void Dispatcher::count_here(uint64_t agent, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  served_[agent] += bytes;
  ways_[Way::kHost] += bytes;
}

std::map<Way, uint64_t> Dispatcher::ways() {
  std::lock_guard lock(mutex_);
  return ways_;
}

}  // namespace ringcoll::remote

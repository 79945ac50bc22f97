#include "remote/rdma_keys.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace ringcoll::remote {
namespace {

// How long peers may use a key that makes room for another.
constexpr Duration kEvicting = std::chrono::milliseconds(200);

}  // namespace

// With the lock.
RdmaKeys::Entry RdmaKeys::take(Entries::iterator entry) {
  Entry taken = std::move(entry->second);
  registered_bytes_ -= taken.memory.bytes();
  entries_.erase(entry);
  return taken;
}

// Tells the peers that have the keys, and waits until they do not use them any more. A peer that
// was waited for in vain, as one that is stopped, is not waited for again until it answers.
void RdmaKeys::see_off(const std::vector<Entry>& entries, uint32_t region, Duration patience) {
  std::list<Leaving>::iterator leaving;
  std::vector<std::shared_ptr<Link>> told;
  std::unique_lock lock(mutex_);
  leaving = leaving_.insert(leaving_.end(), {region, entries.front().secret, {}});
  for (const Entry& entry : entries)
    for (const auto& each : entry.askers)
      if (auto link = each.lock()) {
        if (!silent_.contains(link.get())) leaving->users.insert(link.get());
        told.push_back(std::move(link));
      }
  lock.unlock();
  for (const auto& link : told)
    if (!link->send({.kind = FrameKind::kKeyGone, .secret = leaving->secret, .region = region}))
      left(*link);
  lock.lock();
  left_.wait_for(lock, patience, [&] { return leaving->users.empty(); });
  silent_.insert(leaving->users.begin(), leaving->users.end());
  leaving_.erase(leaving);
}

void RdmaKeys::left(const Link& link, uint32_t region, uint64_t secret) {
  std::lock_guard lock(mutex_);
  silent_.erase(&link);
  for (Leaving& leaving : leaving_)
    if (leaving.region == region && leaving.secret == secret) leaving.users.erase(&link);
  left_.notify_all();
}

void RdmaKeys::left(const Link& link) {
  std::lock_guard lock(mutex_);
  silent_.erase(&link);
  for (Leaving& leaving : leaving_) leaving.users.erase(&link);
  left_.notify_all();
}

bool RdmaKeys::evict_one() {
  std::vector<Entry> oldest;
  uint32_t region = 0;
  {
    std::lock_guard lock(mutex_);
    auto found = std::ranges::min_element(entries_, {},
                                          [](const auto& entry) { return entry.second.asked; });
    if (found == entries_.end()) return false;
    region = found->first.first;
    oldest.push_back(take(found));
  }
  see_off(oldest, region, kEvicting);
  return true;
}

void RdmaKeys::make_room(uint64_t bytes) {
  check(bytes <= most_bytes_, Code::kTransport,
        "the region has {} bytes, and RINGCOLL_REGISTER_BYTES allows {}", bytes, most_bytes_);
  auto is_full = [&] {
    std::lock_guard lock(mutex_);
    return registered_bytes_ + bytes > most_bytes_;
  };
  while (is_full() && evict_one()) {
  }
}

verbs::MemoryRegion RdmaKeys::register_region(const rdma::OpenPort& port, const Region& region) {
  auto access = verbs::Access::kRemoteRead;
  if (region.writable()) access = access | verbs::Access::kRemoteWrite;
  for (;;) try {
      return {port.domain, region.data(), region.bytes(), access};
    } catch (const Error& error) {
      log_debug("registering a region: {}", error.what());
      if (!evict_one()) throw;
    }
}

RdmaKey RdmaKeys::key_of(const std::shared_ptr<rdma::OpenPort>& port, uint32_t region,
                         uint64_t secret, const std::shared_ptr<Link>& asker) {
  RegionUse use = regions_.use(region, secret, 0, 0, /*writes=*/false);
  auto key = [&](const Entry& entry) -> RdmaKey {
    return {entry.memory.address(), entry.memory.bytes(), entry.memory.rkey(), entry.writable};
  };
  {
    std::lock_guard lock(mutex_);
    auto found = entries_.find({region, port.get()});
    if (found != entries_.end() && found->second.secret == secret) {
      found->second.asked = ++questions_;
      std::erase_if(found->second.askers, [](const auto& each) { return each.expired(); });
      found->second.askers.push_back(asker);
      return key(found->second);
    }
  }
  make_room(use->bytes());
  Entry entry{port, register_region(*port, *use.get()), secret, use->writable(), 0, {asker}};
  std::lock_guard lock(mutex_);
  // forget() comes after the region is refused, so one of the two finds the other.
  if (use->is_closed()) throw_gone();
  entry.asked = ++questions_;
  registered_bytes_ += entry.memory.bytes();
  return key(entries_[{region, port.get()}] = std::move(entry));
}

void RdmaKeys::forget(const Region& region, Duration patience) {
  std::vector<Entry> forgotten;
  {
    std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      auto next = std::next(entry);
      if (entry->first.first == region.index() && entry->second.secret == region.secret())
        forgotten.push_back(take(entry));
      entry = next;
    }
  }
  if (!forgotten.empty()) see_off(forgotten, region.index(), patience);
}

}  // namespace ringcoll::remote

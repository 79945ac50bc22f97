#include "transport/verbs/registrations.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace ringcoll::rdma {
namespace {

// More tensors than a large model has. A program that never uses an address twice forgets all
// addresses at this number.
constexpr size_t kMostSightings = 1 << 16;

uintptr_t address_of(const void* data) { return reinterpret_cast<uintptr_t>(data); }

verbs::Access access_of(bool written) {
  return written ? verbs::Access::kRemoteWrite : verbs::Access::kLocalRead;
}

}  // namespace

void Registrations::add(const verbs::ProtectionDomain& domain) {
  take_changes();
  domains_.push_back(&domain);
  // Each domain counts: leave room for the same memory in one more.
  forget_unused(most_bytes_ / domains_.size() * (domains_.size() - 1));
  try {
    try {
      register_all(domain);
    } catch (const Error& error) {
      log_debug("memory that this call does not use is registered no longer: {}", error.what());
      forget_unused(0);
      register_all(domain);
    }
  } catch (const Error&) {
    forget_all();  // none may outlive the domain
    domains_.pop_back();
    throw;
  }
}

// Registers all entries in the domain, except those that are registered there already.
void Registrations::register_all(const verbs::ProtectionDomain& domain) {
  for (auto& [first, entry] : entries_) {
    if (entry.regions->size() == domains_.size()) continue;
    entry.regions->emplace_back(domain, reinterpret_cast<void*>(first), entry.bytes,
                                access_of(entry.written));
    registered_bytes_ += entry.bytes;
  }
}

// Forgets entries that no call in flight uses, the least recently used first, until no more than so
// many bytes are registered.
void Registrations::forget_unused(uint64_t most_bytes) {
  while (registered_bytes_ > most_bytes) {
    auto oldest =
        std::ranges::min_element(entries_, {}, [](const auto& entry) { return entry.second.call; });
    if (oldest == entries_.end() || in_use(oldest->second)) return;
    erase(oldest);
  }
}

void Registrations::take_changes() {
  if (!entries_.empty())
    watch_.take_changes([this](uintptr_t first, uintptr_t end) { forget(first, end); });
}

void Registrations::lend(std::span<Loan> loans, size_t in_flight) {
  oldest_ = ++call_ - in_flight;
  std::erase_if(lent_, [this](const Lent& lent) { return lent.call < oldest_; });
  std::erase_if(rests_, [this](const auto& rest) { return !in_use(rest.second); });
  if (loans.empty()) return;
  take_changes();
  for (Loan& loan : loans) {
    loan.granted = grant(loan);
    if (loan.granted) lent_.push_back({address_of(loan.data), loan.bytes, call_});
  }
}

const verbs::MemoryRegion* Registrations::find(const verbs::ProtectionDomain& domain,
                                               const void* data, uint64_t bytes,
                                               bool written) const {
  const Entry* entry = granted(address_of(data), bytes);
  if (!entry || (written && !entry->written)) return nullptr;
  auto number = static_cast<size_t>(std::ranges::find(domains_, &domain) - domains_.begin());
  return number < entry->regions->size() ? &(*entry->regions)[number] : nullptr;
}

const Registrations::Entry* Registrations::granted(uintptr_t first, uint64_t bytes) const {
  auto holds = [&](const auto& entry) {
    return entry.first <= first && first + bytes <= entry.first + entry.second.bytes &&
           in_use(entry.second);
  };
  auto after = entries_.upper_bound(first);
  if (after != entries_.begin() && holds(*std::prev(after))) return &std::prev(after)->second;
  auto rest = std::ranges::find_if(rests_, holds);
  return rest == rests_.end() ? nullptr : &rest->second;
}

bool Registrations::grant(const Loan& loan) {
  auto entry = first_reaching(address_of(loan.data));
  if (entry != entries_.end() && entry->first <= address_of(loan.data) &&
      address_of(loan.data) + loan.bytes <= entry->first + entry->second.bytes &&
      (entry->second.written || !loan.written)) {
    entry->second.call = call_;
    return true;
  }
  return most_bytes_ > 0 && seen_before(loan) && add(loan);
}

bool Registrations::seen_before(const Loan& loan) {
  if (sightings_.size() >= kMostSightings) sightings_.clear();
  Sighting& sighting = sightings_[address_of(loan.data)];
  bool same = sighting.bytes == loan.bytes;
  sighting = {loan.bytes, (same && sighting.written) || loan.written};
  return same;
}

bool Registrations::add(const Loan& loan) {
  uintptr_t first = address_of(loan.data);
  bool written = sightings_[first].written;
  if (!make_room(first, loan.bytes) || !watch(loan)) return false;
  try {
    auto regions = std::make_shared<Regions>();
    for (const verbs::ProtectionDomain* domain : domains_)
      regions->emplace_back(*domain, loan.data, loan.bytes, access_of(written));
    entries_[first] = {loan.bytes, written, call_, std::move(regions)};
  } catch (const Error& error) {
    // Most likely the limit of locked memory is reached. What is registered stays in use.
    log_debug("{} bytes are not registered, and are copied before they are sent: {}", loan.bytes,
              error.what());
    most_bytes_ = registered_bytes_;
    return false;
  }
  registered_bytes_ += loan.bytes * domains_.size();
  sightings_.erase(first);
  return true;
}

// Forgets entries that overlap, then the least recently used; never those that calls in flight use.
bool Registrations::make_room(uintptr_t first, uint64_t bytes) {
  for (auto it = first_reaching(first); it != entries_.end() && it->first < first + bytes;) {
    if (in_use(it->second)) return false;
    it = erase(it);
  }
  uint64_t wanted = bytes * domains_.size();
  if (wanted > most_bytes_) return false;
  forget_unused(most_bytes_ - wanted);
  return registered_bytes_ + wanted <= most_bytes_;
}

// Memory is watched before it is registered, so that no change is missed.
bool Registrations::watch(const Loan& loan) {
  try {
    return watch_.watch(loan.data, loan.bytes);
  } catch (const Error& error) {
    log_debug("tensors are not registered, and are copied before they are sent: {}", error.what());
    most_bytes_ = 0;
    return false;
  }
}

void Registrations::forget(uintptr_t first, uintptr_t end) {
  for (auto it = first_reaching(first); it != entries_.end() && it->first < end; it = erase(it))
    keep_lent(it->first, it->second);
}

void Registrations::keep_lent(uintptr_t first, const Entry& entry) {
  for (const Lent& lent : lent_)
    if (first <= lent.first && lent.first + lent.bytes <= first + entry.bytes)
      rests_.push_back({lent.first, {lent.bytes, entry.written, lent.call, entry.regions}});
}

Registrations::Entries::iterator Registrations::erase(Entries::iterator entry) {
  registered_bytes_ -= entry->second.bytes * entry->second.regions->size();
  return entries_.erase(entry);
}

// The first entry that ends behind `address`.
Registrations::Entries::iterator Registrations::first_reaching(uintptr_t address) {
  auto it = entries_.upper_bound(address);
  if (it == entries_.begin()) return it;
  auto before = std::prev(it);
  return before->first + before->second.bytes > address ? before : it;
}

}  // namespace ringcoll::rdma

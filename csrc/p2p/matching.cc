#include "p2p/matching.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace ringcoll {
namespace {

bool fits(int32_t wanted, int32_t tag) { return wanted == kAnyTag || wanted == tag; }

}  // namespace

Arrival* Matching::first_of(const Arrivals& arrivals, int32_t tag) const {
  auto found = std::ranges::find_if(
      arrivals, [&](const ArrivalPtr& arrival) { return fits(tag, arrival->tag); });
  return found == arrivals.end() ? nullptr : found->get();
}

Arrival* Matching::find(const Transfer& receive) const {
  if (receive.peer != kAnySource) {
    auto found = arrivals_.find(receive.peer);
    return found == arrivals_.end() ? nullptr : first_of(found->second, receive.tag);
  }
  Arrival* oldest = nullptr;
  for (const auto& [source, arrivals] : arrivals_) {
    Arrival* first = first_of(arrivals, receive.tag);
    if (first && (!oldest || first->order < oldest->order)) oldest = first;
  }
  return oldest;
}

ArrivalPtr Matching::remove(Arrival* arrival) {
  Arrivals& arrivals = arrivals_.at(arrival->source);
  auto found = std::ranges::find(arrivals, arrival, &ArrivalPtr::get);
  ArrivalPtr removed = std::move(*found);
  arrivals.erase(found);
  return removed;
}

Arrival* Matching::keep(ArrivalPtr arrival) {
  arrival->order = ++arrived_;
  return arrivals_[arrival->source].emplace_back(std::move(arrival)).get();
}

void Matching::post(Transfer* receive) {
  receive->stage = Transfer::Stage::kPosted;
  line_up(receive);
  Transfers& posted = receive->peer == kAnySource ? from_any_ : receives_[receive->peer];
  std::vector<Transfer*> later;
  while (!posted.empty() && posted.back()->order > receive->order) {
    later.push_back(posted.back());
    posted.remove(later.back());
  }
  posted.push(receive);
  for (; !later.empty(); later.pop_back()) posted.push(later.back());
}

Transfer* Matching::first_for(const Transfers& receives, int32_t tag) {
  for (Transfer* receive = receives.front(); receive; receive = Transfers::next(receive))
    if (fits(receive->tag, tag)) return receive;
  return nullptr;
}

Transfer* Matching::take(Rank source, int32_t tag) {
  auto found = receives_.find(source);
  Transfer* named = found == receives_.end() ? nullptr : first_for(found->second, tag);
  Transfer* any = first_for(from_any_, tag);
  if (!named && !any) return nullptr;
  Transfer* taken = !any || (named && named->order < any->order) ? named : any;
  withdraw(taken);
  return taken;
}

void Matching::withdraw(Transfer* receive) {
  (receive->peer == kAnySource ? from_any_ : receives_[receive->peer]).remove(receive);
}

void Matching::remove_own(const Transfer* send) {
  for (auto& [source, arrivals] : arrivals_)
    std::erase_if(arrivals, [&](const ArrivalPtr& arrival) { return arrival->own == send; });
}

void Matching::remove_announced(Rank source, uint64_t number) {
  auto from = arrivals_.find(source);
  if (from == arrivals_.end()) return;
  std::erase_if(from->second, [&](const ArrivalPtr& arrival) {
    return arrival->announced && arrival->number == number;
  });
}

void Matching::clear() {
  arrivals_.clear();
  receives_.clear();
  from_any_ = {};
}

size_t Matching::arrivals() const {
  size_t count = 0;
  for (const auto& [source, arrivals] : arrivals_) count += arrivals.size();
  return count;
}

}  // namespace ringcoll

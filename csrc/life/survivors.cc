#include "life/survivors.h"

#include <algorithm>

namespace ringcoll {

void Survivors::take(const Ballot& ballot) {
  if (ballot.from < 0 || ballot.from >= size_ || ballot.gone.size() != gone_.size()) return;
  if (ballot.decided)
    deciders_.emplace(ballot.from, ballot.gone);
  else
    offers_[ballot.gone].emplace(ballot.from, ballot.offer);
  if (ballot.from == own_ && !ballot.decided) voted_ = ballot.gone;
  for (Rank rank = 0; rank < size_; rank++)
    if (ballot.gone[rank]) gone_[rank] = true;
  decide();
}

std::optional<Survivors::Set> Survivors::due() const {
  if (decision_ || excluded() || voted_ == gone_) return {};
  return gone_;
}

bool Survivors::is_complete(const Set& set) const {
  auto votes = offers_.find(set);
  if (votes == offers_.end()) return false;
  for (Rank rank = 0; rank < size_; rank++)
    if (!set[rank] && !votes->second.contains(rank)) return false;
  return true;
}

void Survivors::decide() {
  if (decision_ || excluded()) return;
  for (const auto& [who, set] : deciders_)
    if (!gone_[who] || voted_ == set) {
      decision_ = set;
      return;
    }
  if (voted_ == gone_ && is_complete(gone_)) decision_ = gone_;
}

std::vector<std::string> Survivors::offers() const {
  std::vector<std::string> found(size_);
  for (const auto& [who, offer] : offers_.at(*decision_)) found[who] = offer;
  return found;
}

std::vector<Rank> Survivors::awaited() const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < size_; rank++) {
    auto votes = voted_ ? offers_.find(*voted_) : offers_.end();
    bool has_voted = votes != offers_.end() && votes->second.contains(rank);
    if (!gone_[rank] && !has_voted) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace ringcoll

#include "life/flooded.h"

#include <algorithm>

#include "life/lifeline_messages.h"

namespace ringcoll {

bool Flooded::add_failure(GroupNumber group, const Error& error) {
  if (failures_.find(group)) return false;
  failures_.add(group, error);
  return true;
}

bool Flooded::add_ballot(GroupNumber group_number, uint64_t number, const std::string& message) {
  Group& group = groups_.add(group_number);
  if (number <= group.over) return false;
  Round& round = group.rounds[number];
  if (std::ranges::find(round.said, message) != round.said.end()) return false;
  round.said.push_back(message);
  auto decision = lifeline::decision_of(message);
  if (!decision) return true;
  if (round.settled.empty()) round.settled = decision->gone;
  auto from = static_cast<size_t>(decision->from);
  if (from < round.settled.size()) round.settled[from] = true;
  if (std::ranges::count(round.settled, false) > 0) return true;
  group.over = number;
  group.last = message;
  // Ranks that take part in this round have decided all earlier ones.
  group.rounds.erase(group.rounds.begin(), group.rounds.upper_bound(number));
  return true;
}

std::vector<std::string> Flooded::ballots(GroupNumber group_number, uint64_t number,
                                          size_t known) const {
  const Group* group = groups_.find(group_number);
  if (!group) return {};
  if (number <= group->over) return {group->last};
  auto round = group->rounds.find(number);
  if (round == group->rounds.end() || round->second.said.size() <= known) return {};
  return {round->second.said.begin() + static_cast<ptrdiff_t>(known), round->second.said.end()};
}

std::vector<std::string> Flooded::messages() const {
  std::vector<std::string> all;
  for (const auto& [group, error] : failures_)
    all.push_back(lifeline::encode(lifeline::Type::kFailed, group, error));
  for (const auto& [number, group] : groups_) {
    if (group.over > 0) all.push_back(group.last);
    for (const auto& [n, round] : group.rounds)
      all.insert(all.end(), round.said.begin(), round.said.end());
  }
  return all;
}

size_t Flooded::bytes() const {
  size_t sum = 0;
  for (const std::string& message : messages()) sum += message.size();
  return sum;
}

}  // namespace ringcoll

// see the header
#include "schedule/history.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ringcoll {

BankAssignment::BankAssignment(size_t versions) {
  nodes_.reserve(versions);
  for (size_t i = 0; i < versions; i++) add();
}

void BankAssignment::add() { nodes_.push_back({static_cast<VersionId>(nodes_.size()), 0, -1}); }

VersionId BankAssignment::root_of(VersionId version) {
  VersionId root = version;
  uint8_t differs = 0;
  while (nodes_[root].parent != root) {
    differs ^= nodes_[root].differs;
    root = nodes_[root].parent;
  }
  while (version != root) {
    VersionId parent = std::exchange(nodes_[version].parent, root);
    uint8_t own = std::exchange(nodes_[version].differs, differs);
    differs ^= own;
    version = parent;
  }
  return root;
}

bool BankAssignment::relate(VersionId a, VersionId b, bool different) {
  VersionId root_a = root_of(a), root_b = root_of(b);
  uint8_t differs = nodes_[a].differs ^ nodes_[b].differs ^ static_cast<uint8_t>(different);
  if (root_a == root_b) return differs == 0;
  Node& kept = nodes_[root_a];
  Node& joined = nodes_[root_b];
  if (joined.bank >= 0) {
    int8_t bank = static_cast<int8_t>(joined.bank ^ differs);
    if (kept.bank >= 0 && kept.bank != bank) return false;
    kept.bank = bank;
  }
  joined.parent = root_a;
  joined.differs = differs;
  return true;
}

int BankAssignment::bank_of(VersionId version) {
  const Node& root = nodes_[root_of(version)];
  return root.bank < 0 ? -1 : root.bank ^ nodes_[version].differs;
}

void BankAssignment::decide(VersionId version, int bank) {
  nodes_[root_of(version)].bank = static_cast<int8_t>(bank ^ nodes_[version].differs);
}

History::History(const Schedule& schedule, int64_t space, const Ends& ends, bool pack_all,
                 Rank rank)
    : rank_(rank) {
  find_bounds(schedule, space, ends);
  wanted_.resize(atom_count(), false);
  copied_to_.resize(atom_count(), false);
  input_stays_.resize(atom_count(), false);
  inputs_.resize(atom_count(), kNoVersion);
  current_.resize(atom_count(), kNoVersion);
  for (Range range : ends.outputs)
    for (auto [atom, end] = atoms_of(range); atom < end; atom++) wanted_[atom] = true;
  for (Range range : ends.inputs)
    for (auto [atom, end] = atoms_of(range); atom < end; atom++) {
      add_version({.atom = atom});
      inputs_[atom] = current_[atom];
    }
  find_inputs_that_stay(schedule);
  for (int round = 0; round < static_cast<int>(schedule.size()); round++) {
    const Step& step = schedule[round];
    if (is_inside(step, rank)) {
      step.combine == Combine::kCopy ? copy_inside(step, round) : fold_inside(step, round);
      continue;
    }
    if (step.send_to != kNobody) send(step, round);
    if (step.recv_from != kNobody) receive(step, round);
  }
  settle_needs();
  if (!ends.zero_copy.empty()) settle_zero_copy(schedule, ends, pack_all);
}

void History::find_inputs_that_stay(const Schedule& schedule) {
  for (const Step& step : schedule) {
    bool folds = is_inside(step, rank_) && step.combine == Combine::kFold;
    if (!step.sends_input && !folds) continue;
    for (auto [atom, end] = atoms_of(step.send); atom < end; atom++) input_stays_[atom] = true;
  }
}

void History::find_bounds(const Schedule& schedule, int64_t space, const Ends& ends) {
  bounds_ = {0, space};
  auto add = [&](Range range) {
    invariant(range.first >= 0 && range.count >= 0 && range.end() <= space,
              "schedule of rank {}: {} elements from {} are outside of the {} that there are",
              rank_, range.count, range.first, space);
    if (range.empty()) return;
    bounds_.push_back(range.first);
    bounds_.push_back(range.end());
  };
  for (const Step& step : schedule) {
    add(step.send);
    add(step.recv);
  }
  for (Range range : ends.inputs) add(range);
  for (Range range : ends.outputs) add(range);
  std::sort(bounds_.begin(), bounds_.end());
  bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());
}

std::pair<Atom, Atom> History::atoms_of(Range range) const {
  if (range.empty()) return {0, 0};
  auto first = std::lower_bound(bounds_.begin(), bounds_.end(), range.first);
  auto end = std::lower_bound(first, bounds_.end(), range.end());
  return {static_cast<Atom>(first - bounds_.begin()), static_cast<Atom>(end - bounds_.begin())};
}

void History::add_version(Version version) {
  current_[version.atom] = static_cast<VersionId>(versions_.size());
  versions_.push_back(version);
  banks_.add();
}

void History::send(const Step& step, int round) {
  auto [first, end] = atoms_of(step.send);
  messages_.push_back({round, step.send_to, step.send, {}});
  const std::vector<VersionId>& sent = step.sends_input ? inputs_ : current_;
  for (Atom atom = first; atom < end; atom++) {
    VersionId version = sent[atom];
    messages_.back().versions.push_back(version);
    invariant(version != kNoVersion && !copied_to_[atom],
              "schedule of rank {}, round {}: sends {} elements from {} before it has them", rank_,
              round, range_of(atom).count, range_of(atom).first);
    versions_[version].sends++;
    versions_[version].last_sent = round;
    // A message is contiguous in memory, so all its versions lie in one bank.
    invariant(banks_.relate(sent[first], version, false),
              "schedule of rank {}, round {}: no bank can hold all of what it sends", rank_, round);
  }
}

void History::receive(const Step& step, int round) {
  auto [sent_first, sent_end] = atoms_of(step.send_to == kNobody ? Range{} : step.send);
  for (auto [atom, end] = atoms_of(step.recv); atom < end; atom++) {
    VersionId before = current_[atom];
    bool reduces = step.combine != Combine::kCopy;
    invariant((before != kNoVersion || !reduces) && !copied_to_[atom],
              "schedule of rank {}, round {}: combines into {} elements from {} that it does not "
              "have",
              rank_, round, range_of(atom).count, range_of(atom).first);
    VersionId operand = reduces ? before : kNoVersion;
    add_version({.atom = atom, .operand = operand, .received = true, .round = round});
    // A range that is sent in this round must not be overwritten in it: both peers would wait for
    // each other.
    bool leaves = sent_first <= atom && atom < sent_end;
    if (leaves && !step.sends_input) banks_.relate(before, current_[atom], true);
    if (input_stays_[atom]) banks_.relate(inputs_[atom], current_[atom], true);
  }
}

void History::fold_inside(const Step& step, int round) {
  invariant(step.send == step.recv,
            "schedule of rank {}, round {}: folds {} elements into {} others", rank_, round,
            step.send.count, step.recv.count);
  for (auto [atom, end] = atoms_of(step.recv); atom < end; atom++) {
    VersionId before = current_[atom];
    invariant(inputs_[atom] != kNoVersion && versions_[before].received,
              "schedule of rank {}, round {}: folds its input of {} elements from {} into nothing",
              rank_, round, range_of(atom).count, range_of(atom).first);
    add_version(
        {.atom = atom, .operand = before, .folds_input = true, .received = true, .round = round});
    banks_.relate(inputs_[atom], current_[atom], true);
  }
}

void History::copy_inside(const Step& step, int round) {
  invariant(step.send.count == step.recv.count && !overlap(step.send, step.recv),
            "schedule of rank {}, round {}: a copy inside the rank of {} elements to {}", rank_,
            round, step.send.count, step.recv.count);
  for (auto [atom, end] = atoms_of(step.send); atom < end; atom++) {
    VersionId source = current_[atom];
    invariant(source != kNoVersion && !versions_[source].received,
              "schedule of rank {}, round {}: copies inside the rank what is not its input", rank_,
              round);
    versions_[source].copied_inside = true;
  }
  for (auto [atom, end] = atoms_of(step.recv); atom < end; atom++) {
    invariant(current_[atom] == kNoVersion && !copied_to_[atom],
              "schedule of rank {}, round {}: copies inside the rank onto what it has", rank_,
              round);
    copied_to_[atom] = true;
  }
}

void History::settle_needs() {
  for (Atom atom = 0; atom < atom_count(); atom++) {
    VersionId last = current_[atom];
    invariant(last != kNoVersion || copied_to_[atom] || !wanted_[atom],
              "schedule of rank {}: nothing is received for {} elements from {}", rank_,
              range_of(atom).count, range_of(atom).first);
    if (last != kNoVersion) versions_[last].final = true;
  }
  // In reverse order, as an operand is made before its result.
  for (auto version = versions_.rbegin(); version != versions_.rend(); ++version) {
    invariant(!version->copied_inside || version->final,
              "schedule of rank {}: receives onto what it copied inside the rank", rank_);
    version->needed |=
        version->sends > 0 || version->copied_inside || (version->final && wanted_[version->atom]);
    if (version->needed && version->operand != kNoVersion)
      versions_[version->operand].needed = true;
    if (version->needed && version->folds_input) versions_[inputs_[version->atom]].needed = true;
  }
}

// A sent version stays in the caller's memory on three conditions: can_stay() allows it, all its
// receivers permit zero copy, and each message with it is one contiguous range of that memory. With
// pack_all, no input stays.
void History::settle_zero_copy(const Schedule& schedule, const Ends& ends, bool pack_all) {
  bool reduces = std::ranges::any_of(
      schedule, [](const Step& step) { return step.combine != Combine::kCopy; });
  for (const Step& step : schedule) senders_.insert(step.recv_from);
  std::vector<int> of_atom(atom_count(), 0);
  for (const Version& version : versions_) of_atom[version.atom]++;
  for (Version& version : versions_) {
    bool contained = reduces && version.sends == 1 && of_atom[version.atom] == 2;
    bool is_read = version.received || !pack_all;
    version.zero_copy =
        version.sends > 0 && is_read && can_stay(version, contained, ends.copying.has_value());
  }
  // A message that cannot be sent without a copy also forces copies of its versions in other
  // messages.
  for (bool settled = false; !std::exchange(settled, true);)
    for (const Message& message : messages_) {
      auto is_zero_copy = [&](VersionId v) { return versions_[v].zero_copy; };
      if (std::ranges::none_of(message.versions, is_zero_copy) || can_go(message, ends)) continue;
      for (VersionId v : message.versions) versions_[v].zero_copy = false;
      settled = false;
    }
}

// A result stays where the caller wants it. An input stays if its memory, which may be that of the
// output, is not written before it has been read. One of these conditions suffices:
//  - Nothing is received for the atom, or no output is written there.
//  - All its messages are copied when they are sent, before or in the round of the result.
//  - It is sent once, and the next receipt is a result that contains it (`contained`). So the
//    sender of that result has read it.
bool History::can_stay(const Version& version, bool contained, bool copied) const {
  bool wanted = wanted_[version.atom];
  if (version.received) return version.final && wanted;
  const Version& last = versions_[current_[version.atom]];
  bool has_left = copied && version.last_sent <= last.round;
  return version.final || !wanted || has_left || (contained && last.operand == kNoVersion);
}

bool History::can_go(const Message& message, const Ends& ends) const {
  auto is_zero_copy = [&](VersionId v) { return versions_[v].zero_copy; };
  auto is_result = [&](VersionId v) { return versions_[v].received; };
  if (!ends.zero_copy[message.to] || !std::ranges::all_of(message.versions, is_zero_copy))
    return false;
  bool results = std::ranges::all_of(message.versions, is_result);
  if (!results && std::ranges::any_of(message.versions, is_result)) return false;
  if (ends.copying) {
    bool shared =
        std::ranges::any_of(message.versions, [&](VersionId v) { return versions_[v].sends > 1; });
    bool exchanged = !shared && senders_.contains(message.to);
    return message.range.count <= (exchanged ? ends.copying->most : ends.copying->most_otherwise);
  }
  return std::ranges::any_of(results ? ends.outputs : ends.inputs, [&](Range r) {
    return r.first <= message.range.first && message.range.end() <= r.end();
  });
}

}  // namespace ringcoll

#include "schedule/simulator_testing.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <random>

namespace ringcoll::simulator {
namespace {

struct Value {
  uint64_t sum = 0;
  float number = 0;
  bool known = false;

  bool same_bits(const Value& other) const {
    return sum == other.sum && std::memcmp(&number, &other.number, sizeof number) == 0;
  }
};

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

Value contribution(Rank rank, int64_t element) {
  uint64_t word = mix(static_cast<uint64_t>(rank) << 40 | static_cast<uint64_t>(element));
  return {word, static_cast<float>(word >> 40) / static_cast<float>(1 + (word & 0xffff)), true};
}

Value combine(Combine how, Rank rank, const Value& own, Rank peer, const Value& theirs) {
  bool own_first = how == Combine::kFold || rank < peer;
  const Value& first = own_first ? own : theirs;
  const Value& second = own_first ? theirs : own;
  return {first.sum + second.sum, first.number + second.number, first.known && second.known};
}

/// Rank and element of the input that an output of a collective that only moves is a copy of.
std::pair<Rank, int64_t> origin(const Call& call, Rank rank, int64_t element) {
  const auto owner = [&](const std::vector<int64_t>& counts, int64_t at) {
    std::vector<int64_t> offsets = offsets_of(counts);
    auto after = std::upper_bound(offsets.begin(), offsets.end(), at);
    return static_cast<Rank>(after - offsets.begin()) - 1;
  };
  if (call.collective == RC_BROADCAST || call.collective == RC_SCATTER) return {call.root, element};
  if (call.collective != RC_ALLTOALL) return {owner(call.counts[0], element), element};
  int64_t at = element - offsets_of(call.counts[rank]).back();
  Rank from = owner(call.recv_counts[rank], at);
  int64_t within = at - offsets_of(call.recv_counts[rank])[from];
  return {from, offsets_of(call.counts[from])[rank] + within};
}

/// Whether the result of `rank` has the input of `other`.
bool has_input_of(const Call& call, Rank rank, Rank other) {
  const CollectiveTraits& traits = traits_of(call.collective);
  if (!traits.is_prefix()) return true;
  Rank own = call.number_of(rank), theirs = call.number_of(other);
  return theirs < own || (theirs == own && !traits.excludes_own());
}

uint64_t expected_sum(const Call& call, Rank rank, int64_t element) {
  if (!traits_of(call.collective).reduces()) {
    auto [from, at] = origin(call, rank, element);
    return contribution(from, at).sum;
  }
  uint64_t sum = 0;
  for (Rank r = 0; r < call.size; r++)
    if (has_input_of(call, rank, r)) sum += contribution(r, element).sum;
  return sum;
}

using Memory = std::vector<Value>;

/// Calls visit(element) for each element of the ranges.
void for_each(const std::vector<Range>& ranges, const std::function<void(int64_t)>& visit) {
  for (Range range : ranges)
    for (int64_t e = range.first; e < range.end(); e++) visit(e);
}

Memory input_of(const Call& call, Rank rank) {
  Memory memory(call.space(rank));
  for_each(call.ends(rank).inputs, [&](int64_t e) { memory[e] = contribution(rank, e); });
  return memory;
}

/// "" if the outputs are what they should be.
std::string check_outputs(const Call& call, const std::vector<Memory>& outputs) {
  std::string wrong;
  std::map<int64_t, uint64_t> sums;
  for (Rank rank = 0; rank < call.size; rank++)
    for_each(call.ends(rank).outputs, [&](int64_t e) {
      const Value& value = outputs[rank][e];
      uint64_t expected = 0;
      if (traits_of(call.collective).reduces() && !traits_of(call.collective).is_prefix()) {
        auto [known, is_new] = sums.try_emplace(e, 0);
        if (is_new) known->second = expected_sum(call, rank, e);
        expected = known->second;
      } else {
        expected = expected_sum(call, rank, e);
      }
      if (!wrong.empty()) return;
      if (!value.known)
        wrong = fmt::format("rank {} has no result in element {}", rank, e);
      else if (value.sum != expected)
        wrong =
            fmt::format("rank {}, element {}: not the contributions that belong there", rank, e);
      else if (traits_of(call.collective).shares_result() && !value.same_bits(outputs[0][e]))
        wrong = fmt::format("element {} differs between ranks 0 and {}", e, rank);
    });
  return wrong;
}

/// "" if each message of the round has one sender and one receiver that agree.
std::string check_matched(const std::vector<Schedule>& schedules, size_t round) {
  for (Rank rank = 0; rank < static_cast<Rank>(schedules.size()); rank++) {
    const Step& step = schedules[rank][round];
    if (step.send_to != kNobody) {
      const Step& other = schedules[step.send_to][round];
      if (other.recv_from != rank || other.recv.count != step.send.count)
        return where(rank, round) + sending(step) + ", which " + receiving(other);
    }
    if (step.recv_from != kNobody) {
      const Step& other = schedules[step.recv_from][round];
      if (other.send_to != rank)
        return where(rank, round) + receiving(step) + ", which " + sending(other);
    }
  }
  return "";
}

/// "" if what the step names is there, and empty ranges are nobody's.
std::string check_step(const Call& call, const Step& step, int64_t space) {
  bool barrier = call.collective == RC_BARRIER;
  auto inside = [&](Range r) { return r.first >= 0 && r.count >= 0 && r.end() <= space; };
  auto known = [&](Rank r) { return r == kNobody || (r >= 0 && r < call.size); };
  if (!known(step.send_to)) return sending(step) + ", which is not there";
  if (!known(step.recv_from)) return receiving(step) + ", which is not there";
  std::string all = words_of(Range{0, space});
  if (!inside(step.send)) return sending(step) + ", outside of the index space " + all;
  if (!inside(step.recv)) return receiving(step) + ", outside of the index space " + all;
  if (!barrier && step.send_to != kNobody && step.send.empty())
    return sending(step) + ", which is no message";
  if (!barrier && step.recv_from != kNobody && step.recv.empty())
    return receiving(step) + ", which is no message";
  return "";
}

std::string run_round(const Call& call, const std::vector<Schedule>& schedules, size_t round,
                      std::vector<Memory>& memories) {
  std::vector<Memory> before;  // what leaves, as it was when the round began
  for (size_t rank = 0; rank < schedules.size(); rank++) {
    const Step& step = schedules[rank][round];
    bool folds = step.send_to == static_cast<Rank>(rank) && step.combine == Combine::kFold;
    Memory input = step.sends_input || folds ? input_of(call, static_cast<Rank>(rank)) : Memory{};
    auto first = (input.empty() ? memories[rank] : input).begin() + step.send.first;
    before.emplace_back(first, first + step.send.count);
    for (size_t i = 0; i < before.back().size(); i++)
      if (step.send_to != kNobody && !before.back()[i].known)
        return where(static_cast<Rank>(rank), round) + sending(step) +
               fmt::format(", but does not have element {}", step.send.first + i);
  }
  for (Rank rank = 0; rank < static_cast<Rank>(schedules.size()); rank++) {
    const Step& step = schedules[rank][round];
    if (step.recv_from == kNobody) continue;
    for (int64_t i = 0; i < step.recv.count; i++) {
      Value& own = memories[rank][step.recv.first + i];
      const Value& received = before[step.recv_from][i];
      if (step.combine != Combine::kCopy && !own.known)
        return where(rank, round) + receiving(step) +
               fmt::format(", but does not have element {}", step.recv.first + i);
      own = step.combine == Combine::kCopy
                ? received
                : combine(step.combine, rank, own, step.recv_from, received);
    }
  }
  return "";
}

}  // namespace

std::vector<Schedule> make_schedules(const ScheduleRow& row, const Call& call) {
  std::vector<Schedule> schedules;
  for (Rank rank = 0; rank < call.size; rank++) schedules.push_back(row.make(call.problem(rank)));
  return schedules;
}

std::string check_schedules(const Call& call, const std::vector<Schedule>& schedules) {
  std::vector<Memory> memories;
  for (Rank rank = 0; rank < call.size; rank++) {
    if (schedules[rank].size() != schedules[0].size())
      return fmt::format("rank 0 has {} rounds, rank {} has {}", schedules[0].size(), rank,
                         schedules[rank].size());
    memories.push_back(input_of(call, rank));
    for (size_t round = 0; round < schedules[rank].size(); round++) {
      std::string wrong = check_step(call, schedules[rank][round], call.space(rank));
      if (!wrong.empty()) return where(rank, round) + wrong;
    }
  }
  for (size_t round = 0; round < schedules[0].size(); round++) {
    std::string wrong = check_matched(schedules, round);
    if (wrong.empty()) wrong = run_round(call, schedules, round, memories);
    if (!wrong.empty()) return wrong;
  }
  return check_outputs(call, memories);
}

namespace {

/// All ranks of a call, each where it is in its plan.
class PlanRunner {
 public:
  PlanRunner(const Call& call, const std::vector<Plan>& plans, const PlanOptions& options)
      : call_(call), options_(options) {
    for (Rank rank = 0; rank < call.size; rank++) {
      Machine machine;
      machine.rank = rank;
      machine.plan = plans[rank];
      machine.input = input_of(call, rank);
      for (Memory& bank : machine.banks) bank.resize(call.space(rank));
      machine.output.resize(call.space(rank));
      machine.read.resize(machine.plan.actions.size());
      machine.early.resize(machine.plan.actions.size());
      for (auto& sent : machine.sent) sent.resize(call.space(rank));
      machine.copies.resize(machine.plan.actions.size());
      machine.ends = call.ends(rank, options.zero_copy);
      machines_.push_back(std::move(machine));
    }
  }

  std::string run() {
    bool moves_early = options_.shuffle % 2 == 0;  // as early as may be, or as late
    std::vector<Rank> ready(call_.size);
    std::iota(ready.begin(), ready.end(), 0);
    std::shuffle(ready.begin(), ready.end(), std::mt19937(options_.shuffle));
    for (Machine& machine : machines_) {
      pack(machine);
      if (moves_early) move_own(machine);
    }
    // The last rank added goes on as far as it can: some run far ahead of others.
    while (!ready.empty() && wrong_.empty()) {
      Machine& next = machines_[ready.back()];
      ready.pop_back();
      while (wrong_.empty() && advance(next, ready)) {
      }
    }
    for (const Machine& machine : machines_)
      if (wrong_.empty() && machine.round < machine.plan.actions.size())
        fail(machine, waiting(machine));
    if (!wrong_.empty()) return wrong_;
    std::vector<Memory> outputs;
    for (Machine& machine : machines_) {
      if (!moves_early) move_own(machine);
      outputs.push_back(std::move(output_of(machine)));
    }
    return check_outputs(call_, outputs);
  }

 private:
  struct Machine {
    Rank rank = 0;
    Plan plan;
    Memory input, output;
    std::array<Memory, 2> banks;
    size_t round = 0;
    size_t receipt = 0;
    bool posted = false;
    std::vector<bool> read, early;  // of each round: the peer has read the message; it went early
    Ends ends;
    /// Of each element of each storage (index_of): the rounds in which it was sent and which
    /// nothing was done to wait for.
    std::array<std::vector<std::vector<int>>, 4> sent;
    std::vector<Memory> copies;  // of each round: the message, if it is copied when it is sent
  };

  Memory& output_of(Machine& machine) { return options_.in_place ? machine.input : machine.output; }
  Memory& memory_at(Machine& machine, Storage storage) {
    if (storage == Storage::kInput) return machine.input;
    if (storage == Storage::kOutput) return output_of(machine);
    if (storage == Storage::kBank1 && !machine.plan.two_banks)
      fail(machine, "a second bank unsaid");
    if (storage == Storage::kNowhere) fail(machine, "reads or writes nowhere");
    return machine.banks[storage == Storage::kBank1];
  }
  static size_t index_of(Storage storage) {
    return static_cast<size_t>(storage) - static_cast<size_t>(Storage::kInput);
  }
  void fail(const Machine& machine, const std::string& what) {
    if (wrong_.empty()) wrong_ = where(machine.rank, machine.round) + what;
  }

  /// Without the storages.
  static Step step_of(const Action& action) {
    return {action.send_to, action.send, action.recv_from, action.recv, Combine::kCopy};
  }
  static Step step_of(const Machine& machine) {
    return step_of(machine.plan.actions[machine.round]);
  }

  std::string waiting(const Machine& machine) const {
    Step step = step_of(machine);
    const std::vector<Action>& theirs = machines_[step.recv_from].plan.actions;
    bool there = machine.round < theirs.size();
    return fmt::format("waits for ever: {}, which {}", receiving(step),
                       there ? sending(step_of(theirs[machine.round])) : "has no such round");
  }

  void pack(Machine& machine) {
    for (const Packing& packing : machine.plan.pack)
      for (int64_t e = packing.range.first; e < packing.range.end(); e++) {
        if (!machine.input[e].known)
          fail(machine, fmt::format("packs element {}, which has no input", e));
        memory_at(machine, packing.to)[e] = machine.input[e];
      }
    if (!options_.pack_all) return;
    for (Value& value : machine.input) value.known = false;  // nobody may read it any more
  }

  /// One round, or as much of it as can be done; true if it is over.
  bool advance(Machine& machine, std::vector<Rank>& ready) {
    if (machine.round == machine.plan.actions.size()) return false;
    if (options_.sends_early) send_early(machine, ready);
    const Action& action = machine.plan.actions[machine.round];
    if (!machine.posted && action.send_to != kNobody && !machine.early[machine.round]) {
      note_send(machine, action, machine.round);
      ready.push_back(action.send_to);
    }
    machine.posted = true;
    if (action.recv_from == machine.rank)
      fold_inside(machine, action);
    else if (action.recv_from != kNobody && !receive(machine, action, ready))
      return false;
    machine.receipt = 0;
    machine.posted = false;
    machine.round++;
    return true;
  }

  void send_early(Machine& machine, std::vector<Rank>& ready) {
    for (const EarliestSend& send : machine.plan.sends) {
      if (send.earliest > machine.round || machine.early[send.round]) continue;
      machine.early[send.round] = true;
      note_send(machine, machine.plan.actions[send.round], send.round);
      ready.push_back(machine.plan.actions[send.round].send_to);
    }
  }

  /// A message from a bank is kept, and one from the caller's memory is copied where that is asked.
  bool is_copied(const Action& action) const {
    bool bank = action.send_from == Storage::kBank0 || action.send_from == Storage::kBank1;
    return options_.copying && !bank;
  }

  void note_send(Machine& machine, const Action& action, size_t round) {
    if (action.send.empty()) return;
    bool bank = action.send_from == Storage::kBank0 || action.send_from == Storage::kBank1;
    bool zero_copy = !machine.ends.zero_copy.empty() && machine.ends.zero_copy[action.send_to];
    if (!bank && !zero_copy)
      return fail(machine, sending(step_of(action)) + ", from outside of the banks");
    const Memory& memory = memory_at(machine, action.send_from);
    for (int64_t e = action.send.first; e < action.send.end(); e++) {
      if (!memory[e].known)
        fail(machine, fmt::format("{}, but does not have element {}", sending(step_of(action)), e));
      if (is_copied(action))
        machine.copies[round].push_back(memory[e]);
      else
        machine.sent[index_of(action.send_from)][e].push_back(static_cast<int>(round));
    }
  }

  bool receive(Machine& machine, const Action& action, std::vector<Rank>& ready) {
    Machine& peer = machines_[action.recv_from];
    bool there = peer.round > machine.round || (peer.round == machine.round && peer.posted) ||
                 peer.early[machine.round];
    if (!there || peer.plan.actions[machine.round].send_to != machine.rank) return false;
    int64_t covered =
        machine.receipt == 0 ? action.recv.first : action.receipts[machine.receipt - 1].range.end();
    for (; machine.receipt < action.receipts.size(); machine.receipt++) {
      const Receipt& receipt = action.receipts[machine.receipt];
      if (receipt.range.first != covered || receipt.range.empty())
        fail(machine, fmt::format("{}: receipts do not make up that: {} does not begin at {}",
                                  receiving(step_of(machine)), words_of(receipt.range), covered));
      covered = receipt.range.end();
      if (receipt.after >= static_cast<int>(machine.round))
        fail(machine, "waits for its own round's send");
      if (!wrong_.empty()) return false;
      if (receipt.after >= 0 && !machine.read[receipt.after]) return false;
      apply(machine, peer, action, receipt);
    }
    if (covered != action.recv.end())
      fail(machine, fmt::format("{}: receipts do not make up that: they end at {}",
                                receiving(step_of(machine)), covered));
    peer.read[machine.round] = true;
    ready.push_back(peer.rank);
    return true;
  }

  void fold_inside(Machine& machine, const Action& action) {
    for (const Receipt& receipt : action.receipts) {
      if (receipt.after >= 0) fail(machine, "waits for a send to fold its own input");
      apply(machine, machine, memory_at(machine, action.own_input), 0, receipt);
    }
  }

  void apply(Machine& machine, Machine& peer, const Action& action, const Receipt& receipt) {
    const Action& sending = peer.plan.actions[machine.round];
    const Memory& copy = peer.copies[machine.round];
    if (is_copied(sending)) return apply(machine, peer, copy, -action.recv.first, receipt);
    int64_t shift = sending.send.first - action.recv.first;
    apply(machine, peer, memory_at(peer, sending.send_from), shift, receipt);
  }
  void apply(Machine& machine, const Machine& peer, const Memory& theirs, int64_t shift,
             const Receipt& receipt) {
    if (receipt.result == Storage::kNowhere) return;
    for (int64_t e = receipt.range.first; e < receipt.range.end(); e++) {
      Value value = theirs[e + shift];
      if (receipt.combine != Combine::kCopy)
        value = combine(receipt.combine, machine.rank, memory_at(machine, receipt.operand)[e],
                        peer.rank, value);
      if (!value.known)
        fail(machine, fmt::format("{}, but does not have its own element {}, or the peer has not",
                                  receiving(step_of(machine)), e));
      if (receipt.result == Storage::kOutput || receipt.output_too)
        note_output(machine, receipt, e, value);
      if (receipt.result != Storage::kOutput) note_overwrite(machine, receipt, e);
      memory_at(machine, receipt.result)[e] = value;
      if (receipt.output_too) output_of(machine)[e] = value;
    }
  }

  /// The proof for all orders in which ranks can run: what was sent from there has been waited for,
  /// or a later message to the same peer has.
  void note_overwrite(Machine& machine, const Receipt& receipt, int64_t element) {
    auto& rounds = machine.sent[index_of(receipt.result)][element];
    for (int round : rounds) {
      bool same_peer = receipt.after >= round && machine.plan.actions[round].send_to ==
                                                     machine.plan.actions[receipt.after].send_to;
      if (!same_peer)
        fail(machine, fmt::format("overwrites element {}, sent in round {}, which a peer may still "
                                  "read",
                                  element, round));
    }
    rounds.clear();
  }

  /// The same for the output, which may be the memory of the input: what left it is read by the
  /// time that a result which contains it comes from elsewhere, if it left only once.
  void note_output(Machine& machine, const Receipt& receipt, int64_t element, const Value& value) {
    if (!machine.sent[index_of(Storage::kOutput)][element].empty())
      fail(machine, fmt::format("overwrites the result in element {}, which a peer may still read",
                                element));
    size_t left = machine.sent[index_of(Storage::kInput)][element].size();
    bool contained = traits_of(call_.collective).reduces() &&
                     !traits_of(call_.collective).excludes_own() &&
                     receipt.combine == Combine::kCopy &&
                     value.sum == expected_sum(call_, machine.rank, element);
    if (left > 1 || (left == 1 && !contained))
      fail(machine,
           fmt::format("overwrites the input in element {}, which a peer may still read", element));
  }

  void move_own(Machine& machine) {
    for (const Move& move : machine.plan.moves)
      for (int64_t i = 0; i < move.range.count; i++)
        output_of(machine)[move.to_first + i] = memory_at(machine, move.from)[move.range.first + i];
  }

  const Call& call_;
  PlanOptions options_;
  std::vector<Machine> machines_;
  std::string wrong_;
};

}  // namespace

std::vector<Plan> make_plans(const Call& call, const std::vector<Schedule>& schedules,
                             const PlanOptions& options) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < call.size; rank++) {
    Ends ends = call.ends(rank, options.zero_copy);
    ends.copying = options.copying;
    plans.push_back(lower(schedules[rank], call.space(rank), ends, options.pack_all, rank));
  }
  return plans;
}

std::string check_plans(const Call& call, const std::vector<Plan>& plans,
                        const PlanOptions& options) {
  return PlanRunner(call, plans, options).run();
}

}  // namespace ringcoll::simulator

// Lowering, second half: chooses a storage for each version of history.h (docs/algorithms.md,
// "Lowering").
//
// The first of these rules that applies decides where a received version lies:
//  1. It is not needed: nowhere.
//  2. It is final, and is not sent or is sent from the caller's memory: in the output, read
//     straight from the peer's memory.
//  3. It is sent: in the bank of its whole message. If that bank is undecided, rule 4 decides it.
//  4. It waits for further combinations: in the bank of its operand if that was never sent. Else in
//     bank 0, or in bank 1 if this round sends from bank 0. The write waits for an earlier send
//     from that place (`after`). That wait is nearly always over: the received value could not
//     exist if the earlier peer had not read its message. Bank 0 alone takes half of the cache.
// An input that is sent is packed unless Version::zero_copy: into the bank of its message, or bank
// 0 if that is undecided. Other inputs are read where they lie.
//
// In-place calls are safe. The output of an atom is written once, by its last version. The input is
// read by packing (before all rounds), by its first combination, or by a move (only if nothing was
// received). None of these reads comes after that write, except a move, which copies onto itself.
#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "schedule/history.h"
#include "schedule/plan.h"

namespace ringcoll {
namespace {

Storage bank_storage(int bank) { return bank == 0 ? Storage::kBank0 : Storage::kBank1; }

/// Sends of one atom from one bank that may not have completed.
struct Leaving {
  int round = -1;  // of the latest send; -1: none
  Rank to = kNobody;
  bool several = false;  // to more than one peer
};

class Lowering {
 public:
  Lowering(const Schedule& schedule, int64_t space, const Ends& ends, bool pack_all, Rank rank)
      : history_(schedule, space, ends, pack_all, rank),
        storages_(history_.versions().size(), Storage::kNowhere),
        current_(history_.atom_count(), kNoVersion),
        leaving_(history_.atom_count()),
        rank_(rank),
        pack_all_(pack_all) {
    plan_.space = space;
    place_inputs();
    plan_.actions.reserve(schedule.size());
    for (const Step& step : schedule) lower_step(step);
    order_sends(earliest_sends(schedule, rank_));
    move_own(schedule);
  }

  Plan take() { return std::move(plan_); }

 private:
  void place_inputs();
  void order_sends(const std::vector<size_t>& earliest);
  void lower_step(const Step& step);
  void send(const Step& step, Action& action);
  void receive(const Step& step, Action& action);
  void fold_inside(const Step& step, Action& action);
  Receipt receipt_of(Atom atom, VersionId version, Combine combine);
  int choose_bank(Atom atom, Storage operand) const;
  int bank_for(VersionId version, int preferred);
  int wait_before(Atom atom, int bank);
  void move_own(const Schedule& schedule);
  Storage storage_to_read(VersionId version) const;
  void add_move(Range range, Storage from, int64_t to_first);
  int round() const { return static_cast<int>(plan_.actions.size()); }

  History history_;
  std::vector<Storage> storages_;   // by version
  std::vector<VersionId> current_;  // by atom
  std::vector<std::array<Leaving, 2>> leaving_;
  VersionId next_version_ = 0;
  Rank rank_;
  bool pack_all_;
  Plan plan_;
};

void append(std::vector<Packing>& pack, Packing next) {
  if (!pack.empty() && pack.back().range.end() == next.range.first && pack.back().to == next.to)
    pack.back().range.count += next.range.count;
  else
    pack.push_back(next);
}

void Lowering::place_inputs() {
  for (Atom atom = 0; atom < history_.atom_count(); atom++) {
    VersionId input = history_.input_of(atom);
    if (input == kNoVersion) continue;
    const Version& version = history_.versions()[input];
    bool packed = (version.sends > 0 && !version.zero_copy) || (pack_all_ && version.needed);
    storages_[input] = packed ? bank_storage(bank_for(input, 0)) : Storage::kInput;
    if (packed) append(plan_.pack, {history_.range_of(atom), storages_[input]});
    plan_.two_banks |= storages_[input] == Storage::kBank1;
    current_[atom] = input;
    next_version_++;
  }
}

// Lists the sends of all rounds if at least one may leave before its round; else none.
void Lowering::order_sends(const std::vector<size_t>& earliest) {
  bool early = false;
  for (size_t round = 0; round < earliest.size(); round++) {
    if (plan_.actions[round].send_to == kNobody) continue;
    plan_.sends.push_back({round, earliest[round]});
    early |= earliest[round] < round;
  }
  if (!early) plan_.sends.clear();
  std::ranges::stable_sort(plan_.sends, {}, &EarliestSend::earliest);
}

void Lowering::lower_step(const Step& step) {
  Action action;
  if (!is_inside(step, rank_)) {
    if (step.send_to != kNobody) send(step, action);
    if (step.recv_from != kNobody) receive(step, action);
  } else if (step.combine == Combine::kFold) {
    fold_inside(step, action);
  }
  plan_.actions.push_back(std::move(action));
}

void Lowering::send(const Step& step, Action& action) {
  action.send_to = step.send_to;
  action.send = step.send;
  auto [first, end] = history_.atoms_of(step.send);
  if (first == end) return;  // of a barrier
  auto sent = [&](Atom atom) {
    return step.sends_input ? history_.input_of(atom) : current_[atom];
  };
  action.send_from = storages_[sent(first)];
  bool zero_copy = history_.versions()[sent(first)].zero_copy;
  int bank = action.send_from == Storage::kBank1;
  for (Atom atom = first; atom < end; atom++) {
    invariant(storages_[sent(atom)] == action.send_from,
              "lowering for rank {}, round {}: a message from more than one storage", rank_,
              round());
    if (zero_copy) continue;  // not overwritten while a peer may read it
    Leaving& leaving = leaving_[atom][bank];
    leaving.several |= leaving.round >= 0 && leaving.to != step.send_to;
    leaving.round = round();
    leaving.to = step.send_to;
  }
}

void Lowering::receive(const Step& step, Action& action) {
  action.recv_from = step.recv_from;
  action.recv = step.recv;
  for (auto [atom, end] = history_.atoms_of(step.recv); atom < end; atom++) {
    Receipt receipt = receipt_of(atom, next_version_, step.combine);
    storages_[next_version_] = receipt.result;
    current_[atom] = next_version_++;
    Receipt* last = action.receipts.empty() ? nullptr : &action.receipts.back();
    if (last && last->operand == receipt.operand && last->result == receipt.result &&
        last->output_too == receipt.output_too && last->after == receipt.after)
      last->range.count += receipt.range.count;
    else
      action.receipts.push_back(receipt);
  }
}

// Lowered like a receipt of the rank's own input, from the storage where the rank reads it.
void Lowering::fold_inside(const Step& step, Action& action) {
  auto [first, end] = history_.atoms_of(step.recv);
  if (first == end) return;
  action.own_input = storage_to_read(history_.input_of(first));
  for (Atom atom = first; atom < end; atom++)
    invariant(storage_to_read(history_.input_of(atom)) == action.own_input,
              "lowering for rank {}, round {}: an input that lies in several storages", rank_,
              round());
  receive(step, action);
}

Receipt Lowering::receipt_of(Atom atom, VersionId id, Combine combine) {
  const Version& version = history_.versions()[id];
  Receipt receipt = {.range = history_.range_of(atom), .combine = combine};
  if (!version.needed) return receipt;
  if (version.operand != kNoVersion) receipt.operand = storage_to_read(version.operand);
  bool wanted = version.final && history_.wanted(atom);
  if (wanted && (version.sends == 0 || version.zero_copy)) {
    receipt.result = Storage::kOutput;
    return receipt;
  }
  Storage lies_in = version.operand == kNoVersion ? Storage::kNowhere : storages_[version.operand];
  int bank = bank_for(id, choose_bank(atom, lies_in));
  receipt.result = bank_storage(bank);
  receipt.output_too = wanted;
  receipt.after = wait_before(atom, bank);
  plan_.two_banks |= bank == 1;
  return receipt;
}

int Lowering::choose_bank(Atom atom, Storage operand) const {
  const auto& leaving = leaving_[atom];
  if (operand == Storage::kBank1 && leaving[1].round < 0) return 1;
  return leaving[0].round == round() ? 1 : 0;
}

int Lowering::bank_for(VersionId version, int preferred) {
  BankAssignment& banks = history_.banks();
  if (banks.bank_of(version) < 0) banks.decide(version, preferred);
  return banks.bank_of(version);
}

int Lowering::wait_before(Atom atom, int bank) {
  Leaving leaving = std::exchange(leaving_[atom][bank], {});
  invariant(leaving.round < round() && !leaving.several,
            "lowering for rank {}, round {}: overwrites what leaves in this round, or has left for "
            "several peers",
            rank_, round());
  return leaving.round;
}

void Lowering::move_own(const Schedule& schedule) {
  for (Atom atom = 0; atom < history_.atom_count(); atom++) {
    VersionId last = current_[atom];
    if (last == kNoVersion || !history_.wanted(atom) || history_.versions()[last].received)
      continue;
    Range range = history_.range_of(atom);
    add_move(range, storage_to_read(last), range.first);
  }
  for (const Step& step : schedule) {
    if (!is_inside(step, rank_) || step.combine != Combine::kCopy) continue;
    for (auto [atom, end] = history_.atoms_of(step.send); atom < end; atom++) {
      Range range = history_.range_of(atom);
      int64_t to_first = step.recv.first + range.first - step.send.first;
      add_move(range, storage_to_read(history_.input_of(atom)), to_first);
    }
  }
}

// Without pack_all, a packed input is still read in the caller's memory. Its bank may have been
// overwritten, and a peer that has read the packed lines may have them in its own cache.
Storage Lowering::storage_to_read(VersionId version) const {
  bool is_input = !history_.versions()[version].received;
  return is_input && !pack_all_ ? Storage::kInput : storages_[version];
}

void Lowering::add_move(Range range, Storage from, int64_t to_first) {
  Move* last = plan_.moves.empty() ? nullptr : &plan_.moves.back();
  if (last && last->from == from && last->range.end() == range.first &&
      last->to_first + last->range.count == to_first)
    last->range.count += range.count;
  else
    plan_.moves.push_back({range, from, to_first});
}

}  // namespace

Plan lower(const Schedule& schedule, int64_t space, const Ends& ends, bool pack_all, Rank rank) {
  return Lowering(schedule, space, ends, pack_all, rank).take();
}

}  // namespace ringcoll

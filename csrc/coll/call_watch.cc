#include "coll/call_watch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/order.h"

namespace ringcoll {
namespace {

// A rank that begins no call tells its last ones after 1, 2, 4 and 8 ticks. It repeats itself
// because a word may be lost, or may reach a rank that has not joined the group yet.
constexpr unsigned kLastTickOfTelling = 8;

/// A word is a head, signatures, splits, and details with their texts. They are sent as they are in
/// memory, since all ranks have equal builds.
struct Head {
  uint64_t latest = 0;
  uint32_t calls = 0;
  uint16_t splits = 0;
  uint16_t details = 0;
};
struct SplitsOnWire {
  uint64_t call = 0;
  int64_t sent = 0;
  int64_t received = 0;
};
struct DetailsHead {
  uint32_t hash = 0;
  uint32_t counts_bytes = 0;
  double prescale = 1;
  double postscale = 1;
};
// The longest word fits into one message of a lifeline (life/lifeline_messages.h).
constexpr size_t kMostWordBytes = 4096;
static_assert(sizeof(Head) + CallWatch::kMostTold * sizeof(Signature) < kMostWordBytes / 2);

/// The eight bytes of a signature from `root` to its end.
template <typename S>  // Signature, const or not
auto* kind_at(S& signature) {
  static_assert(offsetof(Signature, root) + sizeof(uint64_t) == sizeof(Signature));
  using Byte = std::conditional_t<std::is_const_v<S>, const std::byte, std::byte>;
  return reinterpret_cast<Byte*>(&signature) + offsetof(Signature, root);
}

template <typename T>
void put(std::string* word, const T& value) {
  word->append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
bool take(std::string_view* word, T* value) {
  if (word->size() < sizeof *value) return false;
  std::memcpy(value, word->data(), sizeof *value);
  word->remove_prefix(sizeof *value);
  return true;
}

}  // namespace

// A reader detects an entry that may be being replaced, because it reads `latest_` after the entry.
// Each word of an entry is published after the previous number, so a reader of a new word also sees
// that number. (ThreadSanitizer knows no fences.) add() does not read the sequence: it has just
// been written, and a load of it together with the word beside it would wait until it has left the
// store buffer.
void CallLog::add(const Signature& signature) {
  uint64_t n = latest_.load(std::memory_order_relaxed) + 1, kind = 0;
  std::memcpy(&kind, kind_at(signature), sizeof kind);
  Entry& entry = entries_[n % kKept];
  publish(entry.count, signature.count);
  publish(entry.kind, kind);
  publish(entry.details, signature.details);
  publish(latest_, n);
}

std::optional<Signature> CallLog::at(uint64_t n) const {
  uint64_t latest = observe(latest_);
  if (n == 0 || n > latest || n + kKept <= latest) return {};
  const Entry& entry = entries_[n % kKept];
  Signature signature;
  signature.count = observe(entry.count);
  uint64_t kind = observe(entry.kind);
  signature.details = observe(entry.details);
  if (n + kKept <= latest_.load(std::memory_order_relaxed) + 1) return {};
  std::memcpy(kind_at(signature), &kind, sizeof kind);
  signature.sequence = static_cast<uint32_t>(n);
  return signature;
}

CallWatch::CallWatch(Health& health, Rank rank) : health_(health), rank_(rank) {
  health_.listen(this);
}

CallWatch::~CallWatch() {
  health_.listen(nullptr);
  if (log_.latest() == told_ || health_.poisoned()) return;
  for (Rank peer : health_.listeners()) tell(peer);
}

void CallWatch::note(uint32_t hash, const Call& call) {
  if (call.exchanges() && !call.counts.empty()) {
    uint64_t n = log_.latest() + 1;
    std::lock_guard lock(mutex_);
    Splits& splits = splits_[n % splits_.size()];
    splits.call = n;
    splits.sent.assign(call.counts.begin(), call.counts.end());
    splits.received.assign(call.recv_counts.begin(), call.recv_counts.end());
  }
  Noted& place = noted_[hash % noted_.size()];
  if (place.hash == hash) return;
  Details details = details_of(call);
  std::lock_guard lock(mutex_);
  place = {hash, std::move(details)};
}

std::optional<Details> CallWatch::noted(uint32_t hash) const {
  if (hash == 0) return Details{};
  std::lock_guard lock(mutex_);
  const Noted& place = noted_[hash % noted_.size()];
  return place.hash == hash ? std::optional(place.details) : std::nullopt;
}

std::optional<Error> CallWatch::difference(const Made& theirs) const {
  uint64_t latest = log_.latest();
  auto ahead = static_cast<int32_t>(theirs.signature.sequence - static_cast<uint32_t>(latest));
  auto mine = log_.at(latest + static_cast<uint64_t>(int64_t{ahead}));
  if (!mine || are_alike(*mine, theirs.signature)) return {};
  return mismatch({rank_, *mine, noted(mine->details)}, theirs, theirs.rank);
}

std::optional<CallWatch::Pair> CallWatch::split_with(Rank peer, uint64_t call) const {
  std::lock_guard lock(mutex_);
  const Splits& splits = splits_[call % splits_.size()];
  if (splits.call != call) return {};
  return Pair{splits.sent.at(peer), splits.received.at(peer)};
}

std::string CallWatch::said_to(Rank peer) const {
  Head head{.latest = log_.latest()};
  std::string calls, splits, all_details;
  std::map<uint32_t, Details> details;
  uint64_t first = head.latest > kMostTold ? head.latest - kMostTold + 1 : 1;
  for (uint64_t n = first; n <= head.latest; n++) {
    std::optional<Signature> signature = log_.at(n);
    if (!signature) {  // newer calls have replaced it and those before
      head.calls = head.splits = 0;
      calls.clear();
      splits.clear();
      continue;
    }
    put(&calls, *signature);
    head.calls++;
    if (auto pair = split_with(peer, n)) {
      put(&splits, SplitsOnWire{n, pair->sent, pair->received});
      head.splits++;
    }
    if (auto known = noted(signature->details); known && signature->details != 0)
      details.emplace(signature->details, *known);
  }
  for (const auto& [hash, each] : details) {
    DetailsHead known{hash, static_cast<uint32_t>(each.counts.size()), each.prescale,
                      each.postscale};
    size_t bytes = sizeof head + calls.size() + splits.size() + all_details.size();
    if (bytes + sizeof known + each.counts.size() > kMostWordBytes) break;
    put(&all_details, known);
    all_details += each.counts;
    head.details++;
  }
  std::string word;
  put(&word, head);
  return word + calls + splits + all_details;
}

std::optional<CallWatch::Word> CallWatch::parse(std::string_view calls) {
  Head head;
  Word word;
  if (!take(&calls, &head) || head.calls > kMostTold || head.calls > head.latest) return {};
  word.latest = head.latest;
  for (uint32_t i = 0; i < head.calls; i++)
    if (!take(&calls, &word.calls.emplace_back())) return {};
  for (uint32_t i = 0; i < head.splits; i++) {
    SplitsOnWire pair;
    if (!take(&calls, &pair)) return {};
    word.splits[pair.call] = {pair.sent, pair.received};
  }
  for (uint32_t i = 0; i < head.details; i++) {
    DetailsHead known;
    if (!take(&calls, &known) || calls.size() < known.counts_bytes) return {};
    std::string counts(calls.substr(0, known.counts_bytes));
    calls.remove_prefix(known.counts_bytes);
    word.details[known.hash] = {known.prescale, known.postscale, std::move(counts)};
  }
  return word;
}

// begin() reads `rests_` after it has added to the log, without a fence in between. So when tick()
// has set `rests_`, it runs once more. By then it sees every call whose begin() read the old value.
bool CallWatch::tick() {
  if (health_.poisoned()) return false;
  uint64_t latest = log_.latest();
  quiet_ticks_ = latest == seen_ ? quiet_ticks_ + 1 : 0;
  if (quiet_ticks_ == 0) rests_ = false;
  seen_ = latest;
  std::map<Rank, Word> ahead = std::move(ahead_);
  ahead_.clear();
  for (const auto& [from, word] : ahead) compare(from, word);
  if (quiet_ticks_ > kLastTickOfTelling) return !rests_.exchange(true);
  if (!std::has_single_bit(quiet_ticks_)) return true;
  told_ = latest;
  for (Rank peer : health_.listeners()) tell(peer);
  return true;
}

void CallWatch::hear(Rank from, std::string_view calls) {
  if (health_.poisoned()) return;
  if (auto word = parse(calls)) compare(from, *word);
}

// The first call that differs is the cause; later calls may differ as a consequence.
void CallWatch::compare(Rank from, const Word& word) {
  uint64_t n = word.latest - word.calls.size();
  for (const Signature& theirs : word.calls) {
    std::optional<Signature> mine = log_.at(++n);
    if (!mine) continue;
    if (are_alike(*mine, theirs)) {
      if (compare_splits(from, n, theirs, word)) continue;
      return;
    }
    auto known = word.details.find(theirs.details);
    std::optional<Details> details;
    if (theirs.details == 0) details.emplace();
    if (known != word.details.end()) details = known->second;
    Made here{rank_, *mine, noted(mine->details)}, there{from, theirs, details};
    health_.poison(mismatch(here, there, from));
    return;
  }
  if (word.latest > log_.latest()) ahead_[from] = word;
}

// True if the two ranks have the same counts, or if that is not known.
bool CallWatch::compare_splits(Rank from, uint64_t call, const Signature& signature,
                               const Word& word) {
  auto theirs = word.splits.find(call);
  auto mine = split_with(from, call);
  if (theirs == word.splits.end() || !mine) return true;
  const Pair& said = theirs->second;
  if (said.sent != mine->received)
    health_.poison(split_mismatch(signature, {from, said.sent}, {rank_, mine->received}, from));
  else if (said.received != mine->sent)
    health_.poison(split_mismatch(signature, {rank_, mine->sent}, {from, said.received}, from));
  else
    return true;
  return false;
}

}  // namespace ringcoll

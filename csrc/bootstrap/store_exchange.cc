#include "bootstrap/store_exchange.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "base/log.h"
#include "connect/auth.h"

namespace ringcoll {
namespace {

// How long rank 0 waits at the end, without finish() or after an error, for ranks that have not
// read the last outcome. Ranks that have failed too may never read it.
constexpr double kLingerSeconds = 2;
constexpr size_t kMaxPrefixBytes = 40;
constexpr size_t kMaxNamed = 16;

std::string short_prefix(const std::string& prefix) {
  if (prefix.size() <= kMaxPrefixBytes) return prefix;
  GroupId hash = make_group_id(prefix);
  return fmt::format("{:02x}.", fmt::join(std::span(hash).first(kMaxPrefixBytes / 2), ""));
}

std::string names_of(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size() && i < kMaxNamed; i++)
    text += fmt::format("{} {}", i ? "," : "", ranks[i]);
  if (ranks.size() > kMaxNamed) text += fmt::format(" and {} more", ranks.size() - kMaxNamed);
  return text;
}

}  // namespace

Error two_claim(Rank rank, const std::string& a, const std::string& b) {
  return Error(
      Code::kInvalidArgument,
      fmt::format("two processes claim rank {}: {} and {}; each process needs a rank of its "
                  "own (its launcher's variables, or the arguments of init)",
                  rank, std::min(a, b), std::max(a, b)),
      rank);
}

StoreExchange::StoreExchange(std::unique_ptr<Store> store, const std::string& prefix, Rank rank,
                             Rank size)
    : store_(std::move(store)),
      prefix_(short_prefix(prefix)),
      rank_(rank),
      size_(size),
      claim_{fresh_token(), this_process()} {
  check(rank >= 0 && rank < size, Code::kInvalidArgument,
        "rank {} of a job of size {}: ranks are from 0 to size - 1", rank, size);
  if (size == 1) return;  // the store is not used
  store_->while_waiting([this] { look(); });
  if (rank > 0) store_->set_waiters(size);  // all of these wait for rank 0's keys
}

StoreExchange::~StoreExchange() {
  try {
    while_waiting({});
    leave(Deadline(seconds(tells_all_ ? kTellingSeconds : kLingerSeconds)));
  } catch (const Error& error) {
    log_warning("keys may be left in the store: {}", error.what());
  }
}

// A rank that is stopped by a debugger or hypervisor reads the outcome when it continues. So rank 0
// waits for it as long as any other round would have.
void StoreExchange::finish() {
  double patience = failed_ ? kLingerSeconds : to_seconds(deadline_.left());
  leave(Deadline(seconds(std::max(patience, kLingerSeconds))));
}

std::vector<std::string> StoreExchange::all_gather(const std::string& mine, Deadline deadline) {
  if (failed_) throw *failed_;
  if (size_ == 1) return {mine};
  deadline_ = deadline;
  try {
    Outcome outcome = rank_ == 0 ? gather(mine, deadline) : contribute(mine, deadline);
    if (outcome.error) throw *outcome.error;
    round_++;
    std::vector<std::string> blobs;
    for (Record& record : outcome.records) blobs.push_back(std::move(record.blob));
    return blobs;
  } catch (const Error& error) {
    failed_ = error;
    throw;
  }
}

// ---- Rank 0 ----

Outcome StoreExchange::gather(const std::string& mine, Deadline deadline) {
  Outcome outcome;
  if (round_ == 0) open_session(deadline);
  try {
    outcome.records = collect(mine, deadline);
  } catch (const Error& error) {
    outcome.error = error;
  }
  publish(outcome);
  return outcome;
}

void StoreExchange::publish(const Outcome& outcome) {
  if (outcome.error) {
    // All ranks are to read the outcome, whether their records were collected or not.
    unread_.clear();
    for (Rank rank = 1; rank < size_; rank++) unread_[rank] = record_key(rank);
  }
  // The outcome is published even if the deadline has just passed.
  store_->set(outcome_key(), outcome.encode(), request());
  // A rank that has come to this round has read the outcome of the last one.
  if (!last_outcome_key_.empty()) store_->remove(last_outcome_key_, request());
  last_outcome_key_ = outcome_key();
}

bool StoreExchange::refuse(const Error& error, Deadline deadline) {
  if (size_ == 1 || failed_) return true;
  failed_ = error;
  try {
    if (rank_ > 0) {
      report(error, deadline);
    } else {
      open_session(deadline);
      publish(Outcome{{}, error});
      tells_all_ = true;
      leave(deadline);
    }
  } catch (const Error& failure) {
    log_debug("others could not be told why this rank does not start: {}", failure.what());
  }
  return true;
}

void StoreExchange::open_session(Deadline deadline) {
  // A session that is there belongs to an earlier job, or to a rival, which will notice.
  store_->remove(session_key(), deadline);
  session_ = claim_;
  try {
    store_->set(session_key(), Record{claim_, size_, ""}.encode(), deadline);
  } catch (const Error& error) {
    auto rival = read_session();
    if (error.code() != Code::kInvalidArgument || !rival) throw;
    throw tell_rival(*rival);
  }
}

std::vector<Record> StoreExchange::collect(const std::string& mine, Deadline deadline) {
  std::vector<Record> records(size_);
  records[0] = {claim_, size_, mine};
  unread_.clear();
  LongWait long_wait;
  for (Rank rank = 1; rank < size_; rank++) {
    std::string wanted = record_key(rank);
    std::optional<std::string> bytes;
    while (!(bytes = store_->wait(wanted, turn(deadline)))) {
      tell(&long_wait, rank);
      look();
      look_for_trouble();
      if (deadline.passed()) throw missing(records);
    }
    unread_[rank] = wanted;
    records[rank] = Record::decode(*bytes);
    check_record(rank, records[rank]);
  }
  look_for_trouble();
  return records;
}

void StoreExchange::check_record(Rank rank, const Record& record) const {
  if (record.size != size_)
    throw Error(
        Code::kInvalidArgument,
        fmt::format("rank {} ({}) was told that the job has {} ranks, rank 0 ({}) that it has {}; "
                    "start all with the same size",
                    rank, record.claim.process, record.size, claim_.process, size_),
        rank);
}

// Another process that claims rank 0 has replaced this session by its own: both must fail.
Error StoreExchange::tell_rival(const Claim& rival) {
  Error error = two_claim(0, rival.process, claim_.process);
  store_->set(fmt::format("{}{}.trouble", prefix_, rival.token), Outcome{{}, error}.encode(),
              request());
  return error;
}

void StoreExchange::look_for_trouble() {
  if (auto text = store_->try_get(key("trouble"), request())) {
    Outcome outcome = Outcome::decode(*text);
    tells_all_ = outcome.is_early;
    if (outcome.error) throw *outcome.error;
  }
  auto session = read_session();
  if (session && *session != claim_) throw tell_rival(*session);
}

// Logs a long wait. `awaited` is the first missing rank, or rank 0, which knows what is missing.
void StoreExchange::tell(LongWait* long_wait, Rank awaited) const {
  long_wait->tell(
      Clock::now(), [this] { return fmt::format("rank {} ({})", rank_, claim_.process); },
      [this] { return fmt::format("the start of {} ranks at {}", size_, store_->name()); },
      [&] { return fmt::format("rank {}", awaited); });
}

Error StoreExchange::missing(const std::vector<Record>& records) const {
  std::vector<Rank> ranks;
  for (Rank rank = 1; rank < size_; rank++) {
    bool came = !records[rank].claim.token.empty() ||
                store_->try_get(record_key(rank), request()).has_value();
    if (!came) ranks.push_back(rank);
  }
  std::string remark = store_->remark();
  return Error(
      Code::kTimeout,
      fmt::format("{} of {} did not come to {} before the deadline{}{}; have all processes "
                  "of the job started, with the same store, and has none failed?",
                  names_of(ranks), size_, store_->name(), remark.empty() ? "" : "; ", remark),
      ranks.empty() ? kNobody : ranks.front());
}

void StoreExchange::leave(Deadline linger) {
  if (rank_ != 0 || session_.token.empty() || std::exchange(finished_, true)) return;
  deadline_ = linger;
  try {
    await_readers(linger);
  } catch (...) {
    finished_ = false;  // has_died() may follow, and then another attempt
    throw;
  }
  try {
    clean_up();
  } catch (const Error& error) {
    log_warning("keys may be left in the store: {}", error.what());
  }
}

void StoreExchange::await_readers(Deadline linger) {
  Duration pause = std::chrono::microseconds(50);  // most ranks are about to read it
  for (auto unread = unread_.begin(); unread != unread_.end();) {
    const auto& [rank, record] = *unread;
    bool waits = !dead_.contains(rank) && !linger.passed();
    if (!waits || !waits_for(rank, record)) {
      unread = waits ? unread_.erase(unread) : std::next(unread);
      continue;
    }
    look();
    std::this_thread::sleep_for(pause);
    pause = std::min<Duration>(2 * pause, std::chrono::milliseconds(5));
  }
}

bool StoreExchange::waits_for(Rank rank, const std::string& record) {
  if (tells_all_) return !store_->try_get(read_key(rank), request());
  return store_->try_get(record, request()).has_value();
}

void StoreExchange::clean_up() {
  // Records of ranks that were killed or are stopped.
  for (const auto& [rank, record] : unread_) store_->remove(record, request());
  if (failed_)
    for (Rank rank = 1; rank < size_; rank++) store_->remove(read_key(rank), request());
  if (!last_outcome_key_.empty()) store_->remove(last_outcome_key_, request());
  store_->remove(key("trouble"), request());
  auto session = read_session();
  if (session && *session == claim_) store_->remove(session_key(), request());
}

std::unique_ptr<Exchange> make_store_exchange(std::unique_ptr<Store> store,
                                              const std::string& prefix, Rank rank, Rank size) {
  return std::make_unique<StoreExchange>(std::move(store), prefix, rank, size);
}

}  // namespace ringcoll

// An exchange over a store. Rank 0 makes up a session, so that values of an earlier job in the
// store do not count. The keys are:
//
//   <prefix>session                      the claim of rank 0, whose token names the session
//   <prefix><session>.<round>.<r>        the record of rank r, which r removes after the outcome
//   <prefix><session>.<round>.all        the outcome, from rank 0: all records, or an error for all
//   <prefix><session>.<round>.<r>.read   rank r has read an outcome that is an error
//   <prefix><session>.trouble            an error for all, from a rank that cannot take part, or
//   has
//                                        found two processes that claim one rank
//
// At the end rank 0 waits until all others, except dead ranks, have removed their records, and then
// removes all other keys. If the error was known before all ranks had come, it waits until all have
// read it.

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/long_wait.h"
#include "bootstrap/exchange.h"
#include "bootstrap/records.h"
#include "connect/auth.h"
#include "connect/claim.h"

namespace ringcoll {
namespace {

// Rank 0 decides at the deadline. The others wait this much longer for its outcome, which names the
// missing ranks.
constexpr double kVerdictSeconds = 1;
// How long rank 0 waits at the end, without finish() or after an error, for ranks that have not
// read the last outcome. Ranks that have failed too may never read it.
constexpr double kLingerSeconds = 2;
// How long a rank whose record is already there waits for a new session, which shows that the
// record is of an earlier job.
constexpr double kStaleSeconds = 2;
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

Error two_claim(Rank rank, const std::string& a, const std::string& b) {
  return Error(
      Code::kInvalidArgument,
      fmt::format("two processes claim rank {}: {} and {}; each process needs a rank of its "
                  "own (its launcher's variables, or the arguments of init)",
                  rank, std::min(a, b), std::max(a, b)),
      rank);
}

class StoreExchange : public Exchange {
 public:
  StoreExchange(std::unique_ptr<Store> store, const std::string& prefix, Rank rank, Rank size)
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
  ~StoreExchange() override {
    try {
      while_waiting({});
      leave(Deadline(seconds(tells_all_ ? kTellingSeconds : kLingerSeconds)));
    } catch (const Error& error) {
      log_warning("keys may be left in the store: {}", error.what());
    }
  }

  Rank rank() const override { return rank_; }
  Rank size() const override { return size_; }
  bool is_over_store() const override { return true; }
  // A rank that is stopped by a debugger or hypervisor reads the outcome when it continues. So rank
  // 0 waits for it as long as any other round would have.
  void finish() override {
    double patience = failed_ ? kLingerSeconds : to_seconds(deadline_.left());
    leave(Deadline(seconds(std::max(patience, kLingerSeconds))));
  }
  void has_died(Rank rank) override { dead_.insert(rank); }
  std::vector<std::string> all_gather(const std::string& mine, Deadline deadline) override;
  bool refuse(const Error& error, Deadline deadline) override;

 private:
  std::string key(const std::string& last) const {
    return fmt::format("{}{}.{}", prefix_, session_.token, last);
  }
  std::string record_key(Rank rank) const { return key(fmt::format("{}.{}", round_, rank)); }
  std::string read_key(Rank rank) const { return record_key(rank) + ".read"; }
  std::string outcome_key() const { return key(fmt::format("{}.all", round_)); }
  std::string session_key() const { return prefix_ + "session"; }
  // A request to an overloaded server may take as long as the round.
  Deadline request() const {
    return Deadline(std::max(deadline_.left(), seconds(kRequestSeconds)));
  }
  // A slice of a wait. After each slice a waiting rank checks that the session is unchanged and
  // that no rank has reported trouble.
  Deadline turn(Deadline deadline) const {
    return Deadline(std::min(deadline.left(), store_->turn()));
  }

  // For rank 0; tell() is for all ranks.
  void tell(LongWait* long_wait, Rank awaited) const;
  Outcome gather(const std::string& mine, Deadline deadline);
  void publish(const Outcome& outcome);
  bool waits_for(Rank rank, const std::string& record);
  void open_session(Deadline deadline);
  std::vector<Record> collect(const std::string& mine, Deadline deadline);
  void check_record(Rank rank, const Record& record) const;
  void look_for_trouble();
  Error tell_rival(const Claim& rival);
  Error missing(const std::vector<Record>& records) const;
  void leave(Deadline linger);
  void await_readers(Deadline linger);
  void clean_up();

  // For the other ranks; read_session() is for all ranks.
  Outcome contribute(const std::string& mine, Deadline deadline);
  void join_session(Deadline deadline);
  bool put_record(const std::string& mine, Deadline deadline);
  void withdraw_record();
  void say_that_it_is_read();
  void report(const Error& error, Deadline deadline);
  void set_trouble(const Outcome& outcome);
  void leave_to_rank_zero(const std::string& key, const std::string& value);
  std::optional<Claim> read_record_claim();
  bool wait_for_replacement();
  std::optional<Outcome> wait_for_outcome(const std::string& mine, Deadline deadline);
  bool may_have_outcome(Deadline patience);
  std::optional<Outcome> accept(Outcome outcome, const std::string& mine);
  std::optional<Claim> read_session();
  [[noreturn]] void report_conflict(const Error& error);

  const std::unique_ptr<Store> store_;
  const std::string prefix_;
  const Rank rank_;
  const Rank size_;
  const Claim claim_;
  Claim session_;  // the claim of rank 0
  uint64_t round_ = 0;
  std::string last_outcome_key_;
  std::map<Rank, std::string> unread_;  // keys of records of the last round that are still there
  bool finished_ = false;
  bool tells_all_ = false;  // rank 0: the outcome is an error that late ranks are to read, too
  std::set<Rank> dead_;
  std::optional<Error> failed_;
  Deadline deadline_{Duration::zero()};  // of the last all_gather
};

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

// ---- The other ranks ----

Outcome StoreExchange::contribute(const std::string& mine, Deadline deadline) {
  // Rank 0 may find the session of an earlier job in the store and replace it. Then all begin
  // again.
  for (;;) {
    if (round_ == 0) join_session(deadline);
    if (!put_record(mine, deadline)) continue;
    try {
      auto outcome = wait_for_outcome(mine, deadline);
      if (outcome && outcome->error) say_that_it_is_read();
      withdraw_record();
      if (outcome) return std::move(*outcome);
    } catch (const Error&) {
      withdraw_record();
      throw;
    }
  }
}

// Removing the record also tells rank 0 that this rank has read the outcome, or gives up. A rival's
// record in its place stays, since the rival has not read the outcome yet.
void StoreExchange::withdraw_record() {
  try {
    if (read_record_claim() == claim_) store_->remove(record_key(rank_), request());
  } catch (const Error& error) {
    log_debug("a record is left in the store: {}", error.what());
  }
}

std::optional<Claim> StoreExchange::read_session() {
  auto bytes = store_->try_get(session_key(), request());
  if (!bytes) return {};
  return Record::decode(*bytes).claim;
}

void StoreExchange::join_session(Deadline deadline) {
  LongWait long_wait;
  std::optional<std::string> bytes;
  while (!(bytes = store_->wait(session_key(), turn(deadline))) && !deadline.passed())
    tell(&long_wait, 0);
  if (!bytes)
    throw Error(
        Code::kTimeout,
        fmt::format("rank 0 did not come to {} before the deadline; have all processes of the "
                    "job started, with the same store, and has none failed?",
                    store_->name()),
        0);
  session_ = Record::decode(*bytes).claim;
}

void StoreExchange::report_conflict(const Error& error) {
  set_trouble({{}, error});
  throw error;
}

// The first rank that sets it determines the error that all raise.
void StoreExchange::set_trouble(const Outcome& outcome) {
  leave_to_rank_zero(key("trouble"), outcome.encode());
}

void StoreExchange::say_that_it_is_read() { leave_to_rank_zero(read_key(rank_), ""); }

// Sets a key that rank 0 removes. If rank 0 has left before that, only this rank can remove it.
void StoreExchange::leave_to_rank_zero(const std::string& key, const std::string& value) {
  try {
    store_->set(key, value, request());
    if (!read_session()) store_->remove(key, request());
  } catch (const Error& failure) {
    log_debug("rank 0 cannot be told of an error: {}", failure.what());
  }
}

// Reports the error to rank 0, which tells all. As in contribute(), the session may be of an
// earlier job.
void StoreExchange::report(const Error& error, Deadline deadline) {
  while (!deadline.passed()) {
    join_session(deadline);
    set_trouble({{}, error, true});
    for (;;) {
      auto bytes = store_->wait(outcome_key(), turn(deadline));
      if (bytes && Outcome::decode(*bytes).error) return say_that_it_is_read();
      auto session = read_session();
      if (!session || deadline.passed()) return;
      if (*session != session_) break;
      if (bytes) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
}

// False if the session has been replaced by another.
bool StoreExchange::put_record(const std::string& mine, Deadline deadline) {
  Record record{claim_, size_, mine};
  try {
    store_->set(record_key(rank_), record.encode(), deadline);
    return true;
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;
    auto other = read_record_claim();
    if (!other) throw;
    if (store_->outlives_jobs() && round_ == 0 && wait_for_replacement()) return false;
    report_conflict(two_claim(rank_, other->process, claim_.process));
  }
}

// Whether the session proves to be of an earlier job: then rank 0 of this job replaces it soon.
bool StoreExchange::wait_for_replacement() {
  Deadline deadline(seconds(kStaleSeconds));
  while (!deadline.passed()) {
    auto session = read_session();
    if (session && *session != session_) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

std::optional<Claim> StoreExchange::read_record_claim() {
  auto bytes = store_->try_get(record_key(rank_), request());
  if (!bytes) return {};
  return Record::decode(*bytes).claim;
}

// Returns nothing if the outcome is of an earlier job, in which another process was this rank.
std::optional<Outcome> StoreExchange::accept(Outcome outcome, const std::string& mine) {
  if (outcome.error) return outcome;
  check(outcome.records.size() == static_cast<size_t>(size_), Code::kInvalidArgument,
        "rank 0 ({}) was told that the job has {} ranks, rank {} ({}) that it has {}; start all "
        "with the same size",
        session_.process, outcome.records.size(), rank_, claim_.process, size_);
  const Claim& named = outcome.records[rank_].claim;
  if (named == claim_) {
    // Otherwise peers would connect to a stranger in this rank's place, which could relay their
    // data.
    check(outcome.records[rank_].blob == mine, Code::kTransport,
          "{} does not return what rank {} has put there: another process writes to it",
          store_->name(), rank_);
    return outcome;
  }
  // A rival in this job has overwritten this rank's record, or has removed it after it read the
  // outcome.
  if (read_record_claim() != claim_)
    report_conflict(two_claim(rank_, named.process, claim_.process));
  return {};
}

// Rank 0 removes its session last. So no outcome can come any more, but one may have come
// meanwhile. One that stays there and is not accepted belongs to an earlier job.
bool StoreExchange::may_have_outcome(Deadline patience) {
  return !patience.passed() && store_->try_get(outcome_key(), request());
}

// Returns nothing if the session has been replaced by another.
std::optional<Outcome> StoreExchange::wait_for_outcome(const std::string& mine, Deadline deadline) {
  Deadline patience(deadline.left() + seconds(kVerdictSeconds));
  LongWait long_wait;
  for (;;) {
    tell(&long_wait, 0);
    if (auto bytes = store_->wait(outcome_key(), turn(patience))) {
      if (auto outcome = accept(Outcome::decode(*bytes), mine)) return outcome;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    look();
    auto session = read_session();
    if (!session && may_have_outcome(patience)) continue;
    bool replaced = session && *session != session_;
    if (replaced && round_ == 0) return {};
    // In a store where a rival can overwrite a record, put_record() may have noticed nothing.
    auto record = store_->outlives_jobs() ? read_record_claim() : std::nullopt;
    if (record && *record != claim_)
      report_conflict(two_claim(rank_, record->process, claim_.process));
    if (!session || replaced)
      throw Error(Code::kTransport,
                  fmt::format("rank 0 ({}) has ended or given up while the ranks exchanged their "
                              "addresses; see its log",
                              session_.process),
                  0);
    if (patience.passed())
      throw Error(Code::kTimeout,
                  fmt::format("rank 0 ({}) has not answered in {} before the deadline; other ranks "
                              "may be missing",
                              session_.process, store_->name()),
                  0);
  }
}

}  // namespace

std::unique_ptr<Exchange> make_store_exchange(std::unique_ptr<Store> store,
                                              const std::string& prefix, Rank rank, Rank size) {
  return std::make_unique<StoreExchange>(std::move(store), prefix, rank, size);
}

}  // namespace ringcoll

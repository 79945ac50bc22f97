// What the other ranks do in an exchange over a store.
#include <fmt/core.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "bootstrap/store_exchange.h"

namespace ringcoll {
namespace {

// Rank 0 decides at the deadline. The others wait this much longer for its outcome, which names the
// missing ranks.
constexpr double kVerdictSeconds = 1;
// How long a rank whose record is already there waits for a new session, which shows that the
// record is of an earlier job.
constexpr double kStaleSeconds = 2;

}  // namespace

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

}  // namespace ringcoll

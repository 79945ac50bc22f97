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
//
// The sources: store_exchange.cc for rank 0 and for all, store_exchange_others.cc for the others.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/long_wait.h"
#include "bootstrap/exchange.h"
#include "bootstrap/records.h"
#include "connect/claim.h"

namespace ringcoll {

/// Two processes claim one rank.
Error two_claim(Rank rank, const std::string& a, const std::string& b);

class StoreExchange : public Exchange {
 public:
  StoreExchange(std::unique_ptr<Store> store, const std::string& prefix, Rank rank, Rank size);
  ~StoreExchange() override;

  Rank rank() const override { return rank_; }
  Rank size() const override { return size_; }
  bool is_over_store() const override { return true; }
  void finish() override;
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

}  // namespace ringcoll

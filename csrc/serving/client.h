// Calls on tables, as requests to the servers that have the shards.
//
// A call becomes one request for each server. Requests of one table reach each shard in the order
// of calls: what has to be sent again, since a shard has moved, a server is lost, or a clock had to
// be waited for, is sent before anything that came after it, and only when nothing of the table is
// under way (Outcome::kAgain). A shard knows the number of the last call that it has carried out,
// so sending a push again does no harm. A pull that is sent again would have later pushes of this
// client, so what changes rows is held back while a pull of the table is under way.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "remote/agent.h"
#include "serving/buffers.h"
#include "serving/call.h"
#include "serving/line.h"
#include "serving/wire.h"
#include "table/spec.h"

namespace ringcoll::serving {

/// Any thread. Calls make progress in those that wait for one, and for calls that are not attended,
/// in a thread of the client. Servers are numbers of the caller's, above 0.
class Client {
 public:
  /// `id`: no other client ever has it. Workers are summed up in ascending order.
  Client(std::shared_ptr<remote::Agent> agent, int64_t id);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Ends all calls with kAborted. There can be no more.
  void close();

  /// A line to a server: its accept() gets what offer() returns, and complete() what that returns.
  std::string offer(int64_t server);
  void complete(int64_t server, std::string_view answer);
  /// The server is lost, or not needed. What it has not answered is sent to the next one.
  void part(int64_t server);

  /// Makes a table known. Nothing happens if it is.
  void open(const std::string& uid, const TableSpec& spec, int64_t shards);
  static constexpr int64_t kUnknown = 0;  // calls wait
  static constexpr int64_t kLost = -1;    // calls end with kGone
  /// The server of each shard. Throws Error(kInvalidArgument).
  void route(const std::string& uid, std::span<const int64_t> servers);
  struct Astray {
    /// Tables with calls that cannot go on: no server or no line is known for a shard, or a server
    /// has said that the shard is elsewhere.
    std::vector<std::string> tables;
    /// Servers whose lines have broken since the last call.
    std::vector<int64_t> parted;
  };
  Astray astray();

  /// Throws Error(kInvalidArgument) for another number of values or bytes than the ids need.
  std::shared_ptr<Call> start(const std::string& uid, const Asked& asked, Call::Done done);
  /// Returns once the call has ended, and throws its error. False if `limit_s` passes first
  /// (negative: no limit), or the thread's Interruption ends the wait; the call then goes on.
  bool wait(Call& call, double limit_s);
  bool has_ended(Call& call);

 private:
  /// A request under way.
  struct Part {
    std::shared_ptr<Call> call;
    uint64_t table = 0;
    std::vector<uint32_t> shards;
    std::shared_ptr<SharedBuffer> values, out;
    bool is_in_place = false;  // the server writes the rows to where the program wants them
    bool is_merged = false;    // there is one row for each id
  };
  struct Line {
    explicit Line(remote::Agent& agent) : end(agent) {}
    LineEnd end;
    uint64_t next = 1;
    std::array<std::optional<Part>, kSlots> parts;
    bool may_send() const {
      return end.is_connected() && !parts[next % kSlots] && end.may_write(next);
    }
    /// Whether pulls of the table, by other calls, are under way.
    bool has_other_pull(uint64_t table, const Call& call) const;
  };
  struct Table {
    std::string uid;
    uint64_t key = 0;
    TableSpec spec;
    rules::Merging merging = {};               // what the rule does, as far as known
    std::vector<int64_t> servers;              // of each shard
    std::deque<std::shared_ptr<Call>> unsent;  // in part, or as a whole; in order of numbers
    int64_t next_number = 1;
    uint32_t round = 1;
    size_t under_way = 0;               // requests
    bool begins_round = false;          // when nothing is under way
    bool has_moved = false;             // until the next route()
    std::map<int64_t, uint64_t> wakes;  // server -> the wake that is waited for
  };
  using Group = std::vector<uint32_t>;  // shards of one server

  using Lock = std::unique_lock<std::mutex>;

  class Waiter;

  /// Lets go of the lock, and tells the calls that have ended.
  void leave(Lock& lock);

  // With the lock.
  bool progress();
  bool take_replies(int64_t server, Line& line);
  void take_reply(int64_t server, Part part, const std::byte* slot);
  void take_rows(const Table& table, Part& part, const std::byte* rows);
  void send_again(Table& table, const Part& part);
  void lose(int64_t server);
  void pump(Table& table);
  bool may_send(Table& table);
  bool send(Table& table, const std::shared_ptr<Call>& call);
  void send_group(Table& table, const std::shared_ptr<Call>& call, Line& line, const Group& group);
  void send_request(Table& table, const std::shared_ptr<Call>& call, Line& line,
                    const Group& group);
  void finish(const std::shared_ptr<Call>& call);
  void attend();
  void begin_to_attend();
  Table& table_of(const std::string& uid);
  bool lacks_server(const Table& table);

  const std::shared_ptr<remote::Agent> agent_;
  const int64_t id_;
  Buffers buffers_;

  std::mutex mutex_;
  std::map<int64_t, std::unique_ptr<Line>> lines_;  // by server
  std::map<uint64_t, Table> tables_;                // by key
  std::vector<std::shared_ptr<Call>> ended_;        // whose `done` is to be called
  std::vector<int64_t> parted_;
  int waiters_ = 0;        // threads in wait(), and in attend()
  size_t unattended_ = 0;  // calls that have not ended
  std::condition_variable unattended_changed_;
  std::thread thread_;  // runs attend() from the first unattended call on
  bool is_closed_ = false;
};

}  // namespace ringcoll::serving

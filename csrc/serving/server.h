// Serves shards of tables. Clients write requests into lines; one thread carries them out, sends
// what changes a shard to its backups, and answers when these have done it too.
//
// Who has which shard is decided elsewhere (ringcoll/tables/). A server that another one has
// replaced can acknowledge nothing: the new one was a backup before, and refuses what the old one
// sends. What another backup has still taken from the old one is void, since the new one sends it
// the shard as a whole before anything else.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "remote/agent.h"
#include "serving/buffers.h"
#include "serving/forwarding.h"
#include "serving/hosting.h"
#include "serving/session.h"

namespace ringcoll::serving {

/// Any thread. Servers and clients are numbers of the caller's; those of clients never repeat.
class Server {
 public:
  explicit Server(std::shared_ptr<remote::Agent> agent);
  /// Ends all lines.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Makes a line with a client whose Client::offer(), or another server's offer(), is given. One
  /// that it has had ends. Returns the answer for complete(). Throws Error(kInvalidArgument).
  std::string accept(int64_t client, std::string_view offer);
  /// The client has ended: it sends nothing more, and is no worker any more.
  void drop(int64_t client);
  /// Its line ends, and it is no worker any more. It may come back, and send again what was not
  /// answered.
  void leave(int64_t client);

  /// Makes a shard, with these workers at clock 0. It is idle. Nothing happens if it is there.
  /// Throws Error(kInvalidArgument, kRefused).
  void host(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards,
            std::span<const int64_t> workers);
  /// The same with rows that save() has written.
  void host_saved(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards,
                  std::span<const int64_t> workers, const SavedShard& saved);
  void unhost(const std::string& uid, uint32_t shard);
  /// The shard is led from now on. Backups that do not have it from this server are sent it.
  /// Precondition for each of them: there is a line. Throws Error(kInvalidArgument).
  void lead(const std::string& uid, uint32_t shard, int64_t epoch,
            std::span<const int64_t> backups);
  void follow(const std::string& uid, uint32_t shard, int64_t epoch);
  /// Until `end`, no other server can have been told to lead what this one leads. After that this
  /// server answers clients as if one had, except on shards without backups. Without this call
  /// there is no end. Does not wait.
  void serve_until(Clock::time_point end) { serves_until_ = end; }

  /// A line to another server: its accept() gets what offer() returns, and complete() what that
  /// returns.
  std::string offer(int64_t server);
  void complete(int64_t server, std::string_view answer);
  void part(int64_t server);

  /// A shard that is led here, as arrays (table/columns.h) in memory of remote::Pool, which the
  /// caller releases; and how many rows it has, and by what rule, as JSON: {"rows", "rule"}.
  struct Saved {
    std::byte* memory;
    size_t bytes;
    std::string json;
  };
  /// Throws Error(kGone) if another server leads the shard, Error(kTransport) if memory is lacking.
  Saved save(const std::string& uid, uint32_t shard);

  /// What has happened since the last call.
  std::vector<ServerEvent> events();
  /// As JSON: ringcoll_table_server_stats().
  std::string stats();
  /// Equal for shards that are equal. Nothing if it is not here.
  std::optional<uint64_t> digest(const std::string& uid, uint32_t shard);

 private:
  enum class Done : uint8_t { kYes, kLater };

  /// Does something in the server's thread, and returns when it is done. Throws what it throws.
  void call(const std::function<void()>& action);
  void work();
  bool may_be_replaced() const { return Clock::now() >= serves_until_.load(); }
  bool run_calls();
  bool progress();
  /// How long the thread may sleep.
  Duration look_at_grace();

  bool serve(Session& session);
  /// Begins to read the next request. False: its answer's slot is still in use.
  bool begin(Session& session);
  void load(Session& session, Current& current);
  /// False: not yet.
  bool carry_out(Session& session);
  Done do_client(Session& session, Incoming& request, const std::shared_ptr<Answer>& answer);
  Done do_forwarded(Session& session, const Incoming& request, Answer& answer);
  /// Whether this server does what is forwarded to it of a shard.
  bool is_backup(const Piece& piece, const RequestHead& head);
  /// The answer to a request that has to be sent again, if it has.
  const ReplyHead* again(Session& session, const Incoming& request);
  void change(Session& session, const Incoming& request, const std::shared_ptr<Answer>& answer);
  void write_rows(Session& session, const Incoming& request, Answer& answer);
  bool send_answers(Session& session);
  void end_client(int64_t client, Kind how);
  void wake_sleepers(uint64_t table);

  const std::shared_ptr<remote::Agent> agent_;

  // The server's thread alone.
  Buffers buffers_;
  Hosting hosting_;
  Forwarding forwarding_;
  std::map<int64_t, std::unique_ptr<Session>> sessions_;  // by client
  // It stays the same while a request is read and carried out: one that was not read must not be.
  bool may_be_replaced_ = false;

  std::atomic<Clock::time_point> serves_until_ = Clock::time_point::max();

  std::mutex mutex_;
  std::condition_variable called_;
  std::deque<std::function<void()>> calls_;
  std::vector<ServerEvent> events_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ringcoll::serving

// Sends what changes shards to their backups.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "remote/agent.h"
#include "serving/buffers.h"
#include "serving/forward.h"
#include "serving/hosting.h"
#include "serving/session.h"

namespace ringcoll::serving {

/// Something that whoever decides on shards wants to know.
struct ServerEvent {
  enum class Kind : uint8_t {
    kInstalled,  // a backup has the shard
    kFailed,     // a backup could not do what the shard did: it is none any more
    kDeposed,    // a backup says that another server leads: this one answers nobody any more
    kParted,     // the line to a server broke; no table and no shard are named
  };
  Kind kind = Kind::kInstalled;
  std::string uid;
  uint32_t shard = 0;
  int64_t epoch = 0;
  int64_t server = 0;
};

/// The server's thread alone.
class Forwarding {
 public:
  using Tell = std::function<void(ServerEvent)>;

  Forwarding(remote::Agent& agent, Hosting& hosting, Buffers& buffers, Tell tell);

  std::string offer(int64_t server);
  void complete(int64_t server, std::string_view answer);
  void part(int64_t server);
  bool has_line(int64_t server) const { return lines_.contains(server); }

  /// These servers are the backups of a shard. Those that do not have it from here are sent it.
  /// Nothing waits for others any more. Precondition: there are lines.
  void set_backups(HostedTable& table, uint32_t shard, std::span<const int64_t> servers);
  /// Sends what a client's request has changed in these of its shards. The answer waits for the
  /// backups. `rule_fails`: what backups have to do is to throw, too.
  void forward(const HostedTable& table, const Incoming& request, std::span<const uint32_t> shards,
               bool rule_fails, const std::shared_ptr<Answer>& answer);
  /// Sends a change that no client has asked for.
  void forward(const HostedTable& table, uint32_t shard, Kind kind, int64_t client, int64_t clock);
  /// What waits for backups of the shard is to be sent to another server.
  void move_waiting(uint64_t table, uint32_t shard);
  bool progress();

 private:
  /// The pieces of a request that have this backup, by their positions.
  using Chosen = std::vector<size_t>;

  void forward_to(int64_t server, const HostedTable& table, const Incoming& request,
                  const Chosen& chosen, bool rule_fails, const std::shared_ptr<Answer>& answer);
  struct Part;
  Part part_of(const HostedTable& table, const Incoming& request, const Chosen& chosen);
  void send_whole(HostedTable& table, uint32_t shard, int64_t server);
  void take_answer(int64_t server, uint64_t key, const std::vector<Piece>& pieces,
                   const Reply& reply, const std::weak_ptr<Answer>& answer);
  /// Another server leads the shard.
  void depose(uint64_t key, const Piece& piece);
  void drop_backup(int64_t server, uint64_t key, const Piece& piece, const Reply& reply);
  template <typename Change>
  void each_waiting(Change&& change);
  /// Nothing waits for the backup any more; with `lost_only`, for what was lost with a line.
  void release(int64_t server, uint64_t table, uint32_t shard, bool lost_only = false);
  void tell(ServerEvent::Kind kind, uint64_t key, const Piece& piece, int64_t server);

  remote::Agent& agent_;
  Hosting& hosting_;
  Buffers& buffers_;
  const Tell tell_;
  std::map<int64_t, std::unique_ptr<ForwardLine>> lines_;
  std::vector<std::weak_ptr<Answer>> waiting_;
};

}  // namespace ringcoll::serving

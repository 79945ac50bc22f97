#include "serving/forwarding.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "table/snapshot.h"

namespace ringcoll::serving {
namespace {

/// Whether an Outcome::kMoved is about this shard.
bool refuses(const Reply& reply, uint32_t shard) {
  for (size_t at = 0; at + sizeof shard <= reply.body.size(); at += sizeof shard)
    if (std::memcmp(reply.body.data() + at, &shard, sizeof shard) == 0) return true;
  return false;
}

}  // namespace

Forwarding::Forwarding(remote::Agent& agent, Hosting& hosting, Buffers& buffers, Tell tell)
    : agent_(agent), hosting_(hosting), buffers_(buffers), tell_(std::move(tell)) {}

// ---- lines

std::string Forwarding::offer(int64_t server) {
  part(server);
  auto& line = lines_[server] = std::make_unique<ForwardLine>(agent_);
  return line->line().handle();
}

void Forwarding::complete(int64_t server, std::string_view answer) {
  check(lines_.contains(server), Code::kInvalidArgument, "no line to server {} was offered",
        server);
  lines_[server]->line().connect(answer);
}

void Forwarding::part(int64_t server) {
  if (lines_.erase(server) == 0) return;
  each_waiting([&](Answer& answer) {
    for (Answer::Wait& wait : answer.waits) wait.is_lost |= wait.server == server;
  });
  for (auto& [key, table] : hosting_.tables())
    for (auto& [shard, hosted] : table.here)
      for (Backup& backup : hosted.backups)
        if (backup.server == server) backup.is_installed = false;
}

bool Forwarding::progress() {
  bool any = false;
  std::vector<int64_t> broken;
  for (auto& [server, line] : lines_) {
    any |= line->progress();
    if (line->line().failure()) broken.push_back(server);
  }
  for (const int64_t server : broken) {
    log_debug("the line to table server {} broke: {}", server,
              lines_[server]->line().failure()->what());
    part(server);
    tell_({.kind = ServerEvent::Kind::kParted, .server = server});
  }
  return any || !broken.empty();
}

// ---- backups

void Forwarding::set_backups(HostedTable& table, uint32_t shard, std::span<const int64_t> servers) {
  Hosted& hosted = table.here.at(shard);
  const std::vector<Backup> before = std::exchange(hosted.backups, {});
  for (const int64_t server : servers) {
    const auto known = std::ranges::find(before, server, &Backup::server);
    hosted.backups.push_back({server, known != before.end() && known->is_installed});
  }
  for (const Backup& backup : before)
    if (std::ranges::count(servers, backup.server) == 0) release(backup.server, table.key, shard);
  for (Backup& backup : hosted.backups) {
    if (backup.is_installed) continue;
    send_whole(table, shard, backup.server);
    backup.is_installed = true;
  }
}

void Forwarding::send_whole(HostedTable& table, uint32_t shard, int64_t server) {
  const Hosted& hosted = table.here.at(shard);
  const Snapshot snapshot = hosted.shard->snapshot();
  const size_t bytes = encoded_bytes(snapshot);
  auto buffer = buffers_.take(bytes);
  encode(snapshot, {buffer->data(), bytes});
  const Piece piece{.epoch = hosted.epoch, .shard = shard, .rows = 0};
  const std::string handle = buffer->handle();
  Outgoing request{.head = {.table = table.key,
                            .value_bytes = bytes,
                            .kind = Kind::kInstall,
                            .where = Where::kPacked,
                            .forwarded = true},
                   .pieces = {&piece, 1},
                   .handle = handle};
  auto answered = [this, server, key = table.key, piece](const Reply& reply) {
    if (reply.head.outcome != Outcome::kDone) return take_answer(server, key, {piece}, reply, {});
    release(server, key, piece.shard, /*lost_only=*/true);
    tell(ServerEvent::Kind::kInstalled, key, piece, server);
  };
  lines_.at(server)->send(request, {.buffer = std::move(buffer), .answered = std::move(answered)});
}

// ---- changes

void Forwarding::forward(const HostedTable& table, const Incoming& request,
                         std::span<const uint32_t> shards, bool rule_fails,
                         const std::shared_ptr<Answer>& answer) {
  std::map<int64_t, Chosen> by_server;
  for (size_t i = 0; i < request.pieces.size(); i++) {
    if (std::ranges::count(shards, request.pieces[i].shard) == 0) continue;
    for (const Backup& backup : table.here.at(request.pieces[i].shard).backups) {
      by_server[backup.server].push_back(i);
      // Without a line the backup gets this with the whole shard, later.
      const bool is_lost = !lines_.contains(backup.server);
      answer->waits.push_back({backup.server, table.key, request.pieces[i].shard, is_lost});
    }
  }
  if (by_server.empty()) return;
  std::erase_if(waiting_, [](const auto& each) { return each.expired(); });
  waiting_.push_back(answer);
  for (const auto& [server, chosen] : by_server)
    if (lines_.contains(server)) forward_to(server, table, request, chosen, rule_fails, answer);
}

/// What one backup is sent of a request.
struct Forwarding::Part {
  std::vector<Piece> pieces;
  std::vector<int64_t> ids;
  std::vector<std::span<const std::byte>> values;
  size_t value_bytes = 0;

  void add_values(std::span<const std::byte> more) {
    values.push_back(more);
    value_bytes += more.size();
  }
  /// Copies ids and values, one after another.
  void write(std::byte* to) const {
    if (!ids.empty()) std::memcpy(to, ids.data(), ids.size() * sizeof(int64_t));
    write_values(to + ids.size() * sizeof(int64_t));
  }
  void write_values(std::byte* to) const {
    for (const auto& each : values) {
      if (!each.empty()) std::memcpy(to, each.data(), each.size());
      to += each.size();
    }
  }
};

Forwarding::Part Forwarding::part_of(const HostedTable& table, const Incoming& request,
                                     const Chosen& chosen) {
  Part part;
  const bool is_of_rows = has_rows(request.head.kind);
  size_t next_id = 0, next_value = 0;
  for (size_t i = 0; i < request.pieces.size(); i++) {
    Piece piece = request.pieces[i];
    const size_t rows = table.spec.is_sparse ? piece.rows : 0;
    const auto dtype = static_cast<DataType>(request.head.dtype);
    const size_t bytes = is_of_rows ? bytes_of(table.spec, table.shards, piece, dtype) : 0;
    if (std::ranges::binary_search(chosen, i)) {
      piece.epoch = table.here.at(piece.shard).epoch;
      part.pieces.push_back(piece);
      const auto ids = request.ids.subspan(next_id, rows);
      part.ids.insert(part.ids.end(), ids.begin(), ids.end());
      if (is_of_rows) part.add_values(request.values.subspan(next_value, bytes));
    }
    next_id += rows;
    next_value += bytes;
  }
  if (!is_of_rows) part.add_values(request.values);
  return part;
}

void Forwarding::forward_to(int64_t server, const HostedTable& table, const Incoming& request,
                            const Chosen& chosen, bool rule_fails,
                            const std::shared_ptr<Answer>& answer) {
  const Part part = part_of(table, request, chosen);
  const size_t id_bytes = part.ids.size() * sizeof(int64_t);
  Outgoing out{.head = request.head, .pieces = part.pieces};
  out.head.forwarded = true;
  out.head.rule_fails = rule_fails;
  out.head.pulls = false;
  out.head.ids = static_cast<uint32_t>(part.ids.size());
  out.head.value_bytes = part.value_bytes;
  out.head.where = Where::kInside;
  std::shared_ptr<SharedBuffer> buffer;
  std::vector<std::byte> gathered;
  std::string handle;
  if (out.bytes() + id_bytes + part.value_bytes <= kSlotBytes) {
    gathered.resize(part.value_bytes);
    part.write_values(gathered.data());
    out.ids = part.ids;
    out.values = gathered;
  } else {
    if (request.buffer && chosen.size() == request.pieces.size()) {
      buffer = request.buffer;  // it has just these ids and values
    } else {
      buffer = buffers_.take(id_bytes + part.value_bytes);
      part.write(buffer->data());
    }
    out.head.where = Where::kPacked;
    handle = buffer->handle();
    out.handle = handle;
  }
  auto answered = [this, server, key = table.key, pieces = part.pieces,
                   waiting = std::weak_ptr(answer)](const Reply& reply) {
    take_answer(server, key, pieces, reply, waiting);
  };
  lines_.at(server)->send(out, {.buffer = std::move(buffer), .answered = std::move(answered)});
}

void Forwarding::forward(const HostedTable& table, uint32_t shard, Kind kind, int64_t client,
                         int64_t clock) {
  const Hosted& hosted = table.here.at(shard);
  const Piece piece{.epoch = hosted.epoch, .shard = shard, .rows = 0};
  const Outgoing request{.head = {.table = table.key,
                                  .client = client,
                                  .clock = clock,
                                  .kind = kind,
                                  .forwarded = true},
                         .pieces = {&piece, 1}};
  for (const Backup& backup : hosted.backups) {
    if (!lines_.contains(backup.server)) continue;
    auto answered = [this, server = backup.server, key = table.key, piece](const Reply& reply) {
      take_answer(server, key, {piece}, reply, {});
    };
    lines_.at(backup.server)->send(request, {.answered = std::move(answered)});
  }
}

// ---- answers

void Forwarding::take_answer(int64_t server, uint64_t key, const std::vector<Piece>& pieces,
                             const Reply& reply, const std::weak_ptr<Answer>& answer) {
  for (const Piece& piece : pieces) {
    if (reply.head.outcome == Outcome::kMoved && refuses(reply, piece.shard)) depose(key, piece);
    if (reply.head.outcome == Outcome::kFailed) drop_backup(server, key, piece, reply);
  }
  const auto there = answer.lock();
  if (!there) return;
  // Whoever leads the shard now may not have this.
  if (reply.head.outcome == Outcome::kMoved) there->head.outcome = Outcome::kMoved;
  std::erase_if(there->waits, [&](const Answer::Wait& wait) {
    return wait.server == server && wait.table == key && !wait.is_lost &&
           std::ranges::count(pieces, wait.shard, &Piece::shard) > 0;
  });
}

void Forwarding::depose(uint64_t key, const Piece& piece) {
  Hosted* hosted = hosting_.find(key, piece.shard);
  if (!hosted || hosted->role != Role::kLeads || hosted->epoch != piece.epoch) return;
  log_debug("shard {} of a table is led by another server", piece.shard);
  hosted->role = Role::kIdle;
  // If it is to lead again, a backup may lack what it has refused.
  for (Backup& backup : hosted->backups) backup.is_installed = false;
  move_waiting(key, piece.shard);
  tell(ServerEvent::Kind::kDeposed, key, piece, 0);
}

void Forwarding::drop_backup(int64_t server, uint64_t key, const Piece& piece, const Reply& reply) {
  Hosted* hosted = hosting_.find(key, piece.shard);
  if (!hosted) return;
  log_warning(
      "table {}: a backup of shard {} could not do what the shard did, and is none any more; the "
      "store makes another one. It says: {}",
      hosting_.find(key)->spec.name, piece.shard,
      std::string_view(reinterpret_cast<const char*>(reply.body.data()), reply.body.size()));
  std::erase_if(hosted->backups, [&](const Backup& each) { return each.server == server; });
  release(server, key, piece.shard);
  tell(ServerEvent::Kind::kFailed, key, piece, server);
}

template <typename Change>
void Forwarding::each_waiting(Change&& change) {
  for (const auto& each : waiting_)
    if (const auto answer = each.lock()) change(*answer);
}

void Forwarding::release(int64_t server, uint64_t table, uint32_t shard, bool lost_only) {
  each_waiting([&](Answer& answer) {
    std::erase_if(answer.waits, [&](const Answer::Wait& wait) {
      return wait.server == server && wait.table == table && wait.shard == shard &&
             (wait.is_lost || !lost_only);
    });
  });
}

void Forwarding::move_waiting(uint64_t table, uint32_t shard) {
  each_waiting([&](Answer& answer) {
    const auto of_shard = [&](const Answer::Wait& wait) {
      return wait.table == table && wait.shard == shard;
    };
    if (std::erase_if(answer.waits, of_shard) > 0) answer.head.outcome = Outcome::kMoved;
  });
}

void Forwarding::tell(ServerEvent::Kind kind, uint64_t key, const Piece& piece, int64_t server) {
  const HostedTable* table = hosting_.find(key);
  if (!table) return;
  tell_({.kind = kind,
         .uid = table->uid,
         .shard = piece.shard,
         .epoch = piece.epoch,
         .server = server});
}

}  // namespace ringcoll::serving

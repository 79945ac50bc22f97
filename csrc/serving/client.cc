#include "serving/client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/interruption.h"
#include "base/log.h"
#include "base/threads.h"
#include "serving/parcel.h"
#include "serving/request.h"

namespace ringcoll::serving {
namespace {

// Who waits looks again after this time at the latest.
constexpr Duration kLook = std::chrono::milliseconds(100);
// A shard with fewer bytes shares a request with others: a request takes some 20 us, and so many
// bytes take 1 ms at 10 Gb/s.
constexpr size_t kLargeShard = 1 << 20;

/// Whether each shard has a request of its own: of a large tensor that is pushed and pulled, values
/// of one shard go while rows of another come.
bool goes_by_shard(const TableSpec& spec, const Asked& asked, size_t shards) {
  return !spec.is_sparse && asked.pushes && asked.pulls && asked.out.size() / shards >= kLargeShard;
}

void check_asked(const TableSpec& spec, const Asked& asked) {
  if (!has_rows(asked.kind)) return;
  check(asked.kind == Kind::kRows || (asked.pushes && !asked.pulls), Code::kInvalidArgument,
        "table {}: a call that assigns has values, and pulls nothing", spec.name);
  check(asked.pushes || asked.pulls, Code::kInvalidArgument,
        "table {}: a call that neither pushes nor pulls", spec.name);
  const size_t rows = spec.is_sparse ? asked.ids.size() : 1;
  check(spec.is_sparse || asked.ids.empty(), Code::kInvalidArgument,
        "table {}: it is dense, and its calls are for the whole tensor: pass no ids", spec.name);
  check(rows <= UINT32_MAX / 2, Code::kInvalidArgument, "table {}: {} rows in one call", spec.name,
        rows);
  const auto check_bytes = [&](size_t bytes, DataType dtype, const char* what) {
    const size_t needed = rows * bytes_of_row(spec, dtype);
    check(bytes == needed, Code::kInvalidArgument,
          "table {}: {} bytes of {}: {} rows of {} elements of {} have {}", spec.name, bytes, what,
          rows, bytes_of_row(spec, dtype) / size_of(dtype), name_of(dtype), needed);
  };
  // Types and weights are the servers' to check: another client may have set another rule.
  if (asked.pushes) check_bytes(asked.values.size(), asked.dtype, "values");
  if (asked.pulls) check_bytes(asked.out.size(), spec.dtype, "room for rows");
}

}  // namespace

Client::Client(std::shared_ptr<remote::Agent> agent, int64_t id)
    : agent_(std::move(agent)), id_(id), buffers_(*agent_) {}

Client::~Client() { close(); }

void Client::close() {
  Lock lock(mutex_);
  is_closed_ = true;
  unattended_changed_.notify_all();
  std::thread thread = std::exchange(thread_, {});
  std::vector<int64_t> servers;
  for (const auto& [server, line] : lines_) servers.push_back(server);
  for (const int64_t server : servers) lose(server);
  for (auto& [key, table] : tables_)
    for (const auto& call : std::exchange(table.unsent, {})) {
      call->error = Error(Code::kAborted, "the client of the table is closed");
      finish(call);
    }
  leave(lock);
  agent_->ring();
  if (thread.joinable()) thread.join();
}

void Client::leave(Lock& lock) {
  const auto ended = std::exchange(ended_, {});
  lock.unlock();
  for (const auto& call : ended) call->tell();
}

// ---- lines and routes

std::string Client::offer(int64_t server) {
  Lock lock(mutex_);
  lose(server);
  auto& line = lines_[server] = std::make_unique<Line>(*agent_);
  std::string handle = line->end.handle();
  leave(lock);
  return handle;
}

void Client::complete(int64_t server, std::string_view answer) {
  Lock lock(mutex_);
  const auto line = lines_.find(server);
  check(line != lines_.end(), Code::kInvalidArgument, "no line to server {} was offered", server);
  line->second->end.connect(answer);
  progress();
  leave(lock);
}

void Client::part(int64_t server) {
  Lock lock(mutex_);
  lose(server);
  progress();
  leave(lock);
}

void Client::lose(int64_t server) {
  const auto found = lines_.find(server);
  if (found == lines_.end()) return;
  const std::unique_ptr<Line> line = std::move(found->second);
  lines_.erase(found);
  for (auto& slot : line->parts) {
    if (!slot) continue;
    // The server may still write there.
    Buffers::discard(slot->values);
    Buffers::discard(slot->out);
    slot->call->region_is_old = true;
    send_again(tables_.at(slot->table), *slot);
  }
  for (auto& [key, table] : tables_) table.wakes.erase(server);
}

void Client::open(const std::string& uid, const TableSpec& spec, int64_t shards) {
  check(shards > 0 && static_cast<size_t>(shards) <= kMostShards, Code::kInvalidArgument,
        "table {}: {} shards: there are 1 to {}", spec.name, shards, kMostShards);
  const std::lock_guard lock(mutex_);
  Table& table = tables_[key_of(uid)];
  if (!table.uid.empty()) return;
  table.uid = uid;
  table.key = key_of(uid);
  table.spec = spec;
  table.merging = spec.rule.combine();
  table.servers.assign(static_cast<size_t>(shards), kUnknown);
}

Client::Table& Client::table_of(const std::string& uid) {
  const auto found = tables_.find(key_of(uid));
  check(found != tables_.end(), Code::kInvalidArgument, "table {} was not opened", uid);
  return found->second;
}

void Client::route(const std::string& uid, std::span<const int64_t> servers) {
  Lock lock(mutex_);
  Table& table = table_of(uid);
  check(servers.size() == table.servers.size(), Code::kInvalidArgument,
        "table {}: servers for {} shards, and it has {}", table.spec.name, servers.size(),
        table.servers.size());
  table.has_moved = false;
  if (!std::ranges::equal(servers, table.servers)) {
    table.servers.assign(servers.begin(), servers.end());
    table.begins_round = true;
  }
  progress();
  leave(lock);
}

bool Client::lacks_server(const Table& table) {
  if (table.has_moved) return true;
  return std::ranges::any_of(table.servers, [&](int64_t server) {
    if (server == kLost) return false;
    const auto line = lines_.find(server);
    return line == lines_.end() || !line->second->end.is_connected();
  });
}

Client::Astray Client::astray() {
  Lock lock(mutex_);
  progress();
  Astray found{.tables = {}, .parted = std::exchange(parted_, {})};
  for (const auto& [key, table] : tables_)
    if (!table.unsent.empty() && lacks_server(table)) found.tables.push_back(table.uid);
  leave(lock);
  return found;
}

// ---- calls

std::shared_ptr<Call> Client::start(const std::string& uid, const Asked& asked, Call::Done done) {
  Lock lock(mutex_);
  check(!is_closed_, Code::kAborted, "the client of the table is closed");
  Table& table = table_of(uid);
  check_asked(table.spec, asked);
  auto call = std::make_shared<Call>(table.spec, std::ssize(table.servers), asked,
                                     table.next_number++, std::move(done));
  if (!asked.is_attended) begin_to_attend();
  if (call->is_complete())
    finish(call);
  else
    table.unsent.push_back(call);
  progress();
  leave(lock);
  return call;
}

/// Takes a thread off the number of those that wait.
class Client::Waiter {
 public:
  explicit Waiter(Client& client) : client_(client) {}
  ~Waiter() {
    const std::lock_guard lock(client_.mutex_);
    client_.waiters_--;
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  Client& client_;
};

bool Client::wait(Call& call, double limit_s) {
  const Deadline deadline(seconds(limit_s < 0 ? 1e10 : limit_s));
  remote::Listening listening = agent_->listen();
  for (;;) {
    Lock lock(mutex_);
    progress();
    const bool is_over = call.has_ended;
    const bool gives_up = !is_over && (deadline.passed() || Interruption::has_ended());
    if (gives_up && call.asked().is_attended) {
      call.leave_unattended();
      begin_to_attend();
    }
    if (!is_over && !gives_up) waiters_++;
    leave(lock);
    if (gives_up) return false;
    if (is_over) break;
    const Waiter waiter(*this);
    listening.wait(Interruption::longest_sleep(std::min(deadline.left(), kLook)));
    Interruption::look();
  }
  if (call.error) throw *call.error;
  return true;
}

void Client::begin_to_attend() {
  if (!thread_.joinable()) thread_ = start_thread("ringcoll-client", [this] { attend(); });
  if (unattended_++ == 0) unattended_changed_.notify_all();
}

void Client::attend() {
  remote::Listening listening = agent_->listen();
  Lock lock(mutex_);
  waiters_++;
  while (!is_closed_) {
    unattended_changed_.wait(lock, [this] { return is_closed_ || unattended_ > 0; });
    progress();
    leave(lock);
    listening.wait(kLook);
    lock.lock();
  }
  waiters_--;
}

bool Client::has_ended(Call& call) {
  Lock lock(mutex_);
  progress();
  const bool is_over = call.has_ended;
  leave(lock);
  return is_over;
}

void Client::finish(const std::shared_ptr<Call>& call) {
  if (call->has_ended) return;
  call->end();
  ended_.push_back(call);
  if (!call->asked().is_attended) unattended_--;
  if (waiters_ > 0) agent_->ring();
}

// ---- replies

bool Client::progress() {
  bool any = false;
  std::vector<int64_t> broken;
  for (auto& [server, line] : lines_) {
    any |= take_replies(server, *line);
    if (line->end.failure()) broken.push_back(server);
  }
  for (const int64_t server : broken) {
    log_debug("the line to table server {} broke: {}", server,
              lines_.at(server)->end.failure()->what());
    lose(server);
    parted_.push_back(server);
  }
  for (auto& [key, table] : tables_) pump(table);
  return any;
}

bool Client::take_replies(int64_t server, Line& line) {
  if (!line.end.collect()) return false;
  for (size_t i = 0; i < kSlots; i++) {
    // The last request that was sent in this slot.
    const uint64_t number = line.next - 1 - (line.next - 1 - i) % kSlots;
    if (!line.parts[i] || number >= line.next || !line.end.has(number)) continue;
    Part part = std::move(*line.parts[i]);
    line.parts[i].reset();
    take_reply(server, std::move(part), line.end.incoming(number));
  }
  return true;
}

void Client::take_reply(int64_t server, Part part, const std::byte* slot) {
  ReplyHead reply;
  std::memcpy(&reply, slot, sizeof reply);
  const std::byte* body = slot + sizeof reply;
  Table& table = tables_.at(part.table);
  if (reply.outcome == Outcome::kAgain || reply.outcome == Outcome::kMoved) {
    // Unless route() has said so meanwhile.
    if (reply.outcome == Outcome::kMoved)
      table.has_moved |= std::ranges::any_of(
          part.shards, [&](uint32_t shard) { return table.servers[shard] == server; });
    if (reply.merging != kUnmerged) {
      table.merging = static_cast<rules::Merging>(reply.merging);
      part.call->refusals++;
    }
    if (reply.wake > 0) table.wakes[server] = std::max(table.wakes[server], reply.wake);
    return send_again(table, part);
  }
  table.under_way--;
  Call& call = *part.call;
  if (reply.outcome == Outcome::kFailed) {
    const size_t length = std::min<uint64_t>(reply.bytes, kReplyBytes);
    if (!call.error)
      call.error = Error(reply.code, std::string(reinterpret_cast<const char*>(body), length));
  } else {
    if (call.asked().pulls) take_rows(table, part, body);
    call.clock = std::max(call.clock, reply.clock);
  }
  for (const uint32_t shard : part.shards) call.shards[shard] = Call::State::kDone;
  if (call.is_complete()) finish(part.call);
}

void Client::take_rows(const Table& table, Part& part, const std::byte* inside) {
  if (part.is_in_place) return;
  const std::byte* from = part.out ? part.out->data() : inside;
  for (const uint32_t shard : part.shards)
    from = scatter(table.spec, std::ssize(table.servers), *part.call, shard, from, part.is_merged);
}

void Client::send_again(Table& table, const Part& part) {
  table.under_way--;
  table.begins_round = true;
  for (const uint32_t shard : part.shards) part.call->shards[shard] = Call::State::kUnsent;
  const auto at = std::ranges::lower_bound(table.unsent, part.call->number(), {},
                                           [](const auto& each) { return each->number(); });
  if (at == table.unsent.end() || *at != part.call) table.unsent.insert(at, part.call);
}

// ---- requests

bool Client::Line::has_other_pull(uint64_t table, const Call& call) const {
  return std::ranges::any_of(parts, [&](const std::optional<Part>& part) {
    return part && part->table == table && part->call.get() != &call && part->call->asked().pulls;
  });
}

void Client::pump(Table& table) {
  while (!table.unsent.empty() && may_send(table)) {
    const std::shared_ptr<Call> call = table.unsent.front();
    if (!send(table, call)) return;
    table.unsent.pop_front();
  }
}

bool Client::may_send(Table& table) {
  if (table.begins_round) {
    if (table.under_way > 0) return false;
    table.begins_round = false;
    table.round++;
  }
  std::erase_if(table.wakes, [&](const auto& wake) {
    const auto line = lines_.find(wake.first);
    // A server that leads no shard any more wakes nobody.
    const bool leads = std::ranges::find(table.servers, wake.first) != table.servers.end();
    return !leads || line == lines_.end() || line->second->end.woken() >= wake.second;
  });
  return !table.has_moved && table.wakes.empty();
}

// Returns whether all of the call has been sent.
bool Client::send(Table& table, const std::shared_ptr<Call>& call) {
  std::map<int64_t, Group> groups;
  for (uint32_t shard = 0; shard < call->shards.size(); shard++) {
    if (call->shards[shard] != Call::State::kUnsent) continue;
    const int64_t server = table.servers[shard];
    if (server == kUnknown) return false;
    groups[server].push_back(shard);
  }
  if (std::exchange(call->region_is_old, false)) {
    call->values_region.reset();
    call->out_region.reset();
  }
  for (const auto& [server, group] : groups) {
    if (server == kLost) {
      call->error = Error(Code::kGone, fmt::format("table {}: a shard is lost with all of its "
                                                   "servers; replicas= makes further copies",
                                                   table.spec.name));
      for (const uint32_t shard : group) call->shards[shard] = Call::State::kDone;
      continue;
    }
    const auto line = lines_.find(server);
    if (line == lines_.end()) continue;
    if (call->changes() && line->second->has_other_pull(table.key, *call)) continue;
    send_group(table, call, *line->second, group);
  }
  if (call->is_complete()) finish(call);
  return !call->has_unsent();
}

void Client::send_group(Table& table, const std::shared_ptr<Call>& call, Line& line,
                        const Group& group) {
  if (!goes_by_shard(table.spec, call->asked(), call->shards.size())) {
    if (line.may_send()) send_request(table, call, line, group);
    return;
  }
  for (const uint32_t shard : group)
    if (line.may_send()) send_request(table, call, line, {shard});
}

void Client::send_request(Table& table, const std::shared_ptr<Call>& call, Line& line,
                          const Group& group) {
  try {
    Parcel parcel(*agent_, buffers_, table.spec, std::ssize(table.servers), *call, group,
                  table.merging);
    RequestHead& head = parcel.request().head;
    head.sequence = line.next;
    head.table = table.key;
    head.client = id_;
    head.round = table.round;
    parcel.request().write(line.end.outgoing(line.next));
    line.parts[line.next % kSlots] = Part{.call = call,
                                          .table = table.key,
                                          .shards = group,
                                          .values = parcel.values_memory(),
                                          .out = parcel.out_memory(),
                                          .is_in_place = parcel.request().head.out_spread,
                                          .is_merged = parcel.is_merged()};
    for (const uint32_t shard : group) call->shards[shard] = Call::State::kSent;
    table.under_way++;
    line.end.send(line.next++, parcel.request().bytes());
  } catch (const Error& error) {  // no memory that could be shared
    call->error = error;
    for (const uint32_t shard : group) call->shards[shard] = Call::State::kDone;
  }
}

}  // namespace ringcoll::serving

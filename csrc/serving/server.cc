#include "serving/server.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "remote/pool.h"
#include "table/columns.h"

namespace ringcoll::serving {
namespace {

constexpr Duration kLongSleep = std::chrono::seconds(1);
// Rows are written to a client, or read from it, within this time.
constexpr Duration kCopying = std::chrono::seconds(60);
// A shard that another server sends is hosted here within this time, or never: its table may have
// been dropped. What comes after it on the line waits.
constexpr Duration kHosting = std::chrono::milliseconds(1500);

void put_text(const std::string& text, LineEnd& line, Answer& answer) {
  answer.bytes = std::min(text.size(), kReplyBytes);
  std::memcpy(line.outgoing(answer.sequence) + sizeof(ReplyHead), text.data(), answer.bytes);
}

void fail(const Error& error, LineEnd& line, Answer& answer) {
  answer.head.outcome = Outcome::kFailed;
  answer.head.code = error.code();
  put_text(error.what(), line, answer);
}

}  // namespace

Server::Server(std::shared_ptr<remote::Agent> agent)
    : agent_(std::move(agent)),
      buffers_(*agent_),
      forwarding_(*agent_, hosting_, buffers_,
                  [this](ServerEvent event) {
                    std::lock_guard lock(mutex_);
                    events_.push_back(std::move(event));
                  }),
      thread_(start_thread("ringcoll-tables", [this] { work(); })) {}

Server::~Server() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  agent_->ring();
  thread_.join();
}

// ---- calls of other threads

void Server::call(const std::function<void()>& action) {
  std::exception_ptr error;
  bool is_done = false;
  std::unique_lock lock(mutex_);
  calls_.push_back([&] {
    try {
      action();
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard done(mutex_);
    is_done = true;
    called_.notify_all();
  });
  lock.unlock();
  agent_->ring();
  lock.lock();
  called_.wait(lock, [&] { return is_done; });
  if (error) std::rethrow_exception(error);
}

std::string Server::accept(int64_t client, std::string_view offer) {
  std::string answer;
  call([&] {
    auto session = std::make_unique<Session>(*agent_, client);
    session->line.connect(offer);
    answer = session->line.handle();
    sessions_[client] = std::move(session);
  });
  return answer;
}

void Server::drop(int64_t client) {
  call([&] { end_client(client, Kind::kEnd); });
}

void Server::leave(int64_t client) {
  call([&] { end_client(client, Kind::kLeave); });
}

void Server::end_client(int64_t client, Kind how) {
  sessions_.erase(client);
  for (auto& [key, table] : hosting_.tables()) {
    for (auto& [shard, hosted] : table.here) {
      if (hosted.role != Role::kLeads) continue;
      hosted.shard->leave(client);
      if (how == Kind::kEnd) hosted.shard->forget(client);
      forwarding_.forward(table, shard, how, client, 0);
    }
    wake_sleepers(key);
  }
}

void Server::host(const std::string& uid, const TableSpec& spec, uint32_t shard, int64_t shards,
                  std::span<const int64_t> workers) {
  call([&] { hosting_.host(uid, spec, shard, shards, workers); });
}

void Server::host_saved(const std::string& uid, const TableSpec& spec, uint32_t shard,
                        int64_t shards, std::span<const int64_t> workers, const SavedShard& saved) {
  call([&] { hosting_.host_saved(uid, spec, shard, shards, workers, saved); });
}

Server::Saved Server::save(const std::string& uid, uint32_t shard) {
  Saved saved{};
  call([&] {
    const Hosted* hosted = hosting_.find(key_of(uid), shard);
    check(hosted && hosted->is_led(may_be_replaced()), Code::kGone,
          "shard {} of table {} is led by another server", shard, uid);
    const ColumnBytes bytes = bytes_of_columns(*hosted->shard);
    saved.bytes = bytes.all();
    saved.memory = remote::Pool::of_process().allocate(std::max<size_t>(saved.bytes, 1));
    try {
      write_columns(*hosted->shard, {saved.memory, saved.bytes});
    } catch (...) {
      remote::Pool::of_process().release(saved.memory);
      throw;
    }
    const auto rule = nlohmann::ordered_json::parse(hosted->shard->spec().rule.json());
    auto state = nlohmann::ordered_json::array();
    for (size_t i = 0; i < hosted->shard->spec().rule.state_slots(); i++)
      state.push_back(bytes.state.at(i));
    saved.json = nlohmann::ordered_json({{"rows", bytes.rows},
                                         {"rule", rule},
                                         {"ids", bytes.ids},
                                         {"counts", bytes.counts},
                                         {"values", bytes.values},
                                         {"state", state}})
                     .dump();
  });
  return saved;
}

void Server::unhost(const std::string& uid, uint32_t shard) {
  call([&] {
    forwarding_.move_waiting(key_of(uid), shard);
    hosting_.unhost(uid, shard);
  });
}

void Server::lead(const std::string& uid, uint32_t shard, int64_t epoch,
                  std::span<const int64_t> backups) {
  call([&] {
    Hosted& hosted = hosting_.get(uid, shard);
    for (const int64_t backup : backups)
      check(forwarding_.has_line(backup), Code::kInvalidArgument,
            "shard {} of table {}: there is no line to the backup {}", shard, uid, backup);
    hosted.role = Role::kLeads;
    hosted.epoch = epoch;
    forwarding_.set_backups(hosting_.get(uid), shard, backups);
  });
}

void Server::follow(const std::string& uid, uint32_t shard, int64_t epoch) {
  call([&] {
    Hosted& hosted = hosting_.get(uid, shard);
    hosted.role = Role::kFollows;
    hosted.epoch = epoch;
    hosted.backups.clear();
    forwarding_.move_waiting(key_of(uid), shard);
  });
}

std::string Server::offer(int64_t server) {
  std::string offer;
  call([&] { offer = forwarding_.offer(server); });
  return offer;
}

void Server::complete(int64_t server, std::string_view answer) {
  call([&] { forwarding_.complete(server, answer); });
}

void Server::part(int64_t server) {
  call([&] { forwarding_.part(server); });
}

std::vector<ServerEvent> Server::events() {
  std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

std::string Server::stats() {
  static constexpr const char* kRoles[] = {"idle", "leads", "follows"};
  nlohmann::ordered_json all = {{"clients", 0}, {"shards", nlohmann::ordered_json::array()}};
  call([&] {
    all["clients"] = sessions_.size();
    for (const auto& [key, table] : hosting_.tables()) {
      for (const auto& [number, hosted] : table.here) {
        const Shard& shard = *hosted.shard;
        const TableCounters counters = shard.counters();
        auto& out = all["shards"].emplace_back();
        out = {{"uid", table.uid},
               {"shard", number},
               {"role", kRoles[static_cast<int>(hosted.role)]},
               {"epoch", hosted.epoch},
               {"backups", hosted.backups.size()},
               {"rows", shard.row_count()},
               {"bytes", shard.row_count() * static_cast<size_t>(table.spec.most_elements()) *
                             size_of(table.spec.dtype)},
               {"pushes", hosted.pushes},
               {"pulls", hosted.pulls},
               {"pushed_bytes", hosted.pushed_bytes},
               {"pulled_bytes", hosted.pulled_bytes},
               {"nan", counters.nan_values},
               {"evicted", counters.evicted_rows},
               {"late", counters.late_pushes},
               {"failed", counters.failed_rows},
               {"rule", shard.spec().rule.name()},
               {"clock", shard.current_clock()},
               {"workers", nlohmann::ordered_json::object()}};
        for (const auto& [worker, clock] : shard.clocks().workers())
          out["workers"][std::to_string(worker)] = clock;
      }
    }
  });
  return all.dump();
}

std::optional<uint64_t> Server::digest(const std::string& uid, uint32_t shard) {
  std::optional<uint64_t> digest;
  call([&] {
    if (const Hosted* hosted = hosting_.find(key_of(uid), shard)) digest = hosted->shard->digest();
  });
  return digest;
}

// ---- the thread

void Server::work() {
  remote::Listening listening = agent_->listen();
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    bool any = run_calls();
    any |= progress();
    const Duration sleep = look_at_grace();
    if (!any) listening.wait(sleep);
  }
  sessions_.clear();
}

bool Server::run_calls() {
  std::deque<std::function<void()>> calls;
  {
    std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  for (const auto& each : calls) each();
  return !calls.empty();
}

bool Server::progress() {
  bool any = forwarding_.progress();
  may_be_replaced_ = may_be_replaced();
  for (auto each = sessions_.begin(); each != sessions_.end();) {
    Session& session = *each->second;
    try {
      any |= serve(session);
      if (const auto error = session.line.failure()) throw *error;
      ++each;
    } catch (const std::exception& error) {
      log_debug("the line with table client {} ends: {}", session.client, error.what());
      each = sessions_.erase(each);
      any = true;
    }
  }
  return any;
}

Duration Server::look_at_grace() {
  Duration sleep = kLongSleep;
  for (auto& [key, table] : hosting_.tables()) {
    if (!table.spec.quorum) continue;
    for (auto& [number, hosted] : table.here) {
      Shard& shard = *hosted.shard;
      if (hosted.role != Role::kLeads || !shard.clocks().has_quorum()) {
        hosted.grace.reset();
        continue;
      }
      if (!hosted.grace) hosted.grace.emplace(seconds(table.spec.grace_s));
      if (hosted.grace->passed()) {
        const int64_t clock = shard.current_clock();
        shard.end_grace(clock);
        forwarding_.forward(table, number, Kind::kGrace, 0, clock);
        hosted.grace.reset();
        wake_sleepers(key);
      } else {
        sleep = std::min(sleep, hosted.grace->left());
      }
    }
  }
  return sleep;
}

// ---- requests

bool Server::serve(Session& session) {
  if (!session.line.is_connected()) return false;
  bool any = session.line.collect();
  while (session.line.has(session.next)) {
    if (!session.current && !begin(session)) break;
    if (session.current->load && !session.current->load->has_ended()) break;
    if (!carry_out(session)) break;
    session.current.reset();
    session.next++;
    any = true;
  }
  return send_answers(session) || any;
}

bool Server::begin(Session& session) {
  if (!session.line.may_write(session.next)) return false;
  Current& current = session.current.emplace();
  try {
    current.request = Incoming::read(session.line.incoming(session.next));
    check(current.request.head.sequence == session.next, Code::kInvalidArgument,
          "request {} of a line says that it is number {}", session.next,
          current.request.head.sequence);
    load(session, current);
  } catch (const Error& error) {
    current.failure = error;
  }
  return true;
}

void Server::load(Session& session, Current& current) {
  Incoming& request = current.request;
  const size_t bytes = request.bytes_elsewhere();
  if (request.head.where == Where::kInside) return;
  if (!request.head.forwarded &&
      (again(session, request) || !hosting_.leads(request, may_be_replaced_)))
    return;
  check(bytes <= request.source->bytes, Code::kInvalidArgument,
        "a request for a table has {} bytes in a region of {}", bytes, request.source->bytes);
  current.buffer = buffers_.take(bytes);
  std::vector<remote::Copy> copies;
  std::byte* to = current.buffer->data();
  const auto add = [&](uint64_t offset, size_t size) {
    copies.push_back({.local = to, .bytes = size, .sources = {{request.source, offset, 0}}});
    to += size;
  };
  if (request.head.where == Where::kPacked) {
    add(0, bytes);
  } else {
    const HostedTable* table = hosting_.find(request.head.table);
    check(table && request.head.dtype < RC_DTYPE_COUNT, Code::kInvalidArgument,
          "a push of a whole tensor to no table, or of no type");
    const auto dtype = static_cast<DataType>(request.head.dtype);
    size_t sum = 0;
    for (const Piece& piece : request.pieces) {
      const size_t size = bytes_of(table->spec, table->shards, piece, dtype);
      sum += size;
      check(sum <= bytes, Code::kInvalidArgument, "a push has {} bytes, which are too few", bytes);
      add(offset_of(table->spec, table->shards, piece.shard, dtype), size);
    }
  }
  current.load = std::make_shared<remote::Batch>(
      std::move(copies), kCopying,
      [agent = agent_.get()](const std::optional<Error>&) { agent->ring(); });
  agent_->begin(current.load);
}

bool Server::carry_out(Session& session) {
  Current& current = *session.current;
  auto answer = std::make_shared<Answer>();
  answer->sequence = answer->head.sequence = session.next;
  try {
    if (current.failure) throw *current.failure;
    if (current.load) {
      current.load->wait(-1);  // until its callback has returned; throws its error
      current.request.take(current.buffer);
    }
    const Done done = current.request.head.forwarded
                          ? do_forwarded(session, current.request, *answer)
                          : do_client(session, current.request, answer);
    if (done == Done::kLater) {
      if (!current.wait) current.wait.emplace(kHosting);
      check(!current.wait->passed(), Code::kGone, "the shard that was sent is not hosted here");
      return false;
    }
  } catch (const Error& error) {
    fail(error, session.line, *answer);
  } catch (const std::bad_alloc&) {
    fail(Error(Code::kRefused, "the server has no memory left"), session.line, *answer);
  }
  session.answers.push_back(std::move(answer));
  return true;
}

const ReplyHead* Server::again(Session& session, const Incoming& request) {
  const auto found = session.again.find(request.head.table);
  if (found == session.again.end()) return nullptr;
  if (found->second.round == request.head.round) return &found->second.head;
  session.again.erase(found);
  return nullptr;
}

Server::Done Server::do_client(Session& session, Incoming& request,
                               const std::shared_ptr<Answer>& answer) {
  const uint64_t table = request.head.table;
  ReplyHead& reply = answer->head;
  if (const ReplyHead* said = again(session, request)) {
    reply.outcome = said->outcome;
    reply.wake = said->wake;
    return Done::kYes;
  }
  may_be_replaced_ |= may_be_replaced();  // it may have been stopped meanwhile
  if (!hosting_.leads(request, may_be_replaced_)) {
    reply.outcome = Outcome::kMoved;
  } else if (hosting_.waits(request)) {
    reply.outcome = Outcome::kAgain;
    reply.wake = session.wakes + 1;
    session.asleep.insert(table);
  } else if (reply.merging = hosting_.other_merging(request); reply.merging != kUnmerged) {
    reply.outcome = Outcome::kAgain;
  }
  if (reply.outcome != Outcome::kDone) {
    session.again[table] = {request.head.round, reply};
    return Done::kYes;
  }
  if (request.head.pulls) hosting_.bytes_of_rows(request);
  if (request.head.pushes || !has_rows(request.head.kind)) change(session, request, answer);
  if (request.head.pulls) write_rows(session, request, *answer);
  return Done::kYes;
}

void Server::change(Session& session, const Incoming& request,
                    const std::shared_ptr<Answer>& answer) {
  check(request.head.client == session.client, Code::kRefused,
        "client {} sends what client {} has to send", session.client, request.head.client);
  check(is_of_clients(request.head.kind), Code::kInvalidArgument,
        "a client sends a request of the kind {}", static_cast<int>(request.head.kind));
  const Hosting::Changed changed = hosting_.change(request);
  answer->head.clock = changed.clock;
  const HostedTable& table = *hosting_.find(request.head.table);
  forwarding_.forward(table, request, changed.done, /*rule_fails=*/false, answer);
  forwarding_.forward(table, request, changed.failed, /*rule_fails=*/true, answer);
  if (request.head.kind == Kind::kTick || request.head.kind == Kind::kJoin)
    wake_sleepers(request.head.table);
  if (changed.error) throw *changed.error;
}

bool Server::is_backup(const Piece& piece, const RequestHead& head) {
  const Hosted* hosted = hosting_.find(head.table, piece.shard);
  if (!hosted || piece.epoch < hosted->installed) return false;
  if (hosted->role == Role::kLeads)
    return head.kind == Kind::kInstall && piece.epoch > hosted->epoch;
  if (piece.epoch < hosted->epoch) return false;  // of one that led before, and does not know it
  if (head.kind == Kind::kInstall) return true;
  return hosted->role == Role::kFollows && hosted->installed > 0;
}

Server::Done Server::do_forwarded(Session& session, const Incoming& request, Answer& answer) {
  const RequestHead& head = request.head;
  check(!request.pieces.empty() && (head.kind != Kind::kInstall || request.pieces.size() == 1),
        Code::kInvalidArgument, "{} shards are forwarded", request.pieces.size());
  std::vector<uint32_t> refused;
  for (const Piece& piece : request.pieces) {
    // Who sends a shard knows that this server is to have it, perhaps before it does itself.
    if (head.kind == Kind::kInstall && !hosting_.find(head.table, piece.shard)) return Done::kLater;
    if (!is_backup(piece, head)) refused.push_back(piece.shard);
  }
  if (refused.size() < request.pieces.size()) {
    if (head.kind == Kind::kInstall) {
      hosting_.install(request);
    } else {
      const Hosting::Changed changed = hosting_.change(request, refused);
      const auto& alike = head.rule_fails ? changed.failed : changed.done;
      if (alike.size() + refused.size() < request.pieces.size())
        throw changed.error.value_or(
            Error(Code::kMismatch, "a custom rule has thrown elsewhere, and not here"));
      answer.head.clock = changed.clock;
    }
  }
  if (!refused.empty()) {
    answer.head.outcome = Outcome::kMoved;
    answer.bytes = refused.size() * sizeof(uint32_t);
    std::memcpy(session.line.outgoing(answer.sequence) + sizeof(ReplyHead), refused.data(),
                answer.bytes);
  }
  return Done::kYes;
}

void Server::write_rows(Session& session, const Incoming& request, Answer& answer) {
  const size_t bytes = request.head.out_bytes;
  if (!request.target) {
    check(bytes <= kReplyBytes, Code::kInvalidArgument,
          "a pull of {} bytes does not say where they are to go", bytes);
    std::byte* to = session.line.outgoing(answer.sequence) + sizeof(ReplyHead);
    hosting_.copy_rows(request, {to, bytes});
    answer.bytes = bytes;
    return;
  }
  const HostedTable& table = *hosting_.find(request.head.table);
  std::vector<std::span<const std::byte>> from;
  // Of this host the rows are copied at once; otherwise they might change meanwhile.
  if (agent_->is_here(*request.target)) from = hosting_.places_of_rows(request);
  if (from.empty()) {
    answer.rows_memory = buffers_.take(bytes);
    hosting_.copy_rows(request, {answer.rows_memory->data(), bytes});
    from = {{answer.rows_memory->data(), bytes}};
  }
  const bool is_spread = request.head.out_spread && !table.spec.is_sparse;
  std::vector<remote::Copy> copies;
  size_t at = 0, piece = 0, left = 0;
  uint64_t offset = 0;
  for (std::span<const std::byte> stretch : from) {
    while (!stretch.empty()) {
      if (left == 0 && piece < request.pieces.size()) {
        const Piece& next = request.pieces[piece++];
        left = bytes_of(table.spec, table.shards, next, table.spec.dtype);
        offset = is_spread ? offset_of(table.spec, table.shards, next.shard, table.spec.dtype) : at;
        continue;
      }
      const size_t size = std::min(left, stretch.size());
      copies.push_back({.writes = true,
                        .local = const_cast<std::byte*>(stretch.data()),  // only read
                        .bytes = size,
                        .sources = {{request.target, offset, 0}}});
      stretch = stretch.subspan(size);
      at += size;
      offset += size;
      left -= size;
    }
  }
  answer.rows = std::make_shared<remote::Batch>(
      std::move(copies), kCopying,
      [agent = agent_.get()](const std::optional<Error>&) { agent->ring(); });
  agent_->begin(answer.rows);
}

bool Server::send_answers(Session& session) {
  const auto may_send = [](const Answer& answer) {
    return answer.waits.empty() && (!answer.rows || answer.rows->has_ended());
  };
  return std::erase_if(session.answers, [&](const std::shared_ptr<Answer>& each) {
           Answer& answer = *each;
           if (!may_send(answer)) return false;
           try {
             if (answer.rows) answer.rows->wait(-1);  // as in carry_out()
           } catch (const Error& error) {
             fail(error, session.line, answer);
           }
           answer.head.bytes = answer.bytes;
           std::memcpy(session.line.outgoing(answer.sequence), &answer.head, sizeof answer.head);
           session.line.send(answer.sequence, sizeof answer.head + answer.bytes);
           return true;
         }) > 0;
}

void Server::wake_sleepers(uint64_t table) {
  for (auto& [client, session] : sessions_)
    if (session->asleep.erase(table) > 0) session->line.wake(++session->wakes);
}

}  // namespace ringcoll::serving

// The C ABI of tables (ringcoll/tables.h).
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "engine/agent_handle.h"
#include "engine/caller_struct.h"
#include "engine/handles.h"
#include "ringcoll/tables.h"
#include "serving/client.h"
#include "serving/server.h"
#include "table/sharding.h"

using namespace ringcoll;

struct rc_table_server {
  std::unique_ptr<serving::Server> server;
  int born = fork_number();
};
struct rc_table_client {
  std::shared_ptr<serving::Client> client;
  int born = fork_number();
};

namespace {

template <typename Handle>
void check_handle(const Handle* handle, const char* name) {
  check(handle != nullptr, Code::kInvalidArgument, "{} is NULL", name);
  check(!is_inherited(handle->born), Code::kInvalidArgument,
        "this process was forked from the one that opened the {}: open one of this process", name);
}

serving::Server& server_of(const rc_table_server* server) {
  check_handle(server, "server");
  return *server->server;
}

serving::Client& client_of(const rc_table_client* client) {
  check_handle(client, "client");
  return *client->client;
}

std::string_view bytes_of(const void* data, size_t bytes) {
  check(data != nullptr, Code::kInvalidArgument, "an offer or answer is NULL");
  return {static_cast<const char*>(data), bytes};
}

void hand_out_bytes(const std::string& made, void* place, size_t* bytes) {
  check(place && bytes, Code::kInvalidArgument, "offer or answer is NULL, or its length is");
  const size_t room = std::exchange(*bytes, made.size());
  check(room >= made.size(), Code::kTooLong, "an offer or answer has {} bytes, and the room {}",
        made.size(), room);
  std::memcpy(place, made.data(), made.size());
}

std::string text_of(const char* text, const char* name) {
  check(text != nullptr, Code::kInvalidArgument, "{} is NULL", name);
  return text;
}

std::span<const int64_t> numbers_of(const int64_t* numbers, int64_t count, const char* name) {
  check(count >= 0 && (numbers != nullptr || count == 0), Code::kInvalidArgument,
        "{} is NULL, or their number is {}", name, count);
  return {numbers, static_cast<size_t>(count)};
}

void hand_out_json(const nlohmann::ordered_json& made, char** json) {
  check(json != nullptr, Code::kInvalidArgument, "json is NULL");
  *json = copy_of(made.dump());
}

/// A call that ringcoll_table_start() has started.
class TableRequest final : public Request {
 public:
  TableRequest(std::shared_ptr<serving::Client> client, const std::string& uid,
               const serving::Asked& asked)
      : client_(std::move(client)), uid_(uid), asked_(asked) {}

  void start(Done done, int64_t* current) {
    call_ = client_->start(uid_, asked_, [done = std::move(done), current](const auto& call) {
      if (current) *current = call.clock;
      if (done) done(call.error);
    });
  }
  bool wait(double limit_s) override { return client_->wait(*call_, limit_s); }
  bool may_wait() override { return true; }

 private:
  const std::shared_ptr<serving::Client> client_;
  const std::string uid_;
  const serving::Asked asked_;
  std::shared_ptr<serving::Call> call_;
};

serving::Asked asked_of(const rc_table_call& given) {
  const auto kind = static_cast<serving::Kind>(given.kind);
  check(given.kind == RC_TABLE_ROWS || given.kind == RC_TABLE_TICK || given.kind == RC_TABLE_JOIN ||
            given.kind == RC_TABLE_RULE || given.kind == RC_TABLE_ASSIGN,
        Code::kInvalidArgument, "kind is {}: there is no such call", static_cast<int>(given.kind));
  check(static_cast<size_t>(given.dtype) < RC_DTYPE_COUNT, Code::kInvalidArgument,
        "dtype is {}: there is no such type", static_cast<int>(given.dtype));
  check(given.values != nullptr || given.value_bytes == 0, Code::kInvalidArgument,
        "values is NULL, and has {} bytes", given.value_bytes);
  check(given.out != nullptr || given.out_bytes == 0, Code::kInvalidArgument,
        "out is NULL, and has {} bytes", given.out_bytes);
  return {.kind = kind,
          .ids = numbers_of(given.ids, given.id_count, "ids"),
          .pushes = given.pushes != 0 || given.kind == RC_TABLE_ASSIGN,
          .dtype = given.dtype,
          .values = {static_cast<const std::byte*>(given.values), given.value_bytes},
          .weight = given.weight == 0 ? 1 : given.weight,
          .pulls = given.pulls != 0,
          .out = {static_cast<std::byte*>(given.out), given.out_bytes},
          .clock = given.has_clock != 0 ? std::optional(given.clock) : std::nullopt,
          .is_attended = given.attended != 0};
}

}  // namespace

extern "C" {

rc_status ringcoll_table_describe(const char* table, int64_t shards, char** json) {
  return guarded([&] {
    const TableSpec spec = TableSpec::parse(text_of(table, "table"));
    check(shards > 0 && static_cast<size_t>(shards) <= serving::kMostShards, Code::kInvalidArgument,
          "table {}: {} shards: there are 1 to {}", spec.name, shards, serving::kMostShards);
    auto cuts = nlohmann::ordered_json::array();
    for (int64_t shard = 0; !spec.is_sparse && shard < shards; shard++) {
      const Range cut = cut_of(spec, shard, shards);
      cuts.push_back({cut.first, cut.count});
    }
    hand_out_json({{"table", nlohmann::ordered_json::parse(spec.json())},
                   {"state_slots", spec.rule.state_slots()},
                   {"cuts", cuts}},
                  json);
  });
}

// ---- servers

rc_status ringcoll_table_server_open(rc_agent* agent, rc_table_server** server) {
  return guarded([&] {
    begin_with_nothing(server, "server");
    auto made = std::make_unique<rc_table_server>();
    made->server = std::make_unique<serving::Server>(shared_agent_of(agent));
    *server = made.release();
  });
}

void ringcoll_table_server_close(rc_table_server* server) {
  if (!server || is_inherited(server->born)) return;
  delete server;
}

rc_status ringcoll_table_server_accept(rc_table_server* server, int64_t client, const void* offer,
                                       size_t offer_bytes, void* answer, size_t* answer_bytes) {
  return guarded([&] {
    hand_out_bytes(server_of(server).accept(client, bytes_of(offer, offer_bytes)), answer,
                   answer_bytes);
  });
}

rc_status ringcoll_table_server_drop(rc_table_server* server, int64_t client) {
  return guarded([&] { server_of(server).drop(client); });
}

rc_status ringcoll_table_server_leave(rc_table_server* server, int64_t client) {
  return guarded([&] { server_of(server).leave(client); });
}

rc_status ringcoll_table_server_host(rc_table_server* server, const char* uid, const char* table,
                                     uint32_t shard, int64_t shards, const int64_t* workers,
                                     int64_t worker_count) {
  return guarded([&] {
    const TableSpec spec = TableSpec::parse(text_of(table, "table"));
    server_of(server).host(text_of(uid, "uid"), spec, shard, shards,
                           numbers_of(workers, worker_count, "workers"));
  });
}

rc_status ringcoll_table_server_host_saved(rc_table_server* server, const char* uid,
                                           const char* table, uint32_t shard, int64_t shards,
                                           const int64_t* workers, int64_t worker_count,
                                           const void* saved, size_t bytes, const char* json) {
  return guarded([&] {
    check(saved != nullptr || bytes == 0, Code::kInvalidArgument, "saved is NULL");
    const auto said = nlohmann::json::parse(text_of(json, "json"), nullptr, false);
    check(said.is_object() && said.contains("rule") && said.contains("rows") &&
              said["rows"].is_number_unsigned(),
          Code::kInvalidArgument, "json is not what ringcoll_table_server_save() has written");
    const serving::SavedShard shard_saved{.rule = Rule::parse(said["rule"].dump()),
                                          .rows = said["rows"].get<size_t>(),
                                          .columns = {static_cast<const std::byte*>(saved), bytes}};
    const TableSpec spec = TableSpec::parse(text_of(table, "table"));
    server_of(server).host_saved(text_of(uid, "uid"), spec, shard, shards,
                                 numbers_of(workers, worker_count, "workers"), shard_saved);
  });
}

rc_status ringcoll_table_server_save(rc_table_server* server, const char* uid, uint32_t shard,
                                     void** memory, size_t* bytes, char** json) {
  return guarded([&] {
    begin_with_nothing(memory, "memory");
    check(bytes && json, Code::kInvalidArgument, "bytes or json is NULL");
    const serving::Server::Saved saved = server_of(server).save(text_of(uid, "uid"), shard);
    *memory = saved.memory;
    *bytes = saved.bytes;
    *json = copy_of(saved.json);
  });
}

rc_status ringcoll_table_server_unhost(rc_table_server* server, const char* uid, uint32_t shard) {
  return guarded([&] { server_of(server).unhost(text_of(uid, "uid"), shard); });
}

rc_status ringcoll_table_server_lead(rc_table_server* server, const char* uid, uint32_t shard,
                                     int64_t epoch, const int64_t* backups, int64_t backup_count) {
  return guarded([&] {
    server_of(server).lead(text_of(uid, "uid"), shard, epoch,
                           numbers_of(backups, backup_count, "backups"));
  });
}

rc_status ringcoll_table_server_follow(rc_table_server* server, const char* uid, uint32_t shard,
                                       int64_t epoch) {
  return guarded([&] { server_of(server).follow(text_of(uid, "uid"), shard, epoch); });
}

rc_status ringcoll_table_server_serve_until(rc_table_server* server, double monotonic_s) {
  return guarded([&] {
    check(monotonic_s >= 0 && monotonic_s < 1e9, Code::kInvalidArgument,
          "monotonic_s is {}: no time of CLOCK_MONOTONIC", monotonic_s);
    server_of(server).serve_until(Clock::time_point(seconds(monotonic_s)));
  });
}

rc_status ringcoll_table_server_offer(rc_table_server* server, int64_t other, void* offer,
                                      size_t* offer_bytes) {
  return guarded([&] { hand_out_bytes(server_of(server).offer(other), offer, offer_bytes); });
}

rc_status ringcoll_table_server_complete(rc_table_server* server, int64_t other, const void* answer,
                                         size_t answer_bytes) {
  return guarded([&] { server_of(server).complete(other, bytes_of(answer, answer_bytes)); });
}

rc_status ringcoll_table_server_part(rc_table_server* server, int64_t other) {
  return guarded([&] { server_of(server).part(other); });
}

rc_status ringcoll_table_server_events(rc_table_server* server, char** json) {
  return guarded([&] {
    static constexpr const char* kKinds[] = {"installed", "failed", "deposed", "parted"};
    auto all = nlohmann::ordered_json::array();
    for (const serving::ServerEvent& event : server_of(server).events())
      all.push_back({kKinds[static_cast<int>(event.kind)], event.uid, event.shard, event.epoch,
                     event.server});
    hand_out_json(all, json);
  });
}

rc_status ringcoll_table_server_stats(rc_table_server* server, char** json) {
  return guarded([&] {
    check(json != nullptr, Code::kInvalidArgument, "json is NULL");
    *json = copy_of(server_of(server).stats());
  });
}

// ---- clients

rc_status ringcoll_table_client_open(rc_agent* agent, int64_t id, rc_table_client** client) {
  return guarded([&] {
    begin_with_nothing(client, "client");
    auto made = std::make_unique<rc_table_client>();
    made->client = std::make_shared<serving::Client>(shared_agent_of(agent), id);
    *client = made.release();
  });
}

void ringcoll_table_client_close(rc_table_client* client) {
  if (!client || is_inherited(client->born)) return;
  client->client->close();
  delete client;
}

rc_status ringcoll_table_client_offer(rc_table_client* client, int64_t server, void* offer,
                                      size_t* offer_bytes) {
  return guarded([&] { hand_out_bytes(client_of(client).offer(server), offer, offer_bytes); });
}

rc_status ringcoll_table_client_complete(rc_table_client* client, int64_t server,
                                         const void* answer, size_t answer_bytes) {
  return guarded([&] { client_of(client).complete(server, bytes_of(answer, answer_bytes)); });
}

rc_status ringcoll_table_client_part(rc_table_client* client, int64_t server) {
  return guarded([&] { client_of(client).part(server); });
}

rc_status ringcoll_table_client_table(rc_table_client* client, const char* uid, const char* table,
                                      int64_t shards) {
  return guarded([&] {
    client_of(client).open(text_of(uid, "uid"), TableSpec::parse(text_of(table, "table")), shards);
  });
}

rc_status ringcoll_table_client_route(rc_table_client* client, const char* uid,
                                      const int64_t* servers, int64_t shards) {
  return guarded([&] {
    client_of(client).route(text_of(uid, "uid"), numbers_of(servers, shards, "servers"));
  });
}

rc_status ringcoll_table_client_astray(rc_table_client* client, char** json) {
  return guarded([&] {
    const serving::Client::Astray found = client_of(client).astray();
    hand_out_json({{"tables", found.tables}, {"parted", found.parted}}, json);
  });
}

rc_status ringcoll_table_start(rc_table_client* client, const rc_table_call* call,
                               rc_request** request) {
  return guarded([&] {
    begin_with_nothing(request, "request");
    const rc_table_call given = from_caller(call);
    client_of(client);
    auto made = std::make_unique<rc_request>();
    auto started =
        std::make_shared<TableRequest>(client->client, text_of(given.uid, "uid"), asked_of(given));
    auto done = done_of(given, made.get());
    made->request = started;
    hand_out(std::move(made), request, [&] { started->start(std::move(done), given.current); });
  });
}

}  // extern "C"

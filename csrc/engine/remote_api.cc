// The C ABI of agents, regions and copies (ringcoll/remote.h).
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/interruption.h"
#include "connect/connector.h"
#include "engine/agent_handle.h"
#include "engine/caller_struct.h"
#include "engine/handles.h"
#include "mesh/mesh.h"
#include "remote/agent.h"
#include "remote/pool.h"
#include "ringcoll/remote.h"
#include "topology/location.h"
#include "transport/knobs.h"

using namespace ringcoll;

struct rc_region {
  std::weak_ptr<remote::Agent> agent;
  std::shared_ptr<remote::Region> region;
  int born = fork_number();
};
struct rc_remote {
  std::shared_ptr<const remote::RegionHandle> handle;
};

const std::shared_ptr<remote::Agent>& ringcoll::shared_agent_of(const rc_agent* agent) {
  check(agent != nullptr, Code::kInvalidArgument, "agent is NULL");
  check(!is_inherited(agent->born), Code::kInvalidArgument,
        "this process was forked from the one that opened the agent: open one of this process");
  return agent->agent;
}

namespace {

// The door for the ranks of a job.
constexpr const char* kRanksDoor = "ranks";

remote::Agent& agent_of(const rc_agent* agent) { return *shared_agent_of(agent); }

remote::Region& region_of(const rc_region* region) {
  check(region != nullptr, Code::kInvalidArgument, "region is NULL");
  check(!is_inherited(region->born), Code::kInvalidArgument,
        "this process was forked from the one that registered the region");
  return *region->region;
}

double check_timeout(double timeout_s, const char* name = "timeout_s") {
  check(timeout_s >= 0, Code::kInvalidArgument, "{} is {}: it is a number of seconds", name,
        timeout_s);
  return timeout_s;
}

std::string leaf_of(const Location& location) {
  return fmt::format("{}", fmt::join(location.placement.groups, "."));
}

std::unique_ptr<rc_agent> open_agent(const rc_agent_options* options, Config config,
                                     const Location& location) {
  rc_agent_options given{};
  if (options) given = from_caller(options);
  if (check_timeout(given.timeout_s) > 0) config.timeout_s = given.timeout_s;
  auto agent = std::make_unique<rc_agent>();
  agent->timeout_s = config.timeout_s;
  agent->agent = std::make_shared<remote::Agent>(own_interfaces(config), location.host_id, &config);
  agent->leaf = leaf_of(location);
  return agent;
}

nlohmann::ordered_json texts_of(const std::vector<remote::Target>& targets) {
  auto all = nlohmann::ordered_json::array();
  for (const remote::Target& target : targets) all.push_back(target.text());
  return all;
}

std::vector<remote::Copy> copies_of(const rc_copies& given) {
  check(given.count >= 0 && (given.copies || given.count == 0), Code::kInvalidArgument,
        "copies is NULL, or count is negative");
  std::vector<remote::Copy> copies(static_cast<size_t>(given.count));
  for (size_t i = 0; i < copies.size(); i++) {
    const rc_copy& from = given.copies[i];
    remote::Copy& to = copies[i];
    check(from.source_count > 0 && from.sources, Code::kInvalidArgument,
          "copy {}: sources is NULL or empty", i);
    to.writes = from.writes != 0;
    to.local = static_cast<std::byte*>(from.local);
    to.bytes = from.bytes;
    if (from.has_notice != 0) to.notice = from.notice;
    for (int64_t j = 0; j < from.source_count; j++) {
      const rc_source& source = from.sources[j];
      check(source.region != nullptr, Code::kInvalidArgument, "copy {}: region {} is NULL", i, j);
      to.sources.push_back({source.region->handle, source.offset, source.distance});
    }
  }
  return copies;
}

/// Copies that ringcoll_start_copies() has started.
class CopyRequest final : public Request {
 public:
  CopyRequest(std::vector<remote::Copy> copies, double timeout_s, Done done)
      : batch_(std::make_shared<remote::Batch>(std::move(copies), seconds(timeout_s),
                                               std::move(done))) {}
  const std::shared_ptr<remote::Batch>& batch() const { return batch_; }
  bool wait(double limit_s) override { return batch_->wait(limit_s); }
  bool may_wait() override { return batch_->may_wait(); }

 private:
  std::shared_ptr<remote::Batch> batch_;
};

}  // namespace

extern "C" {

rc_status ringcoll_agent_open(const rc_agent_options* options, rc_agent** agent) {
  return guarded([&] {
    begin_with_nothing(agent, "agent");
    Config config = read_config({}, nullptr);
    set_log_level_from(config);
    Location location = find_placements({Location::here(config, 0)}).front();
    *agent = open_agent(options, config, location).release();
  });
}

rc_status ringcoll_comm_agent(rc_comm* comm, const rc_agent_options* options, rc_agent** agent) {
  return guarded([&] {
    begin_with_nothing(agent, "agent");
    Communicator& communicator = engine_of(comm).comm();
    const Location& location = communicator.topology().at(communicator.rank());
    auto made = open_agent(options, communicator.config(), location);
    made->agent->admit(kRanksDoor,
                       communicator.group().mesh().connector().secret_for("ringcoll agents"));
    *agent = made.release();
  });
}

void ringcoll_agent_close(rc_agent* agent) {
  if (!agent || is_inherited(agent->born)) return;
  delete agent;
}

uint64_t ringcoll_agent_id(const rc_agent* agent) { return agent ? agent->agent->id() : 0; }

rc_status ringcoll_agent_admit(rc_agent* agent, const char* name, const char* key, uint16_t port,
                               char** json) {
  return guarded([&] {
    check(name && key && json, Code::kInvalidArgument, "name, key or json is NULL");
    *json = copy_of(texts_of(agent_of(agent).admit(name, key, port)).dump());
  });
}

rc_status ringcoll_agent_stats(rc_agent* agent, char** json) {
  return guarded([&] {
    check(json != nullptr, Code::kInvalidArgument, "json is NULL");
    remote::Agent& of = agent_of(agent);
    auto stats = of.stats();
    nlohmann::ordered_json all = {{"id", fmt::format("{:016x}", of.id())},
                                  {"host", fmt::format("{:016x}", of.host())},
                                  {"leaf", agent->leaf},
                                  {"addresses", texts_of(of.addresses())},
                                  {"regions", stats.regions},
                                  {"links", stats.links},
                                  {"served", nlohmann::ordered_json::object()}};
    for (auto& each : stats.served) all["served"][fmt::format("{:016x}", each.agent)] = each.bytes;
    all["by"] = {{"host", stats.ways[remote::Way::kHost]},
                 {"tcp", stats.ways[remote::Way::kTcp]},
                 {"rdma", stats.ways[remote::Way::kRdma]}};
    all["answered"] = stats.answered;
    *json = copy_of(all.dump());
  });
}

rc_status ringcoll_allocate(size_t bytes, void** memory) {
  return guarded([&] {
    begin_with_nothing(memory, "memory");
    *memory = remote::Pool::of_process().allocate(bytes);
  });
}

rc_status ringcoll_release(void* memory) {
  return guarded([&] { remote::Pool::of_process().release(static_cast<std::byte*>(memory)); });
}

rc_status ringcoll_register(rc_agent* agent, void* memory, size_t bytes, int writable,
                            rc_region** region) {
  return guarded([&] {
    begin_with_nothing(region, "region");
    remote::Agent& of = agent_of(agent);
    auto made = std::make_unique<rc_region>();
    made->agent = agent->agent;
    made->region = of.open(memory, bytes, writable != 0);
    *region = made.release();
  });
}

rc_status ringcoll_region_handle(rc_region* region, void* handle, size_t* bytes) {
  return guarded([&] {
    check(handle && bytes, Code::kInvalidArgument, "handle or bytes is NULL");
    remote::Region& of = region_of(region);
    auto agent = region->agent.lock();
    check(agent != nullptr, Code::kGone, "the agent of the region is closed");
    std::string made = agent->handle_of(of);
    size_t room = std::exchange(*bytes, made.size());
    check(room >= made.size(), Code::kTooLong, "the handle has {} bytes, and the room {}",
          made.size(), room);
    std::memcpy(handle, made.data(), made.size());
  });
}

rc_status ringcoll_region_notice(rc_region* region, double timeout_s, uint64_t* value) {
  return guarded([&] {
    check(value != nullptr, Code::kInvalidArgument, "value is NULL");
    *value = region_of(region).take_notice(Deadline(seconds(check_timeout(timeout_s))));
  });
}

rc_status ringcoll_region_close(rc_region* region, double timeout_s) {
  return guarded([&] {
    if (!region || is_inherited(region->born)) return;
    if (auto agent = region->agent.lock())
      agent->close(region->region, Deadline(seconds(check_timeout(timeout_s))));
    delete region;
  });
}

rc_status ringcoll_attach(const void* handle, size_t bytes, rc_remote** remote) {
  return guarded([&] {
    begin_with_nothing(remote, "remote");
    check(handle != nullptr, Code::kInvalidArgument, "handle is NULL");
    auto decoded = remote::decode({static_cast<const char*>(handle), bytes});
    *remote = new rc_remote{std::make_shared<const remote::RegionHandle>(std::move(decoded))};
  });
}

void ringcoll_detach(rc_remote* remote) { delete remote; }

uint64_t ringcoll_remote_bytes(const rc_remote* remote) {
  return remote ? remote->handle->bytes : 0;
}

rc_status ringcoll_copy(rc_agent* agent, const rc_copies* copies) {
  return guarded([&] {
    rc_copies given = from_caller(copies);
    check(!given.done, Code::kInvalidArgument,
          "done is for ringcoll_start_copies: what ringcoll_copy does has ended when it returns");
    remote::Agent& of = agent_of(agent);
    double limit = check_timeout(given.timeout_s) > 0 ? given.timeout_s : agent->timeout_s;
    auto batch = std::make_shared<remote::Batch>(copies_of(given), seconds(limit), nullptr);
    std::optional<Interruption> interruption;
    if (given.interrupted)
      interruption.emplace([&] { return given.interrupted(given.interrupted_state) != 0; }, [] {});
    of.run(batch);
  });
}

rc_status ringcoll_start_copies(rc_agent* agent, const rc_copies* copies, rc_request** request) {
  return guarded([&] {
    begin_with_nothing(request, "request");
    rc_copies given = from_caller(copies);
    check(!given.interrupted, Code::kInvalidArgument,
          "interrupted is for ringcoll_copy: ringcoll_start_copies returns at once");
    remote::Agent& of = agent_of(agent);
    double limit = check_timeout(given.timeout_s) > 0 ? given.timeout_s : agent->timeout_s;
    auto made = std::make_unique<rc_request>();
    auto started =
        std::make_shared<CopyRequest>(copies_of(given), limit, done_of(given, made.get()));
    made->request = started;
    hand_out(std::move(made), request, [&] { of.start(started->batch()); });
  });
}

rc_status ringcoll_agent_dial(rc_agent* agent, const char* address, double timeout_s,
                              uint64_t* connection) {
  return guarded([&] {
    check(address && connection, Code::kInvalidArgument, "address or connection is NULL");
    Deadline deadline(seconds(check_timeout(timeout_s)));
    *connection = agent_of(agent).dial(remote::Target::parse(address), deadline);
  });
}

rc_status ringcoll_agent_send(rc_agent* agent, uint64_t connection, const void* data,
                              size_t bytes) {
  return guarded([&] {
    check(data || bytes == 0, Code::kInvalidArgument, "data is NULL");
    agent_of(agent).send(connection, std::string(static_cast<const char*>(data), bytes));
  });
}

rc_status ringcoll_agent_receive(rc_agent* agent, double timeout_s, rc_event* event) {
  return guarded([&] {
    check(event != nullptr, Code::kInvalidArgument, "event is NULL");
    check_size(event->struct_size, history_of(event));
    rc_event told{.struct_size = event->struct_size};
    auto next = agent_of(agent).receive(Deadline(seconds(check_timeout(timeout_s))));
    if (next) {
      told.kind = next->kind == remote::Event::Kind::kOpened    ? RC_EVENT_OPENED
                  : next->kind == remote::Event::Kind::kMessage ? RC_EVENT_MESSAGE
                                                                : RC_EVENT_CLOSED;
      told.connection = next->connection;
      told.data = copy_of(next->text);
      told.bytes = next->text.size();
    }
    std::memcpy(event, &told, std::min(event->struct_size, sizeof told));
  });
}

void ringcoll_agent_hang_up(rc_agent* agent, uint64_t connection) {
  if (!agent || is_inherited(agent->born)) return;
  agent->agent->hang_up(connection);
}

}  // extern "C"

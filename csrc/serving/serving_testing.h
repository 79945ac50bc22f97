// Clients and servers of one process for tests.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/interfaces.h"
#include "remote/agent.h"
#include "serving/client.h"
#include "serving/server.h"

namespace ringcoll::serving {

/// Agents of different hosts copy over TCP, and those of one host through shared memory.
inline std::shared_ptr<remote::Agent> new_agent(const std::string& host) {
  const std::vector<Interface> loopback{
      {.name = "lo", .address = Address::parse("127.0.0.1:0"), .up = true, .loopback = true}};
  auto agent = std::make_shared<remote::Agent>(loopback, host);
  agent->admit("tables", "key");
  return agent;
}

inline constexpr const char* kUid = "a table";

struct ServerNode {
  explicit ServerNode(const std::string& host) : agent(new_agent(host)) {}
  std::shared_ptr<remote::Agent> agent;
  Server server{agent};
};

struct ClientNode {
  ClientNode(const std::string& host, int64_t number)
      : id(number), agent(new_agent(host)), client(agent, number) {}
  int64_t id;
  std::shared_ptr<remote::Agent> agent;
  Client client;

  void connect(int64_t number, Server& server) {
    client.complete(number, server.accept(id, client.offer(number)));
  }
  void wait(Call& call) {
    check(client.wait(call, 20), Code::kTimeout, "a call on a table has not ended after 20 s");
  }
  std::vector<float> pull(std::vector<int64_t> ids, size_t elements,
                          std::optional<int64_t> clock = {}) {
    std::vector<float> out(elements, -1);
    auto call = client.start(
        kUid,
        {.ids = ids, .pulls = true, .out = std::as_writable_bytes(std::span(out)), .clock = clock},
        nullptr);
    wait(*call);
    return out;
  }
  std::shared_ptr<Call> start_push(const std::vector<int64_t>& ids,
                                   const std::vector<float>& values,
                                   std::optional<int64_t> clock = {}) {
    return client.start(
        kUid,
        {.ids = ids, .pushes = true, .values = std::as_bytes(std::span(values)), .clock = clock},
        nullptr);
  }
  void push(const std::vector<int64_t>& ids, const std::vector<float>& values,
            std::optional<int64_t> clock = {}) {
    wait(*start_push(ids, values, clock));
  }
  int64_t tick(int64_t clock) {
    auto call = client.start(kUid, {.kind = Kind::kTick, .clock = clock}, nullptr);
    wait(*call);
    return call->clock;
  }
};

inline TableSpec sparse(const std::string& more = "") {
  return TableSpec::parse(R"({"name": "t", "dtype": "float32", "row_shape": [4], )" + more +
                          R"("rule": {"rule": "sum"}})");
}

inline TableSpec dense(int64_t count, int64_t stretch = 0) {
  const std::string cut = stretch ? ", \"stretch\": " + std::to_string(stretch) : "";
  return TableSpec::parse(R"({"name": "t", "dtype": "float32", "shape": [)" +
                          std::to_string(count) + R"(], "rule": {"rule": "sum"})" + cut + "}");
}

inline void connect(Server& from, int64_t id, int64_t number, Server& to) {
  from.complete(number, to.accept(id, from.offer(number)));
}

}  // namespace ringcoll::serving

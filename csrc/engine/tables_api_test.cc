// Tables through the C ABI: a server and a client of one process, as a program in C has them.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/abi_testing.h"
#include "ringcoll/tables.h"

namespace ringcoll {
namespace {

using testing::error_text;

constexpr const char* kUid = "a table";
constexpr int64_t kServer = 1, kClient = 7, kShards = 2;

/// How many rules of the program's own were made: what their maker is given.
int made = 0;

/// A rule of the program's own: adds a push as often as it was made to, and counts.
struct Adding {
  static constexpr const char* kMaker = "adding";
  int times = 0;
  int64_t calls = 0;

  static rc_status make(void* count, const char* data, size_t bytes, void** rule, char* error) {
    const int times = std::atoi(std::string(data, bytes).c_str());
    if (times == 0) {
      std::strncpy(error, "adds nothing", RC_RULE_ERROR_ROOM);
      return RC_INVALID_ARGUMENT;
    }
    ++*static_cast<int*>(count);
    *rule = new Adding{.times = times};
    return RC_OK;
  }
  static rc_status apply(void* rule, int64_t id, rc_dtype dtype, void* value, int64_t count,
                         rc_dtype push_dtype, const void* push, char* error) {
    auto& mine = *static_cast<Adding*>(rule);
    mine.calls++;
    if (id < 0 || dtype != RC_FLOAT32 || push_dtype != RC_FLOAT32) {
      std::strncpy(error, "a row that it does not want", RC_RULE_ERROR_ROOM);
      return RC_INVALID_ARGUMENT;
    }
    for (int64_t i = 0; i < count; i++)
      static_cast<float*>(value)[i] +=
          static_cast<float>(mine.times) * static_cast<const float*>(push)[i];
    return RC_OK;
  }
  static rc_status save(void* rule, char** data, size_t* bytes, char*) {
    const std::string text = std::to_string(static_cast<Adding*>(rule)->times);
    *data = ::strdup(text.c_str());
    *bytes = text.size();
    return RC_OK;
  }
  static void drop(void* rule) { delete static_cast<Adding*>(rule); }
};

class TablesApi : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(ringcoll_agent_open(nullptr, &agent_), RC_OK) << error_text();
    char* json = nullptr;
    ASSERT_EQ(ringcoll_agent_admit(agent_, "tables", "key", 0, &json), RC_OK) << error_text();
    ringcoll_free(json);
    ASSERT_EQ(ringcoll_table_server_open(agent_, &server_), RC_OK) << error_text();
    ASSERT_EQ(ringcoll_table_client_open(agent_, kClient, &client_), RC_OK) << error_text();
    std::array<char, 1024> offer{}, answer{};
    size_t offered = offer.size(), answered = answer.size();
    ASSERT_EQ(ringcoll_table_client_offer(client_, kServer, offer.data(), &offered), RC_OK);
    ASSERT_EQ(ringcoll_table_server_accept(server_, kClient, offer.data(), offered, answer.data(),
                                           &answered),
              RC_OK);
    ASSERT_EQ(ringcoll_table_client_complete(client_, kServer, answer.data(), answered), RC_OK);
  }
  void TearDown() override {
    ringcoll_table_client_close(client_);
    ringcoll_table_server_close(server_);
    ringcoll_agent_close(agent_);
  }

  rc_status host(const std::string& rule) {
    const std::string table =
        R"({"name": "t", "dtype": "float32", "row_shape": [2], "rule": )" + rule + "}";
    for (uint32_t shard = 0; shard < kShards; shard++) {
      const rc_status made =
          ringcoll_table_server_host(server_, kUid, table.c_str(), shard, kShards, nullptr, 0);
      if (made != RC_OK) return made;
      EXPECT_EQ(ringcoll_table_server_lead(server_, kUid, shard, 1, nullptr, 0), RC_OK);
    }
    EXPECT_EQ(ringcoll_table_client_table(client_, kUid, table.c_str(), kShards), RC_OK);
    const std::vector<int64_t> servers(kShards, kServer);
    return ringcoll_table_client_route(client_, kUid, servers.data(), kShards);
  }
  rc_status run(rc_table_call call) {
    call.struct_size = sizeof call;
    call.uid = kUid;
    rc_request* request = nullptr;
    if (const rc_status began = ringcoll_table_start(client_, &call, &request); began != RC_OK)
      return began;
    int done = 0;
    const rc_status ended = ringcoll_wait(request, 20, &done);
    EXPECT_EQ(done, 1);
    ringcoll_request_free(request);
    return ended;
  }
  rc_status push(const std::vector<int64_t>& ids, const std::vector<float>& values) {
    return run({.ids = ids.data(),
                .id_count = std::ssize(ids),
                .pushes = 1,
                .dtype = RC_FLOAT32,
                .values = values.data(),
                .value_bytes = values.size() * sizeof(float)});
  }
  std::vector<float> pull(const std::vector<int64_t>& ids) {
    std::vector<float> out(2 * ids.size(), -1);
    EXPECT_EQ(run({.ids = ids.data(),
                   .id_count = std::ssize(ids),
                   .pulls = 1,
                   .out = out.data(),
                   .out_bytes = out.size() * sizeof(float)}),
              RC_OK)
        << error_text();
    return out;
  }

  rc_agent* agent_ = nullptr;
  rc_table_server* server_ = nullptr;
  rc_table_client* client_ = nullptr;
};

TEST_F(TablesApi, RowsArePushedAndPulled) {
  ASSERT_EQ(host(R"({"rule": "sgd", "lr": 0.5})"), RC_OK) << error_text();
  ASSERT_EQ(push({3, -4, 3}, {1, 2, 3, 4, 5, 6}), RC_OK) << error_text();
  EXPECT_EQ(pull({-4, 3, 9}), (std::vector<float>{-1.5F, -2, -3, -4, 0, 0}));
  char* json = nullptr;
  ASSERT_EQ(ringcoll_table_server_stats(server_, &json), RC_OK);
  const auto stats = nlohmann::json::parse(json);
  int64_t rows = 0;
  for (const auto& shard : stats["shards"]) rows += shard["rows"].get<int64_t>();
  EXPECT_EQ(rows, 2);
  ringcoll_free(json);
}

TEST_F(TablesApi, ARuleIsChanged) {
  ASSERT_EQ(host(R"({"rule": "sum"})"), RC_OK) << error_text();
  const std::string assign = R"({"rule": "assign"})";
  ASSERT_EQ(run({.kind = RC_TABLE_RULE, .values = assign.data(), .value_bytes = assign.size()}),
            RC_OK)
      << error_text();
  for (int i = 0; i < 2; i++) ASSERT_EQ(push({1}, {7, 8}), RC_OK) << error_text();
  EXPECT_EQ(pull({1}), (std::vector<float>{7, 8}));
}

TEST_F(TablesApi, ARuleOfTheProgramRunsInItsServers) {
  made = 0;
  ASSERT_EQ(ringcoll_table_rules(Adding::kMaker, Adding::make, Adding::apply, Adding::save,
                                 Adding::drop, &made),
            RC_OK)
      << error_text();
  ASSERT_EQ(host(R"({"rule": "custom", "maker": "adding", "data": "3"})"), RC_OK) << error_text();
  EXPECT_GE(made, kShards);
  ASSERT_EQ(push({1, 2, 1}, {1, 1, 2, 2, 10, 10}), RC_OK) << error_text();
  EXPECT_EQ(pull({1, 2}), (std::vector<float>{33, 33, 6, 6}));
  // Nothing of a push that it refuses is done, and the caller gets its words.
  EXPECT_EQ(push({-1}, {1, 1}), RC_INVALID_ARGUMENT);
  EXPECT_EQ(error_text(), "table t: row -1: rule custom: a row that it does not want");
  EXPECT_EQ(pull({-1, 1}), (std::vector<float>{0, 0, 33, 33}));
}

TEST_F(TablesApi, ARuleThatCannotBeMadeIsRefusedWithItsWords) {
  made = 0;
  ASSERT_EQ(ringcoll_table_rules(Adding::kMaker, Adding::make, Adding::apply, Adding::save,
                                 Adding::drop, &made),
            RC_OK);
  EXPECT_EQ(host(R"({"rule": "custom", "maker": "adding", "data": "none"})"), RC_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("adds nothing"), std::string::npos) << error_text();
  EXPECT_EQ(host(R"({"rule": "custom", "maker": "nobody", "data": ""})"), RC_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("nobody"), std::string::npos) << error_text();
}

TEST_F(TablesApi, WhatMakesNoSenseIsRefusedAndChangesNothing) {
  ASSERT_EQ(host(R"({"rule": "sum"})"), RC_OK) << error_text();
  const std::vector<float> two{1, 2};
  const int64_t id = 1;
  rc_request* request = nullptr;
  rc_table_call call{.struct_size = sizeof call, .uid = "another"};
  EXPECT_EQ(ringcoll_table_start(client_, &call, &request), RC_INVALID_ARGUMENT);
  EXPECT_EQ(ringcoll_table_start(client_, nullptr, &request), RC_INVALID_ARGUMENT);
  EXPECT_EQ(ringcoll_table_start(nullptr, &call, &request), RC_INVALID_ARGUMENT);
  EXPECT_EQ(run({.ids = &id, .id_count = 1}), RC_INVALID_ARGUMENT);  // neither pushes nor pulls
  EXPECT_EQ(run({.kind = static_cast<rc_table_call_kind>(5)}), RC_INVALID_ARGUMENT);
  EXPECT_EQ(run({.ids = &id, .id_count = 1, .pushes = 1, .values = two.data(), .value_bytes = 4}),
            RC_INVALID_ARGUMENT);
  EXPECT_EQ(run({.ids = nullptr, .id_count = 1, .pulls = 1}), RC_INVALID_ARGUMENT);
  char* json = nullptr;
  EXPECT_EQ(ringcoll_table_describe(R"({"name": "t"})", 1, &json), RC_INVALID_ARGUMENT);
  EXPECT_EQ(ringcoll_table_server_stats(server_, nullptr), RC_INVALID_ARGUMENT);
  EXPECT_EQ(ringcoll_table_rules(nullptr, Adding::make, Adding::apply, Adding::save, Adding::drop,
                                 nullptr),
            RC_INVALID_ARGUMENT);
  EXPECT_EQ(ringcoll_table_rules(Adding::kMaker, nullptr, Adding::apply, Adding::save, Adding::drop,
                                 nullptr),
            RC_INVALID_ARGUMENT);
  EXPECT_EQ(pull({id}), (std::vector<float>{0, 0}));
}

TEST_F(TablesApi, ACallOnAShardThatIsLostIsGone) {
  ASSERT_EQ(host(R"({"rule": "sum"})"), RC_OK) << error_text();
  const std::vector<int64_t> lost(kShards, -1);
  ASSERT_EQ(ringcoll_table_client_route(client_, kUid, lost.data(), kShards), RC_OK);
  EXPECT_EQ(push({1, 2, 3, 4}, std::vector<float>(8, 1)), RC_GONE);
}

}  // namespace
}  // namespace ringcoll

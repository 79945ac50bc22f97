// How many streams a link over TCP has, in a transport and in its parts.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;

TEST(TcpReach, StreamsMustAgree) {
  const TransportRow& row = *find_transport("tcp");
  Switchboard board;
  Config more = test_config();
  more.tcp_streams++;
  TestRank here(row, 0, 2, board, 4096);
  TestRank there(row, 1, 2, board, 4096, more);
  std::string reason = here.transport->reach(1, there.transport->address());
  EXPECT_NE(reason.find("RINGCOLL_TCP_STREAMS differs: 3 there, 2 here"), std::string::npos)
      << reason;
}

/// The sockets of a link between the two members of a part.
size_t sockets_of_part(TestRank& a, TestRank& b, bool has_streams) {
  TransportPart of_a{0, {0, 1}, {}, has_streams}, of_b{1, {0, 1}, {}, has_streams};
  auto one = a.transport->part(of_a), other = b.transport->part(of_b);
  EXPECT_EQ(one->reach(1, other->address()), "");
  EXPECT_EQ(other->reach(0, one->address()), "");
  EXPECT_EQ(one->sockets_to(1), other->sockets_to(0));
  return one->sockets_to(1);
}

// Those of messages have one: a job has many parts.
TEST(TcpParts, HaveTheStreamsOfTheWholeForCalls) {
  const TransportRow& row = *find_transport("tcp");
  Switchboard board;
  for (int streams : {0, 1, 3}) {
    Config config = test_config();
    config.tcp_streams = streams;
    TestRank here(row, 0, 2, board, 4096, config), there(row, 1, 2, board, 4096, config);
    EXPECT_EQ(here.transport->reach(1, there.transport->address()), "");
    EXPECT_EQ(there.transport->reach(0, here.transport->address()), "");
    EXPECT_EQ(sockets_of_part(here, there, true), here.transport->sockets_to(1)) << streams;
    EXPECT_EQ(sockets_of_part(here, there, false), 1u) << streams;
  }
}

// Thousands of groups must not take all descriptors of the process.
TEST(TcpParts, HaveFewerStreamsWhenThereAreMany) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const TransportRow& row = *find_transport("tcp");
  Switchboard board;
  Config config = test_config();
  config.tcp_streams = 4;
  TestRank here(row, 0, 2, board, 4096, config), there(row, 1, 2, board, 4096, config);
  auto sockets_of_next = [&](std::vector<std::unique_ptr<Transport>>* parts) {
    auto part = here.transport->part({0, {0, 1}, {}});
    auto other = there.transport->part({1, {0, 1}, {}});
    EXPECT_EQ(part->reach(1, other->address()), "");
    size_t sockets = part->sockets_to(1);
    parts->push_back(std::move(part));
    return sockets;
  };
  {
    std::vector<std::unique_ptr<Transport>> parts;
    size_t more = 0;
    for (size_t n = 0; n < limit.rlim_cur; n++) more += sockets_of_next(&parts) - 1;
    EXPECT_GT(more, 0u);
    EXPECT_LE(more, limit.rlim_cur / 2);
    EXPECT_EQ(sockets_of_next(&parts), 1u);
  }
  std::vector<std::unique_ptr<Transport>> parts;
  EXPECT_EQ(sockets_of_next(&parts), 4u) << "they were given back";
}

}  // namespace
}  // namespace ringcoll
// Which ranks are one host. They are threads of one process, which could all map one another.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/group/group.h"
#include "mesh/ranks_testing.h"
#include "mesh/saying.h"
#include "net/wire.h"
#include "transport/verbs/device_testing.h"

namespace ringcoll {
namespace {

using testing::config_of;
using Configs = std::vector<Config>;

std::vector<std::string> run(const Configs& configs, const std::function<void(Mesh&)>& body = {}) {
  return testing::run_ranks(configs, body);
}

/// Ranks on hosts with these ids.
Configs on(const std::vector<std::string>& hosts, const std::string& transport = "auto") {
  Configs configs(hosts.size(), config_of(transport));
  for (size_t i = 0; i < hosts.size(); i++) configs[i].hostid = hosts[i];
  return configs;
}

const std::vector<std::string> kFour(4);  // no errors

/// Sees, and may change, what a rank says in each round.
class LookedAtExchange final : public Exchange {
 public:
  using Change = std::function<void(int round, std::string*)>;
  LookedAtExchange(std::unique_ptr<Exchange> inner, Change change)
      : inner_(std::move(inner)), change_(std::move(change)) {
    inner_->while_waiting([this] { this->look(); });
  }
  Rank rank() const override { return inner_->rank(); }
  Rank size() const override { return inner_->size(); }
  std::vector<std::string> all_gather(const std::string& mine, Deadline deadline) override {
    std::string said = mine;
    change_(++round_, &said);
    return inner_->all_gather(said, deadline);
  }

 private:
  std::unique_ptr<Exchange> inner_;
  const Change change_;
  int round_ = 0;
};

/// The same as run(), with a look at what each rank says.
std::vector<std::string> run_looked_at(const Configs& configs,
                                       const std::function<void(Rank, int, std::string*)>& look) {
  return testing::run_ranks(
      configs, {}, [&](std::unique_ptr<Exchange> exchange) -> std::unique_ptr<Exchange> {
        Rank rank = exchange->rank();
        return std::make_unique<LookedAtExchange>(
            std::move(exchange),
            [&look, rank](int round, std::string* said) { look(rank, round, said); });
      });
}

// Ranks of one host, and hosts of one rank.
TEST(Rounds, SayNothingOfEachOtherRankThatIsReached) {
  for (bool one_host : {true, false}) {
    std::map<size_t, std::atomic<size_t>> most;
    for (size_t ranks : {4, 12}) {
      std::vector<std::string> hosts(ranks);
      for (size_t i = 0; i < ranks && !one_host; i++) hosts[i] = fmt::format("h{}", i);
      auto& bytes = most[ranks];
      auto errors = run_looked_at(on(hosts), [&](Rank, int round, std::string* said) {
        if (round == 1) return;
        size_t before = bytes;
        while (before < said->size() && !bytes.compare_exchange_weak(before, said->size())) {
        }
      });
      EXPECT_EQ(errors, std::vector<std::string>(ranks));
    }
    EXPECT_EQ(most[12], most[4]) << "the store has to take ranks times ranks of it";
  }
}

// Of another release even the place may look otherwise.
TEST(Rounds, OfAnotherReleaseAreNamedBeforeAnythingElseIsRead) {
  auto of_release = [](const std::string& said, bool other_wire, const std::string& release) {
    std::string wire = said.substr(sizeof(int32_t), sizeof(int32_t));
    if (other_wire) wire[0]++;
    WireWriter writer;
    writer.put_text(release);
    return said.substr(0, sizeof(int32_t)) + wire + writer.take() + "elsewhere";
  };
  std::pair<bool, std::string> others[] = {
      {true, own_release()}, {false, "0.0.1"}, {false, RINGCOLL_VERSION "+0123456789ab"}};
  for (const auto& [other_wire, release] : others) {
    auto errors = run_looked_at(on({"", "", ""}), [&](Rank rank, int round, std::string* said) {
      if (rank == 1 && round == 1) *said = of_release(*said, other_wire, release);
    });
    for (Rank rank : {0, 2}) {
      EXPECT_TRUE(errors[rank].starts_with("Transport rank 1 runs ringcoll ")) << errors[rank];
      EXPECT_NE(errors[rank].find("install the same version"), std::string::npos) << errors[rank];
    }
  }
}

TEST(Rounds, OfAnotherProgramAreNamed) {
  for (const char* other : {"", "x", "another program's introduction"}) {
    auto errors = run_looked_at(on({"", "", ""}), [&](Rank rank, int round, std::string* said) {
      if (rank == 1 && round == 1) *said = other;
    });
    for (Rank rank : {0, 2})
      EXPECT_TRUE(errors[rank].starts_with("Transport the introduction of rank 1 cannot be read"))
          << errors[rank];
  }
}

TEST(Rounds, OfARankThatCannotBeReadNameIt) {
  auto errors = run_looked_at(on({"", "", ""}), [&](Rank rank, int round, std::string* said) {
    if (rank != 1 || round != 1) return;
    auto introduction = Introduction::decode(*said);
    introduction.location = "elsewhere";
    *said = introduction.encode();
  });
  for (const std::string& error : errors)
    EXPECT_TRUE(error.starts_with("Transport rank 1: the location")) << error;
}

/// Counts the rounds that are made over it.
class CountedExchange final : public Exchange {
 public:
  CountedExchange(std::unique_ptr<Exchange> inner, std::atomic<int>& rounds)
      : inner_(std::move(inner)), rounds_(rounds) {}
  Rank rank() const override { return inner_->rank(); }
  Rank size() const override { return inner_->size(); }
  bool is_over_store() const override { return inner_->is_over_store(); }
  std::vector<std::string> all_gather(const std::string& mine, Deadline deadline) override {
    rounds_++;
    return inner_->all_gather(mine, deadline);
  }

 private:
  std::unique_ptr<Exchange> inner_;
  std::atomic<int>& rounds_;
};

TEST(Rounds, OfManyRanksAreMadeAmongThemButForTheFirst) {
  for (int ranks : {16, 20}) {
    std::atomic<int> rounds = 0;
    auto errors = testing::run_ranks(
        Configs(ranks, config_of("loopback")), {}, [&](std::unique_ptr<Exchange> exchange) {
          return std::make_unique<CountedExchange>(std::move(exchange), rounds);
        });
    EXPECT_EQ(errors, std::vector<std::string>(ranks));
    EXPECT_EQ(rounds, ranks * (ranks > 16 ? 1 : Mesh::kExchanges));
  }
}

TEST(Rounds, OfManyRanksEndWithTheErrorOfOne) {
  Configs configs(24, config_of("loopback"));
  configs[13].transport = "nonesuch";
  auto errors = run(configs);
  EXPECT_EQ(errors, std::vector<std::string>(24, errors[0]));
  EXPECT_TRUE(errors[0].starts_with("Transport rank 13: RINGCOLL_TRANSPORT=nonesuch")) << errors[0];
}

TEST(Hosts, WithoutIdsAreWhereMemoryCanBeMapped) {
  EXPECT_EQ(run(on({"", "", "", ""}),
                [](Mesh& mesh) {
                  EXPECT_EQ(mesh.topology().hosts(), 1);
                  EXPECT_TRUE(mesh.whole().one_domain());
                }),
            kFour);
}

TEST(Hosts, OfDifferentIdsAreJoinedByTheNetwork) {
  EXPECT_EQ(run(on({"h2", "h1", "h2", "h1"}),
                [](Mesh& mesh) {
                  EXPECT_EQ(mesh.topology().hosts(), 2);
                  EXPECT_FALSE(mesh.whole().one_domain());
                  EXPECT_EQ(mesh.topology().at(1).host_name, "h1");
                  Rank rank = mesh.rank();
                  EXPECT_EQ(mesh.whole().transport_of((rank + 2) % 4), "shm");
                  EXPECT_EQ(mesh.whole().link_of((rank + 1) % 4), LinkClass::kNetwork);
                  EXPECT_EQ(mesh.whole().link_of((rank + 3) % 4), LinkClass::kNetwork);
                }),
            kFour);
}

TEST(Hosts, ByIdHaveTheLinksThatAreAskedForByName) {
  for (const char* transport : {"loopback", "tcp"})
    EXPECT_EQ(run(on({"h1", "h1", "h2", "h2"}, transport),
                  [&](Mesh& mesh) {
                    EXPECT_EQ(mesh.topology().hosts(), 2);
                    EXPECT_EQ(mesh.whole().transport_of((mesh.rank() + 1) % 4), transport);
                  }),
              kFour);
}

TEST(Hosts, ByIdAreNotJoinedBySharedMemory) {
  for (const std::string& error : run(on({"h1", "h2"}, "shm")))
    EXPECT_TRUE(error.starts_with("Transport no transport joins rank 0") &&
                error.find("shm: the peer is on another host") != std::string::npos)
        << error;
}

// Each host's first rank has the one port, its second the other, and ranks of a lane share a
// network.
TEST(Hosts, HaveTheirPortsSharedOut) {
  verbs::FakeVerbs fake({.devices = testing::two_devices(), .in_background = true});
  EXPECT_EQ(run(on({"h1", "h1", "h2", "h2"}),
                [&](Mesh& mesh) {
                  Rank rank = mesh.rank();
                  EXPECT_EQ(mesh.whole().transport_of((rank + 2) % 4), "verbs");
                  for (Rank r = 0; r < 4; r++)
                    EXPECT_EQ(mesh.port_of(r), r % 2 ? "fake1:1" : "fake0:1");
                  // Of a part of the ranks, beside which another may be at work, the same.
                  std::shared_ptr<Mesh> shared(&mesh, [](Mesh*) {});
                  Group lane(shared, {rank % 2, rank % 2 + 2});
                  for (Rank r = 0; r < 2; r++) EXPECT_EQ(lane.port_of(r), mesh.port_of(rank));
                }),
            kFour);
  EXPECT_EQ(fake.misuses(), std::vector<std::string>());
  EXPECT_EQ(fake.objects_left(), 0);
  EXPECT_EQ(run(on({"h1", "h2"}, "tcp"), [](Mesh& mesh) { EXPECT_EQ(mesh.port_of(0), ""); }),
            std::vector<std::string>(2));
}

// A rank that only talks tcp maps nobody.
TEST(Hosts, AreSeveralWhereMemoryIsNotMapped) {
  auto configs = on({"", "", "", ""});
  configs[1].transport = configs[3].transport = "tcp";
  EXPECT_EQ(run(configs,
                [](Mesh& mesh) {
                  EXPECT_EQ(mesh.topology().hosts(), 3);
                  EXPECT_TRUE(mesh.topology().same_host(0, 2));
                  EXPECT_EQ(mesh.topology().ring_order(), (std::vector<Rank>{0, 2, 1, 3}));
                  EXPECT_FALSE(mesh.whole().one_domain());
                }),
            kFour);
}

TEST(Hosts, WithOneIdHaveToMapOneAnother) {
  auto configs = on({"h1", "h1", "h2"});
  configs[1].transport = "tcp";
  for (const std::string& error : run(configs)) {
    EXPECT_TRUE(error.starts_with("InvalidArgument RINGCOLL_HOSTID=h1 is set on rank 0")) << error;
    EXPECT_NE(error.find("on rank 1"), std::string::npos) << error;
    EXPECT_NE(error.find("Seen from rank 0: shm: the peer does not offer it"), std::string::npos)
        << error;
  }
}

/// Four ranks on h1 … h4, in threads, with the file of that name in a folder of the test.
class TopologyFiles : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  static Configs with(const std::vector<std::string>& files) {
    auto configs = on({"h1", "h2", "h3", "h4"}, "tcp");
    for (size_t i = 0; i < configs.size(); i++) configs[i].topology = files[i];
    return configs;
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("ringcoll-hosts-{}", ::getpid());
};

TEST_F(TopologyFiles, OrderTheRingOfAllRanks) {
  std::string file = write("t", R"({"h4": "s.l2", "h1": "s.l1", "h2": "s.l2", "h3": "s.l1"})");
  EXPECT_EQ(run(with({file, "", file, "/nowhere"}),
                [](Mesh& mesh) {
                  const Topology& topology = mesh.topology();
                  EXPECT_EQ(topology.ring_order(), (std::vector<Rank>{0, 2, 3, 1}));
                  EXPECT_EQ(topology.levels(), 3);
                  EXPECT_EQ(topology.level_name(1), "leaf");
                  EXPECT_EQ(topology.group_of(1, 2), topology.group_of(1, 0));
                  EXPECT_EQ(topology.level_name(2), "spine");
                }),
            kFour);
}

TEST_F(TopologyFiles, ThatDifferAreTheSameErrorOnAllRanks) {
  std::string one = write("1", R"({"h1": "s", "h2": "s", "h3": "s", "h4": "s"})");
  std::string other = write("2", R"({"h1": "s"})");
  auto errors = run(with({one, one, other, one}));
  EXPECT_EQ(errors, std::vector<std::string>(4, errors[0]));
  for (const std::string& part : {std::string("InvalidArgument "), one, other,
                                  std::string("of rank 2"), std::string("of rank 0")})
    EXPECT_NE(errors[0].find(part), std::string::npos) << part << " in " << errors[0];
}

TEST_F(TopologyFiles, OfNoUseAreTheSameErrorOnAllRanks) {
  std::string file = write("t", "{\"h1\": \"s\",\n\"h1\": \"s\"}");
  std::string missing = (folder_ / "missing").string();
  for (const std::string& bad : {file, missing}) {
    auto errors = run(with({bad, "", "", ""}));
    EXPECT_EQ(errors, std::vector<std::string>(4, errors[0]));
    EXPECT_TRUE(errors[0].starts_with("InvalidArgument RINGCOLL_TOPOLOGY=" + bad)) << errors[0];
  }
}

}  // namespace
}  // namespace ringcoll

#include "topology/topology.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "base/machine.h"
#include "topology/hosts_testing.h"
#include "topology/numa.h"

namespace ringcoll {
namespace {

Location at(const char* host, int numa = 0) {
  Location location;
  location.machine = host;
  location.host_id = host;
  location.host_name = std::string(host) + ".example";
  location.numa_node = numa;
  location.pid = 100;
  return location;
}

/// A directory like /sys/devices/system/node, removed at the end.
class FakeNodes {
 public:
  FakeNodes() {
    char path[] = "/tmp/ringcoll_test_XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    path_ = path;
  }
  ~FakeNodes() { std::filesystem::remove_all(path_); }
  void add(const std::string& name, const std::string& cpus) {
    std::filesystem::create_directory(path_ / name);
    std::ofstream(path_ / name / "cpulist") << cpus;
  }
  void set_distances(const std::string& name, const std::string& distances) {
    std::ofstream(path_ / name / "distance") << distances;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Numa, ReadsCpuLists) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list(""), std::vector<int>{});
  for (const char* bad : {"x", "1-", "-1", "3-1", "1,,2", "1-2-3", "0-99999999", " 1"})
    EXPECT_FALSE(parse_cpu_list(bad)) << bad;
}

TEST(Numa, WritesCpuLists) {
  EXPECT_EQ(cpu_list({}), "");
  EXPECT_EQ(cpu_list({4}), "4");
  EXPECT_EQ(cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(Numa, FindsTheNodes) {
  FakeNodes nodes;
  nodes.add("node0", "0-3,8-11\n");
  nodes.add("node1", "4-7\n");
  nodes.add("node2", "\n");  // memory without CPUs
  nodes.add("nodes", "0-99\n");
  nodes.add("node3", "rubbish\n");
  std::map<int, std::vector<int>> all = {
      {0, {0, 1, 2, 3, 8, 9, 10, 11}}, {1, {4, 5, 6, 7}}, {2, {}}};
  EXPECT_EQ(numa_nodes(nodes.path()), all);
  EXPECT_EQ(numa_node_of({0, 3, 11}, nodes.path()), 0);
  EXPECT_EQ(numa_node_of({5}, nodes.path()), 1);
  EXPECT_EQ(numa_node_of({3, 4}, nodes.path()), -1);
  EXPECT_EQ(numa_node_of({77}, nodes.path()), -1);
  EXPECT_EQ(numa_node_of({}, nodes.path()), -1);
  EXPECT_EQ(numa_node_of({0}, nodes.path() + "/none"), -1);
}

TEST(Numa, ReadsDistances) {
  FakeNodes nodes;
  for (const char* name : {"node0", "node1", "node4"}) nodes.add(name, "");
  nodes.set_distances("node1", "21 10 32\n");
  nodes.set_distances("node4", "32 21\n");  // of fewer nodes than there are
  EXPECT_EQ(numa_distances(1, nodes.path()), (std::map<int, int>{{0, 21}, {1, 10}, {4, 32}}));
  for (int unknown : {0, 4, 7, -1}) EXPECT_TRUE(numa_distances(unknown, nodes.path()).empty());
}

/// A directory like /sys/devices/system/cpu of so many sockets with caches with CPUs, removed at
/// the end.
class FakeCpus {
 public:
  FakeCpus(int sockets, int caches, int cpus) {
    char path[] = "/tmp/ringcoll_test_XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    path_ = path;
    for (int cpu = 0; cpu < sockets * caches * cpus; cpu++) {
      write(cpu, "topology/package_cpus_list", range(cpu, caches * cpus));
      write(cpu, "cache/index3/shared_cpu_list", range(cpu, cpus));
    }
  }
  ~FakeCpus() { std::filesystem::remove_all(path_); }
  void write(int cpu, const std::string& file, const std::string& text) {
    auto at = path_ / fmt::format("cpu{}", cpu) / file;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text << "\n";
  }
  std::string path() const { return path_.string(); }
  /// Of a rank that may run on these.
  Location rank_on(const std::vector<int>& cpus) const {
    Location location = at("a", -1);
    location.cpus = cpus;
    location.socket = socket_of(cpus, path());
    location.cache = cache_of(cpus, path());
    return location;
  }

 private:
  static std::string range(int cpu, int length) {
    int first = cpu / length * length;
    return fmt::format("{}-{}", first, first + length - 1);
  }
  std::filesystem::path path_;
};

TEST(Cpus, ShareSocketsAndCaches) {
  FakeCpus cpus(2, 2, 4);
  EXPECT_EQ(socket_of({0}, cpus.path()), 0);
  EXPECT_EQ(socket_of({0, 3, 7}, cpus.path()), 0);
  EXPECT_EQ(socket_of({9, 15}, cpus.path()), 8);
  EXPECT_EQ(socket_of({7, 8}, cpus.path()), -1) << "both";
  EXPECT_EQ(cache_of({1, 2}, cpus.path()), 0);
  EXPECT_EQ(cache_of({5, 6}, cpus.path()), 4);
  EXPECT_EQ(cache_of({3, 4}, cpus.path()), -1) << "two of one socket";
  for (auto of : {socket_of, cache_of}) {
    EXPECT_EQ(of({}, cpus.path()), -1);
    EXPECT_EQ(of({99}, cpus.path()), -1);
    EXPECT_EQ(of({0}, cpus.path() + "/none"), -1);
  }
  cpus.write(0, "cache/index3/shared_cpu_list", "2,0,4-5");
  EXPECT_EQ(cache_of({0, 2, 5}, cpus.path()), 0);
  cpus.write(0, "cache/index3/shared_cpu_list", "rubbish");
  EXPECT_EQ(cache_of({0}, cpus.path()), -1);
  cpus.write(0, "cache/index3/shared_cpu_list", "");
  EXPECT_EQ(cache_of({0}, cpus.path()), -1);
}

TEST(Location, KnowsThisProcess) {
  Location here = Location::here({}, 1);
  EXPECT_EQ(here.socket, socket_of(here.cpus));
  EXPECT_EQ(here.cache, cache_of(here.cpus));
  EXPECT_EQ(here.pid, getpid());
  EXPECT_EQ(here.cpus, allowed_cpus());
  EXPECT_EQ(here.core_cache_kib, core_cache_bytes() >> 10);
  EXPECT_FALSE(here.cpus.empty());
  EXPECT_FALSE(here.host_id.empty());
  EXPECT_FALSE(here.host_name.empty());
}

TEST(Location, AHostIsGivenByItsId) {
  Location here = Location::here({}, 1), given = Location::here({.hostid = "h1"}, 1);
  EXPECT_FALSE(here.host_given);
  EXPECT_TRUE(given.host_given);
  EXPECT_EQ(given.host_id, "h1");
  EXPECT_EQ(given.host_name, "h1");
  EXPECT_EQ(given.machine, here.machine);
  EXPECT_THROW(Location::here({.hostid = std::string(257, 'h')}, 1), Error);
}

TEST(Location, TheIdOfAHostNamesTheNamespaces) {
  std::string id = Location::here({}, 1).host_id, machine = Location::here({}, 1).machine;
  EXPECT_TRUE(id.starts_with(machine));
  EXPECT_NE(id.find("pid:["), std::string::npos);
  EXPECT_NE(id.find("user:["), std::string::npos);
}

TEST(Location, SurvivesTheWireAndRefusesWhatIsNone) {
  Location location = at("a", -1);
  location.cpus = {0, 1, 2, 5, 7, 8};
  location.socket = 64;
  location.cache = 72;
  location.core_cache_kib = 2048;
  location.host_given = true;
  std::string blob = location.encode();
  Location copy = Location::decode(blob);
  EXPECT_EQ(copy.machine, "a");
  EXPECT_EQ(copy.host_id, "a");
  EXPECT_TRUE(copy.host_given);
  EXPECT_EQ(copy.host_name, "a.example");
  EXPECT_EQ(copy.pid, 100);
  EXPECT_EQ(copy.socket, 64);
  EXPECT_EQ(copy.numa_node, -1);
  EXPECT_EQ(copy.cache, 72);
  EXPECT_EQ(copy.core_cache_kib, 2048);
  EXPECT_EQ(copy.cpus, location.cpus);
  for (size_t cut = 0; cut < blob.size(); cut++)
    EXPECT_THROW(Location::decode(std::string_view(blob).substr(0, cut)), Error) << cut;
  EXPECT_THROW(Location::decode(blob + "x"), Error);
  EXPECT_THROW(Location::decode(std::string(blob.size(), '\xff')), Error);
  for (int Location::* what :
       {&Location::socket, &Location::numa_node, &Location::cache, &Location::core_cache_kib}) {
    Location wrong = location;
    wrong.*what = -2;
    EXPECT_THROW(Location::decode(wrong.encode()), Error);
  }
  location.cpus = {3, 2};
  EXPECT_THROW(Location::decode(location.encode()), Error);
}

TEST(Topology, OneHost) {
  Topology topology({at("a"), at("a"), at("a")});
  EXPECT_EQ(topology.size(), 3);
  EXPECT_EQ(topology.hosts(), 1);
  EXPECT_EQ(topology.ranks_on_host(2), 3);
  EXPECT_EQ(topology.ring_order(), (std::vector<Rank>{0, 1, 2}));
  EXPECT_EQ(topology.describe(2), "rank 2 (pid 100 on a.example)");
  EXPECT_EQ(topology.describe(kNobody), "rank -1");
}

TEST(Topology, RanksOfAHostStandSideBySide) {
  Topology topology({at("b"), at("a"), at("b"), at("a"), at("c")});
  EXPECT_EQ(topology.hosts(), 3);
  EXPECT_EQ(topology.host_of(0), 0);
  EXPECT_EQ(topology.host_of(1), 1);
  EXPECT_EQ(topology.host_of(2), 0);
  EXPECT_EQ(topology.host_of(4), 2);
  EXPECT_EQ(topology.ranks_on_host(1), 2);
  EXPECT_EQ(topology.ring_order(), (std::vector<Rank>{0, 2, 4, 1, 3})) << "b, c and then a";
}

TEST(Topology, ThereRanksOfANumaNodeDo) {
  Topology topology({at("a", 1), at("a", 0), at("a", 1), at("a", -1), at("a", 0), at("b", 1)});
  EXPECT_EQ(topology.ring_order(), (std::vector<Rank>{0, 2, 1, 4, 3, 5}));
}

TEST(Topology, ThereRanksOfASocketDoAndOfACacheThere) {
  FakeCpus cpus(2, 2, 4);
  auto order = [&](const std::vector<std::vector<int>>& bound) {
    std::vector<Location> locations;
    for (const std::vector<int>& to : bound) locations.push_back(cpus.rank_on(to));
    return Topology(locations).ring_order();
  };
  // Dealt out to sockets in turn, as some launchers do.
  EXPECT_EQ(order({{0}, {8}, {4}, {12}, {1}, {9}, {5}, {13}}),
            (std::vector<Rank>{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(order({{13}, {0}, {8}, {12}, {9}}), (std::vector<Rank>{0, 3, 2, 4, 1}))
      << "the lowest rank's first";
  // Bound to a socket each, or to nothing: of no cache, of no socket.
  EXPECT_EQ(order({{0, 4}, {8, 12}, {1, 5}, {9}, {0, 8}, {13}, {8}}),
            (std::vector<Rank>{0, 2, 1, 3, 6, 5, 4}));
  std::vector<int> all(16);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(order({all, all, all}), (std::vector<Rank>{0, 1, 2})) << "bound nowhere";
}

// Several NUMA nodes in a socket, caches in these.
TEST(Topology, NodesOfASocketStandSideBySide) {
  auto rank = [](int socket, int node, int cache) {
    Location location = at("a", node);
    location.socket = socket;
    location.cache = cache;
    return location;
  };
  EXPECT_EQ(Topology({rank(0, 0, 0), rank(64, 2, 64), rank(0, 1, 16), rank(64, 3, 80),
                      rank(0, 0, 8), rank(64, 2, 72), rank(0, 1, 24), rank(0, 0, 0)})
                .ring_order(),
            (std::vector<Rank>{0, 7, 4, 2, 6, 1, 5, 3}));
}

TEST(Topology, TheSameNameIsNotTheSameHost) {
  Location first = at("a"), second = at("b");
  second.host_name = first.host_name;
  EXPECT_EQ(Topology({first, second}).hosts(), 2);
}

TEST(SeparateHosts, AHostIsWhoseRanksAllMapOneAnother) {
  auto hosts = [](std::vector<Location> locations,
                  const std::set<std::pair<Rank, Rank>>& not_mapped) {
    Topology topology(separate_hosts(std::move(locations), [&](Rank a, Rank b) {
      return !not_mapped.contains({std::min(a, b), std::max(a, b)});
    }));
    std::vector<int> numbers;
    for (Rank r = 0; r < topology.size(); r++) numbers.push_back(topology.host_of(r));
    return numbers;
  };
  std::vector<Location> four(4, at("a"));
  EXPECT_EQ(hosts(four, {}), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(hosts(four, {{0, 1}, {0, 3}, {1, 2}, {2, 3}}), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(hosts(four, {{0, 1}}), (std::vector<int>{0, 1, 0, 0})) << "no chain of mappings";
  EXPECT_EQ(hosts({at("a"), at("b"), at("a")}, {{0, 2}}), (std::vector<int>{0, 1, 2}));
}

TEST(Topology, HostsOfOneMachineShareItsCpus) {
  Location here = at("a"), there = at("b");
  here.cpus = there.cpus = {0};
  there.machine = here.machine;
  Topology topology({here, there});
  EXPECT_EQ(topology.hosts(), 2);
  EXPECT_TRUE(topology.crowded(0) && topology.crowded(1));
}

TEST(Topology, CrowdedAreThoseWithFewerCpusThanRanks) {
  auto on = [](const char* host, std::vector<int> cpus) {
    Location location = at(host);
    location.cpus = std::move(cpus);
    return location;
  };
  auto crowded = [](std::vector<Location> locations) {
    Topology topology(std::move(locations));
    std::string text;
    for (Rank r = 0; r < topology.size(); r++) text += topology.crowded(r) ? "x" : ".";
    return text;
  };
  EXPECT_EQ(crowded({on("a", {0, 1}), on("a", {0, 1})}), "..") << "free to move";
  EXPECT_EQ(crowded({on("a", {0, 1}), on("a", {0, 1}), on("a", {0, 1})}), "xxx");
  EXPECT_EQ(crowded({on("a", {0}), on("a", {1})}), "..") << "bound, each to a CPU of its own";
  EXPECT_EQ(crowded({on("a", {0}), on("a", {0}), on("a", {1})}), "xx.") << "two on one";
  EXPECT_EQ(crowded({on("a", {0}), on("b", {0})}), "..") << "other hosts";
  EXPECT_EQ(crowded({on("a", {}), on("a", {})}), "..") << "unknown";
}

/// A rank on a host of this name at this placement.
Location placed(const std::string& host, std::vector<std::string> groups, int order = 0) {
  Location location = at(host.c_str());
  location.host_name = host;
  location.placement = {std::move(groups), order, "line 1"};
  location.placement_source = "a test";
  return location;
}

std::vector<std::string> names_of(const Topology& topology) {
  std::vector<std::string> names;
  for (int level = 0; level < topology.levels(); level++)
    names.push_back(topology.level_name(level));
  return names;
}

using Names = std::vector<std::string>;

TEST(Levels, AreHostsAndTheNetworkWhereNothingIsKnown) {
  EXPECT_EQ(names_of(Topology({at("a"), at("a")})), Names{"host"});
  Topology topology({at("a"), at("b"), at("a")});
  EXPECT_EQ(names_of(topology), (Names{"host", "network"}));
  EXPECT_EQ(topology.group_of(0, 1), 1);
  EXPECT_EQ(topology.group_of(1, 1), 0);
  EXPECT_EQ(topology.source(), "");
}

TEST(Levels, AreThoseThatJoinSomething) {
  // Two spines, a host alone on its leaf, and nothing above the spines.
  Topology topology({placed("a", {"s2", "l1"}), placed("b", {"s1", "l1"}),
                     placed("c", {"s2", "l1"}), placed("d", {"s2", "l9"})});
  EXPECT_EQ(names_of(topology), (Names{"host", "leaf", "spine", "network"}));
  auto groups = [&](int level) {
    std::vector<int> numbers;
    for (Rank r = 0; r < topology.size(); r++) numbers.push_back(topology.group_of(level, r));
    return numbers;
  };
  EXPECT_EQ(groups(0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(groups(1), (std::vector<int>{0, 1, 0, 2})) << "leaves of one name below two spines";
  EXPECT_EQ(groups(2), (std::vector<int>{0, 1, 0, 0}));
  EXPECT_EQ(groups(3), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(topology.source(), "a test");
  // Each host on a leaf of its own; one leaf for all.
  EXPECT_EQ(names_of(Topology({placed("a", {"t", "s", "l1"}), placed("b", {"t", "r", "l2"})})),
            (Names{"host", "level3"}));
  EXPECT_EQ(names_of(Topology({placed("a", {"s", "l"}), placed("b", {"s", "l"})})),
            (Names{"host", "leaf"}));
}

std::vector<int> groups_of(const Topology& topology, int level) {
  std::vector<int> numbers;
  for (Rank r = 0; r < topology.size(); r++) numbers.push_back(topology.group_of(level, r));
  return numbers;
}

TEST(Levels, AreSocketsWhereRanksAreBoundToThem) {
  Topology one = testing::on_sockets(1, 2), two = testing::on_sockets(2, 2);
  EXPECT_EQ(names_of(one), (Names{"socket", "host"}));
  EXPECT_EQ(one.host_level(), 1);
  EXPECT_EQ(one.hosts(), 1);
  EXPECT_EQ(groups_of(one, 0), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(groups_of(one, 1), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(names_of(two), (Names{"socket", "host", "network"}));
  EXPECT_EQ(groups_of(two, 0), (std::vector<int>{0, 1, 0, 1, 2, 3, 2, 3}));
  EXPECT_EQ(groups_of(two, 1), (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
  for (Rank r = 0; r < two.size(); r++) EXPECT_EQ(two.host_of(r), r / 4);
  // A host whose ranks are bound to none is as one socket.
  std::vector<Location> mixed = {testing::on_socket("a", 0, 0), testing::on_socket("a", 64, 64),
                                 testing::on_socket("a", 0, 1), at("b"), at("b")};
  EXPECT_EQ(groups_of(Topology(mixed), 0), (std::vector<int>{0, 1, 0, 2, 2}));
}

TEST(Levels, HaveNothingBelowHostsWhereItJoinsNothing) {
  auto names = [](std::vector<std::array<int, 2>> bound) {
    std::vector<Location> locations;
    for (auto [socket, cpu] : bound) locations.push_back(testing::on_socket("a", socket, cpu));
    return names_of(Topology(std::move(locations)));
  };
  EXPECT_EQ(names({{0, 0}, {64, 64}, {0, 1}}), (Names{"socket", "host"}));
  EXPECT_EQ(names({{0, 0}, {0, 1}, {0, 2}}), Names{"host"}) << "one socket";
  EXPECT_EQ(names({{0, 0}, {64, 64}}), Names{"host"}) << "a rank on each";
  EXPECT_EQ(names({{0, 0}, {64, 64}, {0, 1}, {-1, 2}}), Names{"host"}) << "one is bound to none";
  EXPECT_EQ(names({{0, 0}, {64, 64}, {0, 1}, {64, 64}}), Names{"host"}) << "two share a CPU";
}

TEST(Levels, BelowHostsAreTheLargestThereAre) {
  FakeCpus cpus(2, 2, 4);
  auto names = [&](const std::vector<int>& bound) {
    std::vector<Location> locations;
    for (int cpu : bound) locations.push_back(cpus.rank_on({cpu}));
    return names_of(Topology(std::move(locations)));
  };
  EXPECT_EQ(names({0, 4, 8, 12}), (Names{"socket", "host"}));
  EXPECT_EQ(names({0, 1, 4, 5}), (Names{"cache", "host"})) << "of one socket";
  EXPECT_EQ(names({0, 1, 2, 3}), Names{"host"});
  // Two NUMA nodes of the one socket, of unknown caches.
  std::vector<Location> nodes;
  for (int cpu : {0, 1, 2}) {
    nodes.push_back(testing::on_socket("a", 0, cpu));
    nodes.back().numa_node = cpu / 2;
  }
  EXPECT_EQ(names_of(Topology(nodes)), (Names{"numa_node", "host"}));
}

TEST(RingOrder, OfHostsIsNatural) {
  auto order = [](const Names& hosts) {
    std::vector<Location> locations;
    for (const std::string& host : hosts) locations.push_back(placed(host, {}));
    return Topology(locations).ring_order();
  };
  EXPECT_EQ(order({"node1", "node66", "node7", "node10"}), (std::vector<Rank>{0, 2, 3, 1}));
  EXPECT_EQ(order({"node7", "node66", "node1"}), (std::vector<Rank>{0, 1, 2})) << "a circle";
}

TEST(RingOrder, IsThatOfTheSourceIfItHasOne) {
  Topology topology({placed("a", {"s"}, 1), placed("b", {"r"}, 2), placed("c", {"s"}, 0),
                     placed("d", {"r"}, 3), placed("e", {"t"}, 4)});
  EXPECT_EQ(topology.ring_order(), (std::vector<Rank>{0, 2, 1, 3, 4}));
}

// Whichever ranks a communicator has, and whichever is its first.
TEST(RingOrder, KeepsTheCircle) {
  Names hosts = {"n1", "n2", "n3", "n4"};
  for (int first = 0; first < 4; first++) {
    std::vector<Location> locations;
    for (int i : {first, 3, 1, 0, 2})
      if (i != first || locations.empty()) locations.push_back(placed(hosts[i], {}));
    Topology topology(locations);
    for (int i = 0; i < 4; i++)
      EXPECT_EQ(topology.at(topology.ring_order()[i]).host_name, hosts[(first + i) % 4]);
  }
}

TEST(RingOrder, CrossesTheLinksOfEachGroupOnceInAndOnceOut) {
  std::mt19937 random(7);
  auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  for (int shape = 0; shape < 500; shape++) {
    int ranks = 1 + below(40), leaves = 1 + below(5), spines = 1 + below(3), hosts = 1 + below(15);
    std::vector<Location> of_host;
    for (int h = 0; h < hosts; h++)
      of_host.push_back(
          placed(fmt::format("n{}", h),
                 {"top", fmt::format("s{}", below(spines)), fmt::format("l{}", below(leaves))},
                 shape % 2 ? below(hosts) : 0));
    std::vector<Location> locations;
    for (int r = 0; r < ranks; r++) {
      locations.push_back(of_host[below(hosts)]);
      locations.back().socket = below(3) - 1;
      locations.back().numa_node = below(3) - 1;
      locations.back().cache = below(3) - 1;
    }
    Topology topology(locations);
    const auto& order = topology.ring_order();
    EXPECT_EQ(std::set<Rank>(order.begin(), order.end()).size(), static_cast<size_t>(ranks));
    EXPECT_EQ(order[0], 0);
    EXPECT_EQ(topology.group_of(topology.levels() - 1, order.back()), 0);
    for (int level = 0; level < topology.levels(); level++) {
      int crossings = 0;
      std::set<int> groups;
      for (int i = 0; i < ranks; i++) {
        int here = topology.group_of(level, order[i]);
        groups.insert(here);
        crossings += here != topology.group_of(level, order[(i + 1) % ranks]);
      }
      int count = static_cast<int>(groups.size());
      EXPECT_EQ(crossings, count == 1 ? 0 : count) << topology.level_name(level);
      EXPECT_EQ(*groups.rbegin(), count - 1) << "dense";
    }
  }
}

TEST(Topology, CountsRanksForEachCpuWhereTheyAreCrowded) {
  auto on = [](const char* host, std::vector<int> cpus) {
    Location location = at(host);
    location.machine = host;
    location.cpus = std::move(cpus);
    return location;
  };
  std::vector<Location> locations(8, on("a", {0, 1}));
  EXPECT_EQ(Topology(locations).ranks_for_each_cpu(), 4);
  // Each of many to a CPU of its own: they share none.
  for (int cpu = 0; cpu < 64; cpu++) locations.push_back(on("b", {cpu}));
  EXPECT_EQ(Topology(locations).ranks_for_each_cpu(), 4);
  // A few on one CPU, the others by themselves.
  std::vector<Location> some(4, on("e", {0}));
  for (int cpu = 1; cpu < 32; cpu++) some.push_back(on("e", {cpu}));
  EXPECT_EQ(Topology(some).ranks_for_each_cpu(), 4);
  // Crowded in two sockets: the CPUs of both count.
  std::vector<Location> sockets(6, on("c", {0, 1}));
  sockets.insert(sockets.end(), 6, on("c", {2, 3}));
  EXPECT_EQ(Topology(sockets).ranks_for_each_cpu(), 3);
  EXPECT_EQ(Topology({on("d", {}), on("d", {})}).ranks_for_each_cpu(), 1);
}

TEST(Topology, ExplainsEachHostsPlace) {
  Topology topology({placed("a", {"s", "l"}), placed("b", {"s", "m"}), placed("a", {"s", "l"})});
  EXPECT_EQ(topology.explain(2), (Names{"host a (2 ranks, first 0): at s.l, by line 1",
                                        "host b (1 rank, first 1): at s.m, by line 1"}));
  EXPECT_EQ(topology.explain(1)[1], "… 1 more");
  EXPECT_EQ(Topology({at("b")}).explain(1), Names{"host b.example (1 rank, first 0): by its name"});
}

TEST(Topology, OfManyRanksIsFoundQuickly) {
  std::vector<Location> locations;
  for (int r = 0; r < 16384; r++) {
    locations.push_back(placed(fmt::format("n{}", r / 8), {fmt::format("l{}", r / 256)}));
    locations.back().cpus = {0, 1, 2, 3, 4, 5, 6, 7};
  }
  Topology topology(locations);  // by each rank over all ranks it took minutes
  EXPECT_EQ(topology.hosts(), 2048);
  EXPECT_FALSE(topology.crowded(16383));
}

TEST(Topology, EachHostHasOneLinkInAndOneOut) {
  for (int ranks = 1; ranks <= 24; ranks++)
    for (int hosts = 1; hosts <= 5; hosts++) {
      std::vector<Location> locations;
      for (int rank = 0; rank < ranks; rank++)
        locations.push_back(at(std::to_string(rank * 7 % hosts).c_str(), rank % 2));
      Topology topology(locations);
      const auto& order = topology.ring_order();
      ASSERT_EQ(order.size(), static_cast<size_t>(ranks));
      EXPECT_EQ(order[0], 0);
      int crossings = 0;
      for (int i = 0; i < ranks; i++)
        crossings += topology.host_of(order[i]) != topology.host_of(order[(i + 1) % ranks]);
      EXPECT_EQ(crossings, topology.hosts() == 1 ? 0 : topology.hosts());
    }
}

}  // namespace
}  // namespace ringcoll

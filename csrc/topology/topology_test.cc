#include "topology/topology.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "topology/numa.h"

namespace ringcoll {
namespace {

Location at(const char* host, int numa = 0) {
  Location location;
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

TEST(Location, KnowsThisProcess) {
  Location here = Location::here();
  EXPECT_EQ(here.pid, getpid());
  EXPECT_EQ(here.cpus, allowed_cpus());
  EXPECT_FALSE(here.cpus.empty());
  EXPECT_FALSE(here.host_id.empty());
  EXPECT_FALSE(here.host_name.empty());
}

TEST(Location, SurvivesTheWireAndRefusesWhatIsNone) {
  Location location = at("a", -1);
  location.cpus = {0, 1, 2, 5, 7, 8};
  std::string blob = location.encode();
  Location copy = Location::decode(blob);
  EXPECT_EQ(copy.host_id, "a");
  EXPECT_EQ(copy.host_name, "a.example");
  EXPECT_EQ(copy.pid, 100);
  EXPECT_EQ(copy.numa_node, -1);
  EXPECT_EQ(copy.cpus, location.cpus);
  for (size_t cut = 0; cut < blob.size(); cut++)
    EXPECT_THROW(Location::decode(std::string_view(blob).substr(0, cut)), Error) << cut;
  EXPECT_THROW(Location::decode(blob + "x"), Error);
  EXPECT_THROW(Location::decode(std::string(blob.size(), '\xff')), Error);
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
  EXPECT_EQ(topology.ring_order(), (std::vector<Rank>{0, 2, 1, 3, 4}));
}

TEST(Topology, ThereRanksOfANumaNodeDo) {
  Topology topology({at("a", 1), at("a", 0), at("a", 1), at("a", -1), at("a", 0), at("b", 1)});
  EXPECT_EQ(topology.ring_order(), (std::vector<Rank>{0, 2, 1, 4, 3, 5}));
}

TEST(Topology, TheSameNameIsNotTheSameHost) {
  Location first = at("a"), second = at("b");
  second.host_name = first.host_name;
  EXPECT_EQ(Topology({first, second}).hosts(), 2);
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

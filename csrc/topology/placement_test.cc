// Topology files of every kind, and what is wrong with some.
#include "topology/placement.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "topology/hostlist.h"

namespace ringcoll {
namespace {

using Names = std::vector<std::string>;

/// "a1=s9.s1 a2=s9.s1 …", in the order of the file.
std::string shown(std::string_view text) {
  Placements placements = parse_topology(text);
  Names lines(placements.size());
  for (const auto& [host, placement] : placements)
    lines.at(placement.order) = fmt::format("{}={}", host, fmt::join(placement.groups, "."));
  return fmt::format("{}", fmt::join(lines, " "));
}

/// What is wrong with it.
std::string fault(std::string_view text) {
  try {
    return "nothing: " + shown(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    return error.what();
  }
}

void expect_fault(std::string_view text, std::initializer_list<const char*> parts) {
  std::string found = fault(text);
  for (const char* part : parts)
    EXPECT_NE(found.find(part), std::string::npos) << part << " in\n" << text << "\n" << found;
}

TEST(Hostlist, Expands) {
  EXPECT_EQ(expand_hostlist("login"), Names{"login"});
  EXPECT_EQ(expand_hostlist("n[001-003,7],m"), (Names{"n001", "n002", "n003", "n7", "m"}));
  EXPECT_EQ(expand_hostlist("n[9-11]"), (Names{"n9", "n10", "n11"}));
  EXPECT_EQ(expand_hostlist("r[0-1]n[5-6]x"), (Names{"r0n5x", "r0n6x", "r1n5x", "r1n6x"}));
}

TEST(Hostlist, RefusesWhatIsNone) {
  for (const char* bad :
       {"", ",a", "a,", "n[", "n[]", "n]1[", "n[2-1]", "n[a-b]", "n[1-]", "n[1,]", "n[1-2-3]",
        "n[0-9999999]", "n[0-9999]m[0-9999]", "n[0-99999999999999999999999]"})
    EXPECT_THROW(expand_hostlist(bad), Error) << bad;
}

TEST(NaturalOrder, CountsDigits) {
  Names names = {"b1", "node66", "node007", "node7", "node", "node7a", "a"};
  std::ranges::sort(names, natural_less);
  EXPECT_EQ(names, (Names{"a", "b1", "node", "node007", "node7", "node7a", "node66"}));
  EXPECT_FALSE(natural_less("node7", "node7"));
  EXPECT_TRUE(natural_less("n99999999999999999999998", "n99999999999999999999999"));
}

TEST(TopologyConf, IsReadAsSlurmReadsIt) {
  EXPECT_EQ(shown("# two racks\n"
                  "SwitchName=s9 Switches=s[1-2] # the spine\n"
                  "SwitchName=s1 Nodes=a[1-2]\r\n"
                  "\n"
                  "switchname=s2 LinkSpeed=100 \\\n"
                  "   NODES=b2,b1\n"),
            "a1=s9.s1 a2=s9.s1 b2=s9.s2 b1=s9.s2");
  EXPECT_EQ(shown("SwitchName=s1 Nodes=a\nSwitchName=s2 Nodes=b"), "a=s1 b=s2") << "two trees";
}

TEST(TopologyConf, HasBlocks) {
  EXPECT_EQ(shown("BlockName=b1 Nodes=a\nBlockName=b2 Nodes=b\n"), "a=b1 b=b2");
  EXPECT_EQ(shown("BlockName=b1 Nodes=a\nBlockName=b2 Nodes=b\nBlockName=b3 Nodes=c\n"
                  "BlockSizes=4,8"),
            "a=b1 and on, by 8.b1 b=b1 and on, by 8.b2 c=b3 and on, by 8.b3");
}

TEST(TopologyConf, FaultsNameTheLine) {
  expect_fault("SwitchName=s1 Nodes=a\nSwitchName=s1 Nodes=b", {"line 2", "\"s1\"", "line 1"});
  expect_fault("SwitchName=s1 Nodes=a\nSwitchName=s2 Nodes=b,a", {"line 2: host \"a\"", "line 1"});
  expect_fault("SwitchName=s1 Nodes=a,a", {"line 1: host \"a\" is named twice"});
  expect_fault("SwitchName=s1\n", {"line 1", "\"s1\" has neither"});
  expect_fault("SwitchName=s1 Nodes=a Switches=s2", {"line 1", "\"s1\" has both"});
  expect_fault("SwitchName=s1 Nodes=a\n\nSwitchName=s2 Switches=s[1-3]", {"line 3", "\"s2\""});
  expect_fault("SwitchName=s1 Switches=s2,s9", {"line 1", "\"s2\"", "nowhere"});
  expect_fault("SwitchName=s1 Nodes=a\nSwitchName=x Switches=s1\nSwitchName=y Switches=s1",
               {"line 3", "\"s1\" has two parents", "\"y\"", "\"x\" in line 2"});
  expect_fault("SwitchName=x Switches=y\nSwitchName=y Switches=z\nSwitchName=z Switches=x",
               {"cycle", "line 1", "\"x\""});
  expect_fault("SwitchName=x Switches=x", {"cycle"});
  expect_fault("SwitchName=s1 Nodes=n[", {"line 1", "n["});
  expect_fault("SwitchName=s1 Node=n1", {"line 1", "\"node\" is not known"});
  expect_fault("\nInclude=other.conf", {"line 2", "\"include\""});
  expect_fault("SwitchName=s1 Nodes = n1", {"line 1", "\"Nodes\" is not of the form"});
  expect_fault("SwitchName=s1 Nodes=a\nBlockName=b1 Nodes=b", {"line 2", "line 1"});
  expect_fault("BlockName=b1 Nodes=a\nBlockSizes=4,6", {"line 2", "6"});
  expect_fault("BlockName=b1 Nodes=a\nBlockSizes=4,x", {"line 2", "\"x\""});
}

TEST(TopologyConf, HasNoMoreLevelsThanNetworksHave) {
  std::string text = "SwitchName=s0 Nodes=a\n";
  for (size_t i = 1; i < kMaxLevels; i++)
    text += fmt::format("SwitchName=s{} Switches=s{}\n", i, i - 1);
  EXPECT_EQ(parse_topology(text).at("a").groups.size(), kMaxLevels);
  text += fmt::format("SwitchName=top Switches=s{}\n", kMaxLevels - 1);
  expect_fault(text, {"line 1", "more than 15 levels"});
}

constexpr const char* kTree = R"(---
- topology: other
  cluster_default: false
  block: {block_sizes: [2, 4], blocks: [{block: b1, nodes: "n[1-2]"}, {block: b2, nodes: n3}]}
- topology: ours
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: s[1-2]
      - switch: s1
        nodes: node[01-02]
      - switch: s2
        nodes: node03
)";

TEST(TopologyYaml, IsReadAsSlurmReadsIt) {
  EXPECT_EQ(shown(kTree), "node01=top.s1 node02=top.s1 node03=top.s2");
  std::string first = kTree;
  first.replace(first.find("true"), 4, "false");
  EXPECT_EQ(shown(first), "n1=b1 and on, by 4.b1 n2=b1 and on, by 4.b1 n3=b1 and on, by 4.b2");
}

TEST(TopologyYaml, FaultsNameTheLine) {
  std::string tree = kTree;
  tree.replace(tree.find("node03"), 6, "node02");
  expect_fault(tree, {"line 13: host \"node02\" is named twice, first in line 11"});
  expect_fault("- topology: t\n  flat: true\n", {"line 1", "\"t\" has neither"});
  expect_fault("- topology: t\n  tree:\n    switches: 7\n", {"line 3", "switches must be a list"});
  expect_fault("- topology: t\n  tree: {switches: [{nodes: a}]}\n", {"line 2", "no \"switch\""});
  expect_fault("- topology: t\n  block: {blocks: [{block: b, nodes: a}], block_sizes: [x]}",
               {"line 2", "\"x\" is no block size"});
  expect_fault("- a\n- b: [\n", {"line ", "no YAML"});
  expect_fault("[]", {"no topology is listed"});
}

TEST(TopologyJson, GivesEachHostItsPlace) {
  EXPECT_EQ(shown("{\"node7\": \"s1.l2\",\n\t\"node66\":\"s1.l1\", \"a.b\": \"s1.l1\"}"),
            "node7=s1.l2 node66=s1.l1 a.b=s1.l1");
  EXPECT_EQ(shown("\xef\xbb\xbf{\"h\": \"rack 1\"}"), "h=rack 1");
  EXPECT_EQ(shown("# by hand\nh1: s.l\nh2: s.m\n"), "h1=s.l h2=s.m") << "YAML";
}

TEST(TopologyJson, FaultsNameTheLine) {
  expect_fault("{\"h\": \"a\",\n\"h\": \"b\"}", {"line 2: host \"h\"", "twice", "line 1"});
  expect_fault("{\"h\": \"a..b\"}", {"line 1: host \"h\"", "\"a..b\""});
  expect_fault("{\"h\": \"\"}", {"line 1: host \"h\""});
  expect_fault("{\"h\": {\"x\": 1}}", {"line 1", "the placement of host \"h\" must be a text"});
  expect_fault("{\"h\": \"a\",\n\"i\": \"b\"", {"line 3", "no YAML and no JSON"});
  expect_fault("{}", {"names no host"});
  expect_fault("a word", {"line 1", "names and values"});
}

TEST(TopologyFile, IsText) {
  expect_fault("", {"empty"});
  expect_fault(" \n# nothing\n", {"empty"});
  expect_fault(std::string("\xff\xfeS\0w\0", 6), {"line 1", "UTF-16", "iconv"});
  expect_fault(std::string("\xfe\xff\0S\0w", 6), {"UTF-16"});
  expect_fault(std::string("S\0w\0", 4), {"zero", "UTF-16"});
  expect_fault("SwitchName=s1 Nodes=a\nSwitchName=s\xfc Nodes=b", {"line 2", "0xfc", "Latin-1"});
  expect_fault("{\"h\": \"\xe2\x82\"}", {"line 1", "0xe2"});
  EXPECT_EQ(shown("SwitchName=s\xc3\xbc Nodes=a"), "a=s\xc3\xbc");
}

}  // namespace
}  // namespace ringcoll

#include "topology/switch_tree.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "topology/hostlist.h"

namespace ringcoll {
namespace {

constexpr int kNone = -1;

// For each switch, the index of its parent in `switches`, or kNone.
std::vector<int> parents_of(const std::vector<Switch>& switches) {
  std::unordered_map<std::string_view, int> numbers;
  for (int i = 0; i < static_cast<int>(switches.size()); i++) {
    const Switch& here = switches[i];
    auto [known, fresh] = numbers.emplace(here.name, i);
    if (!fresh)
      throw at_line(here.line, "switch \"{}\" is named twice, first in line {}", here.name,
                    switches[known->second].line);
    if (here.hosts.empty() == here.switches.empty())
      throw at_line(
          here.line, "switch \"{}\" has {} hosts {} switches below it; it needs one of them",
          here.name, here.hosts.empty() ? "neither" : "both", here.hosts.empty() ? "nor" : "and");
  }
  std::vector<int> parents(switches.size(), kNone);
  for (int i = 0; i < static_cast<int>(switches.size()); i++)
    for (const std::string& name : switches[i].switches) {
      auto child = numbers.find(name);
      if (child == numbers.end())
        throw at_line(switches[i].line, "switch \"{}\", below \"{}\", is nowhere described", name,
                      switches[i].name);
      int& parent = parents[child->second];
      if (parent != kNone)
        throw at_line(switches[i].line,
                      "switch \"{}\" has two parents, \"{}\" here and \"{}\" in line {}: keep one",
                      name, switches[i].name, switches[parent].name, switches[parent].line);
      parent = i;
    }
  return parents;
}

// The names of the switches from the top down to switch `i`.
std::vector<std::string> path_to(int i, const std::vector<Switch>& switches,
                                 const std::vector<int>& parents) {
  std::vector<std::string> path;
  for (int at = i; at != kNone; at = parents[at]) {
    if (path.size() == kMaxLevels)
      throw at_line(switches[i].line, "switch \"{}\" has more than {} levels above it",
                    switches[i].name, kMaxLevels - 1);
    path.push_back(switches[at].name);
  }
  std::ranges::reverse(path);
  return path;
}

// Walks up from each switch. A walk ends at a switch that an earlier walk has visited, so each
// switch is visited once.
void check_acyclic(const std::vector<Switch>& switches, const std::vector<int>& parents) {
  std::vector<int> walk_of(switches.size(), kNone);
  for (int start = 0; start < static_cast<int>(switches.size()); start++)
    for (int at = start; at != kNone; at = parents[at]) {
      if (walk_of[at] == start)
        throw at_line(switches[at].line,
                      "a cycle: switch \"{}\" lies below itself, by way of \"{}\"",
                      switches[at].name, switches[parents[at]].name);
      if (walk_of[at] != kNone) break;
      walk_of[at] = start;
    }
}

}  // namespace

Placements placements_of(const std::vector<Switch>& switches) {
  std::vector<int> parents = parents_of(switches);
  check_acyclic(switches, parents);
  Placements placements;
  for (int i = 0; i < static_cast<int>(switches.size()); i++) {
    if (switches[i].hosts.empty()) continue;
    auto path = path_to(i, switches, parents);
    for (const std::string& host : switches[i].hosts) {
      Placement placement{path, static_cast<int>(placements.size()),
                          fmt::format("line {}", switches[i].line)};
      auto [known, fresh] = placements.emplace(host, std::move(placement));
      if (!fresh)
        throw at_line(switches[i].line, "host \"{}\" is named twice, first in {}", host,
                      known->second.why);
    }
  }
  return placements;
}

Placements placements_of_blocks(std::vector<Switch> blocks, const std::vector<int>& sizes,
                                int line) {
  size_t below = 0;  // index of the first group of the level below
  for (size_t k = 1; k < sizes.size(); k++) {
    int ratio = sizes[k - 1] > 0 ? sizes[k] / sizes[k - 1] : 0;
    if (ratio < 2 || sizes[k - 1] * ratio != sizes[k])
      throw at_line(line, "block size {} is no multiple of the one before, {}", sizes[k],
                    sizes[k - 1]);
    size_t end = blocks.size();
    for (size_t at = below; at < end; at += ratio) {
      Switch group{fmt::format("{} and on, by {}", blocks[at].name, sizes[k]), {}, {}, line};
      for (size_t i = at; i < std::min(end, at + ratio); i++)
        group.switches.push_back(blocks[i].name);
      blocks.push_back(std::move(group));
    }
    below = end;
  }
  return placements_of(blocks);
}

int block_size_at(int line, std::string_view word) {
  int size = 0;
  auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
  if (error != std::errc() || end != word.data() + word.size() || size < 1)
    throw at_line(line, "\"{}\" is no block size", word);
  return size;
}

std::vector<std::string> hosts_at(int line, std::string_view list) {
  try {
    return expand_hostlist(list);
  } catch (const Error& error) {
    throw at_line(line, "{}", error.what());
  }
}

}  // namespace ringcoll

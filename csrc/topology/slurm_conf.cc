// Reads SLURM's topology.conf: SwitchName=s0 Nodes=n[0-3], SwitchName=s9 Switches=s[0-1], or
// BlockName=… Nodes=… with BlockSizes=….
#include <algorithm>
#include <cctype>
#include <span>

#include "topology/hostlist.h"
#include "topology/switch_tree.h"

namespace ringcoll {
namespace {

struct Line {
  std::string text;
  int number = 0;
};

// Lines without comments. A line that ends in a backslash continues on the next one.
std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  bool goes_on = false;
  for (int number = 1; !text.empty(); number++) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    size_t last = line.find_last_not_of(" \t\r");
    line = line.substr(0, last == std::string_view::npos ? 0 : last + 1);
    if (!goes_on) lines.push_back({"", number});
    goes_on = line.ends_with('\\');
    if (goes_on) line.remove_suffix(1);
    lines.back().text += line;
  }
  return lines;
}

struct Setting {
  std::string key;  // in lower case
  std::string value;
};

std::vector<Setting> settings_of(const Line& line) {
  std::vector<Setting> settings;
  constexpr const char* kSpace = " \t";
  size_t at = 0;
  while ((at = line.text.find_first_not_of(kSpace, at)) != std::string::npos) {
    size_t end = std::min(line.text.find_first_of(kSpace, at), line.text.size());
    std::string word = line.text.substr(at, end - at);
    size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
      throw at_line(line.number, "\"{}\" is not of the form Name=value", word);
    Setting setting{word.substr(0, equals), word.substr(equals + 1)};
    for (char& c : setting.key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    settings.push_back(std::move(setting));
    at = end;
  }
  return settings;
}

std::vector<int> sizes_of(const Line& line, std::string_view list) {
  std::vector<int> sizes;
  for (std::string_view word : split_outside_brackets(list, ','))
    sizes.push_back(block_size_at(line.number, word));
  return sizes;
}

// Reads a line that describes a switch or block.
Switch switch_of(const Line& line, const std::vector<Setting>& settings) {
  Switch found{settings[0].value, {}, {}, line.number};
  for (const Setting& setting : std::span(settings).subspan(1)) {
    if (setting.key == "nodes")
      found.hosts = hosts_at(line.number, setting.value);
    else if (setting.key == "switches" && settings[0].key == "switchname")
      found.switches = hosts_at(line.number, setting.value);
    else if (setting.key != "linkspeed")
      throw at_line(line.number,
                    "\"{}\" is not known here; there are Nodes, Switches and LinkSpeed",
                    setting.key);
  }
  return found;
}

}  // namespace

Placements parse_slurm_conf(std::string_view text) {
  std::vector<Switch> switches, blocks;
  std::vector<int> sizes;
  int line_of_sizes = 0;
  for (const Line& line : lines_of(text)) {
    std::vector<Setting> settings = settings_of(line);
    if (settings.empty()) continue;
    if (settings[0].key == "switchname") {
      switches.push_back(switch_of(line, settings));
    } else if (settings[0].key == "blockname") {
      blocks.push_back(switch_of(line, settings));
    } else if (settings[0].key == "blocksizes") {
      sizes = sizes_of(line, settings[0].value);
      line_of_sizes = line.number;
    } else {
      throw at_line(line.number,
                    "\"{}\" begins no line of a topology.conf; there are SwitchName, "
                    "BlockName and BlockSizes",
                    settings[0].key);
    }
  }
  if (!switches.empty() && !blocks.empty())
    throw at_line(blocks[0].line, "blocks beside switches (line {}): keep one of them",
                  switches[0].line);
  return blocks.empty() ? placements_of(switches)
                        : placements_of_blocks(std::move(blocks), sizes, line_of_sizes);
}

}  // namespace ringcoll

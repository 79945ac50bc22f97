// Reads SLURM's topology.yaml and {host: "spine.leaf"}. JSON is YAML, so one parser reads all; it
// knows the line of each node.
#include <yaml.h>

#include <algorithm>
#include <optional>

#include "topology/hostlist.h"
#include "topology/switch_tree.h"

namespace ringcoll {
namespace {

class Document;

/// A node of a document. The document must outlive it.
class Node {
 public:
  Node(const Document* document, int id);

  int line() const { return static_cast<int>(node_->start_mark.line) + 1; }
  bool is_map() const { return node_->type == YAML_MAPPING_NODE; }
  bool is_list() const { return node_->type == YAML_SEQUENCE_NODE; }
  /// The text of a scalar. If the node is not a scalar, `what` names it in the error.
  std::string_view text(std::string_view what) const;
  std::vector<Node> items(std::string_view what) const;
  /// Keys and values in the order of the file.
  std::vector<std::pair<Node, Node>> entries(std::string_view what) const;
  std::optional<Node> find(std::string_view key, std::string_view what) const;
  Node get(std::string_view key, std::string_view what) const;

 private:
  const Document* document_;
  const yaml_node_t* node_;
};

class Document {
 public:
  explicit Document(std::string_view text) {
    if (!yaml_parser_initialize(&parser_)) throw std::bad_alloc();
    auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    yaml_parser_set_input_string(&parser_, bytes, text.size());
    if (yaml_parser_load(&parser_, &document_)) return;
    Error error = at_line(static_cast<int>(parser_.problem_mark.line) + 1,
                          "it is no YAML and no JSON: {}", parser_.problem ? parser_.problem : "?");
    yaml_parser_delete(&parser_);
    throw error;
  }
  ~Document() {
    yaml_document_delete(&document_);
    yaml_parser_delete(&parser_);
  }
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;

  Node root() const {
    invariant(yaml_document_get_root_node(document()), "an empty document was let through");
    return {this, 1};
  }
  // libyaml's functions change nothing, but take non-const pointers.
  yaml_document_t* document() const { return const_cast<yaml_document_t*>(&document_); }

 private:
  yaml_parser_t parser_;
  yaml_document_t document_;
};

Node::Node(const Document* document, int id)
    : document_(document), node_(yaml_document_get_node(document->document(), id)) {}

std::string_view Node::text(std::string_view what) const {
  if (node_->type != YAML_SCALAR_NODE) throw at_line(line(), "{} must be a text", what);
  return {reinterpret_cast<const char*>(node_->data.scalar.value), node_->data.scalar.length};
}

std::vector<Node> Node::items(std::string_view what) const {
  if (!is_list()) throw at_line(line(), "{} must be a list", what);
  std::vector<Node> nodes;
  for (auto* item = node_->data.sequence.items.start; item != node_->data.sequence.items.top;
       item++)
    nodes.emplace_back(document_, *item);
  return nodes;
}

std::vector<std::pair<Node, Node>> Node::entries(std::string_view what) const {
  if (!is_map()) throw at_line(line(), "{} must have names and values", what);
  std::vector<std::pair<Node, Node>> pairs;
  for (auto* pair = node_->data.mapping.pairs.start; pair != node_->data.mapping.pairs.top; pair++)
    pairs.emplace_back(Node(document_, pair->key), Node(document_, pair->value));
  return pairs;
}

std::optional<Node> Node::find(std::string_view key, std::string_view what) const {
  for (const auto& [name, value] : entries(what))
    if (name.text("a name") == key) return value;
  return {};
}

Node Node::get(std::string_view key, std::string_view what) const {
  auto found = find(key, what);
  if (!found) throw at_line(line(), "{} has no \"{}\"", what, key);
  return *found;
}

// Reads {host: "spine.leaf"}.
Placements read_hosts(const Node& root) {
  Placements placements;
  for (const auto& [key, value] : root.entries("the file")) {
    std::string host(key.text("the name of a host"));
    std::string_view path = value.text(fmt::format("the placement of host \"{}\"", host));
    Placement placement{
        {}, static_cast<int>(placements.size()), fmt::format("line {}", key.line())};
    for (std::string_view group : split_outside_brackets(path, '.'))
      placement.groups.emplace_back(group);
    bool empty =
        std::ranges::any_of(placement.groups, [](const auto& group) { return group.empty(); });
    if (empty || placement.groups.size() > kMaxLevels)
      throw at_line(key.line(),
                    "host \"{}\": \"{}\" is not of the form spine.leaf (1 to {} names from the top "
                    "down)",
                    host, path, kMaxLevels);
    auto [known, fresh] = placements.emplace(host, std::move(placement));
    if (!fresh)
      throw at_line(key.line(), "host \"{}\" is named twice, first in {}", host, known->second.why);
  }
  return placements;
}

Placements read_tree(const Node& tree) {
  std::vector<Switch> switches;
  for (const Node& item : tree.get("switches", "tree").items("switches")) {
    Switch found{std::string(item.get("switch", "a switch").text("switch")), {}, {}, item.line()};
    if (auto children = item.find("children", "a switch"))
      found.switches = hosts_at(children->line(), children->text("children"));
    if (auto nodes = item.find("nodes", "a switch"))
      found.hosts = hosts_at(nodes->line(), nodes->text("nodes"));
    switches.push_back(std::move(found));
  }
  return placements_of(switches);
}

Placements read_blocks(const Node& block) {
  std::vector<Switch> blocks;
  for (const Node& item : block.get("blocks", "block").items("blocks")) {
    Node nodes = item.get("nodes", "a block");
    blocks.push_back({std::string(item.get("block", "a block").text("block")),
                      {},
                      hosts_at(nodes.line(), nodes.text("nodes")),
                      item.line()});
  }
  std::vector<int> sizes;
  auto listed = block.find("block_sizes", "block");
  for (const Node& item : listed ? listed->items("block_sizes") : std::vector<Node>())
    sizes.push_back(block_size_at(item.line(), item.text("a block size")));
  return placements_of_blocks(std::move(blocks), sizes, listed ? listed->line() : 0);
}

// Reads a list of topologies. The cluster's default counts, or else the first one.
Placements read_slurm(const Node& root) {
  std::optional<Node> chosen;
  for (const Node& item : root.items("the file")) {
    auto is_default = item.find("cluster_default", "a topology");
    bool named = is_default && is_default->text("cluster_default") == "true";
    if (!chosen || named) chosen = item;
    if (named) break;
  }
  if (!chosen) throw at_line(root.line(), "no topology is listed");
  if (auto tree = chosen->find("tree", "a topology")) return read_tree(*tree);
  if (auto block = chosen->find("block", "a topology")) return read_blocks(*block);
  throw at_line(chosen->line(), "topology \"{}\" has neither a tree nor blocks",
                chosen->get("topology", "a topology").text("topology"));
}

}  // namespace

Placements parse_yaml(std::string_view text) {
  Document document(text);
  Node root = document.root();
  return root.is_list() ? read_slurm(root) : read_hosts(root);
}

}  // namespace ringcoll

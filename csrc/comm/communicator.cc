// Makes communicators, and logs what they are when they start.
#include "comm/communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/log.h"
#include "mesh/group/shrink.h"

namespace ringcoll {
namespace {

// Most ranks that the line at the start lists.
constexpr size_t kMostShown = 16;

}  // namespace

Communicator::Communicator(Config config, std::string name, Exchange& exchange)
    : name_(std::move(name)),
      mesh_(std::make_shared<Mesh>(std::move(config), exchange)),
      group_(mesh_->whole()) {
  if (rank() == 0) say_hello();
}

Communicator::Communicator(std::unique_ptr<Group> group, std::string name)
    : name_(std::move(name)), mesh_(group->shared_mesh()), part_(std::move(group)), group_(*part_) {
  if (rank() == 0) say_hello();
}

Communicator::~Communicator() { group_.leave(); }

std::unique_ptr<Group> Communicator::part(std::span<const Rank> ranks) const {
  return part_of(mesh_, group_, ranks);
}

std::unique_ptr<Group> Communicator::split(std::span<const Rank> ranks, const Gather& gather) {
  return ringcoll::split(mesh_, group_, ranks, gather);
}

std::unique_ptr<Group> Communicator::shrink(const std::function<bool()>& is_aborted) {
  if (!shrink_) shrink_ = std::make_unique<Shrink>(mesh_, group_, ++shrinks_);
  auto end = [this] {
    if (shrink_->is_over()) shrink_.reset();
  };
  try {
    auto rest = shrink_->run(Deadline(seconds(config().timeout_s)), is_aborted);
    end();
    return rest;
  } catch (...) {
    end();
    throw;
  }
}

// "; ports mlx5_0:1 (ranks 0, 2), mlx5_1:1 (ranks 1, 3)", or "" if the links have no ports.
std::string Communicator::ports_of_this_host() const {
  std::map<std::string, std::vector<Rank>> users;
  for (Rank r : topology().ring_order())
    if (topology().same_host(r, rank()) && !group_.port_of(r).empty())
      users[group_.port_of(r)].push_back(r);
  std::vector<std::string> ports;
  for (const auto& [port, ranks] : users)
    ports.push_back(ranks.size() > kMostShown
                        ? fmt::format("{} ({} ranks)", port, ranks.size())
                        : fmt::format("{} (ranks {})", port, fmt::join(ranks, ", ")));
  return ports.empty() ? "" : fmt::format("; ports {}", fmt::join(ports, ", "));
}

void Communicator::say_hello() const {
  std::set<std::string_view> near, far;
  for (Rank a = 1; a < size(); a++)
    (group_.link_of(a) == LinkClass::kNetwork ? far : near).insert(group_.transport_of(a));
  std::string links = near.empty() ? "" : fmt::format("{} within hosts", fmt::join(near, " and "));
  if (!far.empty())
    links += fmt::format("{}{} between {}", near.empty() ? "" : ", ", fmt::join(far, " and "),
                         topology().hosts() > 1 ? "hosts" : "ranks");
  if (topology().hosts() > 1) links += fmt::format("; network {}", mesh_->network());
  links += ports_of_this_host();
  auto plural = [](int n) { return n == 1 ? "" : "s"; };
  auto shown = std::span(topology().ring_order()).first(std::min<size_t>(size(), kMostShown));
  auto text =
      fmt::format("{} ({}): {} rank{} on {} host{}; {}; ring {}{} by {}", RINGCOLL_VERSION, name_,
                  size(), plural(size()), topology().hosts(), plural(topology().hosts()),
                  links.empty() ? "no links" : links, fmt::join(shown, "-"),
                  shown.size() < topology().ring_order().size() ? "-…" : "", topology().source());
  if (size() > 1) text += fmt::format("; {} ({})", describe(costs().levels), costs().source);
  for (const std::string& line : topology().explain(kMostShown)) log_debug("{}: {}", name_, line);
  if (name_.starts_with("world") || name_.starts_with("horovod"))
    log_info("{}", text);
  else
    log_debug("{}", text);
}

}  // namespace ringcoll

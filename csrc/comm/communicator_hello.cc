// What a communicator says of itself when it starts.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/log.h"
#include "comm/communicator.h"

namespace ringcoll {
namespace {

// Ranks of the ring that the line at the start shows.
constexpr size_t kMostShown = 16;

}  // namespace

// "; ports mlx5_0:1 (ranks 0, 2), mlx5_1:1 (ranks 1, 3)", or "" where links have none.
std::string Communicator::ports_of_this_host() const {
  std::map<std::string, std::vector<Rank>> users;
  for (Rank r : topology_.ring_order())
    if (topology_.same_host(r, rank_) && !port_of(r).empty()) users[port_of(r)].push_back(r);
  std::vector<std::string> ports;
  for (const auto& [port, ranks] : users)
    ports.push_back(ranks.size() > kMostShown
                        ? fmt::format("{} ({} ranks)", port, ranks.size())
                        : fmt::format("{} (ranks {})", port, fmt::join(ranks, ", ")));
  return ports.empty() ? "" : fmt::format("; ports {}", fmt::join(ports, ", "));
}

void Communicator::say_hello() const {
  std::set<std::string_view> near, far;
  for (Rank a = 1; a < size_; a++)
    (link_of(a) == LinkClass::kNetwork ? far : near).insert(transport_of(a));
  std::string links = near.empty() ? "" : fmt::format("{} within hosts", fmt::join(near, " and "));
  if (!far.empty())
    links += fmt::format("{}{} between {}", near.empty() ? "" : ", ", fmt::join(far, " and "),
                         topology_.hosts() > 1 ? "hosts" : "ranks");
  if (topology_.hosts() > 1) links += fmt::format("; network {}", network());
  links += ports_of_this_host();
  auto plural = [](int n) { return n == 1 ? "" : "s"; };
  auto shown = std::span(topology_.ring_order()).first(std::min<size_t>(size_, kMostShown));
  auto text =
      fmt::format("{} ({}): {} rank{} on {} host{}; {}; ring {}{} by {}", RINGCOLL_VERSION, name_,
                  size_, plural(size_), topology_.hosts(), plural(topology_.hosts()),
                  links.empty() ? "no links" : links, fmt::join(shown, "-"),
                  shown.size() < topology_.ring_order().size() ? "-…" : "", topology_.source());
  if (size_ > 1) text += fmt::format("; {} ({})", describe(costs_.levels), costs_.source);
  for (const std::string& line : topology_.explain(kMostShown)) log_debug("{}: {}", name_, line);
  if (name_.starts_with("world") || name_.starts_with("horovod"))
    log_info("{}", text);
  else
    log_debug("{}", text);
}

}  // namespace ringcoll

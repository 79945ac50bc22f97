// see the header
#include "schedule/fabric.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

namespace ringcoll {
namespace {

// The cost of a message after the first that a rank receives in a round, as a part of its latency.
// The message has usually arrived, so only its lines must move from the sender's cache. Where ranks
// share cores, a latency is mostly a context switch, and later messages need hardly any.
constexpr double kFurther = 0.5, kFurtherOnSharedCores = 0.1;

/// The work of all resources of a fabric, in microseconds per byte of the vector.
class Loads {
 public:
  explicit Loads(const Fabric& fabric) : fabric_(fabric) {
    auto ranks = static_cast<size_t>(fabric.ranks());
    find_ports();
    for (size_t level = 0; level < fabric.links.size(); level++) {
      first_of_ranks_.push_back(work_.size());
      work_.resize(work_.size() + 2 * ranks);
      first_of_groups_.push_back(work_.size());
      const Groups& below = fabric.groups[level == 0 ? 0 : level - 1];
      auto ways = level == first_network() ? ports_.size() : static_cast<size_t>(below.count());
      work_.resize(work_.size() + 2 * ways);
    }
    first_of_cores_ = work_.size();
    work_.resize(work_.size() + ranks);
    received_.resize(static_cast<size_t>(fabric.hosts().count()));
    working_us_.resize(received_.size());
    further_us_.resize(ranks, kNone);
  }

  void add(const Message& message) {
    size_t level = fabric_.level_between(message.from, message.to);
    const LinkCost& link = fabric_.links[level];
    double alone = message.share / link.rank_bytes_per_us;
    load(first_of_ranks_[level] + 2 * message.from, alone);
    load(first_of_ranks_[level] + 2 * message.to + 1, alone);
    if (level == 0) shared(0, fabric_.groups[0].of(message.to), 0, message.share);
    bool between_hosts = level >= first_network();
    between_hosts_ |= between_hosts;
    for (size_t l = 1; l <= level; l++)
      for (auto [rank, direction] : {std::pair(message.from, 0), std::pair(message.to, 1)}) {
        if (l == first_network())
          through_port(rank, direction, message.share);
        else
          shared(l, fabric_.groups[l - 1].of(rank), direction, message.share);
      }
    // The receiver itself reads memory of its own host, and combines what it receives.
    double core = between_hosts ? 0 : alone;
    if (message.combine != Combine::kCopy) core += message.share / fabric_.combined_bytes_per_us;
    load(first_of_cores_ + message.to, core);
    hops_.push_back({message.from, message.to, link.latency_us});
    add_latency(message.to, link.latency_us);
  }

  /// Ends a round that occurs `times` times.
  void end_round(int64_t times, Profile* profile) {
    double longest = 0;
    for (size_t resource : touched_) {
      Work& work = work_[resource];
      longest = std::max(longest, work.round);
      work.total += work.round * static_cast<double>(times);
      work.round = 0;
      profile->busiest_us_per_byte = std::max(profile->busiest_us_per_byte, work.total);
    }
    touched_.clear();
    double latency = latency_of(times) + most_further_us_ * static_cast<double>(times);
    if (fabric_.crowded)
      latency = std::max(latency * part_of_ranks_, most_working_us_ * static_cast<double>(times));
    profile->latency_us += latency;
    double bytes = longest * static_cast<double>(times);
    profile->us_per_byte += bytes;
    if (fabric_.crowded) {
      profile->work_us += latency;
      if (between_hosts_) profile->wire_work_us += latency, profile->wire_us_per_byte += bytes;
    }
    longest_us_ = part_of_ranks_ = most_working_us_ = most_further_us_ = 0;
    between_hosts_ = false;
    hops_.clear();
    std::ranges::fill(received_, 0);
    std::ranges::fill(working_us_, 0);
    std::ranges::fill(further_us_, kNone);
  }

 private:
  struct Work {
    double round = 0;
    double total = 0;
  };
  void add_latency(Rank rank, double latency_us) {
    Rank host = fabric_.hosts().of(rank), ranks = fabric_.hosts().size_of(host);
    longest_us_ = std::max(longest_us_, latency_us);
    double& further = further_us_[rank];
    if (further == kNone) {
      further = 0;
      double part = static_cast<double>(++received_[host]) / ranks;
      part_of_ranks_ = std::max(part_of_ranks_, std::min(part, 1.0));
    } else {
      latency_us *= fabric_.crowded ? kFurtherOnSharedCores : kFurther;
      further += latency_us;
      most_further_us_ = std::max(most_further_us_, further);
    }
    working_us_[host] += latency_us / ranks;
    most_working_us_ = std::max(most_working_us_, working_us_[host]);
  }
  size_t first_network() const { return fabric_.host_level + 1; }
  void load(size_t resource, double work) {
    if (work_[resource].round == 0) touched_.push_back(resource);
    work_[resource].round += work;
  }
  // A host's rate is divided among its ports. So a message on one port counts once for each port.
  void through_port(Rank rank, size_t direction, double share) {
    Rank port = fabric_.ports.empty() ? fabric_.hosts().of(rank) : fabric_.ports[rank];
    shared(first_network(), port, direction, share * ports_[port]);
  }
  void find_ports() {
    const Groups& hosts = fabric_.hosts();
    if (fabric_.ports.empty()) ports_.assign(static_cast<size_t>(hosts.count()), 1);
    for (Rank host = 0; !fabric_.ports.empty() && host < hosts.count(); host++) {
      std::set<Rank> own(fabric_.ports.begin() + hosts.first(host),
                         fabric_.ports.begin() + hosts.end(host));
      ports_.resize(std::max(ports_.size(), static_cast<size_t>(*own.rbegin()) + 1));
      for (Rank port : own) ports_[port] = static_cast<int>(own.size());
    }
  }
  void shared(size_t level, Rank group, size_t direction, double share) {
    double rate = fabric_.links[level].group_bytes_per_us;
    if (rate > 0) load(first_of_groups_[level] + 2 * group + direction, share / rate);
  }

  struct Hop {
    Rank from, to;
    double latency_us;
  };
  /// In equal rounds, a rank sends in one round what it received in the round before. So `times`
  /// rounds take the sum of latencies on the most expensive path of `times` successive messages.
  double latency_of(int64_t times) {
    double longest = longest_us_ * static_cast<double>(times);
    if (times == 1) return longest;
    std::ranges::sort(hops_, {}, &Hop::from);
    std::vector<bool> seen(hops_.size(), false);
    double dearest = 0;
    for (size_t begin = 0; begin < hops_.size(); begin++) {
      if (seen[begin]) continue;
      std::vector<double> circle = circle_from(begin, &seen);
      if (circle.empty()) return longest;
      dearest = std::max(dearest, dearest_way(circle, times));
    }
    return dearest;
  }
  /// The latencies around the circle of messages with a hop; empty if the hop is in no circle.
  std::vector<double> circle_from(size_t begin, std::vector<bool>* seen) const {
    std::vector<double> circle;
    size_t at = begin;
    do {
      if ((*seen)[at]) return {};
      (*seen)[at] = true;
      circle.push_back(hops_[at].latency_us);
      auto [first, end] = std::ranges::equal_range(hops_, hops_[at].to, {}, &Hop::from);
      if (end - first != 1) return {};
      at = static_cast<size_t>(first - hops_.begin());
    } while (at != begin);
    return circle;
  }
  static double dearest_way(std::vector<double> circle, int64_t hops) {
    auto length = static_cast<int64_t>(circle.size());
    double whole = std::accumulate(circle.begin(), circle.end(), 0.0);
    auto rest = circle.begin() + hops % length;
    double part = std::accumulate(circle.begin(), rest, 0.0), dearest = part;
    for (int64_t i = 0; i < length; i++) {
      part += circle[static_cast<size_t>((i + hops) % length)] - circle[static_cast<size_t>(i)];
      dearest = std::max(dearest, part);
    }
    return static_cast<double>(hops / length) * whole + dearest;
  }

  const Fabric& fabric_;
  std::vector<int> ports_;  // by port: the number of ports of its host
  std::vector<size_t> first_of_ranks_, first_of_groups_;  // by level
  size_t first_of_cores_ = 0;
  std::vector<Work> work_;
  std::vector<size_t> touched_;  // resources with work in this round
  // The rest describes the current round.
  double longest_us_ = 0;
  bool between_hosts_ = false;  // some message goes between hosts
  std::vector<Hop> hops_;
  std::vector<int> received_;  // by host: ranks that receive a message
  static constexpr double kNone = -1;
  std::vector<double> further_us_;  // by rank, of all messages after the first; kNone: no message
  double most_further_us_ = 0;
  double part_of_ranks_ = 0;  // the largest part of a host's ranks that receive a message
  // Work of the cores of each host for its messages, where a latency is work. Then the maximum.
  std::vector<double> working_us_;
  double most_working_us_ = 0;
};

/// Whether two rounds have equal messages. Shares may differ by rounding.
bool are_alike(const Traffic& a, const Traffic& b) {
  return std::ranges::equal(a.messages, b.messages, [](const Message& m, const Message& n) {
    return m.from == n.from && m.to == n.to && m.combine == n.combine &&
           std::abs(m.share - n.share) < 1e-9;
  });
}

}  // namespace

size_t Fabric::level_between(Rank a, Rank b) const {
  size_t level = 0;
  while (level + 1 < groups.size() && groups[level].of(a) != groups[level].of(b)) level++;
  return level;
}

std::span<const Groups> Fabric::levels() const {
  return std::span(groups).subspan(hosts().count() == 1 ? 0 : host_level);
}

bool Fabric::has_hosts_of_several() const {
  Rank count = levels().front().count();
  return count > 1 && count < ranks();
}

Profile profile_of(std::span<const Traffic> traffic, const Fabric& fabric) {
  // Equal rounds are one kind, even if other rounds occur between them: those have their own
  // latencies.
  std::vector<std::pair<const Traffic*, int64_t>> kinds;
  for (const Traffic& rounds : traffic) {
    auto known =
        std::ranges::find_if(kinds, [&](auto& kind) { return are_alike(*kind.first, rounds); });
    if (known == kinds.end())
      kinds.emplace_back(&rounds, rounds.times);
    else
      known->second += rounds.times;
  }
  Loads loads(fabric);
  Profile profile;
  for (auto [rounds, times] : kinds) {
    for (const Message& message : rounds->messages) {
      loads.add(message);
      profile.longest_message = std::max(profile.longest_message, message.share);
    }
    loads.end_round(times, &profile);
  }
  return profile;
}

// The first piece goes through all rounds. Each further piece ends later by what the busiest
// resource needs for it, and a little more: the resource sometimes waits for a piece. That wait
// falls with the number of slots; its constant was fitted to emulated hosts. Where cores are
// shared, they work for other ranks while a message is on the wire. So of rounds between hosts,
// only the longer of work and wire time counts.
double microseconds(const Profile& profile, double bytes, int64_t pieces, int64_t slots) {
  constexpr double kNotHidden = 0.5;
  double piece = bytes / static_cast<double>(pieces);
  double first = profile.latency_us + piece * profile.us_per_byte -
                 std::min(profile.wire_work_us, piece * profile.wire_us_per_byte);
  double share = first / static_cast<double>(slots);
  double busiest = std::max(piece * profile.busiest_us_per_byte, profile.work_us);
  double next = std::max(busiest + kNotHidden * share, share);
  return first + static_cast<double>(pieces - 1) * next;
}

bool is_offered(const ScheduleRow& row, const Fabric& fabric, bool one_domain) {
  switch (row.where) {
    case Where::kAnywhere:
      return true;
    case Where::kOneDomain:
      return one_domain;
    case Where::kHosts:
      return fabric.has_hosts_of_several();
  }
  return false;
}

}  // namespace ringcoll

#include "connect/connector.h"

#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "connect/batch.h"
#include "connect/worker.h"
#include "net/interfaces.h"

namespace ringcoll {
namespace {

// The time for a TCP connection over a network that reaches the peer at all. The kernel repeats the
// first packet after a second, so one may be lost.
constexpr Duration kReach = std::chrono::milliseconds(1200);
// Trials of a peer that returns no rate, since the peer may not have run meanwhile. After that
// kLeastRate is assumed: the network was reached, and is used only if there is no other.
constexpr int kRateTries = 3;
constexpr double kLeastRate = 1e-6;
// Equal for processes that share their interfaces, and for no others.
uint64_t own_stack() {
  GroupId hash = make_group_id(machine_id() + " " + namespace_id("net"));
  uint64_t stack;
  std::memcpy(&stack, hash.data(), sizeof stack);
  return stack;
}

std::string describe_finding(const Trial::Finding& found) {
  if (!found.why.empty()) return fmt::format("does not reach others: {}", found.why);
  if (found.bytes_per_us == Trial::kNotMeasured) return "reaches others";
  return fmt::format("sends {:.0f} MB/s", found.bytes_per_us);
}

}  // namespace

std::vector<Interface> own_interfaces(const Config& config) {
  auto all = list_interfaces();
  if (!config.interface.empty())
    return select_interfaces(config.interface, "RINGCOLL_INTERFACE", all);
  const LauncherInterface& told = config.launcher_interface;
  try {
    if (!told.names.empty()) return select_interfaces(told.names, told.variable, all);
  } catch (const Error& error) {
    log_warning("{}. The variable is ignored", error.what());
  }
  bool any_up = std::ranges::any_of(all, &Interface::up);
  if (!any_up && !look_at_links().loopback_is_up) return {};  // a local socket may suffice
  return select_interfaces("", "", all);
}

Connector::State::State(Rank own, std::vector<Interface> interfaces, EventLoop& loop)
    : rank(own), sink(loop), worker(std::make_unique<Worker>(*this)) {
  std::ranges::stable_sort(interfaces, std::ranges::greater(), &Interface::speed_mbps);
  std::string causes;
  for (const Interface& i : interfaces) {
    if (offers.size() == kMostOffers) break;
    try {
      gates.push_back(std::make_unique<Gate>(i.address, loop));
      offers.push_back({own_stack(), i.name, gates.back()->address(), i.prefix_bits, i.speed_mbps,
                        is_loopback(i.address)});
    } catch (const Error& error) {
      log_warning("{} is not used: {}", i.name, error.what());
      causes += fmt::format("{}{}", causes.empty() ? "" : "; ", error.what());
    }
  }
  if (!look_at_links().loopback_is_up && offers.size() < kMostOffers) {
    auto address = Address::of_this_host("ringcoll-" + random_secret());
    gates.push_back(std::make_unique<Gate>(address, loop));
    offers.push_back({.stack = own_stack(),
                      .interface = "sockets of this host",
                      .address = gates.back()->address(),
                      .is_of_stack = true});
  }
  check(!offers.empty(), Code::kTransport,
        "no network interface can be used: {}. Name one with RINGCOLL_INTERFACE", causes);
}

Connector::State::~State() = default;

void Connector::State::on_accepted(const Identity& identity, Fd fd) {
  if (identity.channel >= kTrialChannel) return sink.take(std::move(fd));
  if (is_either(identity.channel)) return take_either(identity, std::move(fd));
  if (identity.from > rank) return;  // only the lower rank connects
  {
    std::lock_guard lock(mutex);
    if (ended.find(identity.channel / kChannelsOfGroup)) return;
    // A second connection for a channel means that the peer has given up the first.
    parked[{identity.from, identity.channel}] = std::move(fd);
  }
  tell_waiting();
}

void Connector::State::on_refused(const Gate::Refusal& refusal) {
  log_debug("a connection of {} was refused: {}", refusal.peer.text(), explain(refusal.verdict));
  // A process that knows the group and has the address of the rank that it claims is that rank,
  // with a wrong setting. Waiting for it is in vain. The group alone does not prove that, since it
  // can be computed from the traffic of the network. For strangers only the counter is kept.
  const Identity& claimed = refusal.claimed;
  if (claimed.group != group || claimed.from < 0 || claimed.from >= rank) return;
  bool is_of_it = std::ranges::any_of(of_rank[claimed.from], [&](const Offer& offer) {
    return refusal.peer.family() != AF_UNIX && offer.address.host() == refusal.peer.host();
  });
  if (!is_of_it) return;
  {
    std::lock_guard lock(mutex);
    refusals[claimed.from] = fmt::format("{}: {}", refusal.peer.text(), explain(refusal.verdict));
  }
  tell_waiting();
}

// The number of ranks below `r` that share its interfaces.
size_t Connector::State::place_on_host(Rank r) const {
  auto stack_of = [&](Rank of) { return of_rank[of].empty() ? 0 : of_rank[of][0].stack; };
  size_t before = 0;
  for (Rank other = 0; other < r; other++) before += stack_of(other) == stack_of(r);
  return before;
}

// Data streams are assigned to the networks in turn. The first stream carries all short messages.
// So the first streams of a host's ranks start on different networks, and that of its first rank on
// the best one.
std::vector<int> Connector::State::networks_for(Rank peer, uint64_t channel) {
  std::lock_guard lock(mutex);
  if (!used.empty()) {
    uint64_t stream = channel % kChannelsOfGroup;
    if (stream == kMessageChannel) stream = kFirstDataChannel;
    bool is_data = stream >= kFirstDataChannel;
    size_t turn = is_data ? place_on_host(std::min(rank, peer)) + stream - kFirstDataChannel : 0;
    return {used[turn % used.size()].network};
  }
  std::vector<int> all;
  for (size_t i = 0; i < networks.size(); i++) all.push_back(static_cast<int>(i));
  return all;
}

Connector::Connector(Rank rank, const Config& config, EventLoop& loop)
    : Connector(rank, own_interfaces(config), loop) {}
Connector::Connector(Rank rank, std::vector<Interface> interfaces, EventLoop& loop)
    : state_(std::make_unique<State>(rank, std::move(interfaces), loop)) {}
Connector::~Connector() { stop(); }

void Connector::State::interrupt(GroupNumber for_group) {
  {
    std::lock_guard lock(mutex);
    interrupted.insert(for_group);
  }
  tell_waiting();
}

void Connector::State::tell_waiting() {
  std::lock_guard lock(mutex);
  for (int fd : waiting) {
    uint64_t one = 1;
    if (::write(fd, &one, sizeof one) < 0) continue;  // full, so readable already
  }
}

void Connector::interrupt(GroupNumber group) { state_->interrupt(group); }

void Connector::forget(GroupNumber group) {
  std::lock_guard lock(state_->mutex);
  state_->ended.add(group);
  state_->interrupted.erase(group);
  auto is_its = [&](const auto& entry) { return entry.first.second / kChannelsOfGroup == group; };
  std::erase_if(state_->parked, is_its);
  std::erase_if(state_->either, is_its);
}

std::string Connector::offers() const { return encode_offers(state_->offers); }
uint64_t Connector::rejected() const { return state_->rejected(); }

void Connector::set_peers(const std::vector<std::string>& offers, std::string secret) {
  State& state = *state_;
  auto size = static_cast<Rank>(offers.size());
  invariant(state.rank < size, "rank {} of {}", state.rank, size);
  std::string all;
  state.of_rank.reserve(offers.size());
  for (Rank r = 0; r < size; r++) {
    all += offers[r] + '\n';
    try {
      state.of_rank.push_back(decode_offers(offers[r]));
    } catch (const Error& error) {
      throw Error(Code::kTransport, fmt::format("rank {}: {}", r, error.what()), r);
    }
  }
  state.networks = joint_networks(state.of_rank);
  check(!state.networks.empty(), Code::kTransport,
        "no network joins the hosts of all ranks; name interfaces of one network with "
        "RINGCOLL_INTERFACE");
  // The offers have fresh ports. So their list differs between jobs, and all ranks of a job have
  // the same.
  state.group = make_group_id(all);
  state.secret = std::move(secret);
  for (auto& gate : state.gates)
    gate->open(
        {state.secret, state.rank, 0, size - 1, state.group},
        [&state](const Identity& from, Fd fd) { state.on_accepted(from, std::move(fd)); },
        [&state](const Gate::Refusal& refusal) { state.on_refused(refusal); });
}

void Connector::State::try_peer(Rank peer, bool measure, Deadline deadline, Trial* trial) {
  for (size_t i = 0; i < networks.size(); i++) {
    Trial::Finding& found = trial->findings[i];
    if (!found.why.empty()) continue;
    auto network = static_cast<int>(i);
    auto channel = kTrialChannel + i;
    try {
      std::optional<double> told;
      for (int tries = 0; !told && tries < (measure ? kRateTries : 1); tries++) {
        Deadline reach(std::min(kReach, deadline.left()));
        Batch batch(*this);
        batch.try_network({peer, channel, 0}, network, reach, deadline);
        Fd fd = batch.only();
        if (measure) told = measure_rate(fd.get());
      }
      if (measure) found.bytes_per_us = std::max(told.value_or(kLeastRate), kLeastRate);
    } catch (const Error& error) {
      // A peer that was reached and then does not answer is stopped; that says nothing about the
      // network.
      if (error.code() == Code::kTimeout && deadline.passed())
        throw Error(error.code(), error.what(), peer);
      if (is_interrupted(0)) throw;
      found = {Trial::kNotReached, error.what()};
    }
  }
}

// Neighbours in the order of hosts measure, all pairs at once, as a ring would use the network.
// Beyond that only hosts at distances 1, 2, 4, … try to connect, which stands for all pairs.
std::string Connector::try_networks(Deadline deadline) {
  State& state = *state_;
  std::vector<Rank> hosts = first_of_stacks(state.of_rank);
  auto own = std::ranges::find(hosts, state.rank);
  if (state.networks.size() < 2 || hosts.size() < 2 || own == hosts.end()) return "";
  Trial trial;
  trial.findings.resize(state.networks.size());
  auto left = static_cast<size_t>(hosts.end() - own);
  for (size_t distance = 1; distance < left; distance *= 2)
    state.try_peer(own[static_cast<ptrdiff_t>(distance)], distance == 1, deadline, &trial);
  return trial.encode();
}

void Connector::settle_networks(std::span<const std::string> findings,
                                const std::function<std::string(Rank)>& describe) {
  State& state = *state_;
  std::vector<Trial> trials;
  for (const std::string& text : findings)
    trials.push_back(Trial::decode(text, state.networks.size()));
  for (size_t r = 0; r < trials.size(); r++)
    for (size_t i = 0; i < trials[r].findings.size(); i++)
      log_debug("network {}: {} {}", state.networks[i].name, describe(static_cast<Rank>(r)),
                describe_finding(trials[r].findings[i]));
  std::vector<NetworkChoice> used = choose_networks(trials, state.networks.size());
  if (used.empty()) throw state.no_network(trials, describe);
  {
    std::lock_guard lock(state.mutex);  // lifelines are being made
    state.used = used;
  }
  for (size_t i = 0; i < state.gates.size(); i++) {
    bool needed =
        state.offers[i].address.family() == AF_UNIX ||
        std::ranges::any_of(used, [&](const NetworkChoice& choice) {
          return state.networks[choice.network].offer_of[state.rank] == static_cast<int>(i);
        });
    if (needed) continue;
    state.rejected_before += state.gates[i]->rejected();
    state.gates[i].reset();
  }
}

Error Connector::State::no_network(std::span<const Trial> trials,
                                   const std::function<std::string(Rank)>& describe) const {
  std::string text = "no network joins all hosts";
  for (size_t r = 0; r < trials.size(); r++) {
    const auto& found = trials[r].findings;
    if (found.empty()) continue;
    text += fmt::format("; {} has {}", describe(static_cast<Rank>(r)), describe_offers(of_rank[r]));
    for (size_t i = 0; i < found.size(); i++)
      if (!found[i].why.empty()) text += fmt::format(", by {}: {}", networks[i].name, found[i].why);
  }
  return {Code::kTransport,
          text + ". Join the hosts, or name the network that joins them with RINGCOLL_INTERFACE"};
}

std::string Connector::network() const {
  State& state = *state_;
  std::lock_guard lock(state.mutex);
  std::vector<std::string> texts;
  for (const NetworkChoice& choice : state.used) {
    const Offer& offer = state.offer_of(state.rank, choice.network);
    auto rate = choice.bytes_per_us > 0 ? fmt::format(", {:.0f} MB/s", choice.bytes_per_us) : "";
    texts.push_back(fmt::format("{} ({}{})", offer.network(), offer.interface, rate));
  }
  return fmt::format("{}", fmt::join(texts, " and "));
}

void Connector::begin(const Wanted& wanted, Deadline deadline, Done done) {
  State& state = *state_;
  auto [peer, channel, group, ends] = wanted;
  invariant(peer >= 0 && peer < static_cast<Rank>(state.of_rank.size()) && peer != state.rank,
            "rank {} dials rank {}", state.rank, peer);
  bool is_lifeline = channel == kLifelineChannel;
  State::Target to{peer, is_lifeline ? channel : channel_of(group, channel), group};
  Fd fd;
  bool is_made = false;
  {
    std::lock_guard lock(state.mutex);
    is_made = state.take_made(to, &fd);
  }
  if (is_made) return done(std::move(fd), {});
  state.worker->begin(to, ends, deadline, std::move(done));
}

Fd Connector::dial(Rank peer, uint32_t channel, Deadline deadline, GroupNumber group) {
  using End = std::pair<Fd, std::optional<Unmade>>;
  auto end = std::make_shared<std::promise<End>>();
  begin({peer, channel, group, Ends::kLower}, deadline,
        [end](Fd fd, const std::optional<Unmade>& unmade) {
          end->set_value({std::move(fd), unmade});
        });
  auto [fd, unmade] = end->get_future().get();
  if (unmade) throw Error(unmade->why);
  return std::move(fd);
}

std::string Connector::secret_for(std::string_view purpose) const {
  return derive_secret(state_->secret, purpose);
}

}  // namespace ringcoll

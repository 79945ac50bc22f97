// How a mesh gets the costs of its links: given, known, or measured.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "measure/measure.h"
#include "measure/pairs.h"
#include "mesh/group/group.h"
#include "mesh/saying.h"

namespace ringcoll {
namespace {

// The most ranks on one CPU that measurements wait for; with more, they would take too long.
constexpr int kMostShare = 8;
// How much longer the last round waits than a wait for a link. A rank that waits for a stopped peer
// can name it; ranks that miss others in the round cannot.
constexpr Duration kFirsthand = std::chrono::seconds(2);
// How many times longer than in calls a rank polls, while it measures, for a rank on its host. An
// idle processor may wake up more slowly than calls poll. Two ranks that sleep once would then wait
// for each other's wake-up in every round. Also, a rank that sleeps may be moved back to its peer's
// processor.
constexpr int kMorePolling = 40;

}  // namespace

/// The channels of a mesh that is being made.
class Mesh::Measured final : public MeasuredLinks {
 public:
  explicit Measured(Group& whole)
      : whole_(whole), channels_(whole.channels()), spin_(channels_.spin()) {}
  ~Measured() override {
    channels_.set_spin(spin_);
    channels_.forget_counts();  // the counts are for calls
  }
  Endpoint& link(Rank peer) override { return channels_[peer]; }
  void wait(Rank peer, const std::function<bool()>& ready) override {
    channels_.set_spin(is_network(peer) || channels_.yields() ? spin_ : spin_ * kMorePolling);
    channels_.wait(peer, ready, [&] { return fmt::format("measuring the link to rank {}", peer); });
  }
  bool is_network(Rank peer) const override { return whole_.link_of(peer) == LinkClass::kNetwork; }
  std::span<std::byte> memory() override { return whole_.memory().own(); }
  bool wants_places() const override { return whole_.wants_places(); }

 private:
  Group& whole_;
  Channels& channels_;
  const Duration spin_;  // of calls
};

// Rank 0's file is used. A rank with a different file would expect other costs, so it is an error.
void Mesh::adopt_given_costs(const std::vector<Introduction>& introductions) {
  std::string first_file, first;
  for (Rank r = 0; r < size_; r++) {
    const std::string &file = introductions[r].costs_file, &costs = introductions[r].costs;
    if (r == 0) first_file = file, first = costs;
    check(file.empty() || costs == first, Code::kInvalidArgument,
          "RINGCOLL_COSTS differs: rank {} has {} with {}, rank 0 has {}: give all ranks the same "
          "file, or only rank 0 one",
          r, file, costs,
          first_file.empty() ? "none" : fmt::format("{} with {}", first_file, first));
  }
  if (first.empty() || first_file.empty()) return;
  costs_file_ = "RINGCOLL_COSTS=" + first_file;
  costs_ = {parse_costs(first, costs_file_), costs_file_};
}

// One file may serve jobs on one host and on several hosts, with bound ranks and without.
void Mesh::check_given_levels() const {
  if (costs_file_.empty()) return;
  std::vector<std::string> names(kBelowHosts.begin(), kBelowHosts.end());
  for (const char* name : {"host", "network"}) names.emplace_back(name);
  for (int level = 0; level < topology_->levels(); level++)
    if (std::ranges::count(names, topology_->level_name(level)) == 0)
      names.push_back(topology_->level_name(level));
  for (const LevelCost& cost : costs_.levels)
    check(std::ranges::count(names, cost.level) > 0, Code::kInvalidArgument,
          "{}: levels.{}: this job has no such level; its levels are {}", costs_file_, cost.level,
          fmt::join(names, ", "));
}

// Fourth round: what each rank measured, and its addresses for messages. The round has a deadline
// of its own, as the waits before it have.
void Mesh::settle_costs(Exchange& exchange) {
  check_given_levels();
  std::vector<bool> wanted;
  for (int level = 0; level < topology_->levels(); level++)
    wanted.push_back(
        std::ranges::count(costs_.levels, topology_->level_name(level), &LevelCost::level) == 0);
  std::vector<LevelSamples> mine;
  auto failure = attempt([&] {
    whole_->channels().connect(neighbours());
    auto began = Clock::now();
    mine = measure_costs(wanted);
    measuring_ms_ = to_seconds(Clock::now() - began) * 1e3;
  });
  const Parts::Addresses& addresses = whole_->message_addresses();
  std::string said(reinterpret_cast<const char*>(&addresses), sizeof addresses);
  auto findings = round(exchange, said + encode_samples(mine), failure,
                        Deadline(seconds(config_.timeout_s) + kFirsthand));
  std::vector<std::vector<LevelSamples>> samples;
  std::vector<Parts::Addresses> of_messages(size_);
  for (Rank r = 0; r < size_; r++) {
    std::string_view heard = findings[r];
    check(heard.size() >= sizeof addresses, Code::kTransport,
          "the measurements of rank {} cannot be read: install the same version of ringcoll on all "
          "hosts",
          r);
    std::memcpy(&of_messages[r], heard.data(), sizeof addresses);
    samples.push_back(decode_samples(heard.substr(sizeof addresses), wanted.size(), r));
  }
  whole_->set_message_addresses(std::move(of_messages));
  costs_ = agree_on_costs(*topology_, samples, costs_.levels, costs_.source);
}

std::vector<LevelSamples> Mesh::measure_costs(const std::vector<bool>& wanted) {
  int share = std::min(topology_->ranks_for_each_cpu(), kMostShare);
  whole_->channels().connect(measured_peers(*topology_, rank_, wanted, share));
  Measured links(*whole_);
  return measure_links(*topology_, rank_, wanted, share, links);
}

}  // namespace ringcoll

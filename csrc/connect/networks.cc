#include "connect/networks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "base/error.h"
#include "net/interfaces.h"
#include "net/wire.h"

namespace ringcoll {
namespace {

constexpr size_t kMostText = 256;
constexpr double kFastest = 1e9;  // bytes/us; larger rates are nonsense

// Picks the offer by which a rank takes part in a network, or nothing.
using Pick = std::function<std::optional<int>(std::span<const Offer>)>;

std::optional<Network> joint(std::string name, std::span<const std::vector<Offer>> offers,
                             const Pick& pick) {
  Network network{std::move(name), {}};
  network.offer_of.reserve(offers.size());
  for (const auto& of_rank : offers) {
    auto picked = pick(of_rank);
    if (!picked) return {};
    network.offer_of.push_back(*picked);
  }
  return network;
}

int slowest(const Network& network, std::span<const std::vector<Offer>> offers) {
  int least = INT32_MAX;
  for (size_t rank = 0; rank < offers.size(); rank++)
    least = std::min(least, offers[rank][network.offer_of[rank]].speed_mbps);
  return least;
}

std::vector<std::string> interfaces_of(const Network& network,
                                       std::span<const std::vector<Offer>> offers) {
  std::vector<std::string> names;
  for (size_t rank = 0; rank < offers.size(); rank++)
    names.push_back(offers[rank][network.offer_of[rank]].interface);
  return names;
}

}  // namespace

std::string Offer::network() const {
  return address.family() == AF_UNIX ? interface : network_of(address, prefix_bits);
}

std::string encode_offers(std::span<const Offer> offers) {
  WireWriter writer;
  writer.put(static_cast<uint32_t>(offers.size()));
  for (const Offer& offer : offers) {
    writer.put(offer.stack);
    writer.put_text(offer.interface);
    writer.put_text(offer.address.text());
    writer.put<int32_t>(offer.prefix_bits);
    writer.put<int32_t>(offer.speed_mbps);
    writer.put<uint8_t>(offer.is_of_stack);
  }
  return writer.take();
}

std::vector<Offer> decode_offers(std::string_view text) {
  WireReader reader(text, "the addresses of a rank");
  auto count = reader.get<uint32_t>();
  check(count >= 1 && count <= kMostOffers, Code::kTransport,
        "the addresses of a rank: {} of them, 1 to {} are allowed", count, kMostOffers);
  std::vector<Offer> offers;
  offers.reserve(count);
  for (uint32_t i = 0; i < count; i++) {
    Offer offer;
    offer.stack = reader.get<uint64_t>();
    offer.interface = reader.get_text(kMostText);
    offer.address = Address::parse(reader.get_text(kMostText));
    offer.prefix_bits = reader.get<int32_t>();
    offer.speed_mbps = reader.get<int32_t>();
    offer.is_of_stack = reader.get<uint8_t>() != 0;
    int most = offer.address.family() == AF_INET ? 32 : 128;
    check(offer.prefix_bits >= 0 && offer.prefix_bits <= most && offer.speed_mbps >= 0,
          Code::kTransport, "the addresses of a rank: a network of {} bits, a speed of {} Mb/s",
          offer.prefix_bits, offer.speed_mbps);
    offers.push_back(std::move(offer));
  }
  reader.finish();
  return offers;
}

std::string describe_offers(std::span<const Offer> offers) {
  std::vector<std::string> texts;
  for (const Offer& offer : offers)
    texts.push_back(
        offer.address.family() == AF_UNIX
            ? offer.interface
            : fmt::format("{} {}/{}", offer.interface, offer.address.host(), offer.prefix_bits));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::vector<Rank> first_of_stacks(std::span<const std::vector<Offer>> offers) {
  std::vector<Rank> first;
  std::set<uint64_t> seen;
  for (size_t rank = 0; rank < offers.size(); rank++)
    if (seen.insert(offers[rank].front().stack).second) first.push_back(static_cast<Rank>(rank));
  return first;
}

std::vector<Network> joint_networks(std::span<const std::vector<Offer>> offers) {
  std::vector<Network> networks;
  std::set<std::vector<std::string>> seen;
  auto add = [&](std::vector<Network> kind) {
    std::ranges::stable_sort(kind, std::ranges::greater(),
                             [&](const Network& n) { return slowest(n, offers); });
    for (Network& network : kind)
      if (networks.size() < kMostNetworks && seen.insert(interfaces_of(network, offers)).second)
        networks.push_back(std::move(network));
  };
  bool crosses = first_of_stacks(offers).size() > 1;
  auto where = [crosses](auto&& holds) -> Pick {
    return [crosses, holds](std::span<const Offer> all) -> std::optional<int> {
      auto found = std::ranges::find_if(
          all, [&](const Offer& o) { return !(crosses && o.is_of_stack) && holds(o); });
      if (found == all.end()) return {};
      return static_cast<int>(found - all.begin());
    };
  };
  std::vector<Network> by_prefix, by_name;
  for (const Offer& first : offers.front()) {
    auto same_network = [&first](const Offer& o) {
      return o.prefix_bits == first.prefix_bits &&
             share_network(o.address, first.address, first.prefix_bits);
    };
    auto same_name = [name = first.interface](const Offer& o) { return o.interface == name; };
    if (auto network = joint(first.network(), offers, where(same_network)))
      by_prefix.push_back(std::move(*network));
    if (auto network = joint(first.interface, offers, where(same_name)))
      by_name.push_back(std::move(*network));
  }
  add(std::move(by_prefix));
  add(std::move(by_name));
  if (auto network = joint("the first interface of each rank", offers,
                           where([](const Offer&) { return true; })))
    add({std::move(*network)});
  return networks;
}

std::string Trial::encode() const {
  WireWriter writer;
  for (const Finding& finding : findings) {
    writer.put(finding.bytes_per_us);
    writer.put_text(std::string_view(finding.why).substr(0, kMostText));
  }
  return writer.take();
}

Trial Trial::decode(std::string_view text, size_t networks) {
  Trial trial;
  if (text.empty()) return trial;
  WireReader reader(text, "the findings of a rank about the networks");
  for (size_t i = 0; i < networks; i++) {
    auto rate = reader.get<double>();
    check(rate == kNotReached || (rate >= 0 && rate <= kFastest), Code::kTransport,
          "the findings of a rank about the networks: a rate of {}", rate);
    trial.findings.push_back({rate, reader.get_text(kMostText)});
  }
  reader.finish();
  return trial;
}

std::vector<NetworkChoice> choose_networks(std::span<const Trial> trials, size_t networks) {
  std::vector<double> rates(networks, kFastest);
  bool tried = false;
  for (const Trial& trial : trials)
    for (size_t i = 0; i < trial.findings.size(); i++) {
      tried = true;
      double rate = trial.findings[i].bytes_per_us;
      if (rate != Trial::kNotMeasured) rates[i] = std::min(rates[i], rate);
    }
  if (!tried) return {{}};
  double best = std::ranges::max(rates);
  if (best < 0) return {};
  auto near = std::ranges::find_if(rates, [&](double rate) { return rate >= kNear * best; });
  auto first = static_cast<int>(near - rates.begin());
  std::vector<NetworkChoice> chosen = {{first, *near}};
  for (int i = 0; i < static_cast<int>(networks); i++)
    if (i != first && rates[i] >= kWorthIt * best) chosen.push_back({i, rates[i]});
  return chosen;
}

}  // namespace ringcoll

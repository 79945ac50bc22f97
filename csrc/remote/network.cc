#include "remote/network.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "net/socket.h"
#include "net/wire.h"

namespace ringcoll::remote {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(200);
// If this thread runs later than this, the machine is busy: peers may have answered in time.
constexpr Duration kLag = std::chrono::milliseconds(300);
constexpr Duration kPatience = std::chrono::seconds(3);
constexpr Duration kProbePatience = std::chrono::seconds(1);
// An agent that closes lets its last frames pass for so long.
constexpr Duration kFarewell = std::chrono::milliseconds(100);
constexpr int kPortTries = 16;
// Links to one agent over as many interfaces, for their joint rate.
constexpr size_t kMostRails = 4;

GroupId group_of(const std::string& name) { return make_group_id("ringcoll agent " + name); }

Code code_of(LinkEnd end) {
  switch (end) {
    case LinkEnd::kAbsent:
      return Code::kPeerLost;
    case LinkEnd::kForbidden:
      return Code::kRefused;
    case LinkEnd::kUnreached:
    case LinkEnd::kSilent:
      return Code::kTimeout;
    default:
      return Code::kTransport;
  }
}

}  // namespace

Network::Network(AgentFacts facts, std::vector<Interface> interfaces, Regions& regions,
                 const Config* config)
    : own_(std::move(facts)),
      interfaces_(std::move(interfaces)),
      dispatcher_([this](const AgentFacts& peer) { dial_for_payload(peer); }),
      server_(regions),
      loop_("ringcoll-remote") {
  if (config) rdma_ = Rdma::open(*config, own_.id, regions, dispatcher_, loop_);
  loop_.after(kTick, [this] { tick(); });
}

Network::~Network() {
  std::vector<std::shared_ptr<Link>> links;
  std::map<std::string, std::unique_ptr<OpenDoor>> doors;
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    for (auto& [key, joined] : links_) links.push_back(joined.link);
    doors.swap(doors_);
  }
  mailbox_.stop();
  doors.clear();  // nobody comes in any more
  dispatcher_.close(Error(Code::kAborted, "the agent is closed"));
  for (auto& link : links) link->leave();
  {
    std::unique_lock lock(mutex_);
    dialled_changed_.wait_for(lock, kFarewell, [this] { return links_.empty(); });
  }
  if (rdma_) rdma_->close();
}

void Network::give_up(const Region& region) {
  server_.give_up(region);
  if (rdma_) rdma_->forget(region);
}

// --- Doors.

// All addresses of a door have one port, so that one address is enough to tell others.
bool Network::bind(OpenDoor& open, uint16_t port) {
  open.gates.clear();
  open.door.addresses.clear();
  bool any_loopback = false;
  auto listen = [&](const Address& address) {
    open.gates.push_back(std::make_unique<Gate>(address.with_port(port), loop_));
    open.door.addresses.push_back(open.gates.back()->address());
    port = open.door.addresses.back().port();
    any_loopback = any_loopback || is_loopback(address);
  };
  try {
    for (const Interface& each : interfaces_)
      if (open.gates.size() + 1 < kMostAddresses) listen(each.address);
    if (!any_loopback) listen(Address::parse("127.0.0.1:0"));
    return true;
  } catch (const Error& error) {
    log_debug("a door at port {}: {}", port, error.what());
    if (open.gates.empty()) throw;
    return false;
  }
}

Door Network::admit(const std::string& name, const std::string& key, uint16_t port) {
  check(!name.empty() && name.size() <= kLongestName && name.find_first_of("/:@ ") == name.npos,
        Code::kInvalidArgument,
        "\"{}\" is no name for guests to use: it has 1 to {} characters, without / : @ and blanks",
        name, kLongestName);
  check(!key.empty(), Code::kInvalidArgument,
        "the key of \"{}\" is empty: anybody could come in. Choose a key that only those know who "
        "may read and write",
        name);
  std::lock_guard lock(mutex_);
  if (auto found = doors_.find(name); found != doors_.end()) {
    const OpenDoor& open = *found->second;
    check(open.key == key, Code::kInvalidArgument, "\"{}\" is open with another key", name);
    check(port == 0 || port == open.door.addresses[0].port(), Code::kInvalidArgument,
          "\"{}\" is open at port {} and cannot also be at {}", name, open.door.addresses[0].port(),
          port);
    return open.door;
  }
  check(doors_.size() < kMostDoors, Code::kInvalidArgument,
        "this process admits guests under {} names, which is the most", kMostDoors);
  auto open = std::make_unique<OpenDoor>();
  open->door.name = name;
  open->key = key;
  bool bound = false;
  for (int i = 0; i < kPortTries && !bound; i++) bound = bind(*open, port) || port != 0;
  check(bound && open->door.addresses.size() > 0, Code::kTransport,
        "no port is free on all interfaces of this host: give one");
  let_in(*open);
  return (doors_[name] = std::move(open))->door;
}

void Network::let_in(OpenDoor& open) {
  for (auto& gate : open.gates) {
    AuthPolicy policy{.secret = open.key,
                      .self = 0,
                      .lowest = 0,
                      .highest = 0,
                      .group = group_of(open.door.name)};
    auto accepted = [this](const Identity&, Fd fd) {
      try {
        auto link = Link::accepted(loop_, *this, std::move(fd));
        std::lock_guard guard(mutex_);
        links_[link.get()] = {link, {}};
        loop_.after(Duration::zero(), [this, link] { made(*link); });
      } catch (const Error& error) {
        log_debug("a guest left before it was let in: {}", error.what());
      }
    };
    auto refused = [name = open.door.name](const Gate::Refusal& refusal) {
      log_warning(
          "{} was not let in as a guest of \"{}\": {}", refusal.peer.text(), name,
          refusal.verdict == Verdict::kWrongSecret ? "its key is wrong" : explain(refusal.verdict));
    };
    gate->open(std::move(policy), accepted, refused);
  }
}

AgentFacts Network::facts() {
  AgentFacts facts = own_;
  std::lock_guard lock(mutex_);
  for (auto& [name, open] : doors_) facts.doors.push_back(open->door);
  return facts;
}

std::vector<uint64_t> Network::proofs_for(const AgentFacts& agent) {
  std::vector<uint64_t> proofs;
  std::lock_guard lock(mutex_);
  for (const Door& door : agent.doors)
    if (auto own = doors_.find(door.name); own != doors_.end())
      proofs.push_back(proof_of(agent.id, door.name, own->second->key));
  return proofs;
}

// --- Links that this end makes.

std::shared_ptr<Link> Network::begin(const std::vector<Address>& addresses, const std::string& name,
                                     const std::string& key, Dialled dialled, Duration patience) {
  std::lock_guard lock(mutex_);
  check(!closing_, Code::kAborted, "the agent is closed");
  auto link =
      Link::dial(loop_, *this, addresses, key, group_of(name), patience, dialled.for_messages);
  links_[link.get()] = {link, {}};
  dialled_[link.get()] = std::move(dialled);
  return link;
}

uint64_t Network::dial(const std::vector<Address>& addresses, const std::string& name,
                       Deadline deadline) {
  std::string key;
  {
    std::lock_guard lock(mutex_);
    auto found = doors_.find(name);
    check(found != doors_.end(), Code::kRefused,
          "this process does not know the key of \"{}\": admit() or connect() tells it", name);
    key = found->second->key;
  }
  auto link = begin(addresses, name, key, {.for_messages = true}, deadline.left());
  std::unique_lock lock(mutex_);
  auto over = [&] { return dialled_[link.get()].over; };
  // The link has a deadline of its own; the margin is for its last report.
  dialled_changed_.wait_for(lock, deadline.left() + seconds(1), over);
  Dialled result = dialled_[link.get()];
  dialled_.erase(link.get());
  lock.unlock();
  if (result.over && !result.error) return result.connection;
  link->end(LinkEnd::kGoodbye);
  throw result.error.value_or(
      Error(Code::kTimeout, fmt::format("{} has not answered in time", addresses[0].text())));
}

// The addresses of a door, by the interface of this host that is in their network. Each interface
// that reaches the peer makes a rail of its own.
Network::Ways Network::ways_to(const AgentFacts& facts, const Door& door) const {
  std::map<std::string, std::vector<Address>> by_interface;
  std::vector<Address> routed;
  for (const Address& address : door.addresses) {
    if (is_loopback(address) && facts.stack != own_.stack) continue;
    auto joins = [&](const Interface& each) {
      return share_network(each.address, address, each.prefix_bits);
    };
    auto own = std::ranges::find_if(interfaces_, joins);
    bool direct = own != interfaces_.end() && facts.stack != own_.stack;
    (direct ? by_interface[own->name] : routed).push_back(address);
  }
  Ways ways;
  for (auto& [name, addresses] : by_interface) {
    ways.all.insert(ways.all.end(), addresses.begin(), addresses.end());
    if (ways.rails.size() < kMostRails) ways.rails.push_back(std::move(addresses));
  }
  ways.all.insert(ways.all.end(), routed.begin(), routed.end());
  return ways;
}

void Network::dial_for_payload(const AgentFacts& facts) {
  try {
    for (const Door& door : facts.doors) {
      std::string key;
      {
        std::lock_guard lock(mutex_);
        auto found = doors_.find(door.name);
        if (found == doors_.end()) continue;
        key = found->second->key;
      }
      Ways ways = ways_to(facts, door);
      if (ways.all.empty()) continue;
      begin(ways.all, door.name, key, {.agent = facts.id}, kPatience);
      for (size_t i = 1; i < ways.rails.size(); i++)
        begin(ways.rails[i], door.name, key, {.agent = facts.id, .is_rail = true}, kPatience);
      return;
    }
    throw Error(Code::kRefused,
                "the owner of the region admits nobody with a key that this process knows");
  } catch (const Error& error) {
    // Later, since the dispatcher is about to look at its batches.
    loop_.after(Duration::zero(),
                [this, agent = facts.id, error] { dispatcher_.unreachable(agent, error); });
  }
}

// --- What links tell.

Place Network::place_for(Link& link, const FrameHead& head) {
  if (head.kind == FrameKind::kWrite) return server_.place_for(link.shared_from_this(), head);
  return dispatcher_.place_for(head);
}

void Network::made(Link& link) {
  FrameHead head{.kind = FrameKind::kHello, .id = link.for_messages ? 1u : 0u};
  WireWriter hello;
  hello.put_text(encode(facts()));
  hello.put_text(rdma_ ? rdma_->ports() : "");
  link.send(head, hello.take());
}

void Network::take(Link& link, const FrameHead& head, std::string body) {
  switch (head.kind) {
    case FrameKind::kHello:
      return take_hello(link, head, body);
    case FrameKind::kPing:
      link.send({.kind = FrameKind::kPong});
      return;
    case FrameKind::kRead:
    case FrameKind::kWrite:
    case FrameKind::kNotice:
      return server_.take(link.shared_from_this(), head);
    case FrameKind::kData:
    case FrameKind::kDone:
    case FrameKind::kFailed:
      return dispatcher_.take(link, head, body);
    case FrameKind::kMessage:
      if (link.number != 0) mailbox_.take(link.number, std::move(body));
      return;
    default:
      if (rdma_) rdma_->take(link, head, body);
      return;
  }
}

void Network::take_hello(Link& link, const FrameHead& head, const std::string& body) {
  auto self = link.shared_from_this();
  AgentFacts facts;
  std::string ports;
  try {
    WireReader in(body, "the hello of an agent");
    facts = decode_facts(in.get_view(kLongestText));
    ports = in.get_text(kLongestText);
    in.finish();
  } catch (const Error& error) {
    return link.end(LinkEnd::kLost, error.what());
  }
  if (link.agent != 0) return;  // a second hello
  link.agent = facts.id;
  std::unique_lock lock(mutex_);
  links_[&link].peer = facts;
  auto found = dialled_.find(&link);
  bool is_mine = found != dialled_.end();
  Dialled dialled = is_mine ? found->second : Dialled{};
  if (!is_mine) link.for_messages = head.id == 1;
  if (is_mine && !dialled.for_messages) dialled_.erase(found);
  lock.unlock();

  if (dialled.is_probe) {
    mailbox_.close(dialled.lost_connection, "lost");
    return link.leave();
  }
  if (dialled.agent != 0 && dialled.agent != facts.id) {
    dispatcher_.unreachable(
        dialled.agent,
        Error(Code::kGone, fmt::format("another process is at {} now, where the owner of the "
                                       "region was: ask for a new handle",
                                       link.peer_text())));
    return link.leave();
  }
  if (!link.for_messages) return rdma_ ? rdma_->join(self, ports) : dispatcher_.add(self);
  link.number = mailbox_.add(self, /*tells=*/!is_mine);
  if (!is_mine) return;
  lock.lock();
  if (auto mine = dialled_.find(&link); mine != dialled_.end()) {
    mine->second.connection = link.number;
    mine->second.over = true;
  }
  dialled_changed_.notify_all();
}

void Network::ended(Link& link, LinkEnd end, const std::string& why) {
  auto self = link.shared_from_this();
  bool is_made = link.agent != 0;
  AgentFacts peer;
  {
    std::lock_guard lock(mutex_);
    if (auto node = links_.extract(&link)) peer = std::move(node.mapped().peer);
    if (links_.empty()) dialled_changed_.notify_all();
    if (closing_) return;
  }
  if (!is_made) return not_made(link, end, why);
  if (rdma_) rdma_->left(link);
  dispatcher_.remove(link);
  if (link.number == 0) return;
  if (end == LinkEnd::kLost) return probe(peer, link.number);
  mailbox_.close(link.number, end == LinkEnd::kGoodbye ? "goodbye" : "silent");
}

void Network::not_made(Link& link, LinkEnd end, const std::string& why) {
  std::unique_lock lock(mutex_);
  auto found = dialled_.find(&link);
  if (found == dialled_.end()) return;  // one that came, and left before its hello
  Error error(code_of(end), fmt::format("connecting to {}: {}", link.peer_text(),
                                        why.empty() ? "it closed the connection" : why));
  if (found->second.for_messages) {
    found->second.over = true;
    found->second.error = error;
    return dialled_changed_.notify_all();
  }
  Dialled dialled = found->second;
  dialled_.erase(found);
  // An agent that cannot be reached may have a link to this one.
  std::shared_ptr<Link> other;
  for (auto& [key, each] : links_)
    if (each.peer.id == dialled.agent && dialled.agent != 0) other = each.link;
  lock.unlock();
  if (dialled.is_probe) return probed(dialled, end);
  if (dialled.is_rail) return;
  if (other) return dispatcher_.add(other);
  dispatcher_.unreachable(dialled.agent, error);
}

// What a probe that was not let in says of the process.
void Network::probed(const Dialled& made, LinkEnd end) {
  mailbox_.close(made.lost_connection, end == LinkEnd::kAbsent      ? "refused"
                                       : end == LinkEnd::kUnreached ? "silent"
                                                                    : "lost");
}

// A connection has broken. If nobody listens where its process did, the process has ended.
void Network::probe(const AgentFacts& peer, uint64_t connection) {
  std::vector<Address> addresses;
  std::string name, key = "unknown";
  {
    std::lock_guard lock(mutex_);
    for (const Door& door : peer.doors)
      for (const Address& address : door.addresses)
        if (addresses.empty() && (!is_loopback(address) || peer.stack == own_.stack)) {
          addresses.push_back(address);
          name = door.name;
          if (auto own = doors_.find(name); own != doors_.end()) key = own->second->key;
        }
  }
  try {
    check(!addresses.empty(), Code::kTransport, "the peer listens nowhere");
    begin(addresses, name, key, {.agent = peer.id, .is_probe = true, .lost_connection = connection},
          kProbePatience);
  } catch (const Error&) {
    mailbox_.close(connection, "lost");
  }
}

void Network::tick() {
  auto now = Clock::now();
  Duration lag = now - last_tick_ - kTick;
  last_tick_ = now;
  if (lag >= kLag) excuse(lag);
  dispatcher_.look();
  mailbox_.look();
  loop_.after(kTick, [this] { tick(); });
}

// This process was stopped, or had no processor: what it has not heard meanwhile is nobody's fault.
void Network::excuse(Duration lag) {
  if (rdma_) rdma_->excuse(lag);
  std::lock_guard lock(mutex_);
  for (auto& [key, each] : links_) each.link->excuse(lag);
}

size_t Network::count() {
  std::lock_guard lock(mutex_);
  return links_.size();
}

}  // namespace ringcoll::remote

#include "remote/agent.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/copy.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/nonce.h"
#include "base/threads.h"

namespace ringcoll::remote {
namespace {

constexpr std::string_view kScheme = "ringcoll://";
// Peers that have ended stay known until then.
constexpr size_t kMostHostPeers = 1024;

AgentFacts facts_of(uint64_t id, const Regions& regions, const std::string& host) {
  return {.id = id,
          .stack = own_stack(),
          .host = own_host(host),
          .pid = ::getpid(),
          .control_fd = regions.control_fd(),
          .control_inode = regions.control_inode(),
          .doors = {}};
}

std::vector<Target> targets_of(const Door& door) {
  std::vector<Target> targets;
  for (const Address& address : door.addresses)
    targets.push_back({address.host(), address.port(), door.name});
  return targets;
}

}  // namespace

Target Target::parse(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  size_t slash = rest.find('/');
  check(slash != rest.npos && slash + 1 < rest.size(), Code::kInvalidArgument,
        "\"{}\" is no address of a store: write ringcoll://host:port/name", text);
  HostPort where = split_host_port(rest.substr(0, slash));
  return {where.host, where.port, std::string(rest.substr(slash + 1))};
}

std::string Target::text() const {
  bool v6 = host.find(':') != host.npos;
  return fmt::format("{}{}{}{}:{}/{}", kScheme, v6 ? "[" : "", host, v6 ? "]" : "", port, name);
}

Agent::Agent(std::vector<Interface> interfaces, const std::string& host, const Config* config)
    : id_(random_nonce()),
      regions_(id_),
      network_(facts_of(id_, regions_, host), std::move(interfaces), regions_, config) {}

Agent::~Agent() {
  std::deque<std::shared_ptr<Batch>> left;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    left.swap(started_);
  }
  started_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (auto& batch : left) batch->end(Error(Code::kAborted, "the agent is closed"));
}

std::vector<Target> Agent::admit(const std::string& name, const std::string& key, uint16_t port) {
  Door door = network_.admit(name, key, port);
  regions_.admit(proof_of(id_, name, key));
  {
    std::lock_guard lock(peers_mutex_);
    std::erase_if(host_peers_, [](const auto& each) { return each.second == nullptr; });
  }
  return targets_of(door);
}

std::vector<Target> Agent::addresses() {
  std::vector<Target> all;
  for (const Door& door : network_.facts().doors)
    for (Target& target : targets_of(door)) all.push_back(std::move(target));
  return all;
}

std::shared_ptr<Region> Agent::open(void* data, uint64_t bytes, bool writable) {
  return regions_.open(data, bytes, writable);
}

void Agent::close(const std::shared_ptr<Region>& region, Deadline deadline) {
  regions_.refuse(region);
  network_.give_up(*region);
  regions_.close(region, deadline);
}

std::string Agent::handle_of(const Region& region) {
  return encode(RegionHandle{.owner = network_.facts(),
                             .index = region.index(),
                             .secret = region.secret(),
                             .bytes = region.bytes(),
                             .writable = region.writable()});
}

// --- Copies on this host.

std::shared_ptr<HostPeer> Agent::host_peer(const AgentFacts& facts) {
  std::lock_guard lock(peers_mutex_);
  auto found = host_peers_.find(facts.id);
  if (found != host_peers_.end()) return found->second;
  // What they have mapped takes memory, and a descriptor each.
  std::erase_if(host_peers_,
                [](const auto& each) { return each.second && each.second->is_over(); });
  if (host_peers_.size() >= kMostHostPeers) host_peers_.clear();
  auto peer =
      facts.host == network_.host() ? HostPeer::open(facts, network_.proofs_for(facts)) : nullptr;
  return host_peers_[facts.id] = std::move(peer);
}

bool Agent::copy_from_here(const Copy& copy, const Source& source,
                           std::optional<uint64_t>* notice) {
  const RegionHandle& handle = *source.region;
  if (handle.owner.id == id_) {
    RegionUse use =
        regions_.use(handle.index, handle.secret, source.offset, copy.bytes, copy.writes);
    std::byte* region = use->data() + source.offset;
    copy_bytes(copy.writes ? region : copy.local, copy.writes ? copy.local : region, copy.bytes);
    if (*notice) use->give_notice(**notice);
    notice->reset();
    return true;
  }
  auto peer = host_peer(handle.owner);
  if (!peer) return false;
  bool made =
      copy.writes
          ? peer->write(handle.index, handle.secret, source.offset, copy.local, copy.bytes, notice)
          : peer->read(handle.index, handle.secret, source.offset, copy.local, copy.bytes);
  if (made) network_.dispatcher().count_here(handle.owner.id, copy.bytes);
  return made;
}

// False: links must do it. Throws if all sources are on this host, and none can be had.
bool Agent::copy_here(const Copy& copy, std::optional<uint64_t>* notice) {
  std::optional<Error> first;
  bool any_elsewhere = false;
  for (const Source& source : copy.sources) {
    try {
      if (copy_from_here(copy, source, notice)) return true;
      any_elsewhere = true;
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  if (!any_elsewhere) throw *first;
  return false;
}

Agent::Rest Agent::make_copies_here(const Batch& batch) {
  Rest rest;
  for (size_t i = 0; i < batch.copies().size(); i++) {
    const Copy& copy = batch.copies()[i];
    std::optional<uint64_t> notice = copy.notice;
    try {
      if (!copy_here(copy, &notice)) {
        (copy.bytes > 0 ? rest.copies : rest.notices).push_back(i);
      } else if (notice) {
        rest.notices.push_back(i);
      }
    } catch (const Error& error) {
      if (!rest.error) rest.error = error;
    }
  }
  std::erase_if(rest.notices, [&](size_t i) { return !batch.copies()[i].notice; });
  return rest;
}

void Agent::begin(const std::shared_ptr<Batch>& batch) {
  Rest rest = make_copies_here(*batch);
  if (rest.error || (rest.copies.empty() && rest.notices.empty())) return batch->end(rest.error);
  network_.dispatcher().submit(batch, rest.copies, rest.notices);
}

void Agent::run(const std::shared_ptr<Batch>& batch) {
  check(batch->may_wait(), Code::kInvalidArgument,
        "a completion callback cannot wait for copies: start them");
  begin(batch);
  while (!batch->wait(-1))
    network_.dispatcher().cancel(batch, Error(Code::kAborted, "a copy was interrupted"));
}

bool Agent::is_here(const RegionHandle& region) {
  if (region.owner.id == id_) return true;
  auto peer = host_peer(region.owner);
  return peer && peer->can_copy();
}

void Agent::cancel(const std::shared_ptr<Batch>& batch) {
  network_.dispatcher().cancel(batch, Error(Code::kAborted, "a copy was cancelled"));
}

void Agent::start(std::shared_ptr<Batch> batch) {
  {
    std::lock_guard lock(mutex_);
    check(!stopping_, Code::kAborted, "the agent is closed");
    if (!thread_.joinable()) thread_ = start_thread("ringcoll-copy", [this] { work(); });
    started_.push_back(std::move(batch));
  }
  started_changed_.notify_one();
}

void Agent::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    started_changed_.wait(lock, [this] { return stopping_ || !started_.empty(); });
    if (stopping_) return;
    auto batch = std::move(started_.front());
    started_.pop_front();
    lock.unlock();
    begin(batch);
    batch.reset();
    lock.lock();
  }
}

// --- Messages.

uint64_t Agent::dial(const Target& target, Deadline deadline) {
  std::vector<Address> addresses = resolve({target.host, target.port});
  return network_.dial(addresses, target.name, deadline);
}

void Agent::send(uint64_t connection, std::string text) {
  network_.mailbox().send(connection, std::move(text));
}

std::optional<Event> Agent::receive(Deadline deadline) {
  return network_.mailbox().receive(deadline);
}

void Agent::hang_up(uint64_t connection) {
  if (auto link = network_.mailbox().hang_up(connection)) link->leave();
}

Agent::Stats Agent::stats() {
  Dispatcher& dispatcher = network_.dispatcher();
  return {regions_.count(), network_.count(), dispatcher.served(), dispatcher.ways(),
          network_.server().answered_bytes()};
}

}  // namespace ringcoll::remote

#include "mesh/mesh.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>

#include "base/descriptors.h"
#include "base/log.h"
#include "mesh/group.h"
#include "mesh/opening.h"

namespace ringcoll {
namespace {

constexpr size_t kLeastExtentBytes = 1 << 20;
constexpr size_t kMostExtentBytes = 256 << 20;
// For messages of a group: many stretches of long ones, to several peers.
constexpr size_t kStagingBytes = 4 << 20;
// Of a limit on addresses (`ulimit -v`), of which peers take as many, and of one on the length of
// files (`ulimit -f`), which shared memory is to the kernel, groups take this part of each rank's.
constexpr rlim_t kAddressShare = 16, kFileShare = 4;
// How long a rank is tried to be reached that is taken to live, and how long its call is waited
// for.
constexpr Duration kRestore = std::chrono::seconds(2);
constexpr Duration kRestoreCall = std::chrono::milliseconds(20);
// A rank may come to talk to all others (rank 0 of a gather): a lifeline, a stream of the whole and
// one of a part each, twice that, for links may have half of what there is (transport/tcp/tcp.cc).
// The usual limit, 1,024, is for programs that use select(): it is raised where it is too low.
constexpr size_t kDescriptorsOfAPeer = 6, kOwnDescriptors = 256;
// More ranks than these make the rounds after the first among themselves: over a store each round
// takes as much of one process, or host, as there are ranks.
constexpr Rank kMostOverStore = 16;

rlim_t limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  return ::getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

Mesh::Mesh(Config config, Exchange& exchange)
    : config_(std::move(config)),
      rank_(exchange.rank()),
      size_(exchange.size()),
      loop_(std::make_unique<EventLoop>("ringcoll")),
      extents_(kMostGroups) {
  Deadline deadline(seconds(config_.timeout_s));
  links_.resize(size_);
  allow_descriptors(kOwnDescriptors + static_cast<size_t>(size_) * kDescriptorsOfAPeer);
  agree(exchange, deadline);
  std::unique_ptr<Exchange> tree;
  if (exchange.is_over_store() && size_ > kMostOverStore)
    tree = make_tree_exchange(rank_, size_, *connector_);
  Exchange& rounds = tree ? *tree : exchange;
  auto look = [this] { health_->throw_if_poisoned(); };
  rounds.while_waiting(look);
  exchange.while_waiting(look);
  try {
    join_ring();
    make_transports(rounds, deadline);
    settle_costs(rounds);
  } catch (const std::exception& error) {  // std::bad_alloc, too
    rounds.while_waiting({});
    exchange.while_waiting({});
    // The others learn why from this rank, and not that it has left.
    Error raised = fail(as_error(error));
    if (whole_) whole_->leave();
    if (raised.code() == Code::kPeerLost && raised.rank() != kNobody)
      exchange.has_died(raised.rank());
    throw raised;
  }
  finish(exchange);
}

// Who is lost by now, or has failed in its first call, is no matter of the start: calls raise it.
void Mesh::finish(Exchange& exchange) {
  try {
    exchange.finish();
  } catch (const Error& error) {
    log_debug("not all have read the last outcome: {}", error.what());
    if (error.code() == Code::kPeerLost && error.rank() != kNobody) exchange.has_died(error.rank());
  }
  exchange.while_waiting({});
}

Mesh::~Mesh() { whole_->leave(); }

void Mesh::make_whole(bool one_domain) {
  std::lock_guard lock(whole_mutex_);
  whole_ = std::make_unique<Group>(*this, *health_, one_domain);
}

void Mesh::wake_whole() {
  connector_->interrupt(0);
  std::lock_guard lock(whole_mutex_);
  if (whole_) whole_->wake();
}

// The first thing after ranks know one another: one lifeline in each direction of the ring joins
// all of them, so that an error, and the death of a rank while it sets up, reaches everybody.
void Mesh::join_ring() {
  Deadline deadline(seconds(config_.timeout_s));
  Opening opening(*this, 0, *health_, deadline);
  for (Rank peer : neighbours()) opening.add(peer, peer, 0);
  while (opening.next()) {
  }
}

// In the ring, from the highest on.
std::vector<Rank> Mesh::neighbours() const {
  const auto& order = topology_->ring_order();
  auto at = std::ranges::find(order, rank_) - order.begin();
  std::set<Rank> both = {order[(at + 1) % size_], order[(at + size_ - 1) % size_]};
  both.erase(rank_);
  return {both.rbegin(), both.rend()};
}

// What a rank does on its own between two rounds. Should it fail, it says so to all, so that nobody
// waits for it there, and goes on to the next round with its error, so that nobody waits for it
// here: over a function of the caller that wait has no deadline. Not after one who is gone or
// stopped, and does not come either.
std::optional<Error> Mesh::attempt(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const std::exception& caught) {
    Error error = fail(as_error(caught));
    if (error.code() == Code::kPeerLost || error.code() == Code::kTimeout) throw Error(error);
    return error;
  }
}

Error Mesh::fail(const Error& error) {
  if (whole_) return whole_->fail(error);
  health_->fail(error);
  return health_->error();
}

Mesh::Line Mesh::claim_lifeline(Rank peer) {
  std::lock_guard lock(lines_mutex_);
  if (lifelines_->has(peer)) return Line::kThere;
  return dialling_.insert(peer).second ? Line::kClaimed : Line::kAnothers;
}

void Mesh::wait_for_lifelines(Duration limit) {
  std::unique_lock lock(lines_mutex_);
  lines_changed_.wait_for(lock, limit);
}

// The lower rank finds the higher at once, or never; the higher finds the lower's call, if it came.
void Mesh::restore_lifeline(Rank peer) {
  if (claim_lifeline(peer) != Line::kClaimed) return;
  try {
    Deadline deadline(rank_ < peer ? kRestore : kRestoreCall);
    if (Fd fd = connector_->dial_lifeline(peer, deadline, new_group_number()))
      lifelines_->add(peer, std::move(fd));
  } catch (const std::exception& error) {  // whatever it is, it may be tried again
    log_debug("no lifeline to {} yet: {}", topology_->describe(peer), error.what());
  }
  end_lifeline(peer);
}

void Mesh::call_lifeline(Rank peer) {
  if (claim_lifeline(peer) != Line::kClaimed) return;
  bool begun = connector_->call_lifeline(
      peer, Deadline(kRestore), [this, peer](Fd fd) { lifelines_->add(peer, std::move(fd)); },
      [this, peer] { end_lifeline(peer); });
  if (!begun) end_lifeline(peer);
}

Mesh::EndOfCalls::~EndOfCalls() {
  if (connector) connector->stop();
}

void Mesh::end_lifeline(Rank peer) {
  std::lock_guard lock(lines_mutex_);
  dialling_.erase(peer);
  lines_changed_.notify_all();
}

GroupNumber Mesh::new_group_number() {
  std::lock_guard lock(groups_mutex_);
  return static_cast<GroupNumber>(rank_) << 32 | ++groups_made_;
}

// Only what is touched takes memory.
size_t Mesh::affordable_extent() {
  rlim_t bytes = std::min(limit_of(RLIMIT_AS) / kAddressShare, limit_of(RLIMIT_FSIZE) / kFileShare);
  rlim_t most = std::min<rlim_t>(bytes / kMostGroups, kMostExtentBytes);
  return std::max<size_t>(most / kLeastExtentBytes, 1) * kLeastExtentBytes;
}

void Mesh::make_arena() {
  size_t whole = static_cast<size_t>(config_.arena_bytes) + staging_bytes();
  size_t others = kMostGroups * (extent_bytes_ + staging_bytes());
  arena_ = SharedMemory::create(whole + others, config_.huge_pages);
}

size_t Mesh::staging_bytes() const { return std::min(kStagingBytes, extent_bytes_); }

std::span<std::byte> Mesh::take_extent() {
  forget_lost();
  std::lock_guard lock(groups_mutex_);
  free_extents();
  auto free = std::ranges::find(extents_, false);
  check(free != extents_.end(), Code::kTransport,
        "this rank is in {} groups, and there is room for no more: close some; {} have ended here "
        "and not on ranks that have not taken all of their messages",
        kMostGroups - kept_.size(), kept_.size());
  *free = true;
  auto number = static_cast<size_t>(free - extents_.begin());
  size_t each = extent_bytes_ + staging_bytes();
  return {arena_.data() + config_.arena_bytes + staging_bytes() + number * each, each};
}

void Mesh::give_back(std::span<std::byte> extent, std::vector<std::unique_ptr<Readers>> readers) {
  forget_lost();
  std::lock_guard lock(groups_mutex_);
  kept_.push_back({extent, std::move(readers)});
  free_extents();
}

// Who was killed takes nothing any more, and does not say so.
void Mesh::forget_lost() {
  for (Rank rank : lifelines_->lost())
    for (auto& transport : made_) transport->lost(rank);
}

// Under the lock.
void Mesh::free_extents() {
  std::erase_if(kept_, [this](Kept& kept) {
    std::erase_if(kept.readers, [](const auto& readers) { return !readers->any(); });
    if (!kept.readers.empty()) return false;
    size_t each = extent_bytes_ + staging_bytes();
    arena_.discard(kept.extent.data(), each);
    size_t at = kept.extent.data() - arena_.data() - config_.arena_bytes - staging_bytes();
    extents_[at / each] = false;
    return true;
  });
}

}  // namespace ringcoll

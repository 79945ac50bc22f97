#include "remote/host_peer.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/copy.h"
#include "base/error.h"
#include "base/log.h"
#include "base/order.h"
#include "base/process.h"
#include "remote/regions.h"

namespace ringcoll::remote {
namespace {

// Mapped segments of one peer. Its regions may come and go, and a mapping keeps the pages.
constexpr size_t kMostSegments = 256;

}  // namespace

std::shared_ptr<HostPeer> HostPeer::open(const AgentFacts& facts,
                                         const std::vector<uint64_t>& proofs) {
  std::shared_ptr<HostPeer> peer(new HostPeer);
  peer->agent_ = facts.id;
  peer->pid_ = facts.pid;
  peer->process_ =
      Fd::made_by([&] { return static_cast<int>(::syscall(SYS_pidfd_open, facts.pid, 0)); });
  try {
    peer->control_ =
        SharedMemory::open(facts.pid, facts.control_fd, sizeof(ControlMemory), /*writable=*/true);
    if (peer->control_.inode() != facts.control_inode) return nullptr;  // of another process
  } catch (const Error& error) {
    log_debug("the memory of process {} cannot be mapped: {}", facts.pid, error.what());
    return nullptr;
  }
  ControlMemory& control = peer->control();
  if (observe(control.agent) != facts.id) return nullptr;
  bool admitted = std::ranges::any_of(
      control.proofs, [&](auto& each) { return std::ranges::count(proofs, observe(each)) > 0; });
  if (!admitted) return nullptr;
  peer->memory_ = PeerMemory(facts.pid, control.self.load(std::memory_order_relaxed), facts.id);
  static_assert(offsetof(ControlMemory, agent) == 0, "the nonce of PeerMemory is the agent's id");
  peer->can_copy_ = peer->memory_.can_be_read();
  return peer;
}

bool HostPeer::has_ended() const {
  if (!process_) return ringcoll::has_ended(pid_);
  pollfd end{process_.get(), POLLIN, 0};
  return ::poll(&end, 1, 0) > 0;
}

bool HostPeer::is_over() const { return observe(control().agent) != agent_ || has_ended(); }

void HostPeer::throw_missing() const {
  check(!has_ended(), Code::kPeerLost, "process {}, which has the region, has ended", pid_);
  throw_gone();
}

// A process that ends has no memory any more before it is seen to have ended.
void HostPeer::throw_ended(uint32_t region, uint64_t secret) const {
  check(!is_open_still(control().regions[region], secret), Code::kPeerLost,
        "process {}, which has the region, is ending", pid_);
  throw_missing();
}

Located HostPeer::find(uint32_t region, uint64_t secret, uint64_t offset, uint64_t bytes) const {
  if (region >= kMostRegions || has_ended()) throw_missing();
  auto located = locate(control().regions[region], secret);
  if (!located) throw_missing();
  check_range(offset, bytes, located->bytes);
  return *located;
}

std::shared_ptr<SharedMemory> HostPeer::segment_of(const Located& located) {
  if (located.segment_fd < 0) return nullptr;
  std::lock_guard lock(mutex_);
  auto found = segments_.find(located.segment_inode);
  if (found != segments_.end()) return found->second;
  try {
    auto memory = std::make_shared<SharedMemory>(
        SharedMemory::open(pid_, located.segment_fd, located.segment_bytes, /*writable=*/true));
    if (memory->inode() != located.segment_inode) return nullptr;
    if (segments_.size() >= kMostSegments) segments_.clear();  // those in use have other owners
    return segments_[located.segment_inode] = memory;
  } catch (const Error& error) {
    log_debug("a segment of process {} cannot be mapped: {}", pid_, error.what());
    return nullptr;
  }
}

bool HostPeer::read(uint32_t region, uint64_t secret, uint64_t offset, void* local,
                    uint64_t bytes) {
  Located located = find(region, secret, offset, bytes);
  if (auto segment = segment_of(located)) {
    copy_bytes(local, segment->data() + located.segment_offset + offset, bytes);
  } else {
    if (!can_copy_) return false;
    auto result = memory_.read(located.address + offset, local, bytes);
    if (result == PeerMemory::Result::kGone) throw_ended(region, secret);
    // Not there: the region was closed meanwhile, or a driver has mapped its memory.
    if (result == PeerMemory::Result::kNotThere) {
      if (!is_open_still(control().regions[region], secret)) throw_missing();
      return false;
    }
  }
  if (!is_open_still(control().regions[region], secret)) throw_missing();
  return true;
}

bool HostPeer::write(uint32_t region, uint64_t secret, uint64_t offset, const void* local,
                     uint64_t bytes, std::optional<uint64_t>* notice) {
  if (region >= kMostRegions) throw_missing();
  WriteScope scope(control(), region);
  if (!scope) return false;
  Located located = find(region, secret, offset, bytes);
  check_writable(located.writable);
  if (bytes > 0 && !put(located, region, secret, offset, local, bytes)) return false;
  if (*notice && scope.leave_notice(secret, **notice)) notice->reset();
  return true;
}

bool HostPeer::put(const Located& located, uint32_t region, uint64_t secret, uint64_t offset,
                   const void* local, uint64_t bytes) {
  if (auto segment = segment_of(located)) {
    copy_bytes(segment->data() + located.segment_offset + offset, local, bytes);
    return true;
  }
  if (!can_copy_) return false;
  auto result = memory_.write(located.address + offset, local, bytes);
  if (result == PeerMemory::Result::kGone) throw_ended(region, secret);
  return result == PeerMemory::Result::kDone;
}

}  // namespace ringcoll::remote

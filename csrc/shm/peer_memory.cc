#include "shm/peer_memory.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ringcoll {
namespace {

// Of one system call, which cannot be interrupted: a process that is killed ends no later than
// that. Short, and calls count (they take about a microsecond).
constexpr uint64_t kMostOfACall = 64 << 20;

void* pointer_to(uint64_t address) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));  // NOLINT: another process's
}

}  // namespace

bool PeerMemory::can_be_read() const { return read(nonce_at_, nullptr, 0) == Result::kDone; }

// With each stretch the nonce is read again, and first: so that a process which only has the number
// of the one meant is noticed.
PeerMemory::Result PeerMemory::read(uint64_t from, void* place, uint64_t bytes) const {
  auto* to = static_cast<std::byte*>(place);
  uint64_t done = 0;
  do {
    uint64_t nonce = ~nonce_, left = std::min(bytes - done, kMostOfACall);
    std::array<iovec, 2> local = {{{&nonce, sizeof nonce}, {to + done, left}}};
    std::array<iovec, 2> remote = {
        {{pointer_to(nonce_at_), sizeof nonce}, {pointer_to(from + done), left}}};
    size_t parts = left > 0 ? 2 : 1;
    ssize_t got = ::process_vm_readv(pid_, local.data(), parts, remote.data(), parts, 0);
    if (got < 0) return errno == ESRCH ? Result::kGone : Result::kNotThere;
    if (nonce != nonce_) return Result::kGone;
    uint64_t more = static_cast<uint64_t>(got) - sizeof nonce;
    if (more == 0 && left > 0) return Result::kNotThere;
    done += more;
  } while (done < bytes);
  return Result::kDone;
}

}  // namespace ringcoll

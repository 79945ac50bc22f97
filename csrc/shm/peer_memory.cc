#include "shm/peer_memory.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ringcoll {
namespace {

// Bytes of one system call. It cannot be interrupted, so a killed process does not end before it
// does. Smaller stretches need more calls, which take about a microsecond each.
constexpr uint64_t kMostOfACall = 64 << 20;

void* pointer_to(uint64_t address) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));  // NOLINT: another process's
}

}  // namespace

bool PeerMemory::can_be_read() const { return read(nonce_at_, nullptr, 0) == Result::kDone; }

// Each stretch reads the nonce first, or the word last. So another process that has the number of
// the intended one is noticed. The kernel takes and releases the lock of the address space for each
// part, one after another. That keeps the reads of the parts in this order on all processors.
PeerMemory::Result PeerMemory::read(uint64_t from, void* place, uint64_t bytes, uint64_t word_at,
                                    uint64_t* word) const {
  auto* to = static_cast<std::byte*>(place);
  uint64_t done = 0;
  do {
    uint64_t nonce = ~nonce_, left = std::min(bytes - done, kMostOfACall);
    uint64_t words = word && left == bytes - done ? sizeof *word : 0;
    uint64_t nonces = words > 0 ? 0 : sizeof nonce;
    // The kernel skips parts of no bytes, and does not look at their addresses.
    std::array<iovec, 3> local = {{{&nonce, nonces}, {to + done, left}, {word, words}}};
    std::array<iovec, 3> remote = {{{pointer_to(nonce_at_), nonces},
                                    {pointer_to(from + done), left},
                                    {pointer_to(word_at), words}}};
    ssize_t got =
        ::process_vm_readv(pid_, local.data(), local.size(), remote.data(), remote.size(), 0);
    if (got < 0) return errno == ESRCH ? Result::kGone : Result::kNotThere;
    if (nonces > 0 && nonce != nonce_) return Result::kGone;
    uint64_t more = static_cast<uint64_t>(got) - nonces;
    bool stopped = more == 0 && left > 0;
    bool lacks_word = words > 0 && more >= left && more < left + words;
    if (stopped || lacks_word) return Result::kNotThere;
    done += std::min(more, left);
  } while (done < bytes);
  return Result::kDone;
}

PeerMemory::Result PeerMemory::write(uint64_t to, const void* place, uint64_t bytes) const {
  auto* from = static_cast<const std::byte*>(place);
  for (uint64_t done = 0; done < bytes;) {
    uint64_t left = std::min(bytes - done, kMostOfACall);
    iovec local{const_cast<std::byte*>(from + done), left};
    iovec remote{pointer_to(to + done), left};
    ssize_t sent = ::process_vm_writev(pid_, &local, 1, &remote, 1, 0);
    if (sent < 0) return errno == ESRCH ? Result::kGone : Result::kNotThere;
    if (sent == 0) return Result::kNotThere;
    done += static_cast<uint64_t>(sent);
  }
  return Result::kDone;
}

}  // namespace ringcoll

// A number that no other transport has, to tell the peer that is meant from one that happens to be
// at the same address.
#pragma once

#include <sys/random.h>

#include <cstdint>

#include "base/error.h"

namespace ringcoll {

inline uint64_t random_nonce() {
  uint64_t nonce = 0;
  // Requests of up to 256 bytes are never cut short by a signal once the pool is initialized.
  ssize_t got = ::getrandom(&nonce, sizeof nonce, 0);
  check(got == sizeof nonce, Code::kTransport, "making a random number: getrandom gave {} bytes",
        got);
  return nonce;
}

}  // namespace ringcoll

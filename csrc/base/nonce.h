// A random number. As a nonce, it tells the intended peer from another process at the same address.
// As a delay, it keeps ranks that retry from meeting again. It comes from the kernel and not from
// std::random_device, which needs arc4random() of the C library (glibc 2.36).
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

// A digest of data that ranks compare instead of the data itself.
#pragma once

#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// FNV-1a (Fowler, Noll and Vo) of 64 bits. All ranks run one program, so the digest need not
/// resist forgery.
inline uint64_t fnv1a(const void* data, size_t bytes) {
  uint64_t hash = 14695981039346656037ull;
  const auto* first = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ first[i]) * 1099511628211ull;
  return hash;
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop

#include "transport/verbs/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/error.h"
#include "base/machine.h"

namespace ringcoll::rdma {
namespace {

// The smallest buffer. Lengths are powers of two, so that messages of about the same length share
// buffers.
constexpr size_t kLeastLanding = 64 << 10;

std::byte* map(size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(at != MAP_FAILED, Code::kTransport, "mapping {} bytes for RDMA: {}", bytes,
        errno_text("mmap", errno));
  return static_cast<std::byte*>(at);
}

size_t in_pages(size_t bytes) {
  size_t page = page_bytes();
  return (std::max<size_t>(bytes, 1) + page - 1) / page * page;
}

}  // namespace

Registered::Registered(const verbs::ProtectionDomain& domain, size_t bytes, verbs::Access access)
    : bytes_(in_pages(bytes)) {
  data_ = map(bytes_);
  try {
    region_ = verbs::MemoryRegion(domain, data_, bytes_, access);
  } catch (const Error&) {
    ::munmap(data_, bytes_);
    throw;
  }
}

Registered::~Registered() {
  region_ = {};
  ::munmap(data_, bytes_);
}

std::unique_ptr<Registered> Landing::take(size_t bytes) {
  size_t wanted = std::bit_ceil(std::max(bytes, kLeastLanding));
  auto fits = [&](const auto& buffer) { return buffer->bytes() == wanted; };
  auto found = std::ranges::find_if(free_, fits);
  if (found == free_.end())
    return std::make_unique<Registered>(domain_, wanted, verbs::Access::kRemoteWrite);
  auto buffer = std::move(*found);
  free_.erase(found);
  return buffer;
}

}  // namespace ringcoll::rdma

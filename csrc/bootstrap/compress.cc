#include "bootstrap/compress.h"

#include <lz4.h>

#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace ringcoll {

std::string compress(std::string_view bytes) {
  invariant(bytes.size() <= LZ4_MAX_INPUT_SIZE, "{} bytes are to be compressed", bytes.size());
  auto length = static_cast<uint32_t>(bytes.size());
  auto most = static_cast<size_t>(LZ4_compressBound(static_cast<int>(length)));
  std::string out(sizeof length + most, 0);
  std::memcpy(out.data(), &length, sizeof length);
  int taken = LZ4_compress_default(bytes.data(), out.data() + sizeof length,
                                   static_cast<int>(length), static_cast<int>(most));
  invariant(taken > 0, "{} bytes did not fit into {}", length, most);
  out.resize(sizeof length + static_cast<size_t>(taken));
  return out;
}

std::string decompress(std::string_view compressed, size_t limit) {
  uint32_t length = 0;
  check(compressed.size() >= sizeof length && compressed.size() <= LZ4_MAX_INPUT_SIZE,
        Code::kTransport, "compressed data of {} bytes cannot be read", compressed.size());
  std::memcpy(&length, compressed.data(), sizeof length);
  compressed.remove_prefix(sizeof length);
  // Checked before memory is allocated.
  check(length <= limit, Code::kTransport,
        "compressed data claims to be {} bytes long; at most {} are allowed", length, limit);
  std::string out(length, 0);
  int got = LZ4_decompress_safe(compressed.data(), out.data(), static_cast<int>(compressed.size()),
                                static_cast<int>(length));
  check(got >= 0 && static_cast<uint32_t>(got) == length, Code::kTransport,
        "compressed data is damaged");
  return out;
}

}  // namespace ringcoll

// One non-blocking socket, and the two things done with it: it sends a batch of memory ranges, and
// receives bytes. It knows nothing of messages.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/types.h"

namespace ringcoll::tcp {

class Stream {
 public:
  /// Takes the socket over and makes it non-blocking. `link` appears in error messages.
  Stream(Fd fd, Rank peer, std::string link, size_t read_ahead_bytes);

  int fd() const { return fd_.get(); }

  /// Gives the kernel what it takes of `parts` now; returns how many bytes, 0 if none. Throws
  /// Error(kPeerLost / kTransport).
  uint64_t send(std::span<iovec> parts);
  /// Bytes that the kernel has taken and the peer has not acknowledged; 0 if the kernel does not
  /// tell.
  uint64_t unacknowledged() const;
  /// Copies up to `bytes` bytes to `to`: first those read ahead, then from the kernel. Returns how
  /// many; 0 if none is there, or the stream has ended().
  uint64_t receive(std::byte* to, uint64_t bytes);
  /// Drops up to `bytes` bytes; returns how many.
  uint64_t discard(uint64_t bytes);
  /// Whether bytes that were read ahead are left. poll() does not know of them.
  bool has_read_ahead() const { return begin_ < end_; }
  /// The peer has closed the stream: nothing more comes.
  bool ended() const { return ended_; }
  /// Throws Error(kPeerLost), which says that the peer has closed the stream.
  [[noreturn]] void fail_ended() const;

 private:
  uint64_t take_read_ahead(std::byte* to, uint64_t bytes);
  [[noreturn]] void fail(const char* call, int error) const;

  Fd fd_;
  Rank peer_;
  std::string link_;
  std::vector<std::byte> ahead_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool ended_ = false;
};

}  // namespace ringcoll::tcp

// The three ways in which verbs reports failure, one checker for each, and remedies.
//
//   null and errno                     open, alloc, reg, create     check_object
//   not zero: it *is* the errno        modify, query, post, ack     check_zero
//   -1 and errno                       get_cq_event, poll           check_not_negative
//
// A test of the second kind for `< 0` is the classic mistake: every failure passes it.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

namespace ringcoll::verbs {

/// What an error is about: "mlx5_0", "mlx5_0:1" or "mlx5_0:1, gid 3".
struct PortId {
  std::string device;
  int port = 0;        // 0: not of one port
  int gid_index = -1;  // -1: not of one GID

  std::string text() const;
};

/// Throws Error(kTransport): "ibv_modify_qp(RTR): Connection timed out [mlx5_0:1, gid 3]: …", with
/// the remedy last.
[[noreturn]] void fail(std::string_view call, int error, const PortId& port_id);

/// Returns `object`. If it is null, fails with errno.
template <typename Object>
Object* check_object(Object* object, std::string_view call, const PortId& port_id) {
  if (!object) [[unlikely]]
    fail(call, errno, port_id);
  return object;
}

/// The errno that a result of the second kind means, 0 for success. A few providers return it
/// negative, or -1 with errno set.
inline int error_of(int result) {
  if (result == -1) return errno ? errno : EIO;
  return result < 0 ? -result : result;
}

inline void check_zero(int result, std::string_view call, const PortId& port_id) {
  if (result != 0) [[unlikely]]
    fail(call, error_of(result), port_id);
}

/// Returns `result`. If it is negative, fails with errno, or EIO if that is not set.
inline int check_not_negative(int result, std::string_view call, const PortId& port_id) {
  if (result < 0) [[unlikely]]
    fail(call, errno ? errno : EIO, port_id);
  return result;
}

/// The remedy for an errno of a call; "" if none is known.
std::string remedy(std::string_view call, int error);

/// Bytes that this process may lock, which registered memory counts against; UINT64_MAX if there is
/// no limit.
uint64_t memlock_limit();
/// "unlimited" or "8192 KiB".
std::string memlock_text(uint64_t bytes);

}  // namespace ringcoll::verbs

// Addresses of IPv4, IPv6 and local sockets, and their text.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringcoll {

/// An address and a port. A value type.
class Address {
 public:
  Address() = default;
  Address(const sockaddr* address, socklen_t length);
  /// Parses "10.0.0.5:4711", "[fd00::2]:4711" or "unix:name"; host names are not allowed. Throws
  /// Error(kInvalidArgument).
  static Address parse(std::string_view text);
  /// The address of a local socket in the abstract namespace: only processes of this network
  /// namespace reach it, and no file exists for it. Throws Error(kInvalidArgument) if `name` is
  /// empty or too long.
  static Address of_this_host(std::string_view name);

  std::string text() const;  // as parse() reads it; "unix" for a local socket without a name
  std::string host() const;  // "10.0.0.5", "fd00::2"
  uint16_t port() const;
  Address with_port(uint16_t port) const;
  int family() const { return storage_.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

struct HostPort {
  std::string host;
  uint16_t port = 0;
};
/// Splits "host:port" or "[v6]:port". Throws Error(kInvalidArgument) naming `text`.
HostPort split_host_port(std::string_view text);
/// Looks up a name, and blocks as long as the system's resolver does. Returns at least one address.
/// Throws Error(kTransport).
std::vector<Address> resolve(const HostPort& where);

}  // namespace ringcoll

// Addresses of sockets, IPv4, IPv6 and local ones, and their text.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringcoll {

/// An address and a port. A value.
class Address {
 public:
  Address() = default;
  Address(const sockaddr* address, socklen_t length);
  /// "10.0.0.5:4711", "[fd00::2]:4711" or "unix:name"; no names of hosts. Throws
  /// Error(kInvalidArgument).
  static Address parse(std::string_view text);
  /// Of a socket that processes of this network namespace alone reach, without a network. It is no
  /// file.
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
/// Looks a name up (blocks as long as the system's resolver does). At least one address, or
/// Error(kTransport).
std::vector<Address> resolve(const HostPort& where);

}  // namespace ringcoll

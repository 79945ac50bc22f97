#include "net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace ringcoll {
namespace {

constexpr std::string_view kUnix = "unix:";

}  // namespace

Address::Address(const sockaddr* address, socklen_t length) : length_(length) {
  invariant(length <= sizeof storage_, "a socket address of {} bytes", length);
  std::memcpy(&storage_, address, length);
}

Address Address::parse(std::string_view text) {
  if (text.starts_with(kUnix)) return of_this_host(text.substr(kUnix.size()));
  HostPort parts = split_host_port(text);
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (inet_pton(AF_INET, parts.host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(parts.port);
    return {reinterpret_cast<sockaddr*>(&v4), sizeof v4};
  }
  check(inet_pton(AF_INET6, parts.host.c_str(), &v6.sin6_addr) == 1, Code::kInvalidArgument,
        "\"{}\" is not a numeric address and port such as 10.0.0.5:4711 or [fd00::2]:4711", text);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(parts.port);
  return {reinterpret_cast<sockaddr*>(&v6), sizeof v6};
}

Address Address::of_this_host(std::string_view name) {
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  check(!name.empty() && name.size() < sizeof local.sun_path, Code::kInvalidArgument,
        "\"{}\" is no name of a socket", name);
  std::copy(name.begin(), name.end(), local.sun_path + 1);  // after a 0: no file (unix(7))
  return {reinterpret_cast<sockaddr*>(&local),
          static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

std::string Address::host() const {
  char text[INET6_ADDRSTRLEN] = "unix";
  if (family() == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text,
              sizeof text);
  else if (family() == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text,
              sizeof text);
  return text;
}

std::string Address::text() const {
  if (family() == AF_INET) return fmt::format("{}:{}", host(), port());
  if (family() == AF_INET6) return fmt::format("[{}]:{}", host(), port());
  constexpr size_t kName = offsetof(sockaddr_un, sun_path) + 1;
  if (family() != AF_UNIX || length_ <= kName) return host();
  return std::string(kUnix) +
         std::string(reinterpret_cast<const char*>(&storage_) + kName, length_ - kName);
}

uint16_t Address::port() const {
  // sin_port and sin6_port have the same offset.
  return family() == AF_INET || family() == AF_INET6
             ? ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port)
             : 0;
}

Address Address::with_port(uint16_t port) const {
  Address changed = *this;
  reinterpret_cast<sockaddr_in*>(&changed.storage_)->sin_port = htons(port);
  return changed;
}

HostPort split_host_port(std::string_view text) {
  size_t colon = text.rfind(':');
  check(colon != std::string_view::npos && colon > 0, Code::kInvalidArgument,
        "\"{}\" is not of the form host:port", text);
  std::string_view host = text.substr(0, colon);
  std::string_view digits = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  else
    check(host.find(':') == std::string_view::npos, Code::kInvalidArgument,
          "\"{}\": an IPv6 address needs brackets, [fd00::2]:4711", text);
  HostPort parts{std::string(host), 0};
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), parts.port);
  check(error == std::errc() && end == digits.data() + digits.size(), Code::kInvalidArgument,
        "\"{}\": the port must be a number from 0 to 65535", text);
  return parts;
}

std::vector<Address> resolve(const HostPort& where) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int error = getaddrinfo(where.host.c_str(), nullptr, &hints, &found);
  check(error == 0, Code::kTransport, "host {}: {}; check the name and the name service",
        where.host, gai_strerror(error));
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<Address> addresses;
  for (addrinfo* entry = found; entry; entry = entry->ai_next)
    addresses.push_back(Address(entry->ai_addr, entry->ai_addrlen).with_port(where.port));
  return addresses;
}

}  // namespace ringcoll

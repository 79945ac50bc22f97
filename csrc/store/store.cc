#include "store/store.h"

#include <algorithm>
#include <string_view>
#include <thread>

#include "base/error.h"

namespace ringcoll {

std::optional<std::string> Store::wait(const std::string& key, Deadline deadline) {
  Duration longest = longest_pause();
  if (key != awaited_) pause_ = std::max(pace().first, waiters_ * pace().first_of_each);
  awaited_ = key;
  for (;;) {
    auto value = try_get(key, Deadline(std::max(deadline.left(), seconds(kRequestSeconds))));
    if (value || deadline.passed()) return value;
    sleep(std::min(pause_, deadline.left()));
    pause_ = std::min(pause_ * 3 / 2, longest);
  }
}

void Store::sleep(Duration time) const {
  for (; time > kLook; time -= kLook) {
    std::this_thread::sleep_for(kLook);
    look();
  }
  std::this_thread::sleep_for(time);
}

std::string Store::get(const std::string& key, Deadline deadline) {
  auto value = wait(key, deadline);
  check(value.has_value(), Code::kTimeout, "{}: nobody has set \"{}\" before the deadline", name(),
        key);
  return std::move(*value);
}

std::string quote_key(std::string_view key) {
  std::string quoted;
  for (unsigned char c : key) {
    bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                 c == '.' || c == '-' || c == '_';
    quoted += plain ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
  }
  return quoted;
}

std::unique_ptr<Store> open_store(const std::string& url, const std::string& secret, Rank rank,
                                  Rank size, Deadline deadline) {
  std::string_view text = url;
  auto rest_of = [&](std::string_view scheme) {
    return text.starts_with(scheme) ? url.substr(scheme.size()) : std::string();
  };
  if (auto rest = rest_of("tcp://"); !rest.empty())
    return open_tcp_store(rest, secret, rank, size, deadline);
  if (auto rest = rest_of("file://"); !rest.empty()) return open_file_store(rest, rank, deadline);
  if (auto rest = rest_of("horovod://"); !rest.empty()) return open_http_store(rest, deadline);
  if (auto rest = rest_of("local://"); !rest.empty()) return open_local_store(rest);
  throw Error(Code::kInvalidArgument,
              fmt::format("\"{}\" is not a store; it is one of tcp://host:port (rank 0 serves it), "
                          "file:///directory, horovod://host:port, local://name",
                          url));
}

}  // namespace ringcoll

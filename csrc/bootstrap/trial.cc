#include "bootstrap/trial.h"

// Not <netinet/tcp.h>, whose tcp_info ends before tcpi_bytes_acked.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace ringcoll {
namespace {

constexpr size_t kBlock = 256 << 10;
// Of a connection on which nothing was acknowledged in time.
constexpr double kLeastRate = 1e-6;

uint64_t acknowledged(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  check(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0, Code::kTransport, "{}",
        errno_text("getsockopt(TCP_INFO)", errno));
  return info.tcpi_bytes_acked;
}

// How often what was acknowledged is looked at.
constexpr Duration kLook = std::chrono::microseconds(250);

void send_until(int fd, const std::vector<char>& block, Deadline end) {
  while (!end.passed()) {
    if (send(fd, block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) continue;
    if (errno != EAGAIN && errno != EINTR) return;  // the peer has gone; that shows in the rate
    auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(end.left());
    timespec limit{0, std::max<long>(left.count(), 0)};
    pollfd entry{fd, POLLOUT, 0};
    ppoll(&entry, 1, &limit, nullptr);
  }
}

bool is_window(const Acknowledged& first, const Acknowledged& last) {
  return last.bytes - first.bytes >= kTrialWindowBytes && last.at - first.at >= kTrialWindow;
}

double rate_between(const Acknowledged& first, const Acknowledged& last) {
  double us = to_seconds(last.at - first.at) * 1e6;
  return us > 0 ? static_cast<double>(last.bytes - first.bytes) / us : 0;
}

}  // namespace

double rate_of(std::span<const Acknowledged> seen) {
  std::vector<Acknowledged> news;
  for (const Acknowledged& now : seen)
    if (news.empty() || now.bytes != news.back().bytes) news.push_back(now);
  // The first of all is what had come before anybody looked.
  if (news.size() < 3) return seen.empty() ? 0 : rate_between(seen.front(), seen.back());
  double best = 0;
  size_t first = 1;
  for (size_t last = first + 1; last < news.size(); last++) {
    if (!is_window(news[first], news[last])) continue;
    best = std::max(best, rate_between(news[first], news[last]));
    first = last;
  }
  return best > 0 ? best : rate_between(news[1], news.back());
}

double measure_rate(int fd) {
  std::vector<char> block(kBlock);
  Deadline warm(kTrialWarmTime);
  while (!warm.passed() && acknowledged(fd) < kTrialWarmBytes)
    send_until(fd, block, Deadline(kLook));
  std::vector<Acknowledged> seen;
  Deadline end(kTrialTime);
  auto enough = [&] {
    return !seen.empty() &&
           seen.back().bytes - seen.front().bytes >= (kTrialWindows + 1) * kTrialWindowBytes &&
           seen.back().at - seen.front().at >= (kTrialWindows + 1) * kTrialWindow;
  };
  while (!enough() && !end.passed()) {
    send_until(fd, block, Deadline(kLook));
    seen.push_back({Clock::now(), acknowledged(fd)});
  }
  double best = std::max(kLeastRate, rate_of(seen));
  linger at_once{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  return best;
}

Sink::~Sink() {
  std::vector<int> numbers;
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, fd] : open_) numbers.push_back(number);
  }
  for (int number : numbers) loop_.forget(number);
  // One that has forgotten itself may still be at it.
  loop_.settle();
}

void Sink::take(Fd fd) {
  int number = fd.get();
  {
    std::lock_guard lock(mutex_);
    open_.emplace(number, std::move(fd));
  }
  try {
    loop_.watch(number, [this, number](uint32_t) { drop_what_is_there(number); });
  } catch (const Error& error) {
    log_warning("a trial of a network is dropped: {}", error.what());
    std::lock_guard lock(mutex_);
    open_.erase(number);
  }
}

void Sink::drop_what_is_there(int number) {
  // The kernel drops it without a copy.
  ssize_t got = recv(number, nullptr, kBlock, MSG_TRUNC | MSG_DONTWAIT);
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return;
  loop_.forget(number);
  std::lock_guard lock(mutex_);
  open_.erase(number);
}

}  // namespace ringcoll

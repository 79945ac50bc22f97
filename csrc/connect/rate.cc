#include "connect/rate.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/error.h"
#include "base/log.h"

namespace ringcoll {
namespace {

constexpr size_t kBlock = 256 << 10;
// Most bytes in flight, so that the queue of a slow link does not overflow. Nothing would arrive
// until lost data is sent again.
constexpr int kMostUnderWay = 256 << 10;
// How long the other end may take to return the rate.
constexpr Duration kPatience = std::chrono::milliseconds(300);
// Least time between two samples of what has arrived.
constexpr Duration kRateLook = std::chrono::microseconds(100);
constexpr size_t kFewLooks = 6;
// Most reads in one callback, so that other work of the loop goes on.
constexpr int kMostReads = 16;

bool is_window(const Arrived& first, const Arrived& last) {
  return last.bytes - first.bytes >= kTrialWindowBytes && last.at - first.at >= kTrialWindow;
}

double rate_between(const Arrived& first, const Arrived& last) {
  double us = to_seconds(last.at - first.at) * 1e6;
  return us > 0 ? static_cast<double>(last.bytes - first.bytes) / us : 0;
}

bool is_enough(std::span<const Arrived> seen) {
  if (seen.empty()) return false;
  Duration time = seen.back().at - seen.front().at;
  uint64_t bytes = seen.back().bytes - seen.front().bytes;
  bool windows = time >= (kTrialWindows + 1) * kTrialWindow &&
                 bytes >= (kTrialWindows + 1) * kTrialWindowBytes;
  // If there are few samples, the thread did not run; more will follow soon.
  return windows || (time >= kTrialTime && seen.size() >= kFewLooks) || time >= 4 * kTrialTime;
}

}  // namespace

double rate_of(std::span<const Arrived> seen) {
  std::vector<Arrived> news;
  for (const Arrived& now : seen)
    if (news.empty() || now.bytes != news.back().bytes) news.push_back(now);
  if (news.size() < 2) return 0;
  double best = 0;
  size_t first = 0;
  for (size_t last = 1; last < news.size(); last++) {
    if (!is_window(news[first], news[last])) continue;
    best = std::max(best, rate_between(news[first], news[last]));
    first = last;
  }
  return best > 0 ? best : rate_between(news.front(), news.back());
}

std::optional<double> measure_rate(int fd) {
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kMostUnderWay, sizeof kMostUnderWay);
  std::vector<char> block(kBlock);
  double rate = 0;
  for (Deadline end(kTrialWarmTime + kTrialTime + kPatience); !end.passed();) {
    if (recv(fd, &rate, sizeof rate, MSG_DONTWAIT) != -1) break;  // the rate, or closed
    if (send(fd, block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) continue;
    if (errno != EAGAIN && errno != EINTR) break;
    pollfd entry{fd, POLLIN | POLLOUT, 0};
    poll(&entry, 1, end.left_ms());
  }
  linger at_once{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  if (!std::isfinite(rate) || rate <= 0) return {};
  return rate;
}

Sink::~Sink() {
  std::vector<int> numbers;
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, stream] : open_) numbers.push_back(number);
  }
  for (int number : numbers) loop_.forget(number);
  // A callback that has called forget() for its own stream may still run.
  loop_.settle();
}

void Sink::take(Fd fd) {
  int number = fd.get();
  {
    std::lock_guard lock(mutex_);
    open_[number].fd = std::move(fd);
  }
  try {
    loop_.watch(number, [this, number](uint32_t) { drop_what_is_there(number); });
  } catch (const Error& error) {
    log_warning("a connection that measures a network is dropped: {}", error.what());
    std::lock_guard lock(mutex_);
    open_.erase(number);
  }
}

void Sink::drop_what_is_there(int number) {
  std::lock_guard lock(mutex_);
  Stream& stream = open_[number];
  ssize_t got = 1;
  for (int reads = 0; got > 0 && reads < kMostReads; reads++) {
    got = recv(number, nullptr, kBlock, MSG_TRUNC | MSG_DONTWAIT);  // dropped without a copy
    if (got > 0) stream.bytes += static_cast<uint64_t>(got);
  }
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return look(stream);
  loop_.forget(number);
  open_.erase(number);
}

void Sink::look(Stream& stream) {
  if (stream.told || stream.bytes == 0) return;
  auto now = Clock::now();
  if (stream.begin == Clock::time_point{}) stream.begin = now;
  if (stream.bytes < kTrialWarmBytes && now - stream.begin < kTrialWarmTime) return;
  if (!stream.seen.empty() && now - stream.seen.back().at < kRateLook) return;
  stream.seen.push_back({now, stream.bytes});
  if (!is_enough(stream.seen)) return;
  double rate = rate_of(stream.seen);
  // The send buffer is empty in this direction, so these bytes fit. If the send fails, the other
  // end gets no rate.
  stream.told = send(stream.fd.get(), &rate, sizeof rate, MSG_DONTWAIT | MSG_NOSIGNAL) != 0;
}

}  // namespace ringcoll

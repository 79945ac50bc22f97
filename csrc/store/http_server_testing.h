// A small rendezvous server for tests, with the habits of horovodrun's: HTTP/1.0, values by path,
// 404 for what is not set, DELETE.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace ringcoll {

class HttpServerForTests {
 public:
  HttpServerForTests();
  ~HttpServerForTests();

  uint16_t port() const { return port_; }
  /// What it answers to everything from now on, instead; "" for its normal habits.
  void always_answer(std::string bytes);
  /// The next `count` requests get no answer; their connections stay open.
  void forget_requests(int count) { forgotten_ = count; }
  /// The connections of the next `count` requests are reset, as those of an overloaded server are.
  void reset_requests(int count) { reset_ = count; }
  /// Accepts nothing for so long, with no room for another connection: the kernel drops what comes,
  /// as it does where ranks start together and Horovod's server lets five of them wait.
  void stand_still(Duration time);
  uint64_t requests() const { return requests_; }
  size_t value_count();

 private:
  void serve();
  void answer(int fd);

  Fd listener_;
  uint16_t port_;
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::string canned_;
  std::atomic<int> forgotten_{0}, reset_{0};
  std::atomic<Clock::time_point> still_until_{Clock::time_point{}};
  std::atomic<uint64_t> requests_{0};
  std::vector<Fd> silent_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace ringcoll

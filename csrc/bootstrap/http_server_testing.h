// A small rendezvous server for tests, with the habits of horovodrun's: HTTP/1.0, values by path,
// 404 for what is not set, DELETE.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

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
  std::atomic<int> forgotten_{0};
  std::atomic<uint64_t> requests_{0};
  std::vector<Fd> silent_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace ringcoll

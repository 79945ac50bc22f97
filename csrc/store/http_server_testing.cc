#include "store/http_server_testing.h"

#include <poll.h>
#include <sys/socket.h>

#include <sstream>

#include "base/error.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

// A request up to the end of its body.
std::string read_request(int fd, size_t* head_bytes) {
  std::string text;
  size_t length = 0;
  *head_bytes = std::string::npos;
  char buffer[4096];
  while (*head_bytes == std::string::npos || text.size() < *head_bytes + length) {
    size_t got = recv_some(fd, buffer, sizeof buffer, Deadline(seconds(5)), "test");
    if (got == 0) return "";
    text.append(buffer, got);
    size_t end = text.find("\r\n\r\n");
    if (*head_bytes != std::string::npos || end == std::string::npos) continue;
    *head_bytes = end + 4;
    size_t at = text.find("Content-Length: ");
    if (at < end) length = std::stoul(text.substr(at + 16));
  }
  return text;
}

std::string response(const char* status, const std::string& body) {
  return fmt::format("HTTP/1.0 {}\r\nServer: test\r\nContent-Length: {}\r\n\r\n{}", status,
                     body.size(), body);
}

}  // namespace

HttpServerForTests::HttpServerForTests()
    : listener_(listen_on(Address::parse("127.0.0.1:0"))),
      port_(local_address(listener_.get()).port()),
      thread_([this] { serve(); }) {}

HttpServerForTests::~HttpServerForTests() {
  stopping_ = true;
  thread_.join();
}

void HttpServerForTests::always_answer(std::string bytes) {
  std::lock_guard lock(mutex_);
  canned_ = std::move(bytes);
}

void HttpServerForTests::stand_still(Duration time) {
  still_until_ = Clock::now() + time;
  listen(listener_.get(), 0);
  int error = 0;
  try_connect(local_address(listener_.get()), Deadline(time), &error);  // has the only place
}

size_t HttpServerForTests::value_count() {
  std::lock_guard lock(mutex_);
  return values_.size();
}

void HttpServerForTests::serve() {
  while (!stopping_) {
    pollfd entry{listener_.get(), POLLIN, 0};
    if (poll(&entry, 1, 10) <= 0) continue;
    if (Clock::now() < still_until_.load()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) continue;
    requests_++;
    if (forgotten_ > 0) {
      forgotten_--;
      silent_.push_back(std::move(fd));
      continue;
    }
    if (reset_ > 0) {
      reset_--;
      linger at_once{.l_onoff = 1, .l_linger = 0};
      setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      continue;
    }
    try {
      answer(fd.get());
    } catch (const Error&) {
      // The client went away.
    }
  }
}

void HttpServerForTests::answer(int fd) {
  size_t head_bytes = 0;
  std::string request = read_request(fd, &head_bytes);
  if (request.empty()) return;
  std::string method, path, reply;
  std::istringstream(request) >> method >> path;
  {
    std::lock_guard lock(mutex_);
    if (!canned_.empty()) {
      reply = canned_;
    } else if (method == "PUT") {
      values_[path] = request.substr(head_bytes);
      reply = response("200 OK", "");
    } else if (method == "DELETE") {
      values_.erase(path);
      reply = response("200 OK", "");
    } else {
      auto found = values_.find(path);
      reply = found == values_.end() ? response("404 Not Found", "")
                                     : response("200 OK", found->second);
    }
  }
  send_all(fd, reply.data(), reply.size(), Deadline(seconds(5)), "test");
}

}  // namespace ringcoll

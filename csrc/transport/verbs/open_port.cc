#include "transport/verbs/open_port.h"

#include <utility>

#include "base/log.h"
#include "base/order.h"
#include "verbs/discovery.h"

namespace ringcoll::rdma {

OpenPort::OpenPort(verbs::UsablePort port, double retry_seconds)
    : retry_seconds_(retry_seconds),
      port_(std::move(port)),
      context(port_.device),
      domain(context),
      events_(context, [this](const verbs::Event& event) { hear(event); }) {}

verbs::UsablePort OpenPort::port() const {
  std::lock_guard lock(mutex_);
  return port_;
}

std::string OpenPort::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void OpenPort::fail(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = why;
  publish(failed_, true);
}

// A port that comes back before the queue pairs give up loses nothing. A permanent failure is
// stored for the endpoints, which look before they wait again.
void OpenPort::hear(const verbs::Event& event) {
  using enum verbs::EventKind;
  if (event.kind == kDeviceFatal || event.kind == kCompletionQueueLost)
    fail(event.text());
  else if (event.kind == kQueuePairFatal || event.kind == kQueuePairAccess ||
           event.kind == kQueuePairRequest)
    log_warning("{}", event.text());  // its endpoint finds the completions that failed
  else if (event.kind == kPortDown)
    log_warning("{}; connections over it are given up after {:.1f} s", event.text(),
                retry_seconds_);
  else
    log_debug("{}", event.text());
}

void OpenPort::read_again(int gid_index) {
  verbs::UsablePort used = port();
  verbs::Port now = verbs::read_port(context, used.port.number);
  verbs::GidChoice gid = verbs::choose_gid(now, {.index = gid_index});
  if (!now.problem.empty() || gid.index < 0) {
    log_warning("{} is used as it was before it changed: {}", used.port_id().text(),
                now.problem.empty() ? gid.reason : now.problem);
    return;
  }
  if (gid.gid != used.gid.gid)
    log_info("{} has changed its address from {} to {}", used.port_id().text(), used.gid.gid.text(),
             gid.gid.text());
  std::lock_guard lock(mutex_);
  port_.port = std::move(now);
  port_.gid = std::move(gid);
}

}  // namespace ringcoll::rdma

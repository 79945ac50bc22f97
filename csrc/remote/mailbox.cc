#include "remote/mailbox.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/interruption.h"

namespace ringcoll::remote {
namespace {

// A peer that is stopped must not take the memory of those who write to it.
constexpr uint64_t kMostQueued = uint64_t{256} << 20;
constexpr Duration kPingEvery = std::chrono::milliseconds(400);
constexpr Duration kSilence = std::chrono::milliseconds(1500);

}  // namespace

void Mailbox::push(Event event) {
  events_.push_back(std::move(event));
  came_.notify_one();
}

uint64_t Mailbox::add(const std::shared_ptr<Link>& link, bool tells) {
  std::lock_guard lock(mutex_);
  uint64_t number = next_++;
  links_[number] = link;
  if (tells) push({Event::Kind::kOpened, number, {}});
  return number;
}

void Mailbox::take(uint64_t connection, std::string text) {
  std::lock_guard lock(mutex_);
  if (links_.contains(connection)) push({Event::Kind::kMessage, connection, std::move(text)});
}

void Mailbox::close(uint64_t connection, std::string why) {
  std::lock_guard lock(mutex_);
  if (links_.erase(connection) > 0) push({Event::Kind::kClosed, connection, std::move(why)});
}

void Mailbox::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  came_.notify_all();
}

void Mailbox::send(uint64_t connection, std::string text) {
  check(text.size() <= kLongestMessage, Code::kInvalidArgument,
        "a message of {} bytes: at most {} are allowed", text.size(), kLongestMessage);
  std::shared_ptr<Link> link;
  {
    std::lock_guard lock(mutex_);
    auto found = links_.find(connection);
    if (found != links_.end()) link = found->second;
  }
  check(link != nullptr, Code::kPeerLost, "connection {} has ended", connection);
  check(link->queued_bytes() + text.size() <= kMostQueued, Code::kTransport,
        "{} bytes wait to be sent to {}, which does not take them", link->queued_bytes(),
        link->peer_text());
  check(link->send({.kind = FrameKind::kMessage}, std::move(text)), Code::kPeerLost,
        "the connection to {} has ended", link->peer_text());
}

std::optional<Event> Mailbox::receive(Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (events_.empty()) {
    check(!stopped_, Code::kAborted, "the agent is closed");
    if (deadline.passed() || Interruption::has_ended()) return {};
    wait_attended(came_, lock, deadline.left());
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::shared_ptr<Link> Mailbox::hang_up(uint64_t connection) {
  std::lock_guard lock(mutex_);
  auto found = links_.find(connection);
  if (found == links_.end()) return nullptr;
  auto link = std::move(found->second);
  links_.erase(found);
  return link;
}

void Mailbox::look() {
  std::vector<std::shared_ptr<Link>> links;
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, link] : links_) links.push_back(link);
  }
  auto now = Clock::now();
  for (auto& link : links) {
    Duration quiet = now - link->heard();
    if (quiet >= kSilence)
      link->end(LinkEnd::kSilent);
    else if (quiet >= kPingEvery)
      link->send({.kind = FrameKind::kPing});
  }
}

size_t Mailbox::count() {
  std::lock_guard lock(mutex_);
  return links_.size();
}

}  // namespace ringcoll::remote

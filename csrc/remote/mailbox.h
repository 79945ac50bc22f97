// The links for messages of an agent, and what has come on them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "remote/link.h"

namespace ringcoll::remote {

/// What receive() tells of links for messages.
struct Event {
  enum class Kind : uint8_t { kOpened, kMessage, kClosed };
  Kind kind = Kind::kMessage;
  uint64_t connection = 0;
  std::string text;  // of kMessage; of kClosed "goodbye", "lost", "silent", or "refused": the
                     // process has ended
};

/// Any thread.
class Mailbox {
 public:
  /// Gives the link a number. `tells`: the peer has made it, so kOpened comes.
  uint64_t add(const std::shared_ptr<Link>& link, bool tells);
  void take(uint64_t connection, std::string text);
  /// The link has ended; kClosed comes, unless hang_up() was called.
  void close(uint64_t connection, std::string why);
  /// Makes receive() throw, for good.
  void stop();

  // Agent has functions of these names, and says what they do.
  void send(uint64_t connection, std::string text);
  std::optional<Event> receive(Deadline deadline);
  std::shared_ptr<Link> hang_up(uint64_t connection);

  /// Ends links whose peers are silent. A few times a second.
  void look();
  size_t count();

 private:
  void push(Event event);

  std::mutex mutex_;
  std::condition_variable came_;
  std::map<uint64_t, std::shared_ptr<Link>> links_;
  std::deque<Event> events_;
  uint64_t next_ = 1;
  bool stopped_ = false;
};

}  // namespace ringcoll::remote

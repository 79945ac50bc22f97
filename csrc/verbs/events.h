// Asynchronous events of a device: what happens to it that no completion tells. Read from a
// descriptor of its own, or on a thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/fd.h"
#include "verbs/handles.h"

namespace ringcoll::verbs {

enum class EventKind : uint8_t {
  kPortUp,
  kPortDown,
  kDeviceFatal,          // every object of the device is lost
  kQueuePairFatal,       // this queue pair is in the error state
  kQueuePairAccess,      // the peer of this one tried what it may not
  kQueuePairRequest,     // the peer of this one sent what cannot be
  kCompletionQueueLost,  // it overflowed; its queue pairs are lost with it
  kGidChange,
  kLidChange,
  kPartitionChange,
  kSubnetManagerChange,
  kConnectionEstablished,  // the peer's first packet came; nothing to do
  kOther,
};

/// "port down", "queue pair fatal", …
const char* name_of(EventKind kind);

/// Whom an event is about.
enum class EventScope : uint8_t { kDevice, kPort, kQueuePair, kOther };

struct Event {
  EventKind kind = EventKind::kOther;
  EventScope scope = EventScope::kOther;
  int port = 0;         // of kPort
  uint32_t qp_num = 0;  // of kQueuePair
  PortId port_id;

  /// "port down [mlx5_0:1]: check cable and switch; …"
  std::string text() const;
};

/// Reads the events of one device. The context outlives it and is not moved; one of these for each
/// context, since each event is given out once.
class EventReader {
 public:
  explicit EventReader(const Context& context);

  /// Readable when there is an event. Non-blocking; the context's own.
  int fd() const;
  /// The next event, already acknowledged, so that no destructor ever waits for it; nothing if
  /// there is none. Throws Error(kTransport) if the device is gone.
  std::optional<Event> next();
  const std::string& device() const { return context_.device(); }

 private:
  const Context& context_;
};

/// Hands each event to `handle` on a thread of its own, until destroyed. Both are the caller's;
/// `handle` must neither throw nor block, and does not run any more once the destructor has
/// returned.
class EventThread {
 public:
  EventThread(const Context& context, std::function<void(const Event&)> handle);
  ~EventThread();
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;

 private:
  void run_on_thread();

  EventReader reader_;
  std::function<void(const Event&)> handle_;
  Fd stop_;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace ringcoll::verbs

// Asynchronous events of a device, which no completion reports. They are read from a descriptor of
// their own, or on a thread.
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
  kQueuePairAccess,      // its peer tried an access that it may not make
  kQueuePairRequest,     // its peer sent an invalid request
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

/// What an event is about.
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

/// Reads the events of one device. The context outlives it and is not moved. A context has one
/// reader, since each event is given out once.
class EventReader {
 public:
  explicit EventReader(const Context& context);

  /// Readable when there is an event. Non-blocking; owned by the context.
  int fd() const;
  /// The next event; nothing if there is none. It is acknowledged already, so that no destructor
  /// waits for it. Throws Error(kTransport) if the device is gone.
  std::optional<Event> next();
  const std::string& device() const { return context_.device(); }

 private:
  const Context& context_;
};

/// Passes each event to `handle` on a thread of its own, until destroyed. The context outlives it.
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

// Move-only handles on the objects of verbs: device, protection domain, completion channel,
// completion queue, registered memory. Queue pairs have a header of their own, queue_pair.h.
//
// Lifetime: what a constructor is given must outlive the handle, as a member declared before it
// does: Context, then ProtectionDomain and CompletionChannel, then CompletionQueue and
// MemoryRegion, then QueuePair. A handle may be moved while others were made from it. If the
// library refuses to destroy an object (something made from it is left), the destructor logs and
// leaks; it never throws. No destructor waits: completion events and asynchronous events are
// acknowledged as they are read.
//
// Errors of constructors are Error(kTransport) with call, reason, device and remedy. Threads: one
// thread at a time uses a handle, except that any thread may read a MemoryRegion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "verbs/completion.h"
#include "verbs/failure.h"

struct ibv_comp_channel;
struct ibv_context;
struct ibv_cq;
struct ibv_mr;
struct ibv_pd;

namespace ringcoll::verbs {

struct Table;

/// What the handles have in common: the object, the table that made it, and the port for messages.
template <typename Object>
class Handle {
 public:
  using Destroy = int (*)(const Table&, Object*);

  Handle() = default;
  Handle(const Table& table, Object* object, Destroy destroy, const char* call, PortId port_id)
      : table_(&table),
        object_(object),
        destroy_(destroy),
        call_(call),
        port_id_(std::move(port_id)) {}
  Handle(Handle&& other) noexcept { take(other); }
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  Object* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  const Table& table() const { return *table_; }
  const PortId& port_id() const { return port_id_; }
  /// Destroys the object now.
  void reset() noexcept {
    if (object_) report(destroy_(*table_, std::exchange(object_, nullptr)), call_, port_id_);
  }

 private:
  static void report(int result, const char* call, const PortId& port_id) noexcept;
  void take(Handle& other) noexcept {
    table_ = other.table_;
    object_ = std::exchange(other.object_, nullptr);
    destroy_ = other.destroy_;
    call_ = other.call_;
    port_id_ = std::move(other.port_id_);
  }

  const Table* table_ = nullptr;
  Object* object_ = nullptr;
  Destroy destroy_ = nullptr;
  const char* call_ = "";
  PortId port_id_;
};

/// An open device.
class Context {
 public:
  Context() = default;
  /// Opens the device of this name ("mlx5_0"). The error names the devices there are.
  explicit Context(const std::string& device);

  ibv_context* get() const { return handle_.get(); }
  explicit operator bool() const { return static_cast<bool>(handle_); }
  const Table& table() const { return handle_.table(); }
  const std::string& device() const { return handle_.port_id().device; }
  const PortId& port_id() const { return handle_.port_id(); }

 private:
  Handle<ibv_context> handle_;
};

class ProtectionDomain {
 public:
  ProtectionDomain() = default;
  explicit ProtectionDomain(const Context& context);

  ibv_pd* get() const { return handle_.get(); }
  explicit operator bool() const { return static_cast<bool>(handle_); }
  const Table& table() const { return handle_.table(); }
  const PortId& port_id() const { return handle_.port_id(); }

 private:
  Handle<ibv_pd> handle_;
};

/// Signals through a descriptor that an armed queue has completions.
class CompletionChannel {
 public:
  CompletionChannel() = default;
  explicit CompletionChannel(const Context& context);

  /// Readable when there is an event; for poll() and epoll. Non-blocking.
  int fd() const;
  /// Takes and acknowledges all events that are there; returns how many. This order loses nothing:
  /// arm the queue, poll it once more, wait on fd(), drain, poll.
  int drain();

  ibv_comp_channel* get() const { return handle_.get(); }
  explicit operator bool() const { return static_cast<bool>(handle_); }

 private:
  Handle<ibv_comp_channel> handle_;
};

class CompletionQueue {
 public:
  CompletionQueue() = default;
  /// Has room for at least `capacity` completions that nobody has polled. A queue that overflows is
  /// lost, with its queue pairs. `channel`, which may be null, is notified of completions when the
  /// queue is armed.
  CompletionQueue(const Context& context, int capacity, const CompletionChannel* channel = nullptr);

  /// Takes the completions that are there, oldest first, at most `into.size()`; returns how many.
  /// Never waits, allocates nothing. Throws Error(kTransport) if the queue is lost.
  size_t poll(std::span<Completion> into);
  /// Asks for one event on the channel at the next completion. `solicited_only`: at the next
  /// receive of a write that was posted as solicited, or at a failure. Completions that are there
  /// already raise no event: poll once more after arming.
  void arm(bool solicited_only = false);
  /// The capacity that the device gave, at least what was asked for.
  int capacity() const;

  ibv_cq* get() const { return handle_.get(); }
  explicit operator bool() const { return static_cast<bool>(handle_); }

 private:
  Handle<ibv_cq> handle_;
};

/// What may be done with registered memory, or by the peer of a queue pair.
enum class Access : uint32_t {
  kLocalRead = 0,
  kLocalWrite = 1,
  kRemoteWrite = 2,
  kRemoteRead = 4,
  // Payload may arrive in any order before its completion, which is faster on some PCI buses. Safe
  // for code that never infers completion from the last byte. Dropped if the library is too old.
  kRelaxedOrdering = 8,
};
constexpr Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr bool has(Access access, Access what) {
  return (static_cast<uint32_t>(access) & static_cast<uint32_t>(what)) != 0;
}

/// Memory that the device may use. The memory outlives the handle and stays mapped.
class MemoryRegion {
 public:
  MemoryRegion() = default;
  /// kRemoteWrite includes kLocalWrite, which verbs demands.
  MemoryRegion(const ProtectionDomain& domain, void* data, size_t bytes, Access access);

  uint32_t lkey() const;
  uint32_t rkey() const;
  uint64_t address() const;
  size_t bytes() const;
  bool contains(const void* data, size_t bytes) const;

  ibv_mr* get() const { return handle_.get(); }
  explicit operator bool() const { return static_cast<bool>(handle_); }

 private:
  Handle<ibv_mr> handle_;
};

}  // namespace ringcoll::verbs

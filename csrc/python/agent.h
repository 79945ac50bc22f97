// Python objects for the handles of ringcoll/remote.h: Agent, Region, Remote.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "python/comm.h"
#include "python/tensor.h"
#include "ringcoll/remote.h"

namespace ringcoll::python {

/// A region of any process, known by its handle. Any thread that has the GIL.
class Remote {
 public:
  explicit Remote(const pybind11::bytes& handle);
  const rc_remote* get() const { return remote_.get(); }
  uint64_t bytes() const { return ringcoll_remote_bytes(remote_.get()); }

 private:
  std::shared_ptr<rc_remote> remote_;
};

/// Memory of this process that others may use. Borrows its tensor until it is closed.
class Region {
 public:
  Region(std::shared_ptr<rc_agent> agent, const pybind11::object& tensor, bool writable);
  /// Closes the region. If a peer keeps it, a thread of the library closes it later, and the tensor
  /// is kept.
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  pybind11::bytes handle();
  int64_t bytes() const { return bytes_; }
  /// Waits in slices, between which signal handlers run.
  uint64_t notice(double timeout_s);
  void close(double timeout_s);

 private:
  rc_region* open() const;

  std::shared_ptr<rc_agent> agent_;  // the region ends before it
  std::unique_ptr<Tensor> tensor_;
  int64_t bytes_ = 0;
  rc_region* region_ = nullptr;
};

/// Copies as the C ABI wants them, with their tensors. Making and destroying it needs the GIL.
class Copies {
 public:
  explicit Copies(double timeout_s);
  void add_read(const pybind11::object& out, std::vector<rc_source> sources, pybind11::object keep);
  void add_write(const pybind11::object& tensor, rc_source target, pybind11::object notice,
                 pybind11::object keep);
  /// No copies are added after this.
  const rc_copies& get();
  void set_done(rc_done_fn done, void* state);
  void set_interrupted(rc_interrupted_fn interrupted, void* state);

 private:
  void add(const pybind11::object& tensor, Access access, std::vector<rc_source> sources,
           pybind11::object keep);

  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<std::vector<rc_source>> sources_;
  std::vector<pybind11::object> kept_;
  std::vector<rc_copy> copies_;
  rc_copies all_ = {};
};

/// Any thread that has the GIL. Blocking calls release it.
class Agent {
 public:
  explicit Agent(double timeout_s);
  /// The agent of a rank.
  Agent(Comm& comm, double timeout_s);

  uint64_t id() const { return id_; }
  /// Raises InvalidArgument once close() was called.
  std::shared_ptr<rc_agent> handle() const { return open_agent(); }
  bool closed() const { return closing_; }
  std::string admit(const std::string& name, const std::string& key, uint16_t port);
  std::string stats();
  std::unique_ptr<Region> open(const pybind11::object& tensor, bool writable);

  void read(const Remote& remote, const pybind11::object& out, uint64_t offset, double timeout_s);
  void write(const Remote& remote, const pybind11::object& tensor, uint64_t offset,
             pybind11::object notice, double timeout_s);
  /// `copies`: tuples (out, [(Remote, offset, distance), ...]) for reads, and (tensor, Remote,
  /// offset, notice) for writes.
  void copy(const pybind11::list& copies, double timeout_s);
  std::unique_ptr<Request> start(const pybind11::list& copies, double timeout_s);

  uint64_t dial(const std::string& address, double timeout_s);
  void send(uint64_t connection, const pybind11::object& data);
  /// (kind, connection, data), or None after `timeout_s`. Raises Aborted once close() was called.
  pybind11::object receive(double timeout_s);
  void hang_up(uint64_t connection);
  /// The agent ends when the last call of another thread has returned, and its regions are closed.
  void close();

 private:
  std::shared_ptr<rc_agent> open_agent() const;
  void run(Copies& copies);

  std::shared_ptr<rc_agent> agent_;  // null once closed
  uint64_t id_ = 0;
  std::atomic<bool> closing_ = false;
};

/// A writable buffer of `bytes` bytes in memory of ringcoll_allocate(), which it frees.
class Allocation {
 public:
  explicit Allocation(size_t bytes);
  /// Takes over memory that the library has allocated.
  Allocation(void* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  pybind11::buffer_info buffer() const;

 private:
  void* memory_ = nullptr;
  size_t bytes_;
};

void bind_agent(pybind11::module_& module);

}  // namespace ringcoll::python

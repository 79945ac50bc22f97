// Opens libringcoll.so of the installed ringcoll package when the backend is chosen. So ringcoll
// can be upgraded without building Horovod again, and Horovod works without it.
#pragma once

#include <string>

#include "ringcoll.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// The functions of the C ABI that the backend uses.
struct RingcollLibrary {
  decltype(&ringcoll_version) version;
  decltype(&ringcoll_abi_version) abi_version;
  decltype(&ringcoll_error_message) error_message;
  decltype(&ringcoll_comm_create) comm_create;
  decltype(&ringcoll_comm_split) comm_split;
  decltype(&ringcoll_comm_destroy) comm_destroy;
  decltype(&ringcoll_comm_rank) comm_rank;
  decltype(&ringcoll_comm_size) comm_size;
  decltype(&ringcoll_run) run;
  decltype(&ringcoll_send) send;
  decltype(&ringcoll_recv) recv;
  decltype(&ringcoll_isend) isend;
  decltype(&ringcoll_wait) wait;
  decltype(&ringcoll_request_free) request_free;

  /// Opens the library that RINGCOLL_LIBRARY names, else what the loader finds as libringcoll.so,
  /// once per process. Throws std::runtime_error that names the file, the cause and the remedy.
  static const RingcollLibrary& Open();
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop

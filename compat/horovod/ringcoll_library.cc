#include "ringcoll_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {
namespace {

const char* file_name() {
  const char* named = std::getenv("RINGCOLL_LIBRARY");
  return named != nullptr && *named != '\0' ? named : "libringcoll.so";
}

template <typename Function>
void resolve(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) {
    throw std::runtime_error(std::string(file_name()) + " has no function " + name +
                             ". Install a ringcoll that this Horovod was built for: "
                             "pip install --upgrade ringcoll");
  }
}

RingcollLibrary open_library() {
  // Local scope: two frameworks in one process each have a backend, and share this one library.
  void* library = dlopen(file_name(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* cause = dlerror();
    throw std::runtime_error(std::string("HOROVOD_CPU_OPERATIONS or HOROVOD_CONTROLLER is RINGCOLL "
                                         "but its library cannot be opened: ") +
                             (cause != nullptr ? cause : file_name()) +
                             ". Install it (pip install ringcoll) or set RINGCOLL_LIBRARY to "
                             "libringcoll.so");
  }
  RingcollLibrary found;
  resolve(library, "ringcoll_version", &found.version);
  resolve(library, "ringcoll_abi_version", &found.abi_version);
  if (found.abi_version() != RINGCOLL_ABI_VERSION) {
    throw std::runtime_error(
        std::string(file_name()) + " is ringcoll " + found.version() + " with ABI " +
        std::to_string(found.abi_version()) + "; this Horovod was built for ABI " +
        std::to_string(RINGCOLL_ABI_VERSION) + ". Build Horovod again: ringcoll horovod install");
  }
  resolve(library, "ringcoll_error_message", &found.error_message);
  resolve(library, "ringcoll_comm_create", &found.comm_create);
  resolve(library, "ringcoll_comm_split", &found.comm_split);
  resolve(library, "ringcoll_comm_destroy", &found.comm_destroy);
  resolve(library, "ringcoll_comm_rank", &found.comm_rank);
  resolve(library, "ringcoll_comm_size", &found.comm_size);
  resolve(library, "ringcoll_run", &found.run);
  resolve(library, "ringcoll_send", &found.send);
  resolve(library, "ringcoll_recv", &found.recv);
  resolve(library, "ringcoll_isend", &found.isend);
  resolve(library, "ringcoll_wait", &found.wait);
  resolve(library, "ringcoll_request_free", &found.request_free);
  return found;
}

}  // namespace

const RingcollLibrary& RingcollLibrary::Open() {
  // Never closed: threads of the library may outlive the last communicator by a moment.
  static const RingcollLibrary library = open_library();
  return library;
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop

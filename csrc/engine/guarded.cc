#include "engine/guarded.h"

namespace ringcoll {

LastError& last_error() {
  thread_local LastError last;
  return last;
}

rc_status failed(const Error& error) {
  last_error() = {error.what(), error.rank()};
  return static_cast<rc_status>(error.code());
}

}  // namespace ringcoll

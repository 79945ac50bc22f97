#include "base/error.h"

#include <system_error>

namespace ringcoll {

const char* name_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "InvalidArgument";
    case Code::kTimeout:
      return "Timeout";
    case Code::kPeerLost:
      return "PeerLost";
    case Code::kTransport:
      return "Transport";
    case Code::kMismatch:
      return "Mismatch";
    case Code::kInternal:
      return "Internal";
    case Code::kAborted:
      return "Aborted";
  }
  return "?";
}

std::string errno_text(const char* call, int error) {
  return fmt::format("{}: {}", call, std::generic_category().message(error));
}

}  // namespace ringcoll

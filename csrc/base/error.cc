#include "base/error.h"

#include <new>
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
    case Code::kTooLong:
      return "TooLong";
    case Code::kGone:
      return "Gone";
    case Code::kRefused:
      return "Refused";
  }
  return "?";
}

Error as_error(const std::exception& caught) {
  if (const auto* error = dynamic_cast<const Error*>(&caught)) return *error;
  bool memory = dynamic_cast<const std::bad_alloc*>(&caught) != nullptr;
  return Error(Code::kInternal, memory ? "out of memory" : caught.what());
}

std::string errno_text(const char* call, int error) {
  return fmt::format("{}: {}", call, std::generic_category().message(error));
}

}  // namespace ringcoll

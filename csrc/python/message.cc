#include "python/message.h"

#include <fmt/core.h>

#include <limits>

#include "python/errors.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

int32_t narrow(int64_t number, const char* what) {
  if (number < std::numeric_limits<int32_t>::min() || number > std::numeric_limits<int32_t>::max())
    raise_invalid(fmt::format("{} {} is out of range", what, number));
  return static_cast<int32_t>(number);
}

}  // namespace

Message::Message(const MessageArguments& arguments, bool receives)
    : tensor_(arguments.buffer, receives ? Access::kWrite : Access::kRead,
              receives ? "recv: the buffer" : "send: the buffer") {
  message_.struct_size = sizeof message_;
  message_.data = tensor_.data();
  message_.bytes = tensor_.bytes();
  message_.peer = narrow(arguments.peer, receives ? "source" : "destination");
  message_.tag = narrow(arguments.tag, "tag");
  message_.timeout_s = arguments.timeout_s;
}

}  // namespace ringcoll::python

#include "engine/handles.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/log.h"

namespace ringcoll {

Engine& engine_of(const rc_comm* comm) {
  check(comm != nullptr, Code::kInvalidArgument, "comm is NULL");
  if (!is_inherited(comm->born)) return *comm->engine;
  const Communicator& theirs = comm->engine->comm();
  throw Error(
      Code::kInvalidArgument,
      fmt::format("this process was forked from {}, whose communicator cannot be used here: "
                  "make one of this process, or leave calls to the parent",
                  theirs.topology().describe(theirs.rank())));
}

char* copy_of(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (!copy) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

void set_log_level_from(const Config& config) {
  constexpr std::array kLevels = {"error", "warning", "info", "debug"};
  set_log_level(static_cast<LogLevel>(std::ranges::find(kLevels, config.log) - kLevels.begin()));
}

}  // namespace ringcoll

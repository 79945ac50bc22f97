// Identifies a process, so that two processes that claim the same rank can be told apart.
#pragma once

#include <string>

namespace ringcoll {

/// "pid 4711 on node17".
std::string this_process();
/// 16 random bytes as hex.
std::string fresh_token();

}  // namespace ringcoll

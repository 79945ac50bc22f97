// Collective calls and messages that an input asks for, with exactly the memory that each may
// touch.
#pragma once

#include <deque>
#include <vector>

#include "fuzz_input.h"
#include "ringcoll/ringcoll.h"

namespace fuzz {

/// Memory of all calls of a rank, until its communicators are gone.
using Memory = std::deque<Block>;

/// A communicator, as far as the program knows.
struct Place {
  rc_comm* comm = nullptr;
  int rank = 0;
  int size = 1;
};

/// How long a call may wait. `zero`: the communicator's deadline will do; `forever`: so will none.
double seconds(Bytes& bytes, bool zero, bool forever);

struct Collective {
  rc_call call{};
  std::vector<rc_buffer> buffers;
  std::vector<int64_t> counts;
  std::vector<int64_t> recv_counts;
  bool must_be_refused = false;
};
Collective collective(Bytes& bytes, const Place& place, Memory& memory);

struct Message {
  rc_message message{};
  bool must_be_refused = false;
};
Message message(Bytes& bytes, const Place& place, bool receives, Memory& memory);

}  // namespace fuzz

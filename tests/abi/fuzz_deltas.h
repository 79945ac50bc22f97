// Deltas and checksums that an input asks for.
#pragma once

#include "fuzz_input.h"

namespace fuzz {

/// Makes a delta of two tensors and applies it, after the input has changed it at will.
void play_delta(Bytes& bytes);

}  // namespace fuzz

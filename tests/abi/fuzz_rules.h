// Rules that an input asks for.
#pragma once

#include "fuzz_input.h"

namespace fuzz {

/// Checks a rule of any text, and applies it to a row.
void play_rule(Bytes& bytes);

}  // namespace fuzz

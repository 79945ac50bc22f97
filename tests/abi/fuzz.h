// A program of calls of the C ABI, as an input says. Written for a fuzzer, and replayed as a test.
#pragma once

#include <cstdint>
#include <span>

namespace fuzz {

/// Plays an input to its end. Aborts if the library does what its header excludes.
void play(std::span<const uint8_t> input);

}  // namespace fuzz

// The instruction sets that the kernels are compiled for: baseline (any x86-64), SSE4, AVX2 and
// AVX3 (AVX-512) on x86; NEON and SVE elsewhere. SSSE3 is left out, since every target costs
// compile time, and machines with SSSE3 but without SSE4 are older than RDMA over Ethernet. Include
// this file before any header of Highway.
#pragma once

#define HWY_DISABLED_TARGETS (1LL << 12)  // HWY_SSSE3

#include "hwy/detect_targets.h"

static_assert(HWY_DISABLED_TARGETS == HWY_SSSE3, "Highway has renumbered its targets");

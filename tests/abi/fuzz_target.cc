// What libFuzzer calls: built by clang alone (ci/fuzz).
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::play({data, size});
  return 0;
}

// For ci/soak: the library with the software RDMA device of the C++ tests in it. A Python that is
// started with this in LD_PRELOAD has its ringcoll use the device, once ringcoll_soak_begin() was
// called; its ranks are threads.
#include <cstdio>
#include <memory>

#include "ringcoll/ringcoll.h"
#include "verbs/fake/fake_testing.h"

namespace {

using ringcoll::verbs::FakeOptions;
using ringcoll::verbs::FakeVerbs;

std::unique_ptr<FakeVerbs>& device() {
  static std::unique_ptr<FakeVerbs> device;
  return device;
}

}  // namespace

/// Before the first communicator. A thread of the device moves bytes, so that memory that is used
/// again too early is found out.
extern "C" RINGCOLL_API void ringcoll_soak_begin() {
  device() = std::make_unique<FakeVerbs>(FakeOptions{.in_background = true});
}

/// After the last communicator: how many things a real device would have punished, or that were not
/// given back. Standard error has them in words.
extern "C" RINGCOLL_API int ringcoll_soak_end() {
  auto misuses = device()->misuses();
  for (const auto& misuse : misuses) std::fprintf(stderr, "misuse: %s\n", misuse.c_str());
  int left = device()->objects_left();
  if (left) std::fprintf(stderr, "objects of the device that were not given back: %d\n", left);
  device().reset();
  return static_cast<int>(misuses.size()) + left;
}

/// The bytes that the device has moved.
extern "C" RINGCOLL_API unsigned long ringcoll_soak_bytes() { return device()->counters().bytes; }

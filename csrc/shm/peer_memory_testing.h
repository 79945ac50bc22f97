// What the kernel does not read for another process: a thread that may not, and memory that has no
// pages for it.
#pragma once

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>

namespace ringcoll::testing {

/// As by Yama, or a sandbox; on this thread, and those that it starts, for good.
inline void forbid_reading() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{std::size(program), program};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

/// Pages that the kernel has mapped as drivers do theirs: where clocks are read. Null: there are
/// none.
inline std::byte* mapped_as_by_a_driver() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.ends_with("[vvar]"))
      return reinterpret_cast<std::byte*>(std::stoull(line, nullptr, 16));  // NOLINT
  return nullptr;
}

}  // namespace ringcoll::testing

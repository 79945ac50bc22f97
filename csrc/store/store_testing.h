// What tests of stores share.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "net/socket.h"

namespace ringcoll::testing {

inline Deadline soon() { return Deadline(seconds(20)); }

inline bool contains(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

inline uint16_t free_port() {
  Fd listener = listen_on(Address::parse("127.0.0.1:0"));
  return local_address(listener.get()).port();
}

/// A directory that is removed at the end.
class Directory {
 public:
  Directory() {
    char path[] = "/tmp/ringcoll_test_XXXXXX";
    EXPECT_NE(mkdtemp(path), nullptr);
    path_ = path;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string url() const { return "file://" + path(); }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

}  // namespace ringcoll::testing

// What tests of agents have in common.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/knobs.h"
#include "remote/agent.h"
#include "remote/pool.h"
#include "verbs/knobs.h"

namespace ringcoll::remote {

inline std::vector<Interface> loopback() {
  return {{.name = "lo", .address = Address::parse("127.0.0.1:0"), .up = true, .loopback = true}};
}

/// How the copies of a test travel.
enum class Path { kMapped, kKernel, kLinks, kRdma };
inline std::string name_of(Path path) {
  constexpr const char* kNames[] = {"Mapped", "Kernel", "Links", "Rdma"};
  return kNames[static_cast<size_t>(path)];
}
inline bool crosses_hosts(Path path) { return path == Path::kLinks || path == Path::kRdma; }
inline const char* reader_host(Path path) { return crosses_hosts(path) ? "two" : "one"; }

/// The knobs of agents with RDMA, of a device of RdmaForTests.
inline const Config& rdma_config() {
  static const Config config = [] {
    Config knobs = KnobTable(verbs::knobs()).read();
    knobs.transport = "auto";
    return knobs;
  }();
  return config;
}
inline const Config* rdma_of(Path path) { return path == Path::kRdma ? &rdma_config() : nullptr; }

/// Memory for a region, of the pool if peers are to map it.
class Memory {
 public:
  Memory(Path path, size_t bytes) : bytes_(bytes), path_(path) {
    if (path == Path::kMapped)
      data_ = Pool::of_process().allocate(bytes);
    else
      data_ = (own_ = std::vector<std::byte>(bytes)).data();
  }
  ~Memory() {
    if (path_ == Path::kMapped) Pool::of_process().release(data_);
  }
  std::byte* data() { return data_; }
  size_t bytes() const { return bytes_; }
  void fill(int seed) {
    for (size_t i = 0; i < bytes_; i++)
      data_[i] = static_cast<std::byte>((i * 7 + static_cast<size_t>(seed)) & 0xff);
  }

 private:
  size_t bytes_;
  Path path_;
  std::vector<std::byte> own_;
  std::byte* data_;
};

inline std::shared_ptr<const RegionHandle> attach(const std::string& handle) {
  return std::make_shared<RegionHandle>(decode(handle));
}

inline std::shared_ptr<Batch> reading(std::byte* to, uint64_t bytes, std::vector<Source> sources,
                                      double seconds_left = 20) {
  Copy copy{.local = to, .bytes = bytes, .sources = std::move(sources)};
  return std::make_shared<Batch>(std::vector{copy}, seconds(seconds_left), nullptr);
}
inline std::shared_ptr<Batch> writing(const std::byte* from, uint64_t bytes, Source target,
                                      std::optional<uint64_t> notice = {}) {
  Copy copy{.writes = true,
            .local = const_cast<std::byte*>(from),
            .bytes = bytes,
            .sources = {std::move(target)},
            .notice = notice};
  return std::make_shared<Batch>(std::vector{copy}, seconds(20), nullptr);
}

template <typename Body>
std::optional<Error> error_of(Body&& body) {
  try {
    body();
    return {};
  } catch (const Error& error) {
    return error;
  }
}
#define EXPECT_CODE(code_, ...)                         \
  do {                                                  \
    auto caught = error_of([&] { __VA_ARGS__; });       \
    ASSERT_TRUE(caught.has_value()) << "no error";      \
    EXPECT_EQ(caught->code(), code_) << caught->what(); \
  } while (false)

}  // namespace ringcoll::remote

#include "base/log.h"

#include <unistd.h>

#include <atomic>

namespace ringcoll {
namespace {

std::atomic<LogLevel> level{LogLevel::kInfo};
constexpr const char* kNames[] = {"error", "warning", "info", "debug"};

}  // namespace

void set_log_level(LogLevel to) { level.store(to, std::memory_order_relaxed); }
LogLevel log_level() { return level.load(std::memory_order_relaxed); }

void log_line(LogLevel at, const std::string& text) {
  std::string line = at == LogLevel::kInfo
                         ? fmt::format("[ringcoll] {}\n", text)
                         : fmt::format("[ringcoll] {}: {}\n", kNames[static_cast<int>(at)], text);
  // A failure to write the log cannot be reported anywhere.
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace ringcoll

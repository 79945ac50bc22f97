// The log: one line on standard error, "[ringcoll] warning: …". Code logs where an error is decided
// or swallowed, not where it passes. The level (RINGCOLL_LOG) is one for the whole process.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace ringcoll {

enum class LogLevel { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

void set_log_level(LogLevel level);
LogLevel log_level();
/// Writes one line in one write(2), so that the lines of several ranks do not mix. Any thread.
void log_line(LogLevel level, const std::string& text);

template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() >= LogLevel::kWarning)
    log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() >= LogLevel::kInfo)
    log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() >= LogLevel::kDebug)
    log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ringcoll

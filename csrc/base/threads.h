// The library's own threads: named, with all signals blocked.
#pragma once

#include <functional>
#include <thread>

namespace ringcoll {

/// Starts a thread with this name, of at most 15 characters. All signals are blocked in it: they
/// are for the application's threads. Throws Error(kTransport), which names the limits that forbid
/// the thread and the remedy; then no thread was started.
std::thread start_thread(const char* name, std::function<void()> body);

}  // namespace ringcoll

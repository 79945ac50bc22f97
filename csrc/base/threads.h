// The library's own threads: named, and deaf to signals.
#pragma once

#include <functional>
#include <thread>

namespace ringcoll {

/// Starts a thread with this name, of at most 15 characters, in which all signals are blocked: they
/// are for the application's threads. Throws Error(kTransport), which names the limits that forbid
/// it and the remedy; nothing has been started then.
std::thread start_thread(const char* name, std::function<void()> body);

}  // namespace ringcoll

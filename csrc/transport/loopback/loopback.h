// Links between threads of one process: for tests, and for ranks that are threads.
#pragma once

#include "transport/transport.h"

namespace ringcoll {
Probe probe_loopback(const Config& config);
std::unique_ptr<Transport> make_loopback(const TransportOptions& options);
}  // namespace ringcoll

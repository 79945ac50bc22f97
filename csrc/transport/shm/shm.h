// Shared memory between processes of one host: messages are descriptors, payload is read where the
// sender packed it.
#pragma once

#include "transport/transport.h"

namespace ringcoll {
Probe probe_shm(const Config& config);
std::unique_ptr<Transport> make_shm(const TransportOptions& options);
}  // namespace ringcoll

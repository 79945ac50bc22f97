// The transport between processes of one host. Messages are entries of rings in shared memory, and
// their payload is read where the sender put it.
#pragma once

#include "transport/transport.h"

namespace ringcoll {
Probe probe_shm(const Config& config);
std::unique_ptr<Transport> make_shm(const TransportOptions& options);
}  // namespace ringcoll

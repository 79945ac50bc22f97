// RDMA: a reliable connected queue pair for each pair of ranks that talks, made on demand.
#pragma once

#include "transport/transport.h"

namespace ringcoll {
Probe probe_verbs(const Config& config);
std::unique_ptr<Transport> make_verbs(const TransportOptions& options);
}  // namespace ringcoll

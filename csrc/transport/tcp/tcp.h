// TCP: one or more authenticated streams to each peer. For hosts without RDMA, and for peers that
// cannot share memory.
#pragma once

#include "transport/transport.h"

namespace ringcoll {
Probe probe_tcp(const Config& config);
std::unique_ptr<Transport> make_tcp(const TransportOptions& options);
const std::vector<KnobRow>& tcp_knobs();
}  // namespace ringcoll

// RDMA: a reliable connected queue pair for each pair of ranks that talks, made on demand.
#pragma once

#include "transport/transport.h"

namespace ringcoll {
Probe probe_verbs(const Config& config);
std::unique_ptr<Transport> make_verbs(const TransportOptions& options);
/// verbs::report_json() of this host.
std::string verbs_found(const Config& config);
}  // namespace ringcoll

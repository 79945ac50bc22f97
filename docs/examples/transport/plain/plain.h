// One TCP connection to each peer; everything is copied.
#pragma once

#include "transport/transport.h"

namespace ringcoll {
Probe probe_plain(const Config& config);
std::unique_ptr<Transport> make_plain(const TransportOptions& options);
const std::vector<KnobRow>& plain_knobs();
}  // namespace ringcoll

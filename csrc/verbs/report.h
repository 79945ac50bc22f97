// Reports the RDMA of this host, and what ringcoll uses of it, for `ringcoll doctor`.
#pragma once

#include <string>

#include "verbs/selection.h"

namespace ringcoll::verbs {

/// JSON with these fields: "problem" (why there is nothing, or ""), "fork", "memlock_bytes" (null:
/// no limit). "queue_pairs" says how long a device tries a peer that does not answer. "refused" has
/// the names in RINGCOLL_DEVICES that do not exist. "devices" has "ports", and these have "gids".
/// Each port and GID says whether it is "chosen", and why or why not as "verdict".
std::string report_json(const Survey& survey, const Selection& selection, const Config& config);

}  // namespace ringcoll::verbs

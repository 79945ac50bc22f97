// What was found of RDMA and what ringcoll makes of it, for `ringcoll doctor`.
#pragma once

#include <string>

#include "verbs/selection.h"

namespace ringcoll::verbs {

/// JSON: "problem" (why there is nothing, or ""), "fork", "memlock_bytes" (null: no limit),
/// "queue_pairs" (how long a peer that does not answer is tried), "refused" (what
/// RINGCOLL_DEVICES names and is not there), and "devices" with "ports" and "gids". Each port and
/// GID says whether it is "chosen", and why or why not as "verdict".
std::string report_json(const Survey& survey, const Selection& selection, const Config& config);

}  // namespace ringcoll::verbs

// What was found of RDMA and what ringcoll makes of it, for `ringcoll doctor` and the log.
#pragma once

#include <string>

#include "verbs/selection.h"

namespace ringcoll::verbs {

/// A line for each port used or refused, its GIDs, and what limits this process.
std::string report_text(const Survey& survey, const Selection& selection);
/// The same as JSON: {"problem", "fork", "memlock_bytes", "devices": […], "usable", "refused"}.
std::string report_json(const Survey& survey, const Selection& selection);

}  // namespace ringcoll::verbs

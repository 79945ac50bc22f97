// The one table of knobs: those of the library's layers, and what each transport of the registry
// brings with it. Here, because this is the lowest layer that sees all of them
// (docs/contributing.md, "A knob").
#pragma once

#include "base/knobs.h"

namespace ringcoll {

const KnobTable& all_knobs();
/// All of them. Throws Error(kInvalidArgument) that names the knob, the value and the range.
Config read_config(const Getenv& environment = {});
/// The same, but what it would throw is told, and the knob left at its default.
Config read_config(const Getenv& environment, std::optional<Error>* refused);

}  // namespace ringcoll

// The one table of knobs: those of the library's layers, and those of each transport in the
// registry. It is here because this is the lowest layer that sees all of them
// (docs/contributing.md, "A knob").
#pragma once

#include "base/knobs.h"

namespace ringcoll {

const KnobTable& all_knobs();
/// Reads all knobs. Throws Error(kInvalidArgument) that names the knob, the value and the range.
Config read_config(const Getenv& environment = {});
/// The same, but leaves a knob with a wrong value at its default, and stores the first error in
/// `*refused`.
Config read_config(const Getenv& environment, std::optional<Error>* refused);

}  // namespace ringcoll

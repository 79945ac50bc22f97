// Other processes of this machine.
#pragma once

namespace ringcoll {

/// Whether that process has ended, be it that nobody has waited for it yet. A number that another
/// process has by now, or one of another PID namespace, may be that of one that lives.
bool has_ended(int pid);

}  // namespace ringcoll

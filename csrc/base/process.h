// Other processes of this machine.
#pragma once

namespace ringcoll {

/// Whether process `pid` has ended, even if nobody has waited for it yet. False although it has, if
/// another process has the number by now. A number of another PID namespace has no meaning here.
bool has_ended(int pid);

}  // namespace ringcoll

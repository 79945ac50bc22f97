// Other processes of this machine.
#pragma once

namespace ringcoll {

/// Whether process `pid` has ended, even if nobody has waited for it yet. If another process has
/// the number by now, the answer is about that one. A number of another PID namespace has no
/// meaning here.
bool has_ended(int pid);

}  // namespace ringcoll

// How many cores this process may keep busy: affinity mask and cgroup CPU quota (v2 and v1), whichever is less; at least 1.
#pragma once

namespace pagoda {

int usable_cores();

}  // namespace pagoda

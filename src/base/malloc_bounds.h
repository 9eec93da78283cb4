// bound_malloc(): the heap keeps little that is free: one arena for all threads, and large buffers go back to the system at once. For a
// process under a memory limit; threads that allocate at the same time wait for each other.   Before threads are started.
#pragma once

namespace pagoda {

void bound_malloc();

}  // namespace pagoda

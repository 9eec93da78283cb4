// How many files, and so connections, this process may open.     Threads: any; raise at start.
#pragma once

#include <cstddef>

namespace pagoda::http {

// Raises the process's own limit as far as that many connections need and the system allows; says on the log if that is too little.
void raise_file_limit(size_t n_connections);
// Connections there are descriptors for, at most `wanted`: with none left, nobody could be told why.
size_t usable_connections(size_t wanted);

}  // namespace pagoda::http

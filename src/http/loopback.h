// Whether only this machine can reach an address.     Threads: any; a name is looked up and may take seconds.
#pragma once

#include <string>

namespace pagoda::http {

// Of an address, or a name all of whose addresses are loopback; also of a name that is none: nobody can listen on that.
bool is_loopback(const std::string& host);

}  // namespace pagoda::http

// named(): an error with the place it is about, where the caller knows it and the callee does not.
#pragma once

#include <string_view>
#include <utility>

#include "base/error.h"

namespace pagoda {

// The result; if it is an error, its place is `where`: an option's name, with dashes, makes it a usage error.
template <typename T>
Result<T> named(std::string_view where, Result<T> result) {
  if (!result) result.error().where = where;
  return result;
}

}  // namespace pagoda

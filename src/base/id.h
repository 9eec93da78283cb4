// Id<Tag, Rep>: an integer that only equals its own kind. The ids of domain words are declared in their own folders.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>

namespace pagoda {

template <typename Tag, typename Rep>
struct Id {
  using rep = Rep;
  Rep value{};

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

}  // namespace pagoda

template <typename Tag, typename Rep>
struct std::hash<pagoda::Id<Tag, Rep>> {
  size_t operator()(const pagoda::Id<Tag, Rep>& id) const noexcept { return std::hash<Rep>{}(id.value); }
};

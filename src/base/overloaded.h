// Overloaded: several lambdas as one visitor. std::visit(Overloaded{[](A) {}, [](B) {}}, variant).
#pragma once

namespace pagoda {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace pagoda

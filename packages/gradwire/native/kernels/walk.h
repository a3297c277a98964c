// The walk of vector kernels over values: whole steps, then the rest, by the portable kernel. A target defines a step
// of its vectors; the walks of a format are in its header, once for all targets.
#pragma once

#include <cstddef>

namespace gradwire {

// Without a name, as everything that several targets compile: each keeps its own (see ranges.h).
namespace {

// Calls step(i) for i = 0, kStep, 2 kStep ... while a whole step is left of n; returns where it stops.
template <std::size_t kStep, typename Step>
std::size_t walk(std::size_t n, const Step& step) {
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) step(i);
  return i;
}

template <bool kChosen>
struct Choice {
  static constexpr bool value = kChosen;
};

// Calls call(Choice<which>{}): what is the same for all values is decided before the loop.
template <typename Call>
auto choose(bool which, const Call& call) {
  return which ? call(Choice<true>{}) : call(Choice<false>{});
}

}  // namespace

}  // namespace gradwire

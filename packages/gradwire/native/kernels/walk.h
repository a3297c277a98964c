// The loops of vector kernels over values: whole steps, then the rest, by the portable kernel. A target defines a step
// of its vectors. A format's header has the loops, once for all targets.
#pragma once

#include <cstddef>

namespace gradwire {

// In an unnamed namespace, like everything that several targets compile, so that each has its own copy (see ranges.h).
namespace {

// Calls step(i) for i = 0, kStep, 2 kStep ... while a whole step is left of n. Returns the first i that it didn't
// process.
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

// Calls call(Choice<which>{}), so that a choice that is the same for all values is made before the loop.
template <typename Call>
auto choose(bool which, const Call& call) {
  return which ? call(Choice<true>{}) : call(Choice<false>{});
}

}  // namespace

}  // namespace gradwire

// The targets and numbers of threads for all checks.
#pragma once

#include <vector>

#include "gradwire/parallel.h"
#include "gradwire/target.h"

namespace gradwire::fuzz {

struct Engine {
  const Target* target;
  int threads;
};

// Returns all targets with one thread and, if the input is long enough to be divided, also with three.
inline std::vector<Engine> engines(std::size_t n) {
  std::vector<Engine> all;
  for (const Target* const* target = available_targets(); *target != nullptr; ++target) {
    all.push_back({*target, 1});
    if (count_parts(n, 3) > 1) all.push_back({*target, 3});
  }
  return all;
}

}  // namespace gradwire::fuzz

// Checks of the entropy coder and the weight deltas, on every target and number of threads. They throw Failure.
#pragma once

#include "random.h"

namespace gradwire::fuzz {

struct Verdicts {
  std::size_t refused = 0;
  std::size_t accepted = 0;
};

// Encodes random symbols: all targets must give the same payload, and decode the same symbols. Then damages the
// payload: all targets must agree on its validity, and decode a valid one to the same symbols.
Verdicts check_entropy(Random& random);

// Encodes random masters and weights: all targets must give the same delta, and decode the masters' words. Then damages
// the delta: all targets must agree on its validity, and an invalid one must leave the weights unchanged.
Verdicts check_delta(Random& random);

}  // namespace gradwire::fuzz

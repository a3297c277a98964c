// The properties of the entropy coder and the weight deltas, on every target and number of threads. Failures throw
// Failure.
#pragma once

#include "random.h"

namespace gradwire::fuzz {

struct Verdicts {
  std::size_t refused = 0;
  std::size_t accepted = 0;
};

// Random symbols: the same payload on all targets, and the symbols again. Then the payload gone wrong: the same verdict
// everywhere, and the same symbols where it is accepted.
Verdicts check_entropy(Random& random);

// Random masters and weights: the same delta on all targets, and the masters' words again. Then the delta gone wrong: the
// same verdict everywhere, and weights that are as they were where it is refused.
Verdicts check_delta(Random& random);

}  // namespace gradwire::fuzz

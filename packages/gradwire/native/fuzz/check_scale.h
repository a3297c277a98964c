// The properties of the powers of two of scaled codecs, on every number of threads. Failures throw Failure.
#pragma once

#include "random.h"

namespace gradwire::fuzz {

// The largest magnitude of a random chunk, and its products with a power of two, which may replace it or be added to
// sums: as float64 has them.
void check_scale(Random& random);

}  // namespace gradwire::fuzz

// Checks of the power-of-two scales of scaled codecs, with every number of threads. They throw Failure.
#pragma once

#include "random.h"

namespace gradwire::fuzz {

// Compares a random chunk's largest magnitude, and its products with a power of two (stored or added), with float64
// results.
void check_scale(Random& random);

}  // namespace gradwire::fuzz

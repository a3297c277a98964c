// Checks of the engine with arbitrary input from a peer. They throw Failure.
#pragma once

#include "cases.h"
#include "check_lossless.h"
#include "random.h"

namespace gradwire::fuzz {

// Two ranks exchange a bucket, and must end with identical bits. Then a peer sends damaged frames and arbitrary bytes.
// The rank must accept an intact frame or fail, without accesses outside of its memory.
Verdicts check_engine(const std::vector<std::vector<Case>>& cases, Random& random);

}  // namespace gradwire::fuzz

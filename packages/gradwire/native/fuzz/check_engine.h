// The properties of the engine, whatever a peer sends. Failures throw Failure.
#pragma once

#include "cases.h"
#include "check_lossless.h"
#include "random.h"

namespace gradwire::fuzz {

// Two ranks exchange a bucket, and must end with identical bits. Then a peer sends damaged frames and arbitrary bytes: the
// rank accepts an intact frame, or fails, and keeps to its memory.
Verdicts check_engine(const std::vector<std::vector<Case>>& cases, Random& random);

}  // namespace gradwire::fuzz

// Checks of a NIC with arbitrary frames. They throw Failure.
#pragma once

#include "cases.h"
#include "check_lossless.h"
#include "random.h"

namespace gradwire::fuzz {

// Two NICs shake hands and pass on a segment. Then both sides send damaged frames; each must be passed on unchanged,
// dropped, or restored to a whole packet.
Verdicts check_nic(const std::vector<std::vector<Case>>& cases, Random& random);

}  // namespace gradwire::fuzz

// The properties of the frames that a NIC handles, whatever their bytes are. Failures throw Failure.
#pragma once

#include "cases.h"
#include "check_lossless.h"
#include "random.h"

namespace gradwire::fuzz {

// Two NICs shake hands and pass a segment. Then frames gone wrong on both sides: each passes as it is, is dropped, or is
// restored to a whole packet.
Verdicts check_nic(const std::vector<std::vector<Case>>& cases, Random& random);

}  // namespace gradwire::fuzz

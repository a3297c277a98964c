// What a format makes of values that it encodes each by itself: encoding and decoding in one way through memory.
#pragma once

#include <cstddef>

#include "gradwire/format.h"

namespace gradwire {

struct Target;

// out[i] becomes what `format` decodes for x[i], which may be the same memory. Neither needs more than a float's alignment.
void project(const Target& target, const Format& format, const float* x, float* out, std::size_t n,
             const Params& params, int threads);

}  // namespace gradwire

// Sums of squares of a bucket's ranges, segment by segment: how much of each parameter's gradient there is, and how much
// of it an encoding has lost.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// The change of x and y in one pass, besides the sums; kernels/norms.h defines the squares.
enum class Pass { look, add, subtract, adopt };

// Passes over the n elements that begin at `start` of a bucket, whose range r is [borders[r], borders[r + 1]), and adds to
// sums[r] what lies in it. `borders` do not fall and cover the elements. Without ranges nothing is added. Returns the sum
// over all: it is finite exactly where all values are, for no sum of squared floats leaves the range of a double.
double sum_norms(const Target& target, Pass pass, float* x, float* y, std::size_t n, std::size_t start,
                 const std::int64_t* borders, std::size_t ranges, double* sums, int threads);

}  // namespace gradwire

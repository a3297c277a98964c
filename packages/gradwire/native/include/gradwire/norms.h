// Sums of squares of a bucket's ranges, segment by segment: of each parameter's gradient, and of its encoding error.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// The change of x and y in a pass, besides the sums; kernels/norms.h defines the squares.
enum class Pass { look, add, subtract, adopt };

// Passes over the n elements that begin at `start` of a bucket. Range r of the bucket is [borders[r], borders[r + 1]),
// and its sum of squares is added to sums[r]. `borders` are in ascending order and cover the elements. Without ranges,
// nothing is added. Returns the sum over all elements, which is finite if and only if all values are, because sums of
// squared floats don't overflow a double.
double sum_norms(const Target& target, Pass pass, float* x, float* y, std::size_t n, std::size_t start,
                 const std::int64_t* borders, std::size_t ranges, double* sums, int threads);

}  // namespace gradwire

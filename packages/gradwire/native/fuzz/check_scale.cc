#include "check_scale.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "check.h"
#include "gradwire/scale.h"
#include "inputs.h"

namespace gradwire::fuzz {

namespace {

constexpr int kLowest = -126;
constexpr int kHighest = 127;

[[noreturn]] void fail(std::size_t n, int threads, const std::string& what) {
  throw Failure("a scale of " + std::to_string(n) + " elements with " + std::to_string(threads) +
                " thread(s): " + what);
}

bool same(float one, float other) {
  if (std::isnan(one)) return std::isnan(other);
  return std::bit_cast<std::uint32_t>(one) == std::bit_cast<std::uint32_t>(other);
}

void check_largest(const Buffer<float>& chunk, int threads) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(std::fabs(chunk[i])));
  }
  if (largest_bits(chunk.data(), chunk.size(), threads) != largest) fail(chunk.size(), threads, "the largest value differs");
}

}  // namespace

void check_scale(Random& random) {
  const std::size_t n = random_length(random);
  const Buffer<float> chunk = random_chunk(random, n);
  const Buffer<float> sums = random_chunk(random, n);
  const int exponent = kLowest + static_cast<int>(random.below(kHighest - kLowest + 1));
  for (const int threads : {1, 3}) {
    check_largest(chunk, threads);
    Buffer<float> apart(n, random.below(4));
    Buffer<float> inside = chunk;
    Buffer<float> added = sums;
    scale(chunk.data(), apart.data(), n, exponent, false, threads);
    scale(inside.data(), inside.data(), n, exponent, false, threads);
    scale(chunk.data(), added.data(), n, exponent, true, threads);
    for (std::size_t i = 0; i < n; ++i) {
      const float product = static_cast<float>(std::ldexp(static_cast<double>(chunk[i]), exponent));
      const float sum = sums[i] + product;
      if (!same(apart[i], product) || !same(inside[i], product)) fail(n, threads, "another product");
      if (!same(added[i], sum)) fail(n, threads, "another sum");
    }
  }
}

}  // namespace gradwire::fuzz

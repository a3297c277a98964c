#include "gradwire/scale.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gradwire/parallel.h"

namespace gradwire {

namespace {

constexpr std::size_t kGranule = 64;

std::int32_t largest_of(const float* x, std::size_t n) {
  std::int32_t largest = 0;  // signed, because every target compares signed numbers with one instruction
  for (std::size_t i = 0; i < n; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    largest = std::max(largest, bits & 0x7fffffff);
  }
  return largest;
}

}  // namespace

std::uint32_t largest_bits(const float* x, std::size_t n, int threads) {
  const int parts = count_parts(n, threads);
  std::vector<std::int32_t> found(static_cast<std::size_t>(parts));
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    found[static_cast<std::size_t>(index)] = largest_of(x + part.begin, part.end - part.begin);
  });
  return static_cast<std::uint32_t>(*std::max_element(found.begin(), found.end()));
}

void scale(const float* x, float* out, std::size_t n, int exponent, bool add, int threads) {
  const std::uint32_t bits = static_cast<std::uint32_t>(exponent + 127) << 23;
  float factor;
  std::memcpy(&factor, &bits, sizeof factor);
  const int parts = count_parts(n, threads);
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    if (add) {
      for (std::size_t i = part.begin; i < part.end; ++i) out[i] += x[i] * factor;
    } else {
      for (std::size_t i = part.begin; i < part.end; ++i) out[i] = x[i] * factor;
    }
  });
}

}  // namespace gradwire

// The payload of `ecsq`: the sizes of the sections (sections.h), then the sections. Fewer than 2^15 values are one section.
// Otherwise, the values are divided into 2 ceil(n / 2^18) equal sections, rounded up to whole blocks; the last section is
// what remains. The number is usually even, because two sections are decoded at a time. A section has the 32-bit sizes of its
// entropy-coded blocks (entropy.h) except the last one's; the low byte of each scale, which is mostly mantissa and hardly
// compressible; and the blocks: the high bytes of the scales, the codes of kernels/ecsq.h (pairs), the low bytes of the
// escapes, their high bytes, and the feet, if any. All numbers are little-endian.
#pragma once

#include <cstddef>

#include "gradwire/entropy.h"
#include "gradwire/format.h"
#include "sections.h"

namespace gradwire {

namespace {

constexpr std::size_t kLargestPair = std::size_t{1} << 18;
// Fewer values are one section. A section takes about 180 bytes for its coders' states and tables.
constexpr std::size_t kSmallestPair = std::size_t{1} << 15;
enum Plane : std::size_t { kScales, kCodes, kLow, kHigh, kFeet };

std::size_t codes_nbytes(std::size_t n) { return (n + 1) / 2; }

std::size_t count_scales(std::size_t n, std::size_t block) { return (n + block - 1) / block; }

std::size_t block_of(const Params& params) { return static_cast<std::size_t>(params.b); }

bool has_feet(const Params& params) { return params.c != 0; }

std::size_t count_planes(const Params& params) { return has_feet(params) ? kFeet + 1 : kFeet; }

std::size_t head_nbytes(const Params& params) { return 4 * (count_planes(params) - 1); }

// A value has either an escape of two bytes, a foot, or neither.
std::size_t section_max_nbytes(std::size_t n, const Params& params) {
  const std::size_t scales = count_scales(n, block_of(params));
  return head_nbytes(params) + scales + block_max_nbytes(scales) + block_max_nbytes(codes_nbytes(n)) +
         2 * block_max_nbytes(n) + (has_feet(params) ? block_max_nbytes(0) : 0);
}

Sections sections_of(std::size_t n, const Params& params) {
  if (n < kSmallestPair) return {n, kSmallestPair};
  const std::size_t block = block_of(params);
  const std::size_t count = 2 * ((n - 1) / kLargestPair + 1);
  const std::size_t blocks = count_scales((n - 1) / count + 1, block);
  return {n, blocks * block};
}

std::size_t max_nbytes(std::size_t n, const Params& params) {
  const Sections sections = sections_of(n, params);
  std::size_t total = sections.directory_nbytes();
  for (std::size_t i = 0; i < sections.count(); ++i) total += section_max_nbytes(sections.elements(i), params);
  return total;
}

}  // namespace

}  // namespace gradwire

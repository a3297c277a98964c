// Format `errbound`: a = the biased exponent of an absolute bound, or 0 for relative bounds. For relative bounds, b =
// the bits of a float, the bound relative to the root mean square; c = the number of values per block with its own
// bound, a power of two from 64 to 65536, or 0 if the whole chunk has one bound.
//
// This file chooses bounds, lays out the payload, validates it, and divides work among threads. The kernels are in
// kernels/errbound_*.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "gradwire/format.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/bits.h"
#include "kernels/errbound.h"

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and are copied as they are");

namespace gradwire {

namespace {

// A multiple of whole tag bytes, and of whole vectors on every target.
constexpr std::size_t kGranule = 64;
constexpr int kSmallestExponent = 1;
constexpr int kLargestExponent = 253;

std::size_t tags_nbytes(std::size_t n) { return n / 4 + (n % 4 != 0 ? 1 : 0); }

// The number of values that share a bound. A chunk without blocks is one block.
std::size_t block_of(std::size_t n, const Params& params) {
  return params.c != 0 ? static_cast<std::size_t>(params.c) : n;
}

// Parts consist of whole blocks, unless the whole chunk is one block.
std::size_t granule_of(const Params& params) { return std::max(kGranule, static_cast<std::size_t>(params.c)); }

// Relative bounds differ between blocks, so the payload starts with their exponents. An absolute bound is a parameter.
std::size_t head_nbytes(std::size_t n, const Params& params) {
  if (params.a != 0) return 0;
  if (params.c == 0) return 1;  // even for an empty chunk
  const std::size_t block = block_of(n, params);
  return n / block + (n % block != 0 ? 1 : 0);
}

std::size_t max_nbytes(std::size_t n, const Params& params) {
  return head_nbytes(n, params) + tags_nbytes(n) + 4 * n;
}

// Calls work(first, count) for every block of a part; a part of a larger block counts as one.
template <typename Work>
void for_each_block(const Part& part, std::size_t block, const Work& work) {
  for (std::size_t first = part.begin; first < part.end; first += block) {
    work(first, std::min(block, part.end - first));
  }
}

ErrboundScale scale_of(int exponent) {
  // 2^(254 - E) times 2 bound is 2^128, the smallest power of two that overflows a float.
  const std::uint32_t first_overflow = exponent > 238 ? 1U << (254 - exponent) : 1U << 16;
  return {
      .to_q = power_of_two(126 - exponent),
      .from_q = power_of_two(exponent - 126),
      .limit1 = std::min(127U, first_overflow - 1),
      .limit2 = std::min(32767U, first_overflow - 1),
  };
}

SumOfSquares sum_all_squares(const ErrboundKernels& kernels, const float* x, std::size_t n, int threads) {
  if (n <= kSquaresBlock) return kernels.sum_squares(x, n);
  const std::size_t blocks = (n + kSquaresBlock - 1) / kSquaresBlock;
  std::vector<SumOfSquares> sums(blocks);
  const int parts = count_parts(n, threads);
  run_parts(parts, [&](int index) {
    const Part part = part_of(blocks, parts, index, 1);
    for (std::size_t block = part.begin; block < part.end; ++block) {
      const std::size_t first = block * kSquaresBlock;
      sums[block] = kernels.sum_squares(x + first, std::min(kSquaresBlock, n - first));
    }
  });
  SumOfSquares total{0.0, 0};
  for (const SumOfSquares& each : sums) {
    total.sum += each.sum;
    total.count += each.count;
  }
  return total;
}

// Returns the biased exponent of the largest power of two up to share * RMS.
int relative_exponent(const ErrboundKernels& kernels, const float* x, std::size_t n, const Params& params,
                      int threads) {
  const SumOfSquares squares = sum_all_squares(kernels, x, n, threads);
  if (!(squares.sum > 0.0)) return kSmallestExponent;
  const double rms = std::sqrt(squares.sum / static_cast<double>(squares.count));
  const double share = static_cast<double>(std::bit_cast<float>(params.b));
  const int exponent = std::ilogb(share * rms) + 127;
  return std::clamp(exponent, kSmallestExponent, kLargestExponent);
}

std::size_t encode(const Target& target, const float* x, std::size_t n, std::uint8_t* out, const Params& params,
                   int threads) {
  const ErrboundKernels& kernels = *target.errbound;
  const std::size_t block = block_of(n, params);
  std::uint8_t* const tags = out + head_nbytes(n, params);
  std::uint8_t* const data = tags + tags_nbytes(n);

  // A bound for the whole chunk is chosen first. A block's bound is chosen right before the block is encoded, so that
  // the kernel finds the values in the cache.
  const bool in_blocks = params.c != 0;
  int exponent_of_all = params.a;
  if (params.a == 0 && !in_blocks) {
    exponent_of_all = relative_exponent(kernels, x, n, params, threads);
    out[0] = static_cast<std::uint8_t>(exponent_of_all);
  }

  // Each part is written where it would start if all preceding values took four bytes, and is then moved to its place.
  const int parts = count_parts(n, threads);
  std::vector<std::size_t> sizes(static_cast<std::size_t>(parts));
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, granule_of(params));
    std::uint8_t* const start = data + 4 * part.begin;
    std::uint8_t* at = start;
    for_each_block(part, block, [&](std::size_t first, std::size_t count) {
      int exponent = exponent_of_all;
      if (in_blocks) {
        exponent = relative_exponent(kernels, x + first, count, params, 1);
        out[first / block] = static_cast<std::uint8_t>(exponent);
      }
      at += kernels.encode(x + first, count, scale_of(exponent), tags + first / 4, at);
    });
    sizes[static_cast<std::size_t>(index)] = static_cast<std::size_t>(at - start);
  });
  std::size_t used = sizes[0];
  for (int index = 1; index < parts; ++index) {
    const std::size_t size = sizes[static_cast<std::size_t>(index)];
    std::memmove(data + used, data + 4 * part_of(n, parts, index, granule_of(params)).begin, size);
    used += size;
  }
  return static_cast<std::size_t>(data - out) + used;
}

bool are_exponents(const std::uint8_t* exponents, std::size_t nbytes) {
  bool valid = true;
  for (std::size_t i = 0; i < nbytes; ++i) {
    valid &= exponents[i] >= kSmallestExponent && exponents[i] <= kLargestExponent;
  }
  return valid;
}

// Checks the exponents of relative bounds, and the unused tags. The sizes in the tags are counted later.
const char* check_head(const std::uint8_t* payload, std::size_t nbytes, std::size_t n, const Params& params) {
  const std::size_t head = head_nbytes(n, params);
  if (nbytes < head) {
    return nbytes == 0 ? "it is empty, but an exponent byte was expected" : "its exponent bytes are truncated";
  }
  if (!are_exponents(payload, head)) return "an exponent byte is not within 1..253";
  if (nbytes - head < tags_nbytes(n)) return "its tags are truncated";
  if (n % 4 != 0 && payload[head + n / 4] >> (2 * (n % 4)) != 0) return "unused bits of its last tag are set";
  return nullptr;
}

const char* decode(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out, std::size_t n,
                   const Params& params, bool add, int threads) {
  if (const char* reason = check_head(payload, nbytes, n, params)) return reason;
  const ErrboundKernels& kernels = *target.errbound;
  const std::size_t block = block_of(n, params);
  const std::uint8_t* const tags = payload + head_nbytes(n, params);
  const std::uint8_t* const data = tags + tags_nbytes(n);
  const std::uint8_t* const data_end = payload + nbytes;

  const int parts = count_parts(n, threads);
  std::vector<std::size_t> starts(static_cast<std::size_t>(parts));
  std::size_t announced = 0;
  for (int index = 0; index < parts; ++index) {
    const Part part = part_of(n, parts, index, granule_of(params));
    starts[static_cast<std::size_t>(index)] = announced;
    announced += kernels.count_data(tags + part.begin / 4, tags_nbytes(part.end - part.begin));
  }
  if (announced != static_cast<std::size_t>(data_end - data)) return "its tags declare a different number of bytes";

  const auto kernel = add ? kernels.decode_add : kernels.decode;
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, granule_of(params));
    const std::uint8_t* at = data + starts[static_cast<std::size_t>(index)];
    for_each_block(part, block, [&](std::size_t first, std::size_t count) {
      const ErrboundScale scale = scale_of(params.a != 0 ? params.a : payload[first / block]);
      kernel(tags + first / 4, at, data_end, out + first, count, scale);
      // The kernel doesn't return the number of bytes that it read. Its tags are still in the cache.
      if (first + count < part.end) at += kernels.count_data(tags + first / 4, tags_nbytes(count));
    });
  });
  return nullptr;
}

}  // namespace

extern const Format kErrboundFormat;
const Format kErrboundFormat = {
    .name = "errbound",
    .max_nbytes = max_nbytes,
    .encode = encode,
    .decode = decode,
};

}  // namespace gradwire

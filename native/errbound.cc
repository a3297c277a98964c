// errbound: choice of the bound, layout, validation and splitting over threads. The kernels are in kernels/errbound_*.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "gradwire/format.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/errbound.h"

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and are copied as they are");

namespace gradwire {

namespace {

// Part borders fall on whole tag bytes and on whole vectors of every target.
constexpr std::size_t kGranule = 64;
constexpr int kSmallestExponent = 1;
constexpr int kLargestExponent = 253;

std::size_t tags_nbytes(std::size_t n) { return n / 4 + (n % 4 != 0 ? 1 : 0); }

// A relative bound differs from chunk to chunk, so its exponent travels in front; an absolute one is the codec's own.
std::size_t head_nbytes(const Params& params) { return params.a == 0 ? 1 : 0; }

std::size_t max_nbytes(std::size_t n, const Params& params) { return head_nbytes(params) + tags_nbytes(n) + 4 * n; }

ErrboundScale scale_of(int exponent) {
  // 2^(254 - E) times 2 bound is 2^128, the first power of two that is no float.
  const std::uint32_t first_overflow = exponent > 238 ? 1U << (254 - exponent) : 1U << 16;
  return {
      .to_q = std::ldexp(1.0F, 126 - exponent),
      .from_q = std::ldexp(1.0F, exponent - 126),
      .limit1 = std::min(127U, first_overflow - 1),
      .limit2 = std::min(32767U, first_overflow - 1),
  };
}

SumOfSquares sum_all_squares(const ErrboundKernels& kernels, const float* x, std::size_t n, int threads) {
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

// The largest power of two that is not above fraction * RMS, as a biased exponent.
int relative_exponent(const ErrboundKernels& kernels, const float* x, std::size_t n, float fraction, int threads) {
  const SumOfSquares squares = sum_all_squares(kernels, x, n, threads);
  if (!(squares.sum > 0.0)) return kSmallestExponent;
  const double rms = std::sqrt(squares.sum / static_cast<double>(squares.count));
  const int exponent = std::ilogb(static_cast<double>(fraction) * rms) + 127;
  return std::clamp(exponent, kSmallestExponent, kLargestExponent);
}

std::size_t encode(const Target& target, const float* x, std::size_t n, std::uint8_t* out, const Params& params,
                   int threads) {
  const ErrboundKernels& kernels = *target.errbound;
  const int exponent = params.a != 0
                           ? params.a
                           : relative_exponent(kernels, x, n, std::bit_cast<float>(params.b), threads);
  const ErrboundScale scale = scale_of(exponent);
  if (params.a == 0) out[0] = static_cast<std::uint8_t>(exponent);
  std::uint8_t* const tags = out + head_nbytes(params);
  std::uint8_t* const data = tags + tags_nbytes(n);

  // Each part encodes where it would start if all values before it took four bytes, and then moves down.
  const int parts = count_parts(n, threads);
  std::vector<std::size_t> sizes(static_cast<std::size_t>(parts));
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    sizes[static_cast<std::size_t>(index)] = kernels.encode(x + part.begin, part.end - part.begin, scale,
                                                            tags + part.begin / 4, data + 4 * part.begin);
  });
  std::size_t used = sizes[0];
  for (int index = 1; index < parts; ++index) {
    const std::size_t size = sizes[static_cast<std::size_t>(index)];
    std::memmove(data + used, data + 4 * part_of(n, parts, index, kGranule).begin, size);
    used += size;
  }
  return static_cast<std::size_t>(data - out) + used;
}

// Looks at the exponent of a relative bound and at what no tag may say; what the tags announce is counted later.
const char* check_head(const std::uint8_t* payload, std::size_t nbytes, std::size_t n, const Params& params) {
  const std::size_t head = head_nbytes(params);
  if (nbytes < head) return "it is empty, but an exponent byte was expected";
  if (head != 0 && (payload[0] < kSmallestExponent || payload[0] > kLargestExponent)) {
    return "its exponent byte is not within 1..253";
  }
  if (nbytes - head < tags_nbytes(n)) return "it ends within its tags";
  if (n % 4 != 0 && payload[head + n / 4] >> (2 * (n % 4)) != 0) return "unused bits of its last tag are set";
  return nullptr;
}

const char* decode(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out, std::size_t n,
                   const Params& params, bool add, int threads) {
  if (const char* reason = check_head(payload, nbytes, n, params)) return reason;
  const ErrboundKernels& kernels = *target.errbound;
  const std::uint8_t* const tags = payload + head_nbytes(params);
  const std::uint8_t* const data = tags + tags_nbytes(n);
  const std::uint8_t* const data_end = payload + nbytes;

  const int parts = count_parts(n, threads);
  std::vector<std::size_t> starts(static_cast<std::size_t>(parts));
  std::size_t announced = 0;
  for (int index = 0; index < parts; ++index) {
    const Part part = part_of(n, parts, index, kGranule);
    starts[static_cast<std::size_t>(index)] = announced;
    announced += kernels.count_data(tags + part.begin / 4, tags_nbytes(part.end - part.begin));
  }
  if (announced != static_cast<std::size_t>(data_end - data)) return "its tags announce another number of bytes";

  const ErrboundScale scale = scale_of(params.a != 0 ? params.a : payload[0]);
  const auto kernel = add ? kernels.decode_add : kernels.decode;
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    kernel(tags + part.begin / 4, data + starts[static_cast<std::size_t>(index)], data_end, out + part.begin,
           part.end - part.begin, scale);
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

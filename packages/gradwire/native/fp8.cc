// Format `fp8`: a = values in a block (a multiple of 16).
//
// Payload: ceil(n / block) exponent bytes E, then n codes of one byte each: a sign, 4 exponent bits (bias 7), and 3
// mantissa bits. A value is its code's value times 2^(E - 134), where E is the biased exponent of the block's largest
// magnitude. E = 0 marks a block below 2^-95, which is all zero, and E = 255 a block with a non-finite value, which
// decodes to NaN; their codes are written as 0, and not read. Every code is valid, so only exponents are checked.
// Source: E4M3 of "FP8 Formats for Deep Learning", without its NaN, with block scales like those of the OCP
// Microscaling formats.
#include "kernels/fp8.h"

#include <cstring>

#include "gradwire/format.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/quantize.h"
#include "ranges.h"

namespace gradwire {

namespace {

std::size_t block_of(const Params& params) { return static_cast<std::size_t>(params.a); }

std::size_t exponents_nbytes(std::size_t n, const Params& params) {
  return (n + block_of(params) - 1) / block_of(params);
}

std::size_t max_nbytes(std::size_t n, const Params& params) { return exponents_nbytes(n, params) + n; }

// Makes two passes over a block; the second one finds it in the L1 or L2 cache.
void encode_part(const Target& target, const float* x, std::size_t n, const Params& params, std::uint8_t* exponents,
                 std::uint8_t* codes) {
  const std::size_t block = block_of(params);
  for (std::size_t at = 0; at < n; at += block) {
    const std::size_t count = n - at < block ? n - at : block;
    const std::uint32_t exponent = fp8_exponent(target.quantize->peak_bits(x + at, count));
    *exponents++ = static_cast<std::uint8_t>(exponent);
    if (exponent == 0 || exponent == kFp8NanExponent) {
      std::memset(codes + at, 0, count);
    } else {
      target.fp8->to_codes(x + at, count, exponent, codes + at);
    }
  }
}

template <bool kAdd>
void put_all(float* out, std::size_t n, float value) {
  for (std::size_t i = 0; i < n; ++i) put<kAdd>(out + i, value);
}

void decode_part(const Target& target, const std::uint8_t* exponents, const std::uint8_t* codes, std::size_t n,
                 const Params& params, float* out, bool add) {
  const std::size_t block = block_of(params);
  for (std::size_t at = 0; at < n; at += block) {
    const std::size_t count = n - at < block ? n - at : block;
    const std::uint32_t exponent = *exponents++;
    if (exponent == 0 || exponent == kFp8NanExponent) {
      const float value = exponent == 0 ? 0.0F : float_of(kQuietNanBits);
      add ? put_all<true>(out + at, count, value) : put_all<false>(out + at, count, value);
    } else {
      target.fp8->from_codes(codes + at, count, exponent, out + at, add);
    }
  }
}

void encode_range(const Target& target, const float* x, std::size_t n, std::size_t begin, std::size_t end,
                  const Params& params, std::uint8_t* payload) {
  encode_part(target, x, end - begin, params, payload + exponents_nbytes(begin, params),
              payload + exponents_nbytes(n, params) + begin);
}

std::size_t encode(const Target& target, const float* x, std::size_t n, std::uint8_t* out, const Params& params,
                   int threads) {
  const int parts = count_parts(n, threads);
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, block_of(params));
    encode_range(target, x + part.begin, n, part.begin, part.end, params, out);
  });
  return max_nbytes(n, params);
}

bool are_exponents(const std::uint8_t* exponents, std::size_t nbytes) {
  bool valid = true;
  for (std::size_t i = 0; i < nbytes; ++i) valid &= exponents[i] == 0 || exponents[i] >= kFp8SmallestExponent;
  return valid;
}

const char* find_fault(const Target&, const std::uint8_t* payload, std::size_t nbytes, std::size_t n,
                       const Params& params, int) {
  if (nbytes != max_nbytes(n, params)) return "its length does not match";
  return are_exponents(payload, exponents_nbytes(n, params)) ? nullptr : "an exponent byte is in the invalid range 1..31";
}

std::size_t granule(const Params& params) { return block_of(params); }

void decode_range(const Target& target, const std::uint8_t* payload, std::size_t n, std::size_t begin, std::size_t end,
                  const Params& params, float* out, bool add) {
  decode_part(target, payload + exponents_nbytes(begin, params), payload + exponents_nbytes(n, params) + begin,
              end - begin, params, out, add);
}

constexpr Ranges kRanges = {
    .find_fault = find_fault, .granule = granule, .decode = decode_range, .encode = encode_range};

}  // namespace

extern const Format kFp8Format;
const Format kFp8Format = {
    .name = "fp8",
    .max_nbytes = max_nbytes,
    .encode = encode,
    .decode = decode_ranges<kRanges>,
    .ranges = &kRanges,
};

}  // namespace gradwire

// Format `quantize`: a = bits of a code (8 or 4), b = values in a block (a multiple of 16).
//
// Payload: ceil(n / block) float32 scales, then n signed bytes, or ceil(n / 2) bytes of two signed nibbles (the first
// value in the low nibble; an unused nibble is 0). A value is code * scale. A block of values below 2^-100 has the
// scale 0, and a block with a non-finite value has the scale 0x7FC00000 (NaN), so all of it decodes to NaN. The codes
// -128 and -8 are invalid, so that the range is symmetric. Source: the scalar quantisation of Pipe-SGD (section 3), in
// blocks.
#include <atomic>
#include <cstring>

#include "gradwire/format.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/bits.h"
#include "kernels/quantize.h"
#include "ranges.h"

namespace gradwire {

namespace {

std::size_t block_of(const Params& params) { return static_cast<std::size_t>(params.b); }

std::size_t scales_nbytes(std::size_t n, const Params& params) {
  return (n + block_of(params) - 1) / block_of(params) * 4;
}

std::size_t codes_nbytes(std::size_t n, int bits) { return (n * static_cast<std::size_t>(bits) + 7) / 8; }

std::size_t max_nbytes(std::size_t n, const Params& params) {
  return scales_nbytes(n, params) + codes_nbytes(n, params.a);
}

// Makes two passes over a block; the second one finds it in the L1 or L2 cache.
void encode_part(const QuantizeKernels& kernels, const float* x, std::size_t n, const Params& params,
                 std::uint8_t* scales, std::uint8_t* codes) {
  const std::size_t block = block_of(params);
  for (std::size_t at = 0; at < n; at += block, scales += 4) {
    const std::size_t count = n - at < block ? n - at : block;
    const QuantizeScale chosen = quantize_scale(kernels.peak_bits(x + at, count), params.a);
    store_word(scales, bits_of(chosen.scale));
    std::uint8_t* const to = codes + codes_nbytes(at, params.a);
    if (chosen.inverse == 0.0F) {
      std::memset(to, 0, codes_nbytes(count, params.a));
    } else {
      kernels.to_codes(x + at, count, params.a, chosen.inverse, to);
    }
  }
}

void decode_part(const QuantizeKernels& kernels, const std::uint8_t* scales, const std::uint8_t* codes, std::size_t n,
                 const Params& params, float* out, bool add) {
  const std::size_t block = block_of(params);
  for (std::size_t at = 0; at < n; at += block, scales += 4) {
    const float scale = float_of(load_word<std::uint32_t>(scales));
    const std::size_t count = n - at < block ? n - at : block;
    kernels.from_codes(codes + codes_nbytes(at, params.a), count, params.a, scale, out + at, add);
  }
}

void encode_range(const Target& target, const float* x, std::size_t n, std::size_t begin, std::size_t end,
                  const Params& params, std::uint8_t* payload) {
  encode_part(*target.quantize, x, end - begin, params, payload + scales_nbytes(begin, params),
              payload + scales_nbytes(n, params) + codes_nbytes(begin, params.a));
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

bool are_scales(const std::uint8_t* scales, std::size_t nbytes) {
  bool valid = true;
  for (std::size_t i = 0; i < nbytes; i += 4) {
    const std::uint32_t bits = load_word<std::uint32_t>(scales + i);
    valid &= bits < kInfinityBits || bits == kQuietNanBits;
  }
  return valid;
}

const char* find_fault(const Target& target, const std::uint8_t* payload, std::size_t nbytes, std::size_t n,
                       const Params& params, int threads) {
  if (nbytes != max_nbytes(n, params)) return "its length does not match";
  if (!are_scales(payload, scales_nbytes(n, params))) return "a scale is negative or infinite";
  if (params.a == 4 && n % 2 == 1 && payload[nbytes - 1] >> 4 != 0) {
    return "the unused half of its last byte is not zero";
  }
  const std::uint8_t* const codes = payload + scales_nbytes(n, params);
  std::atomic<bool> valid{true};
  const int parts = count_parts(n, threads);
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, block_of(params));
    const std::size_t begin = codes_nbytes(part.begin, params.a);
    if (!target.quantize->are_codes(codes + begin, codes_nbytes(part.end, params.a) - begin, params.a)) {
      valid.store(false, std::memory_order_relaxed);
    }
  });
  return valid.load(std::memory_order_relaxed) ? nullptr : "a code is out of range";
}

std::size_t granule(const Params& params) { return block_of(params); }

void decode_range(const Target& target, const std::uint8_t* payload, std::size_t n, std::size_t begin, std::size_t end,
                  const Params& params, float* out, bool add) {
  decode_part(*target.quantize, payload + scales_nbytes(begin, params),
              payload + scales_nbytes(n, params) + codes_nbytes(begin, params.a), end - begin, params, out, add);
}

constexpr Ranges kRanges = {
    .find_fault = find_fault, .granule = granule, .decode = decode_range, .encode = encode_range};

}  // namespace

extern const Format kQuantizeFormat;
const Format kQuantizeFormat = {
    .name = "quantize",
    .max_nbytes = max_nbytes,
    .encode = encode,
    .decode = decode_ranges<kRanges>,
    .ranges = &kRanges,
};

}  // namespace gradwire

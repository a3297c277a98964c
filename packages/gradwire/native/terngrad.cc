// Format `terngrad` (Wen et al., NeurIPS 2017): a, b = the low and high 32 bits of the seed. The code is portable only,
// because this codec is a baseline for comparisons, not for speed.
//
// Payload: the float32 scale s = max |x|, then 2 bits per value (value i of a quartet in bits 2i+1..2i; unused bits are
// zero): 0 for zero, 1 for +s, 2 for -s; 3 is invalid. A value is nonzero with probability |x| / s, drawn from a
// counter-based hash of the seed, the CRC32C of the chunk's bytes, and the value's index. So the same chunk gives the
// same bytes on every machine and with any number of threads, and the next step's chunk gets different noise. s =
// 0x7FC00000 (NaN) marks a chunk with a non-finite value, which decodes to NaN.
#include "gradwire/format.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/bits.h"
#include "ranges.h"

namespace gradwire {

namespace {

// Any multiple of 4 keeps the parts of two threads in different bytes.
constexpr std::size_t kGranule = 256;

std::size_t codes_nbytes(std::size_t n) { return (n + 3) / 4; }

std::size_t max_nbytes(std::size_t n, const Params&) { return 4 + codes_nbytes(n); }

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014), truncated to the 24 bits that a float in [0, 1) holds
// exactly.
float uniform(std::uint64_t key, std::size_t index) {
  std::uint64_t z = key + (static_cast<std::uint64_t>(index) + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
  z = (z ^ z >> 27) * 0x94D049BB133111EBU;
  z ^= z >> 31;
  return static_cast<float>(static_cast<std::uint32_t>(z >> 40)) * 0x1p-24F;
}

std::uint64_t key_of(const Target& target, const float* x, std::size_t n, const Params& params) {
  const std::uint64_t seed =
      static_cast<std::uint32_t>(params.a) | static_cast<std::uint64_t>(static_cast<std::uint32_t>(params.b)) << 32;
  return seed ^ target.crc32c(reinterpret_cast<const std::uint8_t*>(x), n * sizeof(float), 0);
}

// Writes the codes of x[begin .. end). `begin` is a multiple of 4.
void encode_part(const float* x, std::size_t begin, std::size_t end, float scale, std::uint64_t key,
                 std::uint8_t* codes) {
  for (std::size_t at = begin; at < end; at += 4) {
    unsigned quartet = 0;
    for (std::size_t i = at; i < end && i < at + 4; ++i) {
      const std::uint32_t bits = bits_of(x[i]);
      const bool nonzero = uniform(key, i) < float_of(bits & kMagnitudeMask) / scale;
      quartet |= (nonzero ? 1U + (bits >> 31) : 0U) << 2 * (i - at);
    }
    codes[at / 4] = static_cast<std::uint8_t>(quartet);
  }
}

std::size_t encode(const Target& target, const float* x, std::size_t n, std::uint8_t* out, const Params& params,
                   int threads) {
  const std::uint32_t peak = peak_bits_of(x, n);
  const bool nonfinite = peak >= kInfinityBits;
  store_word(out, nonfinite ? kQuietNanBits : peak);
  std::uint8_t* const codes = out + 4;
  if (nonfinite || peak == 0) {
    for (std::size_t i = 0; i < codes_nbytes(n); ++i) codes[i] = 0;
    return max_nbytes(n, params);
  }
  const std::uint64_t key = key_of(target, x, n, params);
  const int parts = count_parts(n, threads);
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    encode_part(x, part.begin, part.end, float_of(peak), key, codes);
  });
  return max_nbytes(n, params);
}

const char* find_fault(const Target&, const std::uint8_t* payload, std::size_t nbytes, std::size_t n,
                       const Params& params, int) {
  if (nbytes != max_nbytes(n, params)) return "its length does not match";
  const std::uint32_t scale = load_word<std::uint32_t>(payload);
  if (scale >= kInfinityBits && scale != kQuietNanBits) return "its scale is negative or infinite";
  if (n % 4 != 0 && payload[nbytes - 1] >> 2 * (n % 4) != 0) return "the unused bits of its last byte are not zero";
  unsigned both = 0;
  for (std::size_t i = 4; i < nbytes; ++i) both |= payload[i] & payload[i] >> 1 & 0x55U;
  return both == 0 ? nullptr : "a code is 3";
}

std::size_t granule(const Params&) { return kGranule; }

void decode_range(const Target&, const std::uint8_t* payload, std::size_t, std::size_t begin, std::size_t end,
                  const Params&, float* out, bool add) {
  const float scale = float_of(load_word<std::uint32_t>(payload));
  const float zero = scale != scale ? scale : 0.0F;
  const float values[3] = {zero, scale, scale != scale ? scale : -scale};
  for (std::size_t i = begin; i < end; ++i) {
    const float value = values[payload[4 + i / 4] >> 2 * (i % 4) & 3];
    add ? put<true>(out + i - begin, value) : put<false>(out + i - begin, value);
  }
}

constexpr Ranges kRanges = {.find_fault = find_fault, .granule = granule, .decode = decode_range};

}  // namespace

extern const Format kTerngradFormat;
const Format kTerngradFormat = {
    .name = "terngrad",
    .max_nbytes = max_nbytes,
    .encode = encode,
    .decode = decode_ranges<kRanges>,
    .ranges = &kRanges,
};

}  // namespace gradwire

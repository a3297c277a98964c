// Format `bfp`: a = mantissa bits M (1..15), b = values in a block (a multiple of 8, 8..1024).
//
// Payload: one record per block, with the shared exponent E (1 byte), then `block` mantissas of M + 1 bits in two's
// complement, packed little-endian; the last block is padded with zeros. E is the biased exponent of the block's
// largest magnitude, and a value is mantissa * 2^(E - 127 - (M - 1)). E = 0 marks a block of zeros, and E = 255 a block
// with a non-finite value, which decodes to NaN. Every byte string of the right length is valid, so only the length is
// checked. Source: the FPGA AI smart NIC (section 4), where bfp:7x16 is "BFP16".
#include "kernels/bfp.h"

#include "gradwire/format.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "ranges.h"

namespace gradwire {

namespace {

std::size_t block_of(const Params& params) { return static_cast<std::size_t>(params.b); }

std::size_t max_nbytes(std::size_t n, const Params& params) {
  return (n + block_of(params) - 1) / block_of(params) * bfp_block_nbytes(params.a, block_of(params));
}

void encode_range(const Target& target, const float* x, std::size_t, std::size_t begin, std::size_t end,
                  const Params& params, std::uint8_t* payload) {
  target.bfp->encode(x, end - begin, params.a, block_of(params), payload + max_nbytes(begin, params));
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

const char* find_fault(const Target&, const std::uint8_t*, std::size_t nbytes, std::size_t n, const Params& params,
                       int) {
  return nbytes == max_nbytes(n, params) ? nullptr : "its length does not match";
}

std::size_t granule(const Params& params) { return block_of(params); }

void decode_range(const Target& target, const std::uint8_t* payload, std::size_t, std::size_t begin, std::size_t end,
                  const Params& params, float* out, bool add) {
  target.bfp->decode(payload + max_nbytes(begin, params), end - begin, params.a, block_of(params), out, add);
}

constexpr Ranges kRanges = {
    .find_fault = find_fault, .granule = granule, .decode = decode_range, .encode = encode_range};

}  // namespace

extern const Format kBfpFormat;
const Format kBfpFormat = {
    .name = "bfp",
    .max_nbytes = max_nbytes,
    .encode = encode,
    .decode = decode_ranges<kRanges>,
    .ranges = &kRanges,
};

}  // namespace gradwire

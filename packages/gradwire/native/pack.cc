// Format `pack` (codecs truncate and bitpack): a = kept bits k, 1..32.
//
// Payload: ceil(n k / 8) bytes, with the top k bits of every float packed little-endian; unused high bits are zero. Up
// to k = 8, the exponent is truncated, so infinity and NaN would decode to finite values. A marker byte then follows:
// 0, or 1 for a chunk with a non-finite value, which decodes to NaN as a whole. From k = 9 on, such values keep an
// exponent of ones, and stay non-finite.
#include <atomic>
#include <cmath>
#include <numeric>
#include <vector>

#include "gradwire/format.h"
#include "gradwire/message.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/bits.h"
#include "kernels/norms.h"
#include "kernels/pack.h"
#include "ranges.h"
#include "sections.h"

namespace gradwire {

namespace {

// The number of values in a tile, which is searched for non-finite values and then packed from the L1 cache.
constexpr std::size_t kTile = 4096;
// Any multiple of 8 keeps the parts of two threads in different bytes; this one keeps most in different cache lines.
constexpr std::size_t kGranule = kTile;

std::size_t packed_nbytes(std::size_t n, int bits) { return (n * static_cast<std::size_t>(bits) + 7) / 8; }

bool is_marked(int bits) { return bits <= 8; }

std::size_t max_nbytes(std::size_t n, const Params& params) {
  return packed_nbytes(n, params.a) + (is_marked(params.a) ? 1 : 0);
}

bool pack_marked(const PackKernels& kernels, const float* x, std::size_t n, int bits, std::uint8_t* out) {
  bool nonfinite = false;
  for (std::size_t at = 0; at < n; at += kTile) {
    const std::size_t count = n - at < kTile ? n - at : kTile;
    nonfinite |= kernels.has_nonfinite(x + at, count);
    kernels.pack(x + at, count, bits, out + packed_nbytes(at, bits));
  }
  return nonfinite;
}

std::size_t encode(const Target& target, const float* x, std::size_t n, std::uint8_t* out, const Params& params,
                   int threads) {
  const int bits = params.a;
  const int parts = count_parts(n, threads);
  std::atomic<bool> nonfinite{false};
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    const float* const from = x + part.begin;
    std::uint8_t* const to = out + packed_nbytes(part.begin, bits);
    if (!is_marked(bits)) {
      target.pack->pack(from, part.end - part.begin, bits, to);
    } else if (pack_marked(*target.pack, from, part.end - part.begin, bits, to)) {
      nonfinite.store(true, std::memory_order_relaxed);
    }
  });
  if (is_marked(bits)) out[packed_nbytes(n, bits)] = nonfinite.load(std::memory_order_relaxed) ? 1 : 0;
  return max_nbytes(n, params);
}

const char* find_fault(const Target&, const std::uint8_t* payload, std::size_t nbytes, std::size_t n,
                       const Params& params, int) {
  if (nbytes != max_nbytes(n, params)) return "its length does not match";
  const std::size_t body = packed_nbytes(n, params.a);
  const int used = static_cast<int>(n * static_cast<std::size_t>(params.a) % 8);
  if (used != 0 && payload[body - 1] >> used != 0) return "the unused bits of its last byte are not zero";
  if (is_marked(params.a) && payload[body] > 1) return "its marker byte is neither 0 nor 1";
  return nullptr;
}

void put_nan(float* out, std::size_t n, bool add) {
  const float nan = float_of(kQuietNanBits);
  for (std::size_t i = 0; i < n; ++i) add ? put<true>(out + i, nan) : put<false>(out + i, nan);
}

std::size_t granule(const Params&) { return kGranule; }

void decode_range(const Target& target, const std::uint8_t* payload, std::size_t n, std::size_t begin, std::size_t end,
                  const Params& params, float* out, bool add) {
  const int bits = params.a;
  if (is_marked(bits) && payload[packed_nbytes(n, bits)] == 1) {
    put_nan(out, end - begin, add);
  } else {
    target.pack->unpack(payload + packed_nbytes(begin, bits), end - begin, bits, out, add);
  }
}

constexpr Ranges kRanges = {.find_fault = find_fault, .granule = granule, .decode = decode_range};

// Each piece is packed from the L2 cache right after it was summed. A sum is finite if and only if all values are.
double encode_and_sum(const Target& target, const PackedTensor& tensor, int threads) {
  const Sections pieces{tensor.n, kNormsPiece};
  std::vector<double> sums(pieces.count());
  const auto pass = [&](std::size_t i) {
    const float* const from = tensor.x + pieces.first(i);
    sums[i] = target.norms->look(from, from, pieces.elements(i));
    target.pack->pack(from, pieces.elements(i), tensor.bits, tensor.out + packed_nbytes(pieces.first(i), tensor.bits));
  };
  for_each_section(pieces, threads, [&] { return pass; });
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  if (is_marked(tensor.bits)) tensor.out[packed_nbytes(tensor.n, tensor.bits)] = std::isfinite(sum) ? 0 : 1;
  return sum;
}

}  // namespace

void pack_message(const Target& target, const PackedTensor* tensors, std::size_t count, double* sums, int threads) {
  for (std::size_t i = 0; i < count; ++i) {
    const PackedTensor& each = tensors[i];
    sums[i] = 0.0;
    if (each.summed) {
      sums[i] = encode_and_sum(target, each, threads);
    } else {
      encode(target, each.x, each.n, each.out, Params{each.bits, 0, 0}, threads);
    }
  }
}

extern const Format kPackFormat;
const Format kPackFormat = {
    .name = "pack",
    .max_nbytes = max_nbytes,
    .encode = encode,
    .decode = decode_ranges<kRanges>,
    .ranges = &kRanges,
};

}  // namespace gradwire

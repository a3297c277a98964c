// The walk over inceptionn's bursts. A burst's start is known only once the previous burst's tags have been read, so
// the walk is a chain of dependent loads. It runs once, and records all sizes, from which the decoder computes the
// bursts' starts by additions.
//
// To keep the chain short, the size of a burst is computed for every byte of a piece of the payload, as if a burst
// began there, 32 at a time. The walk then reads one byte per burst. Only the files of AVX2 and AVX-512 include this
// file.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/quartet_tables.h"

namespace gradwire {

namespace {

constexpr std::size_t kPieceNbytes = 256;  // measured: a trade-off between runs of zeros and start-up cost
constexpr std::size_t kZerosNbytes = 8;    // four bursts without data

// Sets sizes[i] to the size of a burst that begins at at[i], for `count` bytes, a multiple of 32. Reads one more byte.
void size_everywhere(const std::uint8_t* at, std::size_t count, std::uint8_t* sizes) {
  const __m256i nibble_sizes =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 1, 2, 3, 5, 2, 3, 4, 6, 4, 5, 6, 8));
  const __m256i low_half = _mm256_set1_epi8(0x0F);
  const auto data_nbytes = [&](__m256i tags) {
    const __m256i low = _mm256_shuffle_epi8(nibble_sizes, _mm256_and_si256(tags, low_half));
    const __m256i high =
        _mm256_shuffle_epi8(nibble_sizes, _mm256_and_si256(_mm256_srli_epi16(tags, 4), low_half));
    return _mm256_add_epi8(low, high);
  };
  const auto load = [](const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  };
  for (std::size_t i = 0; i < count; i += 32) {
    const __m256i both = _mm256_add_epi8(data_nbytes(load(at + i)), data_nbytes(load(at + i + 1)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sizes + i), _mm256_add_epi8(both, _mm256_set1_epi8(2)));
  }
}

// Measures bursts one after the other, near the payload's end; see InceptionnKernels::measure.
std::size_t measure_last_bursts(const std::uint8_t* payload, std::size_t nbytes, std::size_t position,
                                const std::uint8_t* sizes_end, std::uint8_t* sizes) {
  for (; sizes < sizes_end; position += *sizes++) {
    if (nbytes - position < 2) return nbytes + 1;
    const std::uint8_t* const tags = payload + position;
    const std::size_t size = std::size_t{2} + kQuartets.nbytes[tags[0]] + kQuartets.nbytes[tags[1]];
    if (nbytes - position < size) return nbytes + 1;
    *sizes = static_cast<std::uint8_t>(size);
  }
  return position;
}

bool are_zeros(const std::uint8_t* at) {
  std::uint64_t bytes;
  std::memcpy(&bytes, at, kZerosNbytes);
  return bytes == 0;
}

std::size_t measure_bursts(const std::uint8_t* payload, std::size_t nbytes, std::size_t position, std::size_t bursts,
                           std::uint8_t* sizes) {
  std::uint8_t* const sizes_end = sizes + bursts;
  std::uint8_t size_at[kPieceNbytes];
  while (sizes < sizes_end && position + kZerosNbytes + 32 < nbytes) {
    const std::uint8_t* const piece = payload + position;
    if (are_zeros(piece) && sizes_end - sizes >= 4) {  // four bursts of zeros, frequent in gradients
      std::memset(sizes, 2, 4);
      sizes += 4;
      position += kZerosNbytes;
      continue;
    }
    const std::size_t count = std::min(kPieceNbytes, (nbytes - position - 1) / 32 * 32);
    size_everywhere(piece, count, size_at);
    std::size_t i = 0;
    while (i < count && sizes < sizes_end) {
      const std::uint8_t size = size_at[i];
      *sizes++ = size;
      i += size;
    }
    position += i;
    if (position > nbytes) return nbytes + 1;
  }
  return measure_last_bursts(payload, nbytes, position, sizes_end, sizes);
}

}  // namespace

}  // namespace gradwire

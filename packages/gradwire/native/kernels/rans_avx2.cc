// The entropy coder, with eight coders per register.
#include "kernels/avx2_lanes.h"
#include "kernels/rans.h"

namespace gradwire {

namespace {

constexpr std::size_t kVectors = kRansCoders / 8;

// Returns the mask of x >= limit, compared as unsigned numbers.
__m256i at_least(__m256i x, __m256i limit) { return _mm256_cmpeq_epi32(_mm256_max_epu32(x, limit), x); }

__m256i load_symbols(const std::uint8_t* from) { return _mm256_cvtepu8_epi32(load_quarter(from)); }

template <int kScale>
__m256i look_up(const void* table, __m256i index) {
  // Gathers onto zeros, with a mask that is opaque to the compiler; otherwise a gather waits for its register's old
  // value.
  __m256i all = _mm256_set1_epi32(-1);
  asm("" : "+x"(all));
  return _mm256_mask_i32gather_epi32(_mm256_setzero_si256(), static_cast<const int*>(table), index, all, kScale);
}

__m256 float_of_unsigned(__m256i x) {
  const __m256 wrapped = _mm256_and_ps(_mm256_castsi256_ps(_mm256_srai_epi32(x, 31)), _mm256_set1_ps(0x1p32F));
  return _mm256_add_ps(_mm256_cvtepi32_ps(x), wrapped);
}

// As in the AVX-512 kernel: here, 5 rounding errors of at most 2^-24 each are smaller than the amount subtracted.
__m256i put8_symbols(const std::uint8_t* symbols, const std::uint32_t* of_symbol, __m256i x, std::uint8_t*& at) {
  const __m256i entry = look_up<4>(of_symbol, load_symbols(symbols));
  const __m256i frequency = _mm256_srli_epi32(entry, 16);
  const __m256i others = _mm256_sub_epi32(_mm256_set1_epi32(kRansSlots), frequency);
  const __m256 reciprocal = _mm256_div_ps(_mm256_set1_ps(1.0F - 0x1p-21F), _mm256_cvtepi32_ps(frequency));
  const __m256i full = at_least(x, _mm256_slli_epi32(frequency, 32 - kRansBits));
  const unsigned set = set_of(full);
  store_half(at, narrow_to_words(gather_lanes(_mm256_and_si256(x, _mm256_set1_epi32(0xFFFF)), set)));
  at += 2 * _mm_popcnt_u32(set);
  x = _mm256_blendv_epi8(x, _mm256_srli_epi32(x, 16), full);
  const __m256i quotient = _mm256_cvttps_epi32(_mm256_mul_ps(float_of_unsigned(x), reciprocal));
  const __m256i product = _mm256_mullo_epi16(quotient, frequency);
  const __m256i remainder = _mm256_and_si256(_mm256_sub_epi16(x, product), _mm256_set1_epi32(2 * kRansSlots - 1));
  const __m256i within = _mm256_cmpgt_epi32(frequency, remainder);
  const __m256i start = _mm256_and_si256(entry, _mm256_set1_epi32(kRansSlots - 1));
  const __m256i place = _mm256_or_si256(_mm256_slli_epi32(quotient, kRansBits), start);
  const __m256i low = _mm256_add_epi32(place, remainder);
  return _mm256_add_epi32(low, _mm256_andnot_si256(within, others));
}

void count(const std::uint8_t* symbols, std::size_t n, std::size_t stride, std::uint64_t* counts) {
  rans_count(symbols, n, stride, counts, [](const std::uint8_t* from) {
    const __m256i first = _mm256_set1_epi8(static_cast<char>(*from));
    const auto alike = [&](const std::uint8_t* at) {
      return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(load_vector(at), first)));
    };
    return ~(alike(from) | static_cast<std::uint64_t>(alike(from + 32)) << 32);
  });
}

std::size_t encode(const std::uint8_t* symbols, std::size_t n, const RansTable& table, std::uint8_t* out,
                   std::size_t capacity) {
  RansStates states;
  std::size_t left = n / kRansCoders * kRansCoders;
  std::uint8_t* at = rans_put_rest(symbols + left, n - left, table, states, out, capacity);
  if (at == nullptr) return 0;
  __m256i x[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) x[v] = load_vector(states.x + 8 * v);
  while (left > 0) {
    if (!rans_has_room(out, at, capacity)) return 0;
    left -= kRansCoders;
    for (std::size_t v = 0; v < kVectors; ++v) {
      x[v] = put8_symbols(symbols + left + 8 * v, table.of_symbol, x[v], at);
    }
  }
  for (std::size_t v = 0; v < kVectors; ++v) store_vector(states.x + 8 * v, x[v]);
  return rans_end(states, out, at);
}

__m256i get8_symbols(const RansTable& table, __m256i& x, unsigned& hungry) {
  const __m256i slot = _mm256_and_si256(x, _mm256_set1_epi32(kRansSlots - 1));
  const __m256i found = look_up<1>(table.of_slot, slot);
  const __m256i symbol = _mm256_and_si256(found, _mm256_set1_epi32(0xFF));
  const __m256i entry = look_up<4>(table.of_symbol, symbol);
  const __m256i place = _mm256_sub_epi32(slot, _mm256_and_si256(entry, _mm256_set1_epi32(0xFFFF)));
  const __m256i whole = _mm256_srli_epi32(x, kRansBits);
  x = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(entry, 16), whole), place);
  hungry = set_of(_mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256()));
  return symbol;
}

__m256i feed(__m256i x, unsigned hungry, const std::uint8_t* from) {
  const __m256i placed = spread_lanes(_mm256_cvtepu16_epi32(load_half(from)), hungry);
  const __m256i wants = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
  return _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), placed), wants);
}

// Returns dwords below 256 as bytes, in order (see narrow_to_bytes, whose last pack is signed).
__m256i narrow(const __m256i (&found)[kVectors]) {
  const __m256i low = _mm256_packus_epi32(found[0], found[1]);
  const __m256i high = _mm256_packus_epi32(found[2], found[3]);
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

bool decode(const RansCoded& coded) {
  const auto& [stream, nbytes, table_of_stream, symbols, n] = coded;
  const RansTable& table = *table_of_stream;
  RansStates states;
  const std::uint8_t* at = rans_begin(states, stream, nbytes);
  if (at == nullptr) return false;
  std::size_t i = 0;
  __m256i x[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) x[v] = load_vector(states.x + 8 * v);
  // See the AVX-512 kernel.
  for (; i + kRansCoders <= n; i += kRansCoders) {
    unsigned hungry[kVectors];
    __m256i found[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) found[v] = get8_symbols(table, x[v], hungry[v]);
    std::uint32_t all = 0;
    for (std::size_t v = 0; v < kVectors; ++v) all |= hungry[v] << 8 * v;
    const int nbytes_wanted = 2 * _mm_popcnt_u32(all);
    if (at - stream < nbytes_wanted) return false;
    at -= nbytes_wanted;
    const std::uint8_t* from = at;
    for (std::size_t v = 0; v < kVectors; ++v) {
      x[v] = feed(x[v], hungry[v], from);
      from += 2 * _mm_popcnt_u32(hungry[v]);
    }
    store_vector(symbols + i, narrow(found));
  }
  for (std::size_t v = 0; v < kVectors; ++v) store_vector(states.x + 8 * v, x[v]);
  for (; i < n && at != nullptr; i += kRansCoders) {
    at = rans_get_round(stream, at, table, states.x, symbols + i, n - i < kRansCoders ? n - i : kRansCoders);
  }
  return rans_is_done(states, stream, at);
}

}  // namespace

const RansKernels kRansAvx2 = {.count = count, .encode = encode, .decode = decode, .decode_two = rans_decode_two<decode>};

}  // namespace gradwire

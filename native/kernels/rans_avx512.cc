// The entropy coder, sixteen coders in a register. AVX-512 F, BW, DQ and VL. What belongs to a symbol is looked up in
// registers, because gathers are slow (on Zen 4 more than 30 cycles each).
#include "kernels/avx512.h"
#include "kernels/rans.h"

namespace gradwire {

namespace {

// A table of 256 words, and 32 look-ups at once: each permutation knows 64 entries, which are all where `kFew` symbols
// are below 64.
struct Words256 {
  __m512i part[8];

  template <bool kFew>
  __m512i look_up(__m512i symbols) const {
    const auto look = [&](int i) { return _mm512_permutex2var_epi16(part[i], symbols, part[i + 1]); };
    if constexpr (kFew) return look(0);
    const __mmask32 bit6 = _mm512_test_epi16_mask(symbols, _mm512_set1_epi16(0x40));
    const __mmask32 bit7 = _mm512_test_epi16_mask(symbols, _mm512_set1_epi16(0x80));
    const __m512i low = _mm512_mask_mov_epi16(look(0), bit6, look(2));
    return _mm512_mask_mov_epi16(low, bit7, _mm512_mask_mov_epi16(look(4), bit6, look(6)));
  }
};

struct SymbolTable {
  Words256 frequency;
  Words256 start;

  explicit SymbolTable(const RansTable& table) {
    for (int i = 0; i < 8; ++i) {
      const __m512i low = _mm512_loadu_si512(table.of_symbol + 32 * i);
      const __m512i high = _mm512_loadu_si512(table.of_symbol + 32 * i + 16);
      const auto join = [](__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); };
      start.part[i] = join(_mm512_cvtepi32_epi16(low), _mm512_cvtepi32_epi16(high));
      frequency.part[i] = join(_mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16)),
                               _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)));
    }
  }
};

// Whether all symbols of a table are below 64.
bool has_few(const RansTable& table) {
  __m512i others = _mm512_setzero_si512();
  for (int i = 64; i < 256; i += 16) others = _mm512_or_si512(others, _mm512_loadu_si512(table.of_symbol + i));
  return _mm512_test_epi32_mask(others, others) == 0;
}

void count(const std::uint8_t* symbols, std::size_t n, std::size_t stride, std::uint64_t* counts) {
  rans_count(symbols, n, stride, counts, [](const std::uint8_t* from) {
    return _mm512_cmpneq_epi8_mask(_mm512_loadu_si512(from), _mm512_set1_epi8(static_cast<char>(*from)));
  });
}

__m512i low_half(__m512i words) { return _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words)); }

__m512i high_half(__m512i words) { return _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1)); }

// What dividing by the frequency f of each coder's symbol takes; none of it waits for a state.
struct Divisor {
  __m512i frequency;
  __m512i others;     // 2^14 - f
  __m512 reciprocal;  // 4 to 8 of 2^24 parts below 1 / f, so that two more roundings stay below it

  explicit Divisor(__m512i f)
      : frequency(f),
        others(_mm512_sub_epi32(_mm512_set1_epi32(kRansSlots), f)),
        reciprocal(_mm512_div_ps(_mm512_set1_ps(1.0F - 0x1p-21F), _mm512_cvtepi32_ps(f))) {}
};

// The quotient q of floats is right or one too small, and q * 2^14 + start + x - q * f is start + x + q * (2^14 - f).
__m512i put16_symbols(const Divisor& by, __m512i start, __m512i x, std::uint8_t*& at) {
  const __mmask16 full = _mm512_cmpge_epu32_mask(x, _mm512_slli_epi32(by.frequency, 32 - kRansBits));
  const __m512i words = _mm512_maskz_compress_epi32(full, x);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(words));
  at += 2 * _mm_popcnt_u32(full);
  x = _mm512_mask_srli_epi32(x, full, x, 16);
  const __m512i quotient = _mm512_cvttps_epu32(_mm512_mul_ps(_mm512_cvtepu32_ps(x), by.reciprocal));
  const __m512i remainder = _mm512_sub_epi32(x, _mm512_mullo_epi32(quotient, by.frequency));
  const __mmask16 below = _mm512_cmpge_epu32_mask(remainder, by.frequency);
  x = _mm512_add_epi32(_mm512_add_epi32(x, start), _mm512_mullo_epi32(quotient, by.others));
  return _mm512_mask_add_epi32(x, below, x, by.others);
}

template <bool kFew>
std::size_t encode_rounds(const std::uint8_t* symbols, std::size_t n, const RansTable& table, std::uint8_t* out,
                          std::size_t capacity) {
  RansStates states;
  std::uint8_t* at = out;
  if (n % kRansCoders != 0) {
    if (!rans_has_room(out, at, capacity)) return 0;
    at = rans_put_round(symbols + n / kRansCoders * kRansCoders, n % kRansCoders, table, states.x, at);
  }
  const SymbolTable look(table);
  __m512i low = _mm512_loadu_si512(states.x);
  __m512i high = _mm512_loadu_si512(states.x + 16);
  for (std::size_t left = n / kRansCoders * kRansCoders; left > 0;) {
    if (!rans_has_room(out, at, capacity)) return 0;
    left -= kRansCoders;
    const __m512i all = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(symbols + left)));
    const __m512i frequency = look.frequency.look_up<kFew>(all);
    const __m512i start = look.start.look_up<kFew>(all);
    low = put16_symbols(Divisor(low_half(frequency)), low_half(start), low, at);
    high = put16_symbols(Divisor(high_half(frequency)), high_half(start), high, at);
  }
  _mm512_storeu_si512(states.x, low);
  _mm512_storeu_si512(states.x + 16, high);
  return rans_end(states, out, at);
}

std::size_t encode(const std::uint8_t* symbols, std::size_t n, const RansTable& table, std::uint8_t* out,
                   std::size_t capacity) {
  return has_few(table) ? encode_rounds<true>(symbols, n, table, out, capacity)
                        : encode_rounds<false>(symbols, n, table, out, capacity);
}

__m512i slots_of(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi32(kRansSlots - 1)); }

// The symbols of sixteen slots, as words.
__m256i symbols_of(const RansTable& table, __m512i slots) {
  const __m512i found = _mm512_i32gather_epi32(slots, table.of_slot, 1);
  return _mm512_cvtepi32_epi16(_mm512_and_si512(found, _mm512_set1_epi32(0xFF)));
}

// The state after its symbol; the words that the coders below 2^16 want are still missing.
__m512i step(__m512i x, __m512i frequency, __m512i start) {
  const __m512i place = _mm512_sub_epi32(slots_of(x), start);
  return _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srli_epi32(x, kRansBits)), place);
}

__mmask16 hungry(__m512i x) { return _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(kRansLow)); }

__m512i feed(__m512i x, __mmask16 wanting, const std::uint8_t* from) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  const __m512i placed = _mm512_maskz_expand_epi32(wanting, words);
  return _mm512_mask_or_epi32(x, wanting, _mm512_slli_epi32(x, 16), placed);
}

template <bool kFew>
bool decode_rounds(const std::uint8_t* stream, std::size_t nbytes, const RansTable& table, std::uint8_t* symbols,
                   std::size_t n) {
  RansStates states;
  const std::uint8_t* at = rans_begin(states, stream, nbytes);
  if (at == nullptr) return false;
  std::size_t i = 0;
  const SymbolTable look(table);
  __m512i low = _mm512_loadu_si512(states.x);
  __m512i high = _mm512_loadu_si512(states.x + 16);
  // The states above the words have room for what the loads take too much.
  for (; i + kRansCoders <= n; i += kRansCoders) {
    const __m256i first = symbols_of(table, slots_of(low));
    const __m256i second = symbols_of(table, slots_of(high));
    const __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
    const __m512i frequency = look.frequency.look_up<kFew>(all);
    const __m512i start = look.start.look_up<kFew>(all);
    low = step(low, low_half(frequency), low_half(start));
    high = step(high, high_half(frequency), high_half(start));
    const __mmask16 low_wants = hungry(low);
    const __mmask16 high_wants = hungry(high);
    const int nbytes_wanted = 2 * _mm_popcnt_u32(low_wants | static_cast<std::uint32_t>(high_wants) << 16);
    if (at - stream < nbytes_wanted) return false;
    at -= nbytes_wanted;
    low = feed(low, low_wants, at);
    high = feed(high, high_wants, at + 2 * _mm_popcnt_u32(low_wants));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(symbols + i), _mm512_cvtepi16_epi8(all));
  }
  _mm512_storeu_si512(states.x, low);
  _mm512_storeu_si512(states.x + 16, high);
  for (; i < n && at != nullptr; i += kRansCoders) {
    at = rans_get_round(stream, at, table, states.x, symbols + i, n - i < kRansCoders ? n - i : kRansCoders);
  }
  return rans_is_done(states, stream, at);
}

bool decode(const std::uint8_t* stream, std::size_t nbytes, const RansTable& table, std::uint8_t* symbols,
            std::size_t n) {
  return has_few(table) ? decode_rounds<true>(stream, nbytes, table, symbols, n)
                        : decode_rounds<false>(stream, nbytes, table, symbols, n);
}

}  // namespace

const RansKernels kRansAvx512 = {.count = count, .encode = encode, .decode = decode};

}  // namespace gradwire

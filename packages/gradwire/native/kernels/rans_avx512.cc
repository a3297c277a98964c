// The entropy coder, with sixteen coders per register, and AVX-512 F, BW, DQ, and VL. Symbols'
// entries (encoding) and slots' symbols (decoding) are looked up one by one, because gathers are slow (more than 30
// cycles each on Zen 4); symbols' frequencies and starts (decoding), in registers.
#include "kernels/avx512.h"
#include "kernels/rans.h"

namespace gradwire {

namespace {

// A table of 256 words, with 32 look-ups at once. Each permutation covers 64 entries, which suffices with `kFew`, if
// all symbols are below 64.
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

// Returns whether all symbols of a table are below 64.
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

// The constants for encoding a symbol of frequency f.
struct Entry {
  float reciprocal;     // below 1 / f by 4 to 8 parts in 2^24, so that it stays below after two more roundings
  std::uint32_t slots;  // start | f << 16
};

// The entries of later rounds, looked up one by one. Loads and stores don't use the vector units, which are the
// bottleneck of encoding. Sixteen entries are in the order of the even symbols, then the odd ones.
class Entries {
 public:
  // n is a multiple of kRansCoders.
  Entries(const std::uint8_t* symbols, std::size_t n, const RansTable& table) : symbols_(symbols) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t slots = table.of_symbol[i];
      of_symbol_[i] = {(1.0F - 0x1p-21F) / static_cast<float>(slots >> 16), slots};
    }
    for (std::size_t i = n > kAhead ? n - kAhead : 0; i < n; i += kRansCoders) look_up(i);
  }

  const Entry* round(std::size_t first) const { return ahead_ + first % kAhead; }

  // The entries of the round that is coded kAhead symbols later replace this round's.
  void look_up_before(std::size_t first) {
    if (first >= kAhead) look_up(first - kAhead);
  }

 private:
  // The number of symbols between a store and the load of its bytes, enough for the store to reach the cache.
  static constexpr std::size_t kAhead = 8 * kRansCoders;

  void look_up(std::size_t first) {
    Entry* const to = ahead_ + first % kAhead;
    look_up_half(symbols_ + first, to);
    look_up_half(symbols_ + first + 16, to + 16);
  }

  // Stores to consecutive cache lines. The barrier keeps the compiler from vectorising the stores.
  void look_up_half(const std::uint8_t* symbols, Entry* to) const {
#pragma GCC unroll 16
    for (std::size_t k = 0; k < 16; ++k) {
      std::uint64_t entry;
      std::memcpy(&entry, of_symbol_ + symbols[k % 8 * 2 + k / 8], sizeof entry);
      asm("" : "+r"(entry));
      std::memcpy(to + k, &entry, sizeof entry);
    }
  }

  const std::uint8_t* symbols_;
  alignas(64) Entry of_symbol_[256];
  alignas(64) Entry ahead_[kAhead];
};

// The state is divided as a float before it is known whether its lower word is written. If so, the quotient is
// multiplied by 2^-16, which is exact. The quotient q is exact, or too small by 1. So the remainder is below 2 f <
// 2^15, and the low words of x - q f suffice. The new state is q * 2^14 + start + remainder, plus 2^14 - f if q is too
// small.
__m512i put16_symbols(const Entry* entries, __m512i x, std::uint8_t*& at) {
  const __m512 even = _mm512_load_ps(entries);
  const __m512 odd = _mm512_load_ps(entries + 8);
  const __m512 reciprocal = _mm512_mask_moveldup_ps(even, 0xAAAA, odd);
  const __m512i slots = _mm512_castps_si512(_mm512_mask_movehdup_ps(odd, 0x5555, even));
  const __m512i frequency = _mm512_srli_epi32(slots, 16);
  const __mmask16 full = _mm512_cmpge_epu32_mask(x, _mm512_slli_epi32(frequency, 32 - kRansBits));
  const __m512i words = _mm512_maskz_compress_epi32(full, x);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(words));
  at += 2 * static_cast<std::size_t>(_mm_popcnt_u32(full));
  const __m512 factor = _mm512_mask_mul_ps(reciprocal, full, reciprocal, _mm512_set1_ps(0x1p-16F));
  const __m512i quotient = _mm512_cvttps_epu32(_mm512_mul_ps(_mm512_cvtepu32_ps(x), factor));
  const __m512i kept = _mm512_mask_srli_epi32(x, full, x, 16);
  constexpr __mmask32 kLowWords = 0x55555555;
  const __m512i product = _mm512_mullo_epi16(quotient, frequency);
  const __m512i remainder = _mm512_maskz_sub_epi16(kLowWords, kept, product);
  const __mmask16 too_small = _mm512_cmpge_epu32_mask(remainder, frequency);
  // quotient << 14 | (slots & 0x3FFF)
  const __m512i place = _mm512_ternarylogic_epi32(_mm512_slli_epi32(quotient, kRansBits), slots,
                                                  _mm512_set1_epi32(kRansSlots - 1), 0xF8);
  const __m512i next = _mm512_add_epi32(place, remainder);
  const __m512i others = _mm512_sub_epi32(_mm512_set1_epi32(kRansSlots), frequency);
  return _mm512_mask_add_epi32(next, too_small, next, others);
}

std::size_t encode(const std::uint8_t* symbols, std::size_t n, const RansTable& table, std::uint8_t* out,
                   std::size_t capacity) {
  RansStates states;
  std::size_t left = n / kRansCoders * kRansCoders;
  std::uint8_t* at = rans_put_rest(symbols + left, n - left, table, states, out, capacity);
  if (at == nullptr) return 0;
  __m512i low = _mm512_loadu_si512(states.x);
  __m512i high = _mm512_loadu_si512(states.x + 16);
  Entries entries(symbols, left, table);
  while (left > 0) {
    if (!rans_has_room(out, at, capacity)) return 0;
    left -= kRansCoders;
    const Entry* const round = entries.round(left);
    low = put16_symbols(round, low, at);
    high = put16_symbols(round + 16, high, at);
    entries.look_up_before(left);
  }
  _mm512_storeu_si512(states.x, low);
  _mm512_storeu_si512(states.x + 16, high);
  return rans_end(states, out, at);
}

__m512i slots_of(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi32(kRansSlots - 1)); }

// Returns the symbols of 32 slots, looked up one by one, in general registers.
__m256i symbols_of(const RansTable& table, __m512i low, __m512i high) {
  alignas(64) std::uint32_t slots[kRansCoders];
  _mm512_store_si512(slots, slots_of(low));
  _mm512_store_si512(slots + 16, slots_of(high));
  std::uint64_t symbols[4];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    symbols[i] = 0;
#pragma GCC unroll 8
    for (std::size_t k = 0; k < 8; ++k) symbols[i] |= std::uint64_t{table.of_slot[slots[8 * i + k]]} << 8 * k;
  }
  const auto two = [&](std::size_t i) {
    const __m128i first = _mm_cvtsi64_si128(static_cast<long long>(symbols[i]));
    return _mm_insert_epi64(first, static_cast<long long>(symbols[i + 1]), 1);
  };
  return _mm256_set_m128i(two(2), two(0));
}

// Returns the states after a symbol, before the coders below 2^16 read a word.
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

// A stream within the decoder. Each of its rounds depends on the previous one.
template <bool kFew>
class Decoder {
 public:
  explicit Decoder(const RansCoded& coded) : coded_(coded), look_(*coded.table) {
    RansStates states;
    at_ = rans_begin(states, coded.stream, coded.nbytes);
    low_ = _mm512_loadu_si512(states.x);
    high_ = _mm512_loadu_si512(states.x + 16);
  }

  bool has_begun() const { return at_ != nullptr; }

  // Decodes the round of the symbols from i on. Returns whether it had enough words. The states above the words leave
  // room for loads past the words.
  bool round(std::size_t i) {
    const __m256i symbols = symbols_of(*coded_.table, low_, high_);
    const __m512i all = _mm512_cvtepu8_epi16(symbols);
    const __m512i frequency = look_.frequency.look_up<kFew>(all);
    const __m512i start = look_.start.look_up<kFew>(all);
    low_ = step(low_, low_half(frequency), low_half(start));
    high_ = step(high_, high_half(frequency), high_half(start));
    const __mmask16 low_wants = hungry(low_);
    const __mmask16 high_wants = hungry(high_);
    const int nbytes_wanted = 2 * _mm_popcnt_u32(low_wants | static_cast<std::uint32_t>(high_wants) << 16);
    if (at_ - coded_.stream < nbytes_wanted) return false;
    at_ -= nbytes_wanted;
    low_ = feed(low_, low_wants, at_);
    high_ = feed(high_, high_wants, at_ + 2 * _mm_popcnt_u32(low_wants));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(coded_.symbols + i), symbols);
    return true;
  }

  // Decodes all remaining symbols from i on.
  bool finish(std::size_t i) {
    for (; i + kRansCoders <= coded_.n; i += kRansCoders) {
      if (!round(i)) return false;
    }
    RansStates states;
    _mm512_storeu_si512(states.x, low_);
    _mm512_storeu_si512(states.x + 16, high_);
    const std::size_t rest = coded_.n - i;
    const std::uint8_t* at = at_;
    if (rest != 0) at = rans_get_round(coded_.stream, at, *coded_.table, states.x, coded_.symbols + i, rest);
    return rans_is_done(states, coded_.stream, at);
  }

 private:
  RansCoded coded_;
  SymbolTable look_;
  const std::uint8_t* at_;
  __m512i low_;
  __m512i high_;
};

template <bool kFew>
bool decode_as(const RansCoded& coded) {
  Decoder<kFew> decoder(coded);
  return decoder.has_begun() && decoder.finish(0);
}

bool decode(const RansCoded& coded) {
  return has_few(*coded.table) ? decode_as<true>(coded) : decode_as<false>(coded);
}

template <bool kFew>
bool decode_two_as(const RansCoded& one, const RansCoded& other) {
  Decoder<kFew> first(one);
  Decoder<kFew> second(other);
  if (!first.has_begun() || !second.has_begun()) return false;
  const std::size_t common = one.n < other.n ? one.n : other.n;
  std::size_t i = 0;
  for (; i + kRansCoders <= common; i += kRansCoders) {
    if (!first.round(i) || !second.round(i)) return false;
  }
  return first.finish(i) && second.finish(i);
}

// Two streams at once, so that a round of one stream fills the time in which the other's round waits.
bool decode_two(const RansCoded& one, const RansCoded& other) {
  return has_few(*one.table) && has_few(*other.table) ? decode_two_as<true>(one, other)
                                                      : decode_two_as<false>(one, other);
}

}  // namespace

const RansKernels kRansAvx512 = {.count = count, .encode = encode, .decode = decode, .decode_two = decode_two};

}  // namespace gradwire

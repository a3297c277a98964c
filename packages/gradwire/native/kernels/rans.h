// Kernels of the entropy coder: range asymmetric numeral systems (rANS; Duda, 2013) over bytes, with 32 interleaved
// coders (Giesen, 2014), so that vectors, or the threads of a warp, code a round of 32 symbols at once.
//
// A coder's state x lies in [2^16, 2^32). Of the 2^14 slots, symbol s has frequency(s), from start(s) on.
//   Encode: if x >= frequency << 18, the word x & 0xFFFF is written and x >>= 16; then
//           x = (x / frequency << 14) + start + x % frequency.
//   Decode: slot = x & 0x3FFF determines the symbol; x = frequency * (x >> 14) + slot - start; if x < 2^16, a word is
//   read and x = x << 16 | word.
// Symbol i belongs to coder i % 32. The decoder runs from the first round to the last, and reads words from the end of
// the stream; the encoder does the reverse. Within a round, words are in the order of their coders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradwire {

inline constexpr unsigned kRansBits = 14;
inline constexpr std::uint32_t kRansSlots = 1U << kRansBits;
inline constexpr std::uint32_t kRansLow = 1U << 16;
inline constexpr std::size_t kRansCoders = 32;
inline constexpr std::size_t kRansStatesNbytes = 4 * kRansCoders;
// The words of a round, past which vectors don't store or load.
inline constexpr std::size_t kRansRoundNbytes = 2 * kRansCoders;

struct RansTable {
  // start | frequency << 16 of each symbol, or 0 if the symbol doesn't occur.
  std::uint32_t of_symbol[256];
  // The symbol of each slot, for decoding only. Vectors load four bytes for each symbol.
  std::uint8_t of_slot[kRansSlots + 3];
};

// A stream to decode, and the memory for its n symbols.
struct RansCoded {
  const std::uint8_t* stream;
  std::size_t nbytes;
  const RansTable* table;
  std::uint8_t* symbols;
  std::size_t n;
};

struct RansKernels {
  // Adds to counts[s] the number of occurrences of s among the first 64 of every `stride` symbols (a multiple of 64),
  // or among all of fewer than 64 symbols at the end. n < 2^32.
  void (*count)(const std::uint8_t* symbols, std::size_t n, std::size_t stride, std::uint64_t* counts);
  // Writes the words of n symbols, all of which are in the table, then the 32 states. Returns the number of bytes
  // written, or 0 as soon as `capacity` may be too small for the next round and the states.
  std::size_t (*encode)(const std::uint8_t* symbols, std::size_t n, const RansTable& table, std::uint8_t* out,
                        std::size_t capacity);
  // Returns whether the stream has 32 states within their range, and after n symbols, it is at its first word and all
  // states are 2^16. `symbols` are written in any case.
  bool (*decode)(const RansCoded& coded);
  // Returns whether both streams are valid, as in decode. If one isn't, the other's symbols may not have been written.
  bool (*decode_two)(const RansCoded& one, const RansCoded& other);
};

extern const RansKernels kRansScalar;
extern const RansKernels kRansAvx2;
extern const RansKernels kRansAvx512;

// The definition of a round of `count` <= 32 symbols, which also handles the rest that vectors leave. Both functions
// return the continuation of the stream, above the words written or below the words read, or null if there are too few
// words.
std::uint8_t* rans_put_round(const std::uint8_t* symbols, std::size_t count, const RansTable& table,
                             std::uint32_t* states, std::uint8_t* at);
const std::uint8_t* rans_get_round(const std::uint8_t* begin, const std::uint8_t* at, const RansTable& table,
                                   std::uint32_t* states, std::uint8_t* symbols, std::size_t count);

namespace {

// The beginning and end of streams, the same for all targets, in an unnamed namespace, so that each target compiles its
// own copy.
struct RansStates {
  std::uint32_t x[kRansCoders];
  RansStates() {
    for (std::uint32_t& each : x) each = kRansLow;
  }
};

// Counts in several tables, because consecutive equal symbols would wait for each other's counts. If almost all of 64
// symbols equal the first one, only the others are examined; others(from) has a bit for each of them.
template <typename Others>
[[maybe_unused]] void rans_count(const std::uint8_t* symbols, std::size_t n, std::size_t stride,
                                 std::uint64_t* counts, const Others& others) {
  constexpr std::size_t kTables = 8;
  constexpr int kFew = 16;
  std::uint32_t tables[kTables][256] = {};
  std::size_t i = 0;
  for (; i + 64 <= n; i += stride) {
    const std::uint8_t* const from = symbols + i;
    // The hardware prefetcher doesn't follow long strides. Addresses past the end are only prefetched, never read.
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + 16 * stride));
    std::uint64_t rest = others(from);
    if (const int few = __builtin_popcountll(rest); few <= kFew) {
      tables[0][*from] += static_cast<std::uint32_t>(64 - few);
      for (; rest != 0; rest &= rest - 1) ++tables[1][from[__builtin_ctzll(rest)]];
      continue;
    }
    for (std::size_t at = 0; at < 64; at += kTables) {
      std::uint64_t eight;
      std::memcpy(&eight, from + at, sizeof eight);
      for (std::size_t k = 0; k < kTables; ++k) ++tables[k][eight >> 8 * k & 0xFF];
    }
  }
  for (; i < n; ++i) ++tables[0][symbols[i]];
  for (const auto& table : tables) {
    for (std::size_t symbol = 0; symbol < 256; ++symbol) counts[symbol] += table[symbol];
  }
}

[[maybe_unused]] bool rans_has_room(const std::uint8_t* out, const std::uint8_t* at, std::size_t capacity) {
  return capacity - static_cast<std::size_t>(at - out) >= kRansRoundNbytes + kRansStatesNbytes;
}

// Begins an encoder's stream with the last round, if it has `count` < 32 symbols, so that only whole rounds remain.
// Returns the continuation of the stream, or null if there is no room.
[[maybe_unused]] std::uint8_t* rans_put_rest(const std::uint8_t* symbols, std::size_t count, const RansTable& table,
                                             RansStates& states, std::uint8_t* out, std::size_t capacity) {
  if (count == 0) return out;
  return rans_has_room(out, out, capacity) ? rans_put_round(symbols, count, table, states.x, out) : nullptr;
}

// Returns the number of symbols in the last of the rounds that cover `left` symbols.
[[maybe_unused]] std::size_t rans_last_round(std::size_t left) { return (left - 1) % kRansCoders + 1; }

[[maybe_unused]] std::size_t rans_end(const RansStates& states, const std::uint8_t* out, std::uint8_t* at) {
  std::memcpy(at, states.x, kRansStatesNbytes);
  return static_cast<std::size_t>(at - out) + kRansStatesNbytes;
}

// Returns the end of the words, or null if states are missing or out of range.
[[maybe_unused]] const std::uint8_t* rans_begin(RansStates& states, const std::uint8_t* stream, std::size_t nbytes) {
  if (nbytes < kRansStatesNbytes) return nullptr;
  const std::uint8_t* const at = stream + nbytes - kRansStatesNbytes;
  std::memcpy(states.x, at, kRansStatesNbytes);
  for (const std::uint32_t each : states.x) {
    if (each < kRansLow) return nullptr;
  }
  return at;
}

// The kernel of targets on which two streams at a time aren't faster.
template <bool (*kDecode)(const RansCoded&)>
bool rans_decode_two(const RansCoded& one, const RansCoded& other) {
  return kDecode(one) && kDecode(other);
}

[[maybe_unused]] bool rans_is_done(const RansStates& states, const std::uint8_t* stream, const std::uint8_t* at) {
  for (const std::uint32_t each : states.x) {
    if (each != kRansLow) return false;
  }
  return at == stream;
}

}  // namespace

}  // namespace gradwire

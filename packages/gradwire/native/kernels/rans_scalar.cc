// The definition of the entropy coder.
#include "kernels/bits.h"
#include "kernels/rans.h"

namespace gradwire {

std::uint8_t* rans_put_round(const std::uint8_t* symbols, std::size_t count, const RansTable& table,
                             std::uint32_t* states, std::uint8_t* at) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t entry = table.of_symbol[symbols[i]];
    const std::uint32_t frequency = entry >> 16;
    std::uint32_t x = states[i];
    if (x >= frequency << (32 - kRansBits)) {
      store_word(at, static_cast<std::uint16_t>(x));
      at += 2;
      x >>= 16;
    }
    states[i] = (x / frequency << kRansBits) + (entry & 0xFFFFU) + x % frequency;
  }
  return at;
}

const std::uint8_t* rans_get_round(const std::uint8_t* begin, const std::uint8_t* at, const RansTable& table,
                                   std::uint32_t* states, std::uint8_t* symbols, std::size_t count) {
  std::size_t words = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t slot = states[i] & (kRansSlots - 1);
    const std::uint8_t symbol = table.of_slot[slot];
    const std::uint32_t entry = table.of_symbol[symbol];
    symbols[i] = symbol;
    states[i] = (entry >> 16) * (states[i] >> kRansBits) + slot - (entry & 0xFFFFU);
    words += states[i] < kRansLow ? 1 : 0;
  }
  if (static_cast<std::size_t>(at - begin) < 2 * words) return nullptr;
  const std::uint8_t* const first = at - 2 * words;
  at = first;
  for (std::size_t i = 0; i < count; ++i) {
    if (states[i] >= kRansLow) continue;
    states[i] = states[i] << 16 | load_word<std::uint16_t>(at);
    at += 2;
  }
  return first;
}

namespace {

void count(const std::uint8_t* symbols, std::size_t n, std::size_t stride, std::uint64_t* counts) {
  rans_count(symbols, n, stride, counts, [](const std::uint8_t*) { return ~std::uint64_t{0}; });
}

std::size_t encode(const std::uint8_t* symbols, std::size_t n, const RansTable& table, std::uint8_t* out,
                   std::size_t capacity) {
  RansStates states;
  std::uint8_t* at = out;
  for (std::size_t left = n; left > 0;) {
    if (!rans_has_room(out, at, capacity)) return 0;
    const std::size_t count = rans_last_round(left);
    left -= count;
    at = rans_put_round(symbols + left, count, table, states.x, at);
  }
  return rans_end(states, out, at);
}

bool decode(const RansCoded& coded) {
  const auto& [stream, nbytes, table_of_stream, symbols, n] = coded;
  const RansTable& table = *table_of_stream;
  RansStates states;
  const std::uint8_t* at = rans_begin(states, stream, nbytes);
  for (std::size_t i = 0; i < n && at != nullptr; i += kRansCoders) {
    at = rans_get_round(stream, at, table, states.x, symbols + i, n - i < kRansCoders ? n - i : kRansCoders);
  }
  return rans_is_done(states, stream, at);
}

}  // namespace

const RansKernels kRansScalar = {.count = count, .encode = encode, .decode = decode, .decode_two = rans_decode_two<decode>};

}  // namespace gradwire

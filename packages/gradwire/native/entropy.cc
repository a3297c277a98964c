// The entropy coder's frequencies, tables, and choice of a block's mode. The coding itself is in kernels/rans_*.
#include "gradwire/entropy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "gradwire/target.h"
#include "kernels/rans.h"
#include "sections.h"

namespace gradwire {

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 18;
constexpr std::size_t kHeadNbytes = 8;
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMostTable = 512;
constexpr std::uint32_t kTwoBytes = 192;

constexpr std::size_t kByteValues = 256;
constexpr std::size_t kNibbleValues = 16;
// Blocks of up to this many symbols aren't coded, because kernels need room for a round and the states.
constexpr std::size_t kTooFew = kRansStatesNbytes + kRansRoundNbytes;

enum Mode : std::uint8_t { kRaw, kConstant, kCoded, kByNibbles };

// In blocks of at least `from` symbols, only the first 64 of every 64 * `of` are counted, if that suffices. A table of
// pairs depends on 16 frequencies if it is the product of two of nibbles, so fewer symbols are enough.
struct Sampling {
  std::size_t from;
  std::size_t of;
};
constexpr Sampling kOfBytes{std::size_t{1} << 18, 8};
constexpr Sampling kOfPairs{std::size_t{1} << 13, 5};  // an odd distance: rows often have 2^k codes
constexpr std::size_t kAll = 64;

struct Counts {
  std::uint64_t of[kByteValues] = {};
  std::uint64_t sum = 0;

  Counts() = default;

  Counts(const Target& target, const std::uint8_t* symbols, std::size_t n, const Sampling& sampling) {
    if (n >= sampling.from) {
      target.rans->count(symbols, n, sampling.of * kAll, of);
      if (4 * *std::max_element(of, of + kByteValues) <= total()) {
        // Any value up to the largest may occur among the symbols that aren't counted.
        std::uint8_t largest = 0;
        for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, symbols[i]);
        for (std::size_t symbol = 0; symbol <= largest; ++symbol) of[symbol] = sampling.of * of[symbol] + 1;
        sum = total();
        return;
      }
      std::fill(of, of + kByteValues, 0);
    }
    // If one value dominates, counting is fast, and the rare values matter.
    target.rans->count(symbols, n, kAll, of);
    sum = n;
  }

  std::uint64_t total() const { return std::accumulate(of, of + kByteValues, std::uint64_t{0}); }

  std::size_t present() const {
    return static_cast<std::size_t>(std::count_if(of, of + kByteValues, [](std::uint64_t count) { return count > 0; }));
  }

  // Returns the counts of the two nibbles of each symbol.
  Counts nibbles() const {
    Counts each;
    for (std::size_t symbol = 0; symbol < kByteValues; ++symbol) {
      each.of[symbol % kNibbleValues] += of[symbol];
      each.of[symbol / kNibbleValues] += of[symbol];
    }
    each.sum = 2 * sum;
    return each;
  }
};

// Returns whether 2 to the power of the second-order (collision) entropy, a lower bound on Shannon's, is above 256 / (1
// + 1/64). Coding would then gain less than 0.3 %, and isn't tried.
bool is_nearly_uniform(const Counts& counts) {
  double squares = 0.0;  // exact: a block has at most 2^20 symbols
  for (const std::uint64_t count : counts.of) squares += static_cast<double>(count * count);
  const auto sum = static_cast<double>(counts.sum);
  return 256.0 * squares <= sum * sum * (1.0 + 1.0 / 64);
}

// Every value that occurs gets one slot, and the remaining slots are divided in proportion to cumulative counts, so
// that the frequencies add up to 2^14 without a correction. Dividends are below 2^42, so truncated quotients of doubles
// are exact, and take much less time than those of integers.
void share_slots(const Counts& counts, RansTable& table) {
  const std::uint64_t shared = kRansSlots - counts.present();
  const auto sum = static_cast<double>(counts.sum);
  std::uint64_t before = 0;
  std::uint32_t start = 0;
  std::uint32_t shares_before = 0;
  for (std::size_t symbol = 0; symbol < kByteValues; ++symbol) {
    const std::uint64_t count = counts.of[symbol];
    table.of_symbol[symbol] = 0;
    if (count == 0) continue;
    before += count;
    const auto shares = static_cast<std::uint32_t>(static_cast<double>(before * shared) / sum);
    const std::uint32_t frequency = shares - shares_before + 1;
    table.of_symbol[symbol] = start | frequency << 16;
    start += frequency;
    shares_before = shares;
  }
}

// Expands a table of nibbles to a table of symbols, each of two nibbles.
void multiply_nibbles(RansTable& table) {
  Counts products;
  for (std::size_t symbol = 0; symbol < kByteValues; ++symbol) {
    const std::uint64_t low = table.of_symbol[symbol % kNibbleValues] >> 16;
    products.of[symbol] = low * (table.of_symbol[symbol / kNibbleValues] >> 16);
  }
  products.sum = std::uint64_t{kRansSlots} * kRansSlots;
  share_slots(products, table);
}

// 256 log2(1 + i / 256), rounded down, computed by squaring integers, so that it is the same on every machine.
constexpr std::array<std::uint8_t, 256> logarithms() {
  std::array<std::uint8_t, 256> logs{};
  for (std::size_t i = 0; i < logs.size(); ++i) {
    std::uint64_t mantissa = (256 + i) << 23;
    unsigned log = 0;
    for (int bit = 0; bit < 8; ++bit) {
      mantissa = mantissa * mantissa >> 31;
      const auto carry = static_cast<unsigned>(mantissa >> 32);
      mantissa >>= carry;
      log = log << 1 | carry;
    }
    logs[i] = static_cast<std::uint8_t>(log);
  }
  return logs;
}

constexpr std::array<std::uint8_t, 256> kLogarithms = logarithms();

// Returns approximately 256 log2(x).
std::uint64_t log_of(std::uint32_t x) {
  const unsigned whole = 31 - static_cast<unsigned>(__builtin_clz(x));
  return 256 * whole + kLogarithms[(x << (31 - whole) >> 23) & 0xFF];
}

std::size_t write_table(const RansTable& table, std::uint8_t* out) {
  std::uint8_t* at = out;
  std::uint32_t sum = 0;
  for (std::size_t symbol = 0; sum < kRansSlots; ++symbol) {
    const std::uint32_t frequency = table.of_symbol[symbol] >> 16;
    if (frequency == 0) {
      std::uint8_t more = 0;
      while (table.of_symbol[symbol + 1] == 0) ++symbol, ++more;
      *at++ = 0;
      *at++ = more;
    } else if (frequency < kTwoBytes) {
      *at++ = static_cast<std::uint8_t>(frequency);
    } else {
      *at++ = static_cast<std::uint8_t>(kTwoBytes + (frequency >> 8));
      *at++ = static_cast<std::uint8_t>(frequency);
    }
    sum += frequency;
  }
  return static_cast<std::size_t>(at - out);
}

// Returns the size in bytes of a table of `symbols` symbols, or 0 if it is invalid.
std::size_t read_table(const std::uint8_t* from, std::size_t nbytes, std::size_t symbols, RansTable& table) {
  std::memset(table.of_symbol, 0, sizeof table.of_symbol);
  std::uint32_t sum = 0;
  std::size_t at = 0;
  bool absent = false;
  for (std::size_t symbol = 0; sum < kRansSlots; ++symbol) {
    if (symbol >= symbols || at == nbytes) return 0;
    std::uint32_t frequency = from[at++];
    if (frequency == 0 || frequency >= kTwoBytes) {
      if (at == nbytes) return 0;
      const std::uint32_t second = from[at++];
      if (frequency == 0) {
        if (absent) return 0;
        absent = true;
        symbol += second;
        continue;
      }
      frequency = (frequency - kTwoBytes) << 8 | second;
      if (frequency < kTwoBytes) return 0;
    }
    absent = false;
    if (frequency > kRansSlots - sum || frequency == kRansSlots) return 0;
    table.of_symbol[symbol] = sum | frequency << 16;
    sum += frequency;
  }
  return at;
}

void fill_slots(RansTable& table) {
  for (std::size_t symbol = 0; symbol < kByteValues; ++symbol) {
    const std::uint32_t entry = table.of_symbol[symbol];
    std::memset(table.of_slot + (entry & 0xFFFFU), static_cast<int>(symbol), entry >> 16);
  }
}

struct Head {
  RansTable table;
  std::uint8_t written[kMostTable];
  std::size_t nbytes;

  explicit Head(const Counts& counts) {
    share_slots(counts, table);
    nbytes = write_table(table, written);
  }

  // Returns the approximate size of the table and the coded symbols, in 1 / 256 bits.
  std::uint64_t cost(const Counts& counts) const {
    std::uint64_t bits = 8 * nbytes;
    std::uint64_t saved = 0;
    for (std::size_t symbol = 0; symbol < kByteValues; ++symbol) {
      if (counts.of[symbol] == 0) continue;
      bits += kRansBits * counts.of[symbol];
      saved += counts.of[symbol] * log_of(table.of_symbol[symbol] >> 16);
    }
    return 256 * bits - saved;
  }
};

// Writes a block with its table. Returns the size, or 0 if the block isn't smaller than its raw symbols.
std::size_t encode_coded(const Target& target, const std::uint8_t* symbols, std::size_t n, Mode mode,
                         const Head& head, std::uint8_t* out) {
  if (head.nbytes >= n) return 0;
  out[0] = mode;
  std::memcpy(out + 1, head.written, head.nbytes);
  const std::size_t stream =
      target.rans->encode(symbols, n, head.table, out + 1 + head.nbytes, n - head.nbytes);
  return stream == 0 ? 0 : 1 + head.nbytes + stream;
}

// Returns the size, or 0 like encode_coded.
std::size_t encode_counted(const Target& target, const std::uint8_t* symbols, std::size_t n, const Counts& counts,
                           Symbols kind, std::uint8_t* out) {
  const Head whole(counts);
  if (kind == Symbols::kPairs) {
    Head nibbles(counts.nibbles());
    multiply_nibbles(nibbles.table);
    if (nibbles.cost(counts) < whole.cost(counts)) return encode_coded(target, symbols, n, kByNibbles, nibbles, out);
  }
  return encode_coded(target, symbols, n, kCoded, whole, out);
}

bool is_constant(const std::uint8_t* symbols, std::size_t n) {
  return std::all_of(symbols, symbols + n, [&](std::uint8_t symbol) { return symbol == symbols[0]; });
}

std::size_t write_constant(std::uint8_t symbol, std::uint8_t* out) {
  out[0] = kConstant;
  out[1] = symbol;
  return 2;
}

}  // namespace

std::size_t encode_raw_block(const std::uint8_t* symbols, std::size_t n, std::uint8_t* out) {
  out[0] = kRaw;
  if (n > 0) std::memcpy(out + 1, symbols, n);
  return 1 + n;
}

std::size_t encode_block(const Target& target, const std::uint8_t* symbols, std::size_t n, std::uint8_t* out,
                         Symbols kind) {
  if (n == 0) return encode_raw_block(symbols, n, out);
  if (n <= kTooFew) {
    return is_constant(symbols, n) ? write_constant(symbols[0], out) : encode_raw_block(symbols, n, out);
  }
  const Counts counts(target, symbols, n, kind == Symbols::kPairs ? kOfPairs : kOfBytes);
  if (counts.present() == 1) return write_constant(symbols[0], out);
  if (!is_nearly_uniform(counts)) {
    const std::size_t nbytes = encode_counted(target, symbols, n, counts, kind, out);
    if (nbytes != 0) return nbytes;
  }
  return encode_raw_block(symbols, n, out);
}

namespace {

constexpr const char* kWrongTable = "the table of a block is malformed";
constexpr const char* kWrongWords = "the coders of a block do not end in their initial states";

bool is_by_nibbles(const Block& block) { return block.kind == Symbols::kPairs && block.from[0] == kByNibbles; }

bool is_coded(const Block& block) {
  return block.nbytes > 0 && (block.from[0] == kCoded || is_by_nibbles(block));
}

// Reads the table of a coded block, and returns its stream. `stream` is null if the table is malformed.
RansCoded stream_of(const Block& block, RansTable& table) {
  const bool by_nibbles = is_by_nibbles(block);
  const std::size_t table_nbytes =
      read_table(block.from + 1, block.nbytes - 1, by_nibbles ? kNibbleValues : kByteValues, table);
  if (table_nbytes != 0) {
    if (by_nibbles) multiply_nibbles(table);
    fill_slots(table);
  }
  const std::uint8_t* const stream = table_nbytes == 0 ? nullptr : block.from + 1 + table_nbytes;
  return {stream, block.nbytes - 1 - table_nbytes, &table, block.symbols, block.n};
}

}  // namespace

const char* decode_block(const Target& target, const Block& block) {
  if (block.nbytes == 0) return "a block is empty";
  if (is_coded(block)) {
    RansTable table;
    const RansCoded coded = stream_of(block, table);
    if (coded.stream == nullptr) return kWrongTable;
    return target.rans->decode(coded) ? nullptr : kWrongWords;
  }
  const std::uint8_t* const body = block.from + 1;
  const std::size_t body_nbytes = block.nbytes - 1;
  switch (block.from[0]) {
    case kRaw:
      if (body_nbytes != block.n) return "a raw block has a different number of symbols";
      if (block.n > 0) std::memcpy(block.symbols, body, block.n);
      return nullptr;
    case kConstant:
      if (body_nbytes != 1 || block.n == 0) return "a constant block does not have exactly one symbol";
      std::memset(block.symbols, body[0], block.n);
      return nullptr;
    default:
      return "a block has an unknown mode";
  }
}

const char* decode_two_blocks(const Target& target, const Block& one, const Block& other) {
  if (is_coded(one) && is_coded(other)) {
    RansTable tables[2];
    const RansCoded first = stream_of(one, tables[0]);
    const RansCoded second = stream_of(other, tables[1]);
    if (first.stream == nullptr || second.stream == nullptr) return kWrongTable;
    return target.rans->decode_two(first, second) ? nullptr : kWrongWords;
  }
  const char* const reason = decode_block(target, one);
  return reason != nullptr ? reason : decode_block(target, other);
}

std::size_t entropy_max_nbytes(std::size_t n) {
  const Sections blocks{n, kBlock};
  return kHeadNbytes + blocks.directory_nbytes() + blocks.count() + n;
}

std::size_t entropy_encode(const Target& target, const std::uint8_t* symbols, std::size_t n, std::uint8_t* out,
                           int threads) {
  const Sections blocks{n, kBlock};
  store_word(out, kVersion | static_cast<std::uint64_t>(n) << 8);
  const auto encode = [&](std::size_t i, std::uint8_t* at) {
    return encode_block(target, symbols + blocks.first(i), blocks.elements(i), at);
  };
  return kHeadNbytes +
         write_sections(blocks, block_max_nbytes(kBlock), threads, out + kHeadNbytes, [&] { return encode; });
}

const char* entropy_decode(const Target& target, const std::uint8_t* payload, std::size_t nbytes,
                           std::uint8_t* symbols, std::size_t n, int threads) {
  if (nbytes < kHeadNbytes) return "it is shorter than eight bytes";
  const auto head = load_word<std::uint64_t>(payload);
  if ((head & 0xFF) != kVersion) return "its version byte is not 1";
  if (head >> 8 != n) return "it declares a different number of symbols";
  const Sections blocks{n, kBlock};
  const std::uint8_t* const body = payload + kHeadNbytes;
  const auto decode = [&](std::size_t i, std::size_t count, const Starts& starts) {
    const auto block = [&](std::size_t at) {
      return Block{body + starts[at], starts[at + 1] - starts[at], symbols + blocks.first(at), blocks.elements(at)};
    };
    return count == 2 ? decode_two_blocks(target, block(i), block(i + 1)) : decode_block(target, block(i));
  };
  return read_groups<2>(blocks, threads, body, nbytes - kHeadNbytes, decode);
}

}  // namespace gradwire

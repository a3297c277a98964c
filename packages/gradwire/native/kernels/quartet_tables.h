// Tables of byte shuffles for four values at a time, indexed by a tag byte with their four classes (0, 1, 2, or 4 bytes
// each), as in Stream VByte (Lemire, Kurz and Rupp, 2018).
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

// Everything here has internal linkage, because files of different instruction sets include it.
namespace {

struct QuartetTables {
  alignas(64) std::uint8_t gather[256][16];   // four 32-bit lanes -> their data bytes, packed at the bottom
  alignas(64) std::uint8_t scatter[256][16];  // packed data bytes -> the TOP bytes of their lanes, zeros below
  std::uint8_t nbytes[256];                   // the number of data bytes of the four values
};

constexpr QuartetTables make_quartet_tables() {
  constexpr int kClassNbytes[4] = {0, 1, 2, 4};
  constexpr std::uint8_t kZero = 0x80;  // pshufb writes 0 for this index
  QuartetTables tables{};
  for (int tag = 0; tag < 256; ++tag) {
    for (int i = 0; i < 16; ++i) tables.gather[tag][i] = tables.scatter[tag][i] = kZero;
    int at = 0;
    for (int lane = 0; lane < 4; ++lane) {
      const int nbytes = kClassNbytes[(tag >> (2 * lane)) & 3];
      for (int i = 0; i < nbytes; ++i, ++at) {
        tables.gather[tag][at] = static_cast<std::uint8_t>(4 * lane + i);
        tables.scatter[tag][4 * lane + 4 - nbytes + i] = static_cast<std::uint8_t>(at);
      }
    }
    tables.nbytes[tag] = static_cast<std::uint8_t>(at);
  }
  return tables;
}

[[maybe_unused]] constexpr QuartetTables kQuartets = make_quartet_tables();

}  // namespace

}  // namespace gradwire

// Walking inceptionn's bursts. A burst's start is known only when the tags of the one before have been read, so this is
// a chain of dependent loads, about a dozen cycles per burst. It is walked once: the sizes it notes let the decoder
// find the bursts by additions alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/quartet_tables.h"

namespace gradwire {

namespace {

// The compiler must not regroup these sums: the table entries arrive last, so they are added last, one cycle each.
const std::uint8_t* advance(const std::uint8_t* at, std::size_t first, std::size_t second) {
#if defined(__GNUC__)
  at += 2;
  __asm__("" : "+r"(at));
  at += first;
  __asm__("" : "+r"(at));
  return at + second;
#else
  return at + 2 + first + second;
#endif
}

std::size_t measure_bursts(const std::uint8_t* payload, std::size_t nbytes, std::size_t position, std::size_t bursts,
                           std::uint8_t* sizes) {
  const std::uint8_t* at = payload + position;
  const std::uint8_t* const end = payload + nbytes;
  const std::uint8_t* const sizes_end = sizes + bursts;
  while (sizes < sizes_end) {
    std::uint64_t ahead = 1;
    if (end - at >= 8 && sizes_end - sizes >= 4) std::memcpy(&ahead, at, 8);
    if (ahead == 0) {  // four bursts of zeros, frequent in gradients; the predicted branch also cuts the chain
      std::memset(sizes, 2, 4);
      sizes += 4;
      at += 8;
      continue;
    }
    if (end - at < 2) return nbytes + 1;
    const std::size_t first = kQuartets.nbytes[at[0]];
    const std::size_t second = kQuartets.nbytes[at[1]];
    const std::size_t size = 2 + first + second;
    if (static_cast<std::size_t>(end - at) < size) return nbytes + 1;
    *sizes++ = static_cast<std::uint8_t>(size);
    at = advance(at, first, second);
  }
  return static_cast<std::size_t>(at - payload);
}

}  // namespace

}  // namespace gradwire

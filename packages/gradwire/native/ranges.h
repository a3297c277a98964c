// The decoder of formats whose ranges can be decoded independently: a check of the payload, then one range per thread.
#pragma once

#include "gradwire/format.h"
#include "gradwire/parallel.h"

namespace gradwire {

// In an unnamed namespace: otherwise GCC 14 merges the instances of all files, even if their template arguments are in
// unnamed namespaces.
namespace {

template <const Ranges& kRanges>
const char* decode_ranges(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out,
                          std::size_t n, const Params& params, bool add, int threads) {
  const char* const fault = kRanges.find_fault(target, payload, nbytes, n, params, threads);
  if (fault != nullptr) return fault;
  const int parts = count_parts(n, threads);
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kRanges.granule(params));
    kRanges.decode(target, payload, n, part.begin, part.end, params, out + part.begin, add);
  });
  return nullptr;
}

}  // namespace

}  // namespace gradwire

// inceptionn: class borders, validation and splitting over threads. The kernels are in kernels/inceptionn_*.
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "gradwire/format.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/inceptionn.h"

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and are copied as they are");

namespace gradwire {

namespace {

// Part borders fall on whole bursts and on whole vectors of every target.
constexpr std::size_t kGranule = 64;

std::size_t count_bursts(std::size_t n) { return n / kBurstValues + (n % kBurstValues != 0 ? 1 : 0); }

std::size_t max_nbytes(std::size_t n, const Params& /*params*/) { return kBurstMaxNbytes * count_bursts(n); }

// params.a is the biased exponent of the bound, 107..126; params.b is 1 for the bounded variant.
InceptionnClasses classes_of(const Params& params) {
  const int mid = params.a + (127 - params.a + 1) / 2;
  const int base = params.b != 0 ? mid : 127;
  return {
      .first1 = static_cast<std::uint32_t>(params.a) << 23,
      .first2 = static_cast<std::uint32_t>(mid) << 23,
      .base = static_cast<std::uint32_t>(base),
      .unit1 = std::ldexp(1.0F, base - 127 - 7),
  };
}

std::size_t encode(const Target& target, const float* x, std::size_t n, std::uint8_t* out, const Params& params,
                   int threads) {
  const InceptionnKernels& kernels = *target.inceptionn;
  const InceptionnClasses classes = classes_of(params);
  const auto worst_start = [](const Part& part) { return part.begin / kBurstValues * kBurstMaxNbytes; };

  // Each part encodes where it would start if all bursts before it were of the largest size, and then moves down.
  const int parts = count_parts(n, threads);
  std::vector<std::size_t> sizes(static_cast<std::size_t>(parts));
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    sizes[static_cast<std::size_t>(index)] =
        kernels.encode(x + part.begin, part.end - part.begin, classes, out + worst_start(part));
  });
  std::size_t used = sizes[0];
  for (int index = 1; index < parts; ++index) {
    const std::size_t size = sizes[static_cast<std::size_t>(index)];
    std::memmove(out + used, out + worst_start(part_of(n, parts, index, kGranule)), size);
    used += size;
  }
  return used;
}

// Walks all bursts and notes where each part starts.
const char* find_starts(const InceptionnKernels& kernels, const std::uint8_t* payload, std::size_t nbytes,
                        std::size_t n, std::vector<std::size_t>& starts) {
  const int parts = static_cast<int>(starts.size());
  const std::size_t last_burst = n % kBurstValues != 0 ? count_bursts(n) - 1 : count_bursts(n);
  std::size_t position = 0;
  for (int index = 0; index < parts && position <= nbytes; ++index) {
    const Part part = part_of(n, parts, index, kGranule);
    starts[static_cast<std::size_t>(index)] = position;
    const std::size_t end = index + 1 < parts ? part.end / kBurstValues : last_burst;
    position = kernels.skip(payload, nbytes, position, end - part.begin / kBurstValues);
  }
  if (position <= nbytes && n % kBurstValues != 0) {  // the padded burst
    const std::size_t end = kernels.skip(payload, nbytes, position, 1);
    if (end <= nbytes) {
      const unsigned tags = payload[position] | static_cast<unsigned>(payload[position + 1]) << 8;
      if (tags >> (2 * (n % kBurstValues)) != 0) return "padding of its last burst has a size";
    }
    position = end;
  }
  if (position > nbytes) return "it ends within a burst";
  if (position < nbytes) return "bytes are left over after its last burst";
  return nullptr;
}

const char* decode(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out, std::size_t n,
                   const Params& params, bool add, int threads) {
  const InceptionnKernels& kernels = *target.inceptionn;
  const int parts = count_parts(n, threads);
  std::vector<std::size_t> starts(static_cast<std::size_t>(parts));
  if (const char* reason = find_starts(kernels, payload, nbytes, n, starts)) return reason;

  const InceptionnClasses classes = classes_of(params);
  const auto kernel = add ? kernels.decode_add : kernels.decode;
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    kernel(payload + starts[static_cast<std::size_t>(index)], payload + nbytes, out + part.begin,
           part.end - part.begin, classes);
  });
  return nullptr;
}

}  // namespace

extern const Format kInceptionnFormat;
const Format kInceptionnFormat = {
    .name = "inceptionn",
    .max_nbytes = max_nbytes,
    .encode = encode,
    .decode = decode,
};

}  // namespace gradwire

// Format `inceptionn`: class borders, validation, and the division of work among threads. The kernels are in
// kernels/inceptionn_*.
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "gradwire/format.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/inceptionn.h"

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and are copied as they are");

namespace gradwire {

namespace {

// Parts consist of whole bursts, and of whole vectors on every target.
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

  // Each part is written where it would start if all preceding bursts had the largest size, and is then moved to its
  // place.
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

// Walks over all bursts, and records their sizes and the start of each part.
const char* measure_all(const InceptionnKernels& kernels, const std::uint8_t* payload, std::size_t nbytes,
                        std::size_t n, std::uint8_t* sizes, std::vector<std::size_t>& starts) {
  const int parts = static_cast<int>(starts.size());
  std::size_t position = 0;
  for (int index = 0; index < parts && position <= nbytes; ++index) {
    const Part part = part_of(n, parts, index, kGranule);
    starts[static_cast<std::size_t>(index)] = position;
    position = kernels.measure(payload, nbytes, position, count_bursts(part.end - part.begin),
                               sizes + part.begin / kBurstValues);
  }
  if (position > nbytes) return "its last burst is truncated";
  if (position < nbytes) return "bytes are left over after its last burst";
  if (n % kBurstValues != 0) {
    const std::uint8_t* const last = payload + nbytes - sizes[count_bursts(n) - 1];
    const unsigned tags = last[0] | static_cast<unsigned>(last[1]) << 8;
    if (tags >> (2 * (n % kBurstValues)) != 0) return "the padding of its last burst is not empty";
  }
  return nullptr;
}

const char* decode(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out, std::size_t n,
                   const Params& params, bool add, int threads) {
  const InceptionnKernels& kernels = *target.inceptionn;
  const int parts = count_parts(n, threads);
  std::vector<std::size_t> starts(static_cast<std::size_t>(parts));
  const std::unique_ptr<std::uint8_t[]> sizes(new std::uint8_t[count_bursts(n)]);  // uninitialised
  if (const char* reason = measure_all(kernels, payload, nbytes, n, sizes.get(), starts)) return reason;

  const InceptionnClasses classes = classes_of(params);
  const auto kernel = add ? kernels.decode_add : kernels.decode;
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    kernel(payload + starts[static_cast<std::size_t>(index)], payload + nbytes,
           sizes.get() + part.begin / kBurstValues, out + part.begin, part.end - part.begin, classes);
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

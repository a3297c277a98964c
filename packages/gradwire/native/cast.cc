// Formats `fp16` and `bf16`: 2 n bytes, IEEE half precision or the upper half of a float, rounded to nearest even. They
// have no parameters. Every byte string of the right length is valid.
#include "kernels/cast.h"

#include "gradwire/format.h"
#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "ranges.h"

namespace gradwire {

namespace {

// Parts of threads are separated at whole cache lines of payload.
constexpr std::size_t kGranule = 64;

using Encode = void (*CastKernels::*)(const float*, std::size_t, std::uint8_t*);
using Decode = void (*CastKernels::*)(const std::uint8_t*, std::size_t, float*, bool);

std::size_t max_nbytes(std::size_t n, const Params&) { return 2 * n; }

template <Encode kKernel>
void encode_range(const Target& target, const float* x, std::size_t, std::size_t begin, std::size_t end, const Params&,
                  std::uint8_t* payload) {
  (target.cast->*kKernel)(x, end - begin, payload + 2 * begin);
}

template <Encode kKernel>
std::size_t encode(const Target& target, const float* x, std::size_t n, std::uint8_t* out, const Params&,
                   int threads) {
  const int parts = count_parts(n, threads);
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kGranule);
    (target.cast->*kKernel)(x + part.begin, part.end - part.begin, out + 2 * part.begin);
  });
  return 2 * n;
}

const char* find_fault(const Target&, const std::uint8_t*, std::size_t nbytes, std::size_t n, const Params&, int) {
  return nbytes == 2 * n ? nullptr : "its length does not match";
}

std::size_t granule(const Params&) { return kGranule; }

template <Decode kKernel>
void decode_range(const Target& target, const std::uint8_t* payload, std::size_t, std::size_t begin, std::size_t end,
                  const Params&, float* out, bool add) {
  (target.cast->*kKernel)(payload + 2 * begin, end - begin, out, add);
}

template <Encode kEncode, Decode kDecode>
constexpr Ranges kRanges = {.find_fault = find_fault,
                            .granule = granule,
                            .decode = decode_range<kDecode>,
                            .encode = encode_range<kEncode>};

constexpr const Ranges& kFp16Ranges = kRanges<&CastKernels::to_fp16, &CastKernels::from_fp16>;
constexpr const Ranges& kBf16Ranges = kRanges<&CastKernels::to_bf16, &CastKernels::from_bf16>;

}  // namespace

extern const Format kFp16Format;
const Format kFp16Format = {
    .name = "fp16",
    .max_nbytes = max_nbytes,
    .encode = encode<&CastKernels::to_fp16>,
    .decode = decode_ranges<kFp16Ranges>,
    .ranges = &kFp16Ranges,
};

extern const Format kBf16Format;
const Format kBf16Format = {
    .name = "bf16",
    .max_nbytes = max_nbytes,
    .encode = encode<&CastKernels::to_bf16>,
    .decode = decode_ranges<kBf16Ranges>,
    .ranges = &kBf16Ranges,
};

}  // namespace gradwire

#include "gradwire/target.h"
#include "kernels/crc32c.h"

namespace gradwire {

extern const Target kAvx512Target;
const Target kAvx512Target = {
    .name = "avx512",
    .supported = cpu_runs_avx512,
    .errbound = nullptr,
    .inceptionn = nullptr,
    .pack = nullptr,
    .quantize = nullptr,
    .bfp = nullptr,
    .cast = nullptr,
    .crc32c = crc32c_scalar,
};

}  // namespace gradwire

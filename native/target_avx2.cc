#include "gradwire/target.h"
#include "kernels/crc32c.h"

namespace gradwire {

extern const Target kAvx2Target;
const Target kAvx2Target = {
    .name = "avx2",
    .supported = cpu_runs_avx2,
    .errbound = nullptr,
    .inceptionn = nullptr,
    .pack = nullptr,
    .quantize = nullptr,
    .bfp = nullptr,
    .cast = nullptr,
    .crc32c = crc32c_scalar,
};

}  // namespace gradwire

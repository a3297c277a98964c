#include "gradwire/target.h"
#include "kernels/crc32c.h"

namespace gradwire {

extern const Target kScalarTarget;
const Target kScalarTarget = {
    .name = "scalar",
    .supported = cpu_runs_scalar,
    .errbound = nullptr,
    .inceptionn = nullptr,
    .pack = nullptr,
    .quantize = nullptr,
    .bfp = nullptr,
    .cast = nullptr,
    .crc32c = crc32c_scalar,
};

}  // namespace gradwire

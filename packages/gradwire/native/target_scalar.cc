#include "gradwire/target.h"
#include "kernels/bfp.h"
#include "kernels/cast.h"
#include "kernels/crc32c.h"
#include "kernels/delta.h"
#include "kernels/ecsq.h"
#include "kernels/errbound.h"
#include "kernels/fp8.h"
#include "kernels/hash64.h"
#include "kernels/inceptionn.h"
#include "kernels/norms.h"
#include "kernels/pack.h"
#include "kernels/quantize.h"
#include "kernels/rans.h"

namespace gradwire {

extern const Target kScalarTarget;
const Target kScalarTarget = {
    .name = "scalar",
    .supported = cpu_runs_scalar,
    .errbound = &kErrboundScalar,
    .inceptionn = &kInceptionnScalar,
    .pack = &kPackScalar,
    .quantize = &kQuantizeScalar,
    .bfp = &kBfpScalar,
    .fp8 = &kFp8Scalar,
    .ecsq = &kEcsqScalar,
    .cast = &kCastScalar,
    .norms = &kNormsScalar,
    .rans = &kRansScalar,
    .delta = &kDeltaScalar,
    .crc32c = crc32c_scalar,
    .hash64 = hash64_scalar,
};

}  // namespace gradwire

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

// The remaining scalar kernels are vectorised anyway (NEON is part of the baseline for which they are compiled, and
// norms and hash64 use the compiler's vector types), or are chains of dependent loads.
extern const Target kNeonTarget;
const Target kNeonTarget = {
    .name = "neon",
    .supported = cpu_runs_neon,
    .errbound = &kErrboundNeon,
    .inceptionn = &kInceptionnScalar,
    .pack = &kPackNeon,
    .quantize = &kQuantizeNeon,
    .bfp = &kBfpNeon,
    .fp8 = &kFp8Neon,
    .ecsq = &kEcsqNeon,
    .cast = &kCastNeon,
    .norms = &kNormsScalar,
    .rans = &kRansScalar,
    .delta = &kDeltaScalar,
    .crc32c = crc32c_neon,
    .hash64 = hash64_scalar,
};

}  // namespace gradwire

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

extern const Target kAvx2Target;
const Target kAvx2Target = {
    .name = "avx2",
    .supported = cpu_runs_avx2,
    .errbound = &kErrboundAvx2,
    .inceptionn = &kInceptionnAvx2,
    .pack = &kPackAvx2,
    .quantize = &kQuantizeAvx2,
    .bfp = &kBfpAvx2,
    .fp8 = &kFp8Avx2,
    .ecsq = &kEcsqAvx2,
    .cast = &kCastAvx2,
    .norms = &kNormsAvx2,
    .rans = &kRansAvx2,
    .delta = &kDeltaAvx2,
    .crc32c = crc32c_avx2,
    .hash64 = hash64_avx2,
};

}  // namespace gradwire

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

extern const Target kAvx512Target;
const Target kAvx512Target = {
    .name = "avx512",
    .supported = cpu_runs_avx512,
    .errbound = &kErrboundAvx512,
    .inceptionn = &kInceptionnAvx512,
    .pack = &kPackAvx512,
    .quantize = &kQuantizeAvx512,
    .bfp = &kBfpAvx512,
    .fp8 = &kFp8Avx512,
    .ecsq = &kEcsqAvx512,
    .cast = &kCastAvx512,
    .norms = &kNormsAvx512,
    .rans = &kRansAvx512,
    .delta = &kDeltaAvx512,
    .crc32c = crc32c_avx512,
    .hash64 = hash64_avx512,
};

}  // namespace gradwire

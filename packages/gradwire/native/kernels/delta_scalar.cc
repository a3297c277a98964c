#include "kernels/delta.h"

namespace gradwire {

const DeltaKernels kDeltaScalar = kDeltaKernelsOf<DeltaQuartet<std::uint16_t>, DeltaQuartet<std::uint32_t>>;

}  // namespace gradwire

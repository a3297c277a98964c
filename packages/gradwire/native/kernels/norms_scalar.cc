#include "kernels/norms.h"

namespace gradwire {

const NormKernels kNormsScalar = kNormsHere;

}  // namespace gradwire

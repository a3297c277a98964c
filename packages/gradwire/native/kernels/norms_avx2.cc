#include "kernels/norms.h"

namespace gradwire {

const NormKernels kNormsAvx2 = kNormsHere;

}  // namespace gradwire

#include "kernels/norms.h"

namespace gradwire {

const NormKernels kNormsAvx512 = kNormsHere;

}  // namespace gradwire

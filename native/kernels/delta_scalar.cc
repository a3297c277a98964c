#include "kernels/delta.h"

namespace gradwire {

const DeltaKernels kDeltaScalar = {
    .bf16 = {.code = delta_code<std::uint16_t>, .apply = delta_apply_words<std::uint16_t>},
    .fp32 = {.code = delta_code<std::uint32_t>, .apply = delta_apply_words<std::uint32_t>},
    .count_escapes = delta_count_escapes,
};

}  // namespace gradwire

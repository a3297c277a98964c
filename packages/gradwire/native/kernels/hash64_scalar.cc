#include "kernels/hash64.h"

namespace gradwire {

std::uint64_t hash64_scalar(const std::uint8_t* data, std::size_t nbytes) { return hash64_here(data, nbytes); }

}  // namespace gradwire

// Defines the replay of exchanges in the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace gradwire {

void bind_replay(nanobind::module_& m);

}  // namespace gradwire

// Defines the engine's classes in the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace gradwire {

void bind_engine(nanobind::module_& m);

}  // namespace gradwire

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_tower(nb::module_ &) {}

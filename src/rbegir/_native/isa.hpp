// The instruction sets that kernels are written for, and which of them this CPU runs.
//
// A name means the same for both families of kernels (scan_kernel.hpp, float_kernels.hpp): what their kernels of that
// name need together. So one name tells what ran, and one override (RBEGIR_ISA, read in __init__.py) holds for all.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>

namespace rbegir {

// Whether this CPU runs the instruction set of this name; false for names that are not known.
bool runs(const std::string &isa);

// The kernels of a family for one instruction set. Each member has a `name`.
template <class Kernels>
const Kernels &kernels_for(const std::string &isa, std::initializer_list<const Kernels *> family) {
    for (const Kernels *kernels : family)
        if (isa == kernels->name && runs(isa)) return *kernels;
    throw std::invalid_argument("this CPU runs no kernels for the instruction set '" + isa + "'");
}

}  // namespace rbegir

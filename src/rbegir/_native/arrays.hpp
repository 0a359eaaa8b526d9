// NumPy arrays as arguments and results of the bindings.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <vector>

namespace rbegir {

namespace nb = nanobind;

// A contiguous array of exactly this type: `const T` is read, T is written to. A binding must say .noconvert() for what
// it writes to or keeps, as it would otherwise get a copy.
template <class T, int Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

// New arrays that own their values: of one dimension, or of this shape.
template <class T, class... Shape>
nb::object to_numpy(std::vector<T> &&values, Shape... shape) {
    auto *kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void *p) noexcept { delete static_cast<std::vector<T> *>(p); });
    if constexpr (sizeof...(Shape) == 0)
        return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), {kept->size()}, owner));
    else
        return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), {shape...}, owner));
}
template <class T, class... Shape>
nb::object to_numpy(std::unique_ptr<T[]> values, Shape... shape) {
    T *raw = values.release();
    nb::capsule owner(raw, [](void *p) noexcept { delete[] static_cast<T *>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(raw, {shape...}, owner));
}

}  // namespace rbegir

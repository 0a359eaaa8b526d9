// Sets of positions as bits (base/masks.py), many of them in one pass.
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "arrays.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using rbegir::Array;

namespace {

// Adds position start + i to the mask that numbers[i] says; −1: to none.
void divide(Array<const int32_t, 1> numbers, size_t start, const std::vector<nb::object> &masks) {
    const size_t count = numbers.shape(0);
    std::vector<uint64_t *> words;
    for (const nb::object &given : masks) {
        const auto mask = nb::cast<Array<uint64_t, 1>>(given, false);  // not a copy, which would be thrown away
        if (start > 64 * mask.shape(0) || count > 64 * mask.shape(0) - start)
            throw nb::value_error("a mask is too small for the positions");
        words.push_back(mask.data());
    }
    const int32_t *number = numbers.data();
    for (size_t i = 0; i < count; ++i)
        if (number[i] < -1 || number[i] >= static_cast<int64_t>(words.size()))
            throw nb::value_error("a number is not that of a mask");
    nb::gil_scoped_release release;
    for (size_t i = 0; i < count; ++i)
        if (number[i] >= 0) words[number[i]][(start + i) / 64] |= uint64_t{1} << ((start + i) % 64);
}

}  // namespace

void bind_masks(nb::module_ &m) {
    m.def("divide", &divide, "numbers"_a, "start"_a, "masks"_a,
          "Add each position from `start` on to the mask whose number it has, −1 for none.");
}

// The binding of the search for codes (refine_search.hpp): threads, and the memory that searches work on.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "float_kernels.hpp"
#include "parallel.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace rbegir;
using floats::Desk;

namespace {

constexpr size_t MAX_N = 1024;
constexpr size_t CHUNK = 16;  // vectors that a thread takes at a time

// The memory of two searches. Arrays are on cache lines of their own and none lies a multiple of a page from another:
// a store to the one would make loads of the other wait.
class Memory {
public:
    explicit Memory(size_t stride) : bytes_(2 * ARRAYS * (stride * NUMBER + LINE) + LINE) {
        std::byte *at = bytes_.data() + (LINE - reinterpret_cast<uintptr_t>(bytes_.data()) % LINE) % LINE;
        const auto take = [&](auto *&array) {
            array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
            at += stride * NUMBER + LINE;
        };
        for (Desk &desk : desks) {
            for (float **array : {&desk.g, &desk.v, &desk.b, &desk.h, &desk.diagonal, &desk.best}) take(*array);
            for (int **array : {&desk.until, &desk.flip, &desk.keep}) take(*array);
        }
    }
    Desk desks[2];

private:
    static constexpr size_t LINE = 64, ARRAYS = 9, NUMBER = 4;
    std::vector<std::byte> bytes_;
};

using In = Array<const float, 2>;

void refine(In g, In v, In gram, Array<float, 2> b, In h, int planes, int moves, int tenure, size_t threads, uint32_t seed,
            const std::string &isa) {
    const size_t count = b.shape(0), n = b.shape(1);
    for (const In *array : {&g, &v, &h})
        if (array->shape(0) != count || array->shape(1) != n) throw nb::value_error("g, v, b and h must be [count, n]");
    if (gram.shape(0) != n || gram.shape(1) != n || !n || n > MAX_N)
        throw nb::value_error("gram must be [n, n] with n from 1 to 1024");
    if (planes < 1 || planes > 4 || moves < 0 || tenure < 1 || !threads)
        throw nb::value_error("planes must be 1 to 4, moves not negative, tenure and threads positive");
    const floats::Kernels &kernels = floats::kernels(isa);
    nb::gil_scoped_release release;
    const size_t stride = floats::padded(n);
    std::vector<float> copy;
    if (stride != n) {
        copy.resize(n * stride);
        for (size_t j = 0; j < n; ++j) std::copy_n(gram.data() + j * n, n, copy.data() + j * stride);
    }
    const floats::Problem problem{stride == n ? gram.data() : copy.data(), stride, int(n), (1 << planes) - 1, moves,
                                  tenure, seed};
    std::atomic<size_t> next{0};
    in_parallel(std::min(threads, (count + CHUNK - 1) / CHUNK), [&](size_t) {
        const Memory memory(stride);
        for (size_t start; (start = next.fetch_add(CHUNK)) < count;) {
            const size_t at = start * n;
            kernels.refine(problem, planes == 1, g.data() + at, v.data() + at, b.data() + at, h.data() + at,
                           std::min(CHUNK, count - start), memory.desks);
        }
    });
}

}  // namespace

void bind_refine(nb::module_ &m) {
    m.def("refine", &refine, "g"_a, "v"_a, "gram"_a, "b"_a.noconvert(), "h"_a, "planes"_a, "moves"_a, "tenure"_a,
          "threads"_a, "seed"_a, "isa"_a,
          "Improve codes b [count, n] in place; g = x·A, h = b·gram + (b·v)·v, gram = AᵀA.");
}

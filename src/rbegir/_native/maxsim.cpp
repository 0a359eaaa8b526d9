// The binding of MaxSim (maxsim_simd.hpp): tables of a query, and threads. Python checks what a user may get wrong.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "arrays.hpp"
#include "float_kernels.hpp"
#include "parallel.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace rbegir;
using floats::MaxSim;

namespace {

constexpr size_t CHUNK = 256;  // items that a thread takes at a time

// [blocks][n / 8][256][block] sums of ±v over the 8 dimensions of a byte; a set bit is +1.
template <class T>
std::vector<T> tables_of(const Array<const int16_t, 2> &values, size_t block, size_t blocks) {
    const size_t n = values.shape(1);
    std::vector<T> tables(blocks * n / 8 * 256 * block);
    for (size_t v = 0; v < values.shape(0); ++v)
        for (size_t r = 0; r < n / 8; ++r) {
            const int16_t *value = values.data() + v * n + 8 * r;
            T *entry = tables.data() + (v / block * n / 8 + r) * 256 * block + v % block;
            for (int bit = 0; bit < 8; ++bit) *entry = static_cast<T>(*entry - value[bit]);
            for (unsigned x = 1; x < 256; ++x)
                entry[x * block] = static_cast<T>(entry[(x & (x - 1)) * block] + 2 * value[__builtin_ctz(x)]);
        }
    return tables;
}

void maxsim(const std::vector<nb::tuple> &parts, Array<const int16_t, 2> values, Array<const int64_t, 1> order,
            Array<const int64_t, 1> starts, Array<double, 1> scores, Array<int64_t, 1> first, int planes,
            size_t threads, const std::string &isa) {
    const size_t n = values.shape(1), vectors = values.shape(0), items = scores.shape(0);
    if (n % 64 || !n || n > 1024 || planes < 1 || planes > 4 || !threads)
        throw nb::value_error("n, planes or threads out of range");
    if (starts.shape(0) != items + 1 || first.shape(0) != items || starts.data()[0] < 0 ||
        starts.data()[items] > static_cast<int64_t>(order.shape(0)) ||
        !std::is_sorted(starts.data(), starts.data() + items + 1))
        throw nb::value_error("starts must be [items + 1], ascending within order; scores and first [items]");
    std::vector<floats::MaxSimPart> listed;
    for (const nb::tuple &part : parts) {  // the list keeps the buffers alive; a converted copy would not
        if (part.size() != 4) throw nb::value_error("a part must have four entries");
        const auto packed = nb::cast<Array<const uint8_t, 1>>(part[0], false);
        const auto count = nb::cast<int64_t>(part[1]), at = nb::cast<int64_t>(part[3]);
        const size_t groups = (static_cast<size_t>(count) + 63) / 64;
        const uint64_t *mask = nullptr;
        if (!part[2].is_none()) {
            const auto given = nb::cast<Array<const uint64_t, 1>>(part[2], false);
            if (given.shape(0) < groups) throw nb::value_error("mask is too small for its count");
            mask = given.data();
        }
        if (count < 0 || packed.shape(0) / (planes * n * 8) < groups)
            throw nb::value_error("packed is too small for its count");
        if (!listed.empty() && at < listed.back().first + listed.back().count)
            throw nb::value_error("parts must be in order");
        listed.push_back({packed.data(), mask, groups * n * 8, at, count});
    }
    const floats::Kernels &kernels = floats::kernels(isa);
    nb::gil_scoped_release release;

    const int64_t top = (1 << planes) - 1;
    const int block = vectors <= floats::MAXSIM_FEW ? floats::MAXSIM_FEW : floats::MAXSIM_MANY;
    const size_t blocks = (vectors + block - 1) / block;
    std::vector<double> inverse_norms, inverse_queries(blocks * block);
    for (int64_t cls = 0; cls <= (top * top - 1) / 8 * static_cast<int64_t>(n); ++cls)
        inverse_norms.push_back(1 / std::sqrt(static_cast<double>(top * top * static_cast<int64_t>(n) - 8 * cls)));
    int64_t largest = 0;
    for (size_t v = 0; v < vectors; ++v) {
        int64_t sum = 0, squares = 0;
        for (size_t d = 0; d < n; ++d) {
            const int64_t value = values.data()[v * n + d];
            sum += std::abs(value);
            squares += value * value;
        }
        largest = std::max(largest, top * sum);
        inverse_queries[v] = squares ? 1 / std::sqrt(static_cast<double>(squares)) : 0;
    }
    const bool narrow = largest <= INT16_MAX;
    const auto narrow_tables = narrow ? tables_of<int16_t>(values, block, blocks) : std::vector<int16_t>();
    const auto wide_tables = narrow ? std::vector<int32_t>() : tables_of<int32_t>(values, block, blocks);
    const MaxSim job{planes, n / 8, listed.data(), listed.size(), order.data(), starts.data(), block, blocks,
                     narrow ? narrow_tables.data() : nullptr, wide_tables.data(), inverse_norms.data(),
                     inverse_queries.data()};
    std::fill_n(scores.data(), items, 0.0);
    std::atomic<size_t> next{0};
    in_parallel(std::min(threads, (items + CHUNK - 1) / CHUNK), [&](size_t) {
        for (size_t start; (start = next.fetch_add(CHUNK)) < items;)
            kernels.maxsim(job, start, std::min(start + CHUNK, items), scores.data(), first.data());
    });
}

}  // namespace

void bind_maxsim(nb::module_ &m) {
    m.def("maxsim", &maxsim, "parts"_a, "values"_a.noconvert(), "order"_a.noconvert(), "starts"_a.noconvert(),
          "scores"_a.noconvert(), "first"_a.noconvert(), nb::kw_only(), "planes"_a, "threads"_a, "isa"_a,
          "Write the MaxSim score of each item and the position of its first candidate, −1 if there is none.");
}

// Bindings of the scan. Python checks what a user may get wrong; here only what would read outside a buffer.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "isa.hpp"
#include "parallel.hpp"
#include "scan_search.hpp"

namespace nb = nanobind;
using namespace rbegir::scan;

namespace {

using rbegir::Array, rbegir::to_numpy;

const Kernel &kernel_named(const std::string &isa) {
    for (const Kernel *emulated : {&EMULATED512, &EMULATED512BW})
        if (isa == emulated->name) return *emulated;
    return rbegir::kernels_for(isa, {
#if defined(__x86_64__)
                                        &AVX512, &AVX512BW, &AVX2,
#elif defined(__aarch64__)
                                        &NEON,
#endif
                                        &PORTABLE});
}

nb::tuple keys_and_positions(Found &&found, size_t queries) {
    return nb::make_tuple(to_numpy(std::move(found.keys), queries, found.k),
                          to_numpy(std::move(found.positions), queries, found.k));
}

// What every call gets: list of (packed, count, mask or None, a mask or None per filter), int16 [queries, n], planes,
// threads, kernel.
struct Call {
    Shape shape;
    const Kernel &kernel;
    std::vector<Partition> partitions;
    int64_t keywords = 0;

    Call(const std::vector<nb::tuple> &parts, const Array<const int16_t, 2> &values, int planes, int threads,
         const std::string &isa)
        : shape{static_cast<int>(values.shape(1) / 64), planes}, kernel(kernel_named(isa)) {
        if (values.shape(1) % 64 || shape.words < 1 || shape.words > MAX_WORDS || planes < 1 ||
            planes > MAX_PLANES || threads < 1)
            throw std::invalid_argument("n, planes or threads out of range");
        // The list keeps the buffers alive; a converted copy would not live long enough.
        for (const nb::tuple &part : parts) {
            if (part.size() != 4) throw std::invalid_argument("a partition must have four entries");
            const auto packed = nb::cast<Array<const uint8_t, 1>>(part[0], false);
            Partition partition{packed.data(), nb::cast<size_t>(part[1]), nullptr, keywords, {}};
            if (packed.shape(0) / (planes * shape.plane_bytes()) < partition.groups())
                throw std::invalid_argument("packed is too small for its count");
            const auto mask_of = [&](nb::handle given) -> const uint64_t * {
                if (given.is_none()) return nullptr;
                const auto mask = nb::cast<Array<const uint64_t, 1>>(given, false);
                if (mask.shape(0) < partition.groups())
                    throw std::invalid_argument("mask is too small for its count");
                return mask.data();
            };
            partition.mask = mask_of(part[2]);
            for (nb::handle given : nb::cast<nb::tuple>(part[3])) partition.filters.push_back(mask_of(given));
            if (!partitions.empty() && partition.filters.size() != partitions[0].filters.size())
                throw std::invalid_argument("partitions differ in the number of their filters");
            keywords += static_cast<int64_t>(partition.count);
            partitions.push_back(partition);
        }
    }
};

// `limits` is None or int64 [queries, 4]: floor, key and position of the hit before, filter.
nb::tuple bound_search(const std::vector<nb::tuple> &parts, Array<const int16_t, 2> values, size_t k,
                       nb::object limits, int planes, int threads, const std::string &isa) {
    const Call call(parts, values, planes, threads, isa);
    const size_t queries = values.shape(0);
    std::vector<Limit> limited(queries, NO_LIMIT);
    if (!limits.is_none()) {
        const auto given = nb::cast<Array<const int64_t, 2>>(limits, false);
        if (given.shape(0) != queries || given.shape(1) != 4) throw std::invalid_argument("limits must be [queries, 4]");
        const int64_t filters = call.partitions.empty() ? 0 : static_cast<int64_t>(call.partitions[0].filters.size());
        for (size_t q = 0; q < queries; ++q) {
            const int64_t *limit = given.data() + 4 * q;
            limited[q] = {limit[0], {limit[1], limit[2]}, filters ? limit[3] : -1, false};
            if (filters && (limit[3] < -1 || limit[3] >= filters)) throw std::invalid_argument("filter out of range");
        }
    }
    Found found;
    {
        nb::gil_scoped_release release;
        found = search(call.shape, call.kernel, call.partitions, values.data(), std::move(limited), k, threads);
    }
    return keys_and_positions(std::move(found), queries);
}

nb::tuple bound_rescore(const std::vector<nb::tuple> &parts, Array<const int16_t, 2> values,
                        Array<const int64_t, 2> among, size_t k, int planes, int threads, const std::string &isa) {
    const Call call(parts, values, planes, threads, isa);
    const size_t queries = values.shape(0), count = among.shape(1);
    const int64_t *positions = among.data();
    if (among.shape(0) != queries || k > count) throw std::invalid_argument("positions must be [queries, m], k <= m");
    for (size_t i = 0; i < queries * count; ++i)
        if (positions[i] < 0 || positions[i] >= call.keywords) throw std::invalid_argument("position out of range");
    Found found;
    {
        nb::gil_scoped_release release;
        found = rescore(call.shape, call.kernel, call.partitions, values.data(), queries, positions, count, k, threads);
    }
    return keys_and_positions(std::move(found), queries);
}

// The yardstick of a scan: the sum of the 64-bit words of a buffer, wrapping, which reads it once and splits it over
// threads as the scan does. Each thread reads `streams` parts of the buffer in turn; the bytes of a last incomplete step
// are left out. Sums are 16 bytes wide and few, so that any CPU keeps them in registers.
uint64_t read_sum(const uint8_t *bytes, size_t size, int threads, int streams) {
    typedef uint64_t Wide __attribute__((vector_size(16), aligned(1)));
    constexpr size_t STEP = 256;
    std::vector<uint64_t> sums(threads);
    rbegir::in_parallel(threads, [&](size_t id) {
        const size_t steps = size / streams / STEP;
        Wide a{}, b{}, c{}, d{};
        for (size_t i = steps * id / threads; i < steps * (id + 1) / threads; ++i)
            for (int s = 0; s < streams; ++s) {
                const auto *at = reinterpret_cast<const Wide *>(bytes + (s * steps + i) * STEP);
#pragma GCC unroll 4
                for (int j = 0; j < 16; j += 4) {
                    a += at[j];
                    b += at[j + 1];
                    c += at[j + 2];
                    d += at[j + 3];
                }
            }
        a += b + c + d;
        sums[id] = a[0] + a[1];
    });
    uint64_t total = 0;
    for (const uint64_t sum : sums) total += sum;
    return total;
}

}  // namespace

void bind_scan(nb::module_ &m) {
    m.def("scan_search", &bound_search, nb::arg("partitions"), nb::arg("values").noconvert(), nb::arg("k"),
          nb::arg("limits").none(), nb::kw_only(), nb::arg("planes"), nb::arg("threads"), nb::arg("isa"));
    m.def("scan_rescore", &bound_rescore, nb::arg("partitions"), nb::arg("values").noconvert(),
          nb::arg("positions").noconvert(), nb::arg("k"), nb::kw_only(), nb::arg("planes"), nb::arg("threads"),
          nb::arg("isa"));
    m.def(
        "read_sum",
        [](Array<const uint8_t, 1> bytes, int threads, int streams) {
            if (threads < 1 || streams < 1) throw std::invalid_argument("threads and streams must be positive");
            nb::gil_scoped_release release;
            return read_sum(bytes.data(), bytes.shape(0), threads, streams);
        },
        nb::arg("bytes").noconvert(), nb::arg("threads"), nb::arg("streams") = 1);
}

// Bindings of the scan. Python checks what a user may get wrong; here only what would read outside a buffer.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "isa.hpp"
#include "scan_bandwidth.hpp"
#include "scan_search.hpp"

namespace nb = nanobind;
using namespace rbegir::scan;

namespace {

template <class T, int Dimensions>
using Array = nb::ndarray<const T, nb::numpy, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

const Kernel &kernel_named(const std::string &isa) {
    if (isa == EMULATED512.name) return EMULATED512;
    return rbegir::kernels_for(isa, {
#if defined(__x86_64__)
                                        &AVX512, &AVX2,
#endif
                                        &PORTABLE});
}

nb::object numpy(std::vector<int64_t> &&values, size_t rows, size_t columns) {
    auto *owned = new std::vector<int64_t>(std::move(values));
    nb::capsule owner(owned, [](void *p) noexcept { delete static_cast<std::vector<int64_t> *>(p); });
    return nb::cast(nb::ndarray<nb::numpy, int64_t, nb::ndim<2>>(owned->data(), {rows, columns}, owner));
}

nb::tuple numpy(Found &&found, size_t queries) {
    return nb::make_tuple(numpy(std::move(found.keys), queries, found.k),
                          numpy(std::move(found.positions), queries, found.k));
}

// What every call gets: list of (packed, count, mask or None), int16 [queries, n], planes, threads, kernel.
struct Call {
    Shape shape;
    const Kernel &kernel;
    std::vector<Partition> partitions;
    int64_t keywords = 0;

    Call(const std::vector<nb::tuple> &parts, const Array<int16_t, 2> &values, int planes, int threads,
         const std::string &isa)
        : shape{static_cast<int>(values.shape(1) / 64), planes}, kernel(kernel_named(isa)) {
        if (values.shape(1) % 64 || shape.words < 1 || shape.words > MAX_WORDS || planes < 1 ||
            planes > MAX_PLANES || threads < 1)
            throw std::invalid_argument("n, planes or threads out of range");
        // The list keeps the buffers alive; a converted copy would not live long enough.
        for (const nb::tuple &part : parts) {
            const auto packed = nb::cast<Array<uint8_t, 1>>(part[0], false);
            Partition partition{packed.data(), nb::cast<size_t>(part[1]), nullptr, keywords};
            if (packed.shape(0) / (planes * shape.plane_bytes()) < partition.groups())
                throw std::invalid_argument("packed is too small for its count");
            if (!part[2].is_none()) {
                const auto mask = nb::cast<Array<uint64_t, 1>>(part[2], false);
                if (mask.shape(0) < partition.groups())
                    throw std::invalid_argument("mask is too small for its count");
                partition.mask = mask.data();
            }
            keywords += static_cast<int64_t>(partition.count);
            partitions.push_back(partition);
        }
    }
};

nb::tuple bound_search(const std::vector<nb::tuple> &parts, Array<int16_t, 2> values, size_t k, int planes,
                       int threads, const std::string &isa) {
    const Call call(parts, values, planes, threads, isa);
    const size_t queries = values.shape(0);
    Found found;
    {
        nb::gil_scoped_release release;
        found = search(call.shape, call.kernel, call.partitions, values.data(), queries, k, threads);
    }
    return numpy(std::move(found), queries);
}

nb::tuple bound_rescore(const std::vector<nb::tuple> &parts, Array<int16_t, 2> values, Array<int64_t, 2> among,
                        size_t k, int planes, int threads, const std::string &isa) {
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
    return numpy(std::move(found), queries);
}

}  // namespace

void bind_scan(nb::module_ &m) {
    m.def("scan_search", &bound_search, nb::arg("partitions"), nb::arg("values").noconvert(), nb::arg("k"),
          nb::kw_only(), nb::arg("planes"), nb::arg("threads"), nb::arg("isa"));
    m.def("scan_rescore", &bound_rescore, nb::arg("partitions"), nb::arg("values").noconvert(),
          nb::arg("positions").noconvert(), nb::arg("k"), nb::kw_only(), nb::arg("planes"), nb::arg("threads"),
          nb::arg("isa"));
    m.def(
        "read_sum",
        [](Array<uint8_t, 1> bytes, int threads, int streams) {
            if (threads < 1 || streams < 1) throw std::invalid_argument("threads and streams must be positive");
            nb::gil_scoped_release release;
            return rbegir::read_sum(bytes.data(), bytes.shape(0), threads, streams);
        },
        nb::arg("bytes").noconvert(), nb::arg("threads"), nb::arg("streams") = 1);
}

// A 64-bit hash of strings, for finding an id in a segment. It is part of the file format: never change it.
//
//     h = 14695981039346656037;  for each byte b:  h = (h ^ b) · 1099511628211        (FNV-1a)
//     h ^= h >> 33;  h *= 0xff51afd7ed558ccd;  h ^= h >> 33;  h *= 0xc4ceb9fe1a85ec53;  h ^= h >> 33
//
// FNV-1a alone leaves the high bits of short strings poor; the finaliser spreads them. Collisions, even chosen
// ones, cost time and nothing else: whoever looks up an id compares the id itself.
#include "arrays.hpp"

namespace nb = nanobind;
using rbegir::Array, rbegir::to_numpy;

namespace {

uint64_t hash(const uint8_t *from, const uint8_t *to) {
    uint64_t h = 14695981039346656037u;
    for (; from != to; ++from) h = (h ^ *from) * 1099511628211u;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

nb::object hash_strings(Array<const int64_t, 1> offsets, Array<const uint8_t, 1> data) {
    if (!offsets.shape(0)) throw nb::value_error("offsets must hold at least one number");
    const size_t count = offsets.shape(0) - 1;
    const int64_t *at = offsets.data();
    for (size_t i = 0; i <= count; ++i)
        if (at[i] < (i ? at[i - 1] : 0) || size_t(at[i]) > data.shape(0))
            throw nb::value_error("offsets must ascend within the data");
    auto hashes = std::make_unique<uint64_t[]>(count);
    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < count; ++i) hashes[i] = hash(data.data() + at[i], data.data() + at[i + 1]);
    }
    return to_numpy(std::move(hashes), count);
}

}  // namespace

void bind_hash(nb::module_ &m) {
    using namespace nb::literals;
    m.def("hash_strings", &hash_strings, "offsets"_a, "data"_a,
          "64-bit hashes of the strings data[offsets[i]:offsets[i + 1]].");
}

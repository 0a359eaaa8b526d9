// Vectors of 64 bytes with tables of 128: the trait of AVX-512 with VBMI, and of its emulation.
//
// A row holds 8 dimensions of 64 keywords. Its low 7 bits are an index as they are; the high bits of the 8 rows of
// a word make a ninth index. That leaves one dimension a word: 9 lookups instead of 64 / 6 = 11 with tables of 64
// bytes. For one word the left-out bit costs nothing, as it joins the index of the limit.
#pragma once

#include "scan_dot.hpp"

namespace rbegir::scan {
namespace {

// `Ops` supplies the vector and the operations that are one instruction (scan_avx512.hpp, scan_emulated512.hpp).
template <class Ops>
struct Trait512 : Shared<Ops> {
    using V = typename Ops::V;
    static constexpr int INDEX_BITS = 7, LOOKUPS = 9, CHUNK = 5;
    static constexpr bool LEFT = true, KEEPS_ROWS = true;
    struct Table {
        V low, high;
    };

    RBEGIR_INLINE static Table table(const uint8_t *p) { return {Ops::load(p), Ops::load(p + 64)}; }
    RBEGIR_INLINE static V lookup(const Table &t, V index) { return Ops::permute8(t.low, index, t.high); }
    // Compilers would rather load the 18 registers again for every group.
    RBEGIR_INLINE static void pin(Table &t) {
        Ops::pin(t.low);
        Ops::pin(t.high);
    }

    // The index vectors of a word: its rows, and their high bits.
    struct Rows {
        V index[LOOKUPS];
        RBEGIR_INLINE Rows() = default;
        RBEGIR_INLINE explicit Rows(const uint8_t *rows) {
            const V below = Ops::set8(0x7f);
            V high = index[0] = Ops::load(rows);
#pragma GCC unroll 8
            for (int r = 1; r < 8; ++r) {  // high bit of row r to bit r: shift down, then take bit 7 from the row
                index[r] = Ops::load(rows + r * GROUP);
                high = Ops::select(below, Ops::shift_right16(high, 1), index[r]);
            }
            index[8] = high;
        }
        RBEGIR_INLINE V operator[](int j) const { return index[j]; }
    };
};

template <class Ops>
void compact_512(const Shape &shape, Group group, uint64_t lanes, uint8_t *out, int fill) {
    for (int p = 0; p < shape.planes; ++p)
        for (size_t r = 0; r < shape.rows(); ++r, out += COMPACT_ROW)
            Ops::store(out + fill, Ops::compress8(lanes, Ops::load(group.data + p * group.stride + r * GROUP)));
}

// As exact_each, for eight keywords at a time.
template <class Ops>
int exact_abreast(const Shape &any_shape, const QueryBits &any_query, const Reach &reach, const uint64_t *rows,
                  size_t stride, const uint64_t *candidates, int groups, uint16_t *__restrict places,
                  int64_t *__restrict deficits, int32_t *__restrict classes) {
    const int count = list_places(candidates, groups, places);
    for (int i = 0; i < ABREAST; ++i) places[count + i] = 0;  // scored with the last ones, then left out
    int found = 0;
    unrolled(any_shape, any_query, [&](const Shape &shape, const QueryBits &query) __attribute__((always_inline)) {
        const Reach reaches = reach;
        int kept = 0;
        for (int i = 0; i < count; i += ABREAST) {
            const uint16_t *at = places + i;
            Words planes[MAX_PLANES][MAX_WORDS];
            for (int p = 0; p < shape.planes; ++p)
                for (int w = 0; w < shape.words; ++w) {
                    const uint64_t *row = rows + (p * shape.words + w) * stride;
                    planes[p][w] = Words{row[at[0]], row[at[1]], row[at[2]], row[at[3]],
                                         row[at[4]], row[at[5]], row[at[6]], row[at[7]]};
                }
            const Words deficit = deficit_of(shape, query, planes), cls = class_of(shape, planes);
            uint32_t lanes = Ops::signs64(
                reaches(__builtin_convertvector(deficit, Doubles), __builtin_convertvector(cls, Doubles)));
            if (i + ABREAST > count) lanes &= (1u << (count - i)) - 1;
            for (; lanes; lanes &= lanes - 1, ++kept) {
                const int lane = __builtin_ctz(lanes);
                places[kept] = at[lane];
                deficits[kept] = static_cast<int64_t>(deficit[lane]);
                classes[kept] = static_cast<int32_t>(cls[lane]);
            }
        }
        found = kept;
    });
    return found;
}

template <class Ops>
constexpr Kernel kernel_512(const char *name) {
    using Filters = Simd<Trait512<Ops>>;
    using Products = Dot<Ops, Filters>;
    const auto expanded_bytes = [](const Shape &shape, Kind kind) {
        return kind == DOT ? Products::expanded_bytes(shape) : Filters::expanded_bytes(shape, kind);
    };
    const auto expand = [](const Shape &shape, Kind kind, Group group, int shift, uint8_t *out) {
        if (kind == DOT) Products::expand(shape, group, shift, out);
        else Filters::expand(shape, kind, group, shift, out);
    };
    return {name,        Filters::PLAN, expanded_bytes,     expand,           Filters::filter, Filters::filter_raw,
            exact_lanes, transpose,     exact_abreast<Ops>, compact_512<Ops>, count_bits,      Products::filter};
}

}  // namespace
}  // namespace rbegir::scan

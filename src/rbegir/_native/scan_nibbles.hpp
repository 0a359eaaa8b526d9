// Tables of 16 bytes, looked up by 4 bits: what a byte shuffle does on AVX2, on AVX-512BW without VBMI and on NEON. A
// table covers half a row, so a word takes 16 lookups.
#pragma once

#include "scan_simd.hpp"

namespace rbegir::scan {
namespace {

// `Ops` supplies the vector, its LANES and the operations that are one instruction or a few.
template <class Ops>
struct Nibbles : Shared<Ops> {
    using V = typename Ops::V;
    using Table = V;
    static constexpr int INDEX_BITS = 4, LOOKUPS = 16, CHUNK = 8;
    static constexpr bool LEFT = false, KEEPS_ROWS = false;

    RBEGIR_INLINE static Table table(const uint8_t *p) { return Ops::repeat16(p); }
    RBEGIR_INLINE static V lookup(Table t, V index) { return Ops::shuffle8(t, index); }

    // The index vectors of a word, each made when it is asked for.
    struct Rows {
        const uint8_t *rows;
        RBEGIR_INLINE Rows() = default;
        RBEGIR_INLINE explicit Rows(const uint8_t *from) : rows(from) {}
        RBEGIR_INLINE V operator[](int j) const {
            const V row = Ops::load(rows + j / 2 * GROUP);
            return Ops::bit_and(j % 2 ? Ops::shift_right16(row, 4) : row, Ops::set8(15));
        }
    };
};

template <class Ops>
constexpr Kernel kernel_nibbles(const char *name) {
    using Filters = Simd<Nibbles<Ops>>;
    return {name,        Filters::PLAN, Filters::expanded_bytes, Filters::expand, Filters::filter, Filters::filter_raw,
            exact_lanes, transpose,     exact_each,              compact_columns, count_bits};
}

// Set bits of each byte, for instruction sets that have no such instruction.
template <class Ops>
RBEGIR_INLINE typename Ops::V popcount_by_shuffle(typename Ops::V a) {
    static constexpr uint8_t COUNTS[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    const auto counts = Ops::repeat16(COUNTS), nibble = Ops::set8(15);
    return Ops::add8(Ops::shuffle8(counts, Ops::bit_and(a, nibble)),
                     Ops::shuffle8(counts, Ops::bit_and(Ops::shift_right16(a, 4), nibble)));
}

}  // namespace
}  // namespace rbegir::scan

// AVX-512 with VBMI: a table of 128 bytes is two registers, and vpermi2b looks up 64 indices of 7 bits at once.
//
// A row holds 8 dimensions of 64 keywords. Its low 7 bits are an index as they are; the high bits of the 8 rows of
// a word make a ninth index. That leaves one dimension a word: 9 lookups instead of 64 / 6 = 11 with vpermb. For
// one word the left-out bit costs nothing, as it joins the index of the limit.
#if defined(__x86_64__)

#include <immintrin.h>

#include "scan_simd.hpp"

namespace rbegir::scan {
namespace {

struct Avx512 {
    using V = __m512i;
    static constexpr int LANES = 64, INDEX_BITS = 7, LOOKUPS = 9, CHUNK = 5;
    static constexpr bool LEFT = true, KEEPS_ROWS = true;
    struct Table {
        V low, high;
    };

    RBEGIR_INLINE static V load(const uint8_t *p) { return _mm512_loadu_si512(p); }
    RBEGIR_INLINE static void store(uint8_t *p, V v) { _mm512_storeu_si512(p, v); }
    RBEGIR_INLINE static V zero() { return _mm512_setzero_si512(); }
    RBEGIR_INLINE static V set8(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
    RBEGIR_INLINE static V set16(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
    RBEGIR_INLINE static V add8(V a, V b) { return _mm512_add_epi8(a, b); }
    RBEGIR_INLINE static V adds8(V a, V b) { return _mm512_adds_epu8(a, b); }
    RBEGIR_INLINE static V add16(V a, V b) { return _mm512_add_epi16(a, b); }
    RBEGIR_INLINE static V adds16(V a, V b) { return _mm512_adds_epu16(a, b); }
    RBEGIR_INLINE static V min8(V a, V b) { return _mm512_min_epu8(a, b); }
    RBEGIR_INLINE static V min16(V a, V b) { return _mm512_min_epu16(a, b); }
    RBEGIR_INLINE static V bit_and(V a, V b) { return _mm512_and_si512(a, b); }
    RBEGIR_INLINE static V bit_or(V a, V b) { return _mm512_or_si512(a, b); }
    RBEGIR_INLINE static V bit_xor(V a, V b) { return _mm512_xor_si512(a, b); }
    RBEGIR_INLINE static V shift_left16(V a, int by) { return _mm512_slli_epi16(a, by); }
    RBEGIR_INLINE static V shift_right16(V a, int by) { return _mm512_srli_epi16(a, by); }
    RBEGIR_INLINE static V shift_right8(V a, int by) { return bit_and(shift_right16(a, by), set8(255 >> by)); }
    RBEGIR_INLINE static V low_bytes(V a) { return bit_and(a, set16(255)); }
    RBEGIR_INLINE static V high_bytes(V a) { return shift_right16(a, 8); }
    RBEGIR_INLINE static V popcount8(V a) { return _mm512_popcnt_epi8(a); }
    RBEGIR_INLINE static V halve8(V a) { return _mm512_avg_epu8(a, zero()); }  // rounds up
    RBEGIR_INLINE static uint64_t at_most8(V a, V b) { return _mm512_cmple_epu8_mask(a, b); }
    RBEGIR_INLINE static uint64_t at_most16(V even, V odd, V even_limit, V odd_limit) {
        return _pdep_u64(_mm512_cmple_epu16_mask(even, even_limit), 0x5555555555555555ull) |
               _pdep_u64(_mm512_cmple_epu16_mask(odd, odd_limit), 0xaaaaaaaaaaaaaaaaull);
    }

    RBEGIR_INLINE static Table table(const uint8_t *p) { return {load(p), load(p + 64)}; }
    RBEGIR_INLINE static V lookup(const Table &t, V index) { return _mm512_permutex2var_epi8(t.low, index, t.high); }
    // Compilers would rather load the 18 registers again for every group.
    RBEGIR_INLINE static void pin(Table &t) { asm volatile("" : "+v"(t.low), "+v"(t.high)); }

    RBEGIR_INLINE static void indices(const uint8_t *rows, V *index) {
        const V below = set8(0x7f);
        V high = index[0] = load(rows);
#pragma GCC unroll 8
        for (int r = 1; r < 8; ++r) {  // high bit of row r to bit r: shift down, then take bit 7 from the row
            index[r] = load(rows + r * GROUP);
            high = _mm512_ternarylogic_epi64(below, shift_right16(high, 1), index[r], 0xca);
        }
        index[8] = high;
    }
};

void compact(const Shape &shape, Group group, uint64_t lanes, uint8_t *out, int fill) {
    for (int p = 0; p < shape.planes; ++p)
        for (size_t r = 0; r < shape.rows(); ++r, out += COMPACT_ROW) {
            const __m512i row = _mm512_loadu_si512(group.data + p * group.stride + r * GROUP);
            _mm512_storeu_si512(out + fill, _mm512_maskz_compress_epi8(lanes, row));
        }
}

using Filters = Simd<Avx512>;

}  // namespace

const Kernel AVX512{"avx512",        Filters::PLAN,       Filters::expanded_bytes, Filters::expand,
                    Filters::filter, Filters::filter_raw, exact_lanes,             compact, count_bits};

}  // namespace rbegir::scan

#endif

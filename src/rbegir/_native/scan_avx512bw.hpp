// The operations of 64-byte vectors as instructions of AVX-512 F and BW.
#pragma once

#include <immintrin.h>

#include "scan_nibbles.hpp"

namespace rbegir::scan {
namespace {

struct Avx512bw {
    using V = __m512i;
    static constexpr int LANES = 64, TILE = 1;

    RBEGIR_INLINE static V load(const uint8_t *p) { return _mm512_loadu_si512(p); }
    RBEGIR_INLINE static void store(uint8_t *p, V v) { _mm512_storeu_si512(p, v); }
    RBEGIR_INLINE static V repeat16(const uint8_t *p) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    RBEGIR_INLINE static V zero() { return _mm512_setzero_si512(); }
    RBEGIR_INLINE static V set8(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
    RBEGIR_INLINE static V set16(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
    RBEGIR_INLINE static V add8(V a, V b) { return _mm512_add_epi8(a, b); }
    RBEGIR_INLINE static V adds8(V a, V b) { return _mm512_adds_epu8(a, b); }
    RBEGIR_INLINE static V average8(V a, V b) { return _mm512_avg_epu8(a, b); }
    RBEGIR_INLINE static V min8(V a, V b) { return _mm512_min_epu8(a, b); }
    RBEGIR_INLINE static V add16(V a, V b) { return _mm512_add_epi16(a, b); }
    RBEGIR_INLINE static V adds16(V a, V b) { return _mm512_adds_epu16(a, b); }
    RBEGIR_INLINE static V min16(V a, V b) { return _mm512_min_epu16(a, b); }
    RBEGIR_INLINE static V shift_left16(V a, int by) { return _mm512_slli_epi16(a, by); }
    RBEGIR_INLINE static V shift_right16(V a, int by) { return _mm512_srli_epi16(a, by); }
    RBEGIR_INLINE static V bit_and(V a, V b) { return _mm512_and_si512(a, b); }
    RBEGIR_INLINE static V bit_or(V a, V b) { return _mm512_or_si512(a, b); }
    RBEGIR_INLINE static V bit_xor(V a, V b) { return _mm512_xor_si512(a, b); }
    // Bits of a where the mask is set, else of b.
    RBEGIR_INLINE static V select(V mask, V a, V b) { return _mm512_ternarylogic_epi64(mask, a, b, 0xca); }
    // In each 16 bytes, byte i is byte index[i] of the table; indices are below 16.
    RBEGIR_INLINE static V shuffle8(V table, V index) { return _mm512_shuffle_epi8(table, index); }
    // Of each 16 bytes of a and b, the first eight or the last eight in turn.
    RBEGIR_INLINE static V low_turns8(V a, V b) { return _mm512_unpacklo_epi8(a, b); }
    RBEGIR_INLINE static V high_turns8(V a, V b) { return _mm512_unpackhi_epi8(a, b); }
    RBEGIR_INLINE static V popcount8(V a) { return popcount_by_shuffle<Avx512bw>(a); }
    RBEGIR_INLINE static uint64_t at_most8(V a, V b) { return _mm512_cmple_epu8_mask(a, b); }
    // Bits of even lanes from the 16-bit numbers of `even`, of odd lanes from those of `odd`.
    RBEGIR_INLINE static uint64_t at_most16(V even, V odd, V even_limit, V odd_limit) {
        return _pdep_u64(_mm512_cmple_epu16_mask(even, even_limit), 0x5555555555555555ull) |
               _pdep_u64(_mm512_cmple_epu16_mask(odd, odd_limit), 0xaaaaaaaaaaaaaaaaull);
    }
    RBEGIR_INLINE static void pin(V &a) { asm volatile("" : "+v"(a)); }
};

}  // namespace
}  // namespace rbegir::scan

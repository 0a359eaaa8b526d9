// The operations of 64-byte vectors that VBMI, VBMI2, BITALG, VPOPCNTDQ and VNNI add to AVX-512BW.
#pragma once

#include "scan_avx512bw.hpp"

namespace rbegir::scan {
namespace {

struct Avx512 : Avx512bw {
    RBEGIR_INLINE static V popcount8(V a) { return _mm512_popcnt_epi8(a); }
    // Byte i is byte index[i] % 128 of low and high side by side.
    RBEGIR_INLINE static V permute8(V low, V index, V high) { return _mm512_permutex2var_epi8(low, index, high); }
    // The highest bit of each 64-bit number.
    template <class Numbers>
    RBEGIR_INLINE static uint32_t signs64(const Numbers &a) { return _mm512_movepi64_mask((__m512i)a); }
    // Those that are not 0.
    template <class Numbers>
    RBEGIR_INLINE static uint32_t nonzero64(const Numbers &a) {
        return _mm512_test_epi64_mask((__m512i)a, (__m512i)a);
    }
    // The 64-bit numbers in `lanes`, one after the other, then zeros.
    template <class Numbers>
    RBEGIR_INLINE static Numbers compress64(uint32_t lanes, const Numbers &a) {
        return (Numbers)_mm512_maskz_compress_epi64(static_cast<__mmask8>(lanes), (__m512i)a);
    }
    // The low 16 bits of each 64-bit number.
    template <class Numbers>
    RBEGIR_INLINE static void narrow64(const Numbers &a, uint16_t *out) {
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out), _mm512_cvtepi64_epi16((__m512i)a));
    }
    // The 64-bit numbers at from[width · at[i]], and those behind them.
    template <class Numbers>
    RBEGIR_INLINE static void pairs64(const uint64_t *from, int width, const uint16_t *at, Numbers &first,
                                      Numbers &second) {
        const auto two = [=](int i) {
            const auto load = [=](int j) {
                return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + static_cast<size_t>(width) * at[j]));
            };
            return _mm256_inserti128_si256(_mm256_castsi128_si256(load(i)), load(i + 2), 1);
        };
        const V even = _mm512_inserti64x4(_mm512_castsi256_si512(two(0)), two(4), 1);
        const V odd = _mm512_inserti64x4(_mm512_castsi256_si512(two(1)), two(5), 1);
        first = (Numbers)_mm512_unpacklo_epi64(even, odd);
        second = (Numbers)_mm512_unpackhi_epi64(even, odd);
    }
    // The bytes in `lanes`, one after the other, then zeros.
    RBEGIR_INLINE static V compress8(uint64_t lanes, V a) { return _mm512_maskz_compress_epi8(lanes, a); }
    // Byte i is eight bits of the 64-bit number around it, from bit first[i] on, going round.
    RBEGIR_INLINE static V fields8(V first, V a) { return _mm512_multishift_epi64_epi8(first, a); }
    // 16 bytes as 32-bit numbers.
    RBEGIR_INLINE static V widen8(const uint8_t *p) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    RBEGIR_INLINE static V repeat4(const uint8_t *p) {
        int number;
        __builtin_memcpy(&number, p, 4);
        return _mm512_set1_epi32(number);
    }
    // In each 32-bit number, adds the products of four unsigned bytes of a and signed ones of b.
    RBEGIR_INLINE static V dot32(V sum, V a, V b) { return _mm512_dpbusd_epi32(sum, a, b); }
    // 32-bit number i is number index[i] % 32 of low and high side by side.
    RBEGIR_INLINE static V permute32(V low, V index, V high) { return _mm512_permutex2var_epi32(low, index, high); }
    RBEGIR_INLINE static uint64_t at_least32(V a, V b) { return _mm512_cmpge_epi32_mask(a, b); }
};

}  // namespace
}  // namespace rbegir::scan

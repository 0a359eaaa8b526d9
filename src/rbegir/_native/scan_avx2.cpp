// AVX2: vpshufb looks up 32 indices of 4 bits at once.
#if defined(__x86_64__)

#include <immintrin.h>

#include "scan_nibbles.hpp"

namespace rbegir::scan {
namespace {

struct Avx2 {
    using V = __m256i;
    static constexpr int LANES = 32, TILE = 8;  // 16 registers hold no 16 tables

    RBEGIR_INLINE static V load(const uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const V *>(p)); }
    RBEGIR_INLINE static void store(uint8_t *p, V v) { _mm256_storeu_si256(reinterpret_cast<V *>(p), v); }
    RBEGIR_INLINE static V repeat16(const uint8_t *p) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    RBEGIR_INLINE static V zero() { return _mm256_setzero_si256(); }
    RBEGIR_INLINE static V set8(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
    RBEGIR_INLINE static V set16(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
    RBEGIR_INLINE static V add8(V a, V b) { return _mm256_add_epi8(a, b); }
    RBEGIR_INLINE static V adds8(V a, V b) { return _mm256_adds_epu8(a, b); }
    RBEGIR_INLINE static V average8(V a, V b) { return _mm256_avg_epu8(a, b); }
    RBEGIR_INLINE static V add16(V a, V b) { return _mm256_add_epi16(a, b); }
    RBEGIR_INLINE static V adds16(V a, V b) { return _mm256_adds_epu16(a, b); }
    RBEGIR_INLINE static V min8(V a, V b) { return _mm256_min_epu8(a, b); }
    RBEGIR_INLINE static V min16(V a, V b) { return _mm256_min_epu16(a, b); }
    RBEGIR_INLINE static V bit_and(V a, V b) { return _mm256_and_si256(a, b); }
    RBEGIR_INLINE static V bit_or(V a, V b) { return _mm256_or_si256(a, b); }
    RBEGIR_INLINE static V bit_xor(V a, V b) { return _mm256_xor_si256(a, b); }
    RBEGIR_INLINE static V shift_left16(V a, int by) { return _mm256_slli_epi16(a, by); }
    RBEGIR_INLINE static V shift_right16(V a, int by) { return _mm256_srli_epi16(a, by); }
    RBEGIR_INLINE static V shuffle8(V table, V index) { return _mm256_shuffle_epi8(table, index); }
    RBEGIR_INLINE static V popcount8(V a) { return popcount_by_shuffle<Avx2>(a); }
    RBEGIR_INLINE static uint64_t at_most8(V a, V b) {  // unsigned a ≤ b ⇔ a − b saturates to 0
        return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_subs_epu8(a, b), zero())));
    }
    RBEGIR_INLINE static uint64_t at_most16(V even, V odd, V even_limit, V odd_limit) {
        const V even_is = _mm256_cmpeq_epi16(_mm256_subs_epu16(even, even_limit), zero());
        const V odd_is = _mm256_cmpeq_epi16(_mm256_subs_epu16(odd, odd_limit), zero());
        return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_blendv_epi8(odd_is, even_is, set16(255))));
    }
    RBEGIR_INLINE static void pin(V &a) { asm volatile("" : "+x"(a)); }
};

}  // namespace

const Kernel AVX2 = kernel_nibbles<Avx2>("avx2");

}  // namespace rbegir::scan

#endif

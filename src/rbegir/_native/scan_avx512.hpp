// The operations of 64-byte vectors that VBMI, VBMI2, BITALG and VPOPCNTDQ add to AVX-512BW.
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
    // The bytes in `lanes`, one after the other, then zeros.
    RBEGIR_INLINE static V compress8(uint64_t lanes, V a) { return _mm512_maskz_compress_epi8(lanes, a); }
};

}  // namespace
}  // namespace rbegir::scan

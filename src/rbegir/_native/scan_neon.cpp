// NEON: tbl looks up 16 indices of 4 bits at once. Longer tables (two to four registers) have a lower rate on most cores.
#if defined(__aarch64__)

#include <arm_neon.h>

#include "scan_nibbles.hpp"

namespace rbegir::scan {
namespace {

struct Neon {
    using V = uint8x16_t;
    static constexpr int LANES = 16, TILE = 1;

    RBEGIR_INLINE static V load(const uint8_t *p) { return vld1q_u8(p); }
    RBEGIR_INLINE static void store(uint8_t *p, V v) { vst1q_u8(p, v); }
    RBEGIR_INLINE static V repeat16(const uint8_t *p) { return vld1q_u8(p); }
    RBEGIR_INLINE static V zero() { return vdupq_n_u8(0); }
    RBEGIR_INLINE static V set8(int x) { return vdupq_n_u8(static_cast<uint8_t>(x)); }
    RBEGIR_INLINE static V set16(int x) { return bytes(vdupq_n_u16(static_cast<uint16_t>(x))); }
    RBEGIR_INLINE static V add8(V a, V b) { return vaddq_u8(a, b); }
    RBEGIR_INLINE static V adds8(V a, V b) { return vqaddq_u8(a, b); }
    RBEGIR_INLINE static V average8(V a, V b) { return vrhaddq_u8(a, b); }
    RBEGIR_INLINE static V add16(V a, V b) { return bytes(vaddq_u16(pairs(a), pairs(b))); }
    RBEGIR_INLINE static V adds16(V a, V b) { return bytes(vqaddq_u16(pairs(a), pairs(b))); }
    RBEGIR_INLINE static V min8(V a, V b) { return vminq_u8(a, b); }
    RBEGIR_INLINE static V min16(V a, V b) { return bytes(vminq_u16(pairs(a), pairs(b))); }
    RBEGIR_INLINE static V bit_and(V a, V b) { return vandq_u8(a, b); }
    RBEGIR_INLINE static V bit_or(V a, V b) { return vorrq_u8(a, b); }
    RBEGIR_INLINE static V bit_xor(V a, V b) { return veorq_u8(a, b); }
    RBEGIR_INLINE static V shift_left16(V a, int by) {
        return bytes(vshlq_u16(pairs(a), vdupq_n_s16(static_cast<int16_t>(by))));
    }
    RBEGIR_INLINE static V shift_right16(V a, int by) { return shift_left16(a, -by); }
    RBEGIR_INLINE static V shuffle8(V table, V index) { return vqtbl1q_u8(table, index); }
    RBEGIR_INLINE static V popcount8(V a) { return vcntq_u8(a); }
    RBEGIR_INLINE static uint64_t at_most8(V a, V b) { return lanes(vcleq_u8(a, b)); }
    RBEGIR_INLINE static uint64_t at_most16(V even, V odd, V even_limit, V odd_limit) {
        const V even_is = bytes(vcleq_u16(pairs(even), pairs(even_limit)));
        const V odd_is = bytes(vcleq_u16(pairs(odd), pairs(odd_limit)));
        return lanes(vbslq_u8(set16(255), even_is, odd_is));
    }
    RBEGIR_INLINE static void pin(V &a) { asm volatile("" : "+w"(a)); }

  private:
    RBEGIR_INLINE static uint16x8_t pairs(V a) { return vreinterpretq_u16_u8(a); }
    RBEGIR_INLINE static V bytes(uint16x8_t a) { return vreinterpretq_u8_u16(a); }
    // One bit per byte that is all ones. Mostly there is none, which half a vector of nibbles tells at once.
    RBEGIR_INLINE static uint64_t lanes(V set) {
        if (!vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(pairs(set), 4)), 0)) return 0;
        const V bits = vandq_u8(set, bytes(vreinterpretq_u16_u64(vdupq_n_u64(0x8040201008040201))));
        return vaddv_u8(vget_low_u8(bits)) | static_cast<uint64_t>(vaddv_u8(vget_high_u8(bits))) << 8;
    }
};

}  // namespace

const Kernel NEON = kernel_nibbles<Neon>("neon");

}  // namespace rbegir::scan

#endif

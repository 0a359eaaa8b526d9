// Vectors of four floats, which every CPU has or the compiler takes apart. aarch64 has fused multiply-adds in its base
// instruction set; elsewhere the C library computes them.
#include "refine_search.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace rbegir::floats {
namespace {

struct Portable : Vectors<4> {
    static constexpr size_t LANES = 4;
#if defined(__aarch64__)
    static constexpr size_t WIDTH = 4;
    RBEGIR_INLINE static V fused(V a, V b, V c) { return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
    static constexpr size_t WIDTH = 1;
    RBEGIR_INLINE static V fused(V a, V b, V c) {
        for (size_t l = 0; l < LANES; ++l) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
        return c;
    }
#endif
    RBEGIR_INLINE static V min(V a, V b) { return a < b ? a : b; }
    RBEGIR_INLINE static V max(V a, V b) { return a > b ? a : b; }
};

}  // namespace

constexpr Kernels PORTABLE = table<Portable>("portable");

}  // namespace rbegir::floats

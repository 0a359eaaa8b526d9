#if defined(__aarch64__)

#include <arm_neon.h>

#include "refine_search.hpp"

namespace rbegir::floats {
namespace {

struct Neon : Vectors<4> {
    static constexpr size_t LANES = 4, WIDTH = 4;
    RBEGIR_INLINE static V fused(V a, V b, V c) { return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
    RBEGIR_INLINE static V min(V a, V b) { return a < b ? a : b; }  // vminq orders ±0 and NaN in another way
    RBEGIR_INLINE static V max(V a, V b) { return a > b ? a : b; }
};

}  // namespace

constexpr Kernels NEON = table<Neon>("neon");

}  // namespace rbegir::floats

#endif

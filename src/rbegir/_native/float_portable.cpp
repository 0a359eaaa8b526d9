// Vectors of four floats, which every CPU has or the compiler takes apart. Where the CPU has no fused multiply-add, the C
// library computes it.
#include "refine_search.hpp"

namespace rbegir::floats {
namespace {

struct Portable : Vectors<4> {
    static constexpr size_t LANES = 4, WIDTH = 1;
    RBEGIR_INLINE static V fused(V a, V b, V c) {
        for (size_t l = 0; l < LANES; ++l) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
        return c;
    }
    RBEGIR_INLINE static V min(V a, V b) { return a < b ? a : b; }
    RBEGIR_INLINE static V max(V a, V b) { return a > b ? a : b; }
};

}  // namespace

constexpr Kernels PORTABLE = table<Portable>("portable");

}  // namespace rbegir::floats

#if defined(__x86_64__)

#include <immintrin.h>

#include "refine_search.hpp"

namespace rbegir::floats {
namespace {

struct Avx2 : Vectors<8> {
    static constexpr size_t LANES = 8, WIDTH = 2;
    RBEGIR_INLINE static V fused(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
    RBEGIR_INLINE static V min(V a, V b) { return _mm256_min_ps(a, b); }
    RBEGIR_INLINE static V max(V a, V b) { return _mm256_max_ps(a, b); }
};

}  // namespace

constexpr Kernels AVX2 = table<Avx2>("avx2");

}  // namespace rbegir::floats

#endif

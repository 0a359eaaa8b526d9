// The floating-point kernels need no more of AVX-512 than Skylake has, so both instruction sets run the same code.
#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns about its own _mm512_min_ps
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "refine_search.hpp"

namespace rbegir::floats {
namespace {

struct Avx512 : Vectors<16> {
    static constexpr size_t LANES = 16, WIDTH = 4;
    RBEGIR_INLINE static V fused(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
    RBEGIR_INLINE static V min(V a, V b) { return _mm512_min_ps(a, b); }
    RBEGIR_INLINE static V max(V a, V b) { return _mm512_max_ps(a, b); }
};

}  // namespace

constexpr Kernels AVX512 = table<Avx512>("avx512"), AVX512BW = table<Avx512>("avx512bw");

}  // namespace rbegir::floats

#endif

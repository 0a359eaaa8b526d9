// AVX-512 without VBMI (Skylake, Cascade Lake): vpshufb looks up 64 indices of 4 bits at once.
#if defined(__x86_64__)

#include "scan_avx512bw.hpp"

namespace rbegir::scan {

const Kernel AVX512BW = kernel_nibbles<Avx512bw>("avx512bw");

}  // namespace rbegir::scan

#endif

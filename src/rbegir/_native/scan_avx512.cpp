// AVX-512 with VBMI: a table of 128 bytes is two registers, and vpermi2b looks up 64 indices of 7 bits at once.
#if defined(__x86_64__)

#include "scan_avx512.hpp"

#include "scan_512.hpp"

namespace rbegir::scan {

const Kernel AVX512 = kernel_512<Avx512>("avx512");

}  // namespace rbegir::scan

#endif

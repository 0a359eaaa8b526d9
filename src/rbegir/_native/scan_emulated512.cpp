// The AVX-512 kernels on emulated vectors: slow, for tests on CPUs without AVX-512. Runs only when asked for by name.
#include "scan_emulated512.hpp"

#include "scan_512.hpp"

namespace rbegir::scan {

const Kernel EMULATED512 = kernel_512<Emulated512>("avx512-emulated");

}  // namespace rbegir::scan

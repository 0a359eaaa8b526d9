// The AVX-512 kernels on emulated vectors: slow, for tests on CPUs without AVX-512. They run only when asked for by name.
#include "scan_emulated512.hpp"

#include "scan_512.hpp"
#include "scan_nibbles.hpp"

namespace rbegir::scan {

const Kernel EMULATED512 = kernel_512<Emulated512>("avx512-emulated");
const Kernel EMULATED512BW = kernel_nibbles<Emulated512>("avx512bw-emulated");

}  // namespace rbegir::scan

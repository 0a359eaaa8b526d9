// What the kernels of the scan and of MaxSim share: the norm classes of keywords (scan_kernel.hpp says what they are).
#pragma once

#include <cstddef>
#include <cstdint>

// Never emitted as a function of its own: the linker would keep one copy, perhaps one with AVX-512 in it.
#define RBEGIR_INLINE [[gnu::always_inline]] inline

namespace rbegir {

// The classes of the 64 keywords of a group, whose planes lie `stride` bytes apart.
RBEGIR_INLINE void classes_of(int planes, size_t rows, const uint8_t *group, size_t stride, uint16_t *classes) {
    for (int lane = 0; lane < 64; ++lane) classes[lane] = 0;
    for (int i = 0; i < planes; ++i)
        for (int j = i + 1; j < planes; ++j) {
            const uint8_t *a = group + i * stride, *b = group + j * stride;
            const int weight = 2 * planes - 3 - i - j;
            for (size_t r = 0; r < rows; ++r, a += 64, b += 64)
                for (int lane = 0; lane < 64; ++lane) {  // a byte popcount that vectorises anywhere
                    uint8_t x = a[lane] ^ b[lane];
                    x = static_cast<uint8_t>(x - (x >> 1 & 0x55));
                    x = static_cast<uint8_t>((x & 0x33) + (x >> 2 & 0x33));
                    x = static_cast<uint8_t>((x + (x >> 4)) & 0x0f);
                    classes[lane] = static_cast<uint16_t>(classes[lane] + (x << weight));
                }
        }
}

}  // namespace rbegir

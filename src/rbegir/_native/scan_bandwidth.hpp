// The yardstick of a scan: reading a buffer once, split over threads as the scan is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel.hpp"

namespace rbegir {

// Sum of the 64-bit words of a buffer, wrapping. Each thread reads `streams` parts of the buffer in turn; the bytes of
// a last incomplete step are left out. Sums are 16 bytes wide and few, so that any CPU keeps them in registers.
inline uint64_t read_sum(const uint8_t *bytes, size_t size, int threads, int streams) {
    typedef uint64_t Wide __attribute__((vector_size(16), aligned(1)));
    constexpr size_t STEP = 256;
    std::vector<uint64_t> sums(threads);
    in_parallel(threads, [&](size_t id) {
        const size_t steps = size / streams / STEP;
        Wide a{}, b{}, c{}, d{};
        for (size_t i = steps * id / threads; i < steps * (id + 1) / threads; ++i)
            for (int s = 0; s < streams; ++s) {
                const auto *at = reinterpret_cast<const Wide *>(bytes + (s * steps + i) * STEP);
#pragma GCC unroll 4
                for (int j = 0; j < 16; j += 4) {
                    a += at[j];
                    b += at[j + 1];
                    c += at[j + 2];
                    d += at[j + 3];
                }
            }
        a += b + c + d;
        sums[id] = a[0] + a[1];
    });
    uint64_t total = 0;
    for (const uint64_t sum : sums) total += sum;
    return total;
}

}  // namespace rbegir

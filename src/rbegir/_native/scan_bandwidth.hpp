// The yardstick of a scan: reading a buffer once, split over threads as the scan is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scan_parallel.hpp"

namespace rbegir {

// Sum of the 64-bit words of a buffer, wrapping. Each thread reads `streams` parts of the buffer in turn, as the scan
// reads planes; the bytes of a last incomplete step are left out.
inline uint64_t read_sum(const uint8_t *bytes, size_t size, int threads, int streams) {
    typedef uint64_t Wide __attribute__((vector_size(64), aligned(1)));
    constexpr size_t STEP = 256;
    std::vector<uint64_t> sums(threads);
    in_parallel(threads, [&](int id) {
        const size_t steps = size / streams / STEP;
        Wide a{}, b{}, c{}, d{};
        for (size_t i = steps * id / threads; i < steps * (id + 1) / threads; ++i)
            for (int s = 0; s < streams; ++s) {
                const uint8_t *at = bytes + (s * steps + i) * STEP;
                a += *reinterpret_cast<const Wide *>(at);
                b += *reinterpret_cast<const Wide *>(at + 64);
                c += *reinterpret_cast<const Wide *>(at + 128);
                d += *reinterpret_cast<const Wide *>(at + 192);
            }
        a += b + c + d;
        for (int i = 0; i < 8; ++i) sums[id] += a[i];
    });
    uint64_t total = 0;
    for (const uint64_t sum : sums) total += sum;
    return total;
}

}  // namespace rbegir

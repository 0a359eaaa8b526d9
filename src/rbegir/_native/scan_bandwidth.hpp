// The yardstick of a scan: the fastest way to read a buffer once, with the same split over threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scan_parallel.hpp"

namespace rbegir {

// Sum of the 64-bit words of a buffer, wrapping.
inline uint64_t read_sum(const uint8_t *bytes, size_t size, int threads) {
    typedef uint64_t Wide __attribute__((vector_size(64), aligned(1)));
    std::vector<uint64_t> sums(threads);
    in_parallel(threads, [&](int id) {
        const size_t lines = size / 256;
        const uint8_t *at = bytes + lines * id / threads * 256, *end = bytes + lines * (id + 1) / threads * 256;
        Wide a{}, b{}, c{}, d{};
        for (; at < end; at += 256) {
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

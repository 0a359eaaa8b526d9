// Exact deficit and class of single keywords, from their bits. Included by every kernel file, so that popcounts
// compile to the instruction of that file's instruction set.
#pragma once

#include "scan_kernel.hpp"

namespace rbegir::scan {
namespace {

inline uint64_t gather_word(const uint8_t *rows, int lane) {
    uint64_t word = 0;
    for (int b = 0; b < 8; ++b) word |= static_cast<uint64_t>(rows[b * GROUP + lane]) << (8 * b);
    return word;
}

// Σ over pairs of planes i < j of 2^(2P−3−i−j) · popcount(XOR), so that ‖k‖² = top²·n − 8·class.
inline int class_of(const Shape &shape, const uint64_t planes[MAX_PLANES][MAX_WORDS]) {
    int cls = 0;
    for (int i = 0; i < shape.planes; ++i)
        for (int j = i + 1; j < shape.planes; ++j) {
            int count = 0;
            for (int w = 0; w < shape.words; ++w) count += __builtin_popcountll(planes[i][w] ^ planes[j][w]);
            cls += count << (2 * shape.planes - 3 - i - j);
        }
    return cls;
}

inline void exact_lanes(const Shape &shape, const QueryBits &query, Group group, uint64_t lanes, int64_t *deficits,
                        int32_t *classes) {
    for (; lanes; lanes &= lanes - 1) {
        const int lane = __builtin_ctzll(lanes);
        uint64_t planes[MAX_PLANES][MAX_WORDS];
        int64_t deficit = 0;
        for (int p = 0; p < shape.planes; ++p) {
            int64_t sum = 0;
            for (int w = 0; w < shape.words; ++w) {
                const uint64_t word = gather_word(group.data + p * group.stride + w * 8 * GROUP, lane);
                const uint64_t wrong = word ^ query.sign[w];
                planes[p][w] = word;
                for (int m = 0; m < query.bits; ++m) {
                    const int64_t count = __builtin_popcountll(wrong & query.magnitude[m * shape.words + w]);
                    sum += count << m;
                }
            }
            deficit = 2 * deficit + sum;
        }
        *deficits++ = deficit;
        *classes++ = class_of(shape, planes);
    }
}

// The rows of all planes of a group, one after the other; returns the end of the copy.
inline uint8_t *copy_rows(const Shape &shape, Group group, uint8_t *to) {
    for (int p = 0; p < shape.planes; ++p, to += shape.plane_bytes())
        __builtin_memcpy(to, group.data + p * group.stride, shape.plane_bytes());
    return to;
}

[[maybe_unused]] inline size_t count_bits(const uint64_t *mask, size_t words) {
    size_t count = 0;
    for (size_t i = 0; i < words; ++i) count += __builtin_popcountll(mask[i]);
    return count;
}

// Appends the columns in `lanes`, one after the other.
[[maybe_unused]] inline void compact_columns(const Shape &shape, Group group, uint64_t lanes, uint8_t *out, int fill) {
    for (; lanes; lanes &= lanes - 1, ++fill) {
        const int lane = __builtin_ctzll(lanes);
        uint8_t *to = out + fill;
        for (int p = 0; p < shape.planes; ++p)
            for (size_t r = 0; r < shape.rows(); ++r, to += COMPACT_ROW)
                *to = group.data[p * group.stride + r * GROUP + lane];
    }
}

}  // namespace
}  // namespace rbegir::scan

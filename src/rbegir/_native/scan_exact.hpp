// Exact deficit and class of single keywords, from their bits. Included by every kernel file, so that popcounts
// compile to the instruction of that file's instruction set.
#pragma once

#if defined(__AVX512VPOPCNTDQ__)
#include <immintrin.h>
#endif

#include "scan_kernel.hpp"

namespace rbegir::scan {
namespace {

inline uint64_t gather_word(const uint8_t *rows, int lane) {
    uint64_t word = 0;
    for (int b = 0; b < 8; ++b) word |= static_cast<uint64_t>(rows[b * GROUP + lane]) << (8 * b);
    return word;
}

// Words of ABREAST keywords side by side. With AVX-512 each operation is one instruction.
using Words = uint64_t __attribute__((vector_size(8 * ABREAST)));
using Doubles = double __attribute__((vector_size(8 * ABREAST)));

// A `Word` below is a uint64_t or Words.
RBEGIR_INLINE uint64_t popcounts(const uint64_t &word) { return __builtin_popcountll(word); }
RBEGIR_INLINE Words popcounts(const Words &words) {
#if defined(__AVX512VPOPCNTDQ__)
    return (Words)_mm512_popcnt_epi64((__m512i)words);
#else
    Words counts;
    for (int i = 0; i < ABREAST; ++i) counts[i] = __builtin_popcountll(words[i]);
    return counts;
#endif
}

// Σ over pairs of planes i < j of 2^(2P−3−i−j) · popcount(XOR), so that ‖k‖² = top²·n − 8·class.
template <class Word>
RBEGIR_INLINE Word class_of(const Shape &shape, const Word (&planes)[MAX_PLANES][MAX_WORDS]) {
    Word cls{};
    for (int i = 0; i < shape.planes; ++i)
        for (int j = i + 1; j < shape.planes; ++j) {
            Word count{};
            for (int w = 0; w < shape.words; ++w) count += popcounts(planes[i][w] ^ planes[j][w]);
            cls += count << (2 * shape.planes - 3 - i - j);
        }
    return cls;
}

// The exact deficit of the keyword whose words are `planes`.
template <class Word>
RBEGIR_INLINE Word deficit_of(const Shape &shape, const QueryBits &query,
                              const Word (&planes)[MAX_PLANES][MAX_WORDS]) {
    Word deficit{};
    for (int p = 0; p < shape.planes; ++p) {
        Word sum{};
        for (int w = 0; w < shape.words; ++w) {
            const Word wrong = planes[p][w] ^ query.sign[w];
            for (int m = 0; m < query.bits; ++m)
                sum += popcounts(wrong & query.magnitude[m * shape.words + w]) << m;
        }
        deficit = 2 * deficit + sum;
    }
    return deficit;
}

// Calls call(shape, query), compiled once more for the usual shape so that its loops are unrolled. Magnitude bits beyond
// those of the query are clear.
template <class Call>
RBEGIR_INLINE void unrolled(const Shape &shape, const QueryBits &query, const Call &call) {
    if (shape.words == 1 && shape.planes == 2 && query.bits <= 3)
        call(Shape{1, 2}, QueryBits{query.sign, query.magnitude, 3});
    else call(shape, query);
}

inline void exact_lanes(const Shape &any_shape, const QueryBits &any_query, Group group, uint64_t lanes,
                        int64_t *__restrict deficits, int32_t *__restrict classes) {
    unrolled(any_shape, any_query, [=](const Shape &shape, const QueryBits &query) __attribute__((always_inline)) {
        int i = 0;
        for (uint64_t rest = lanes; rest; rest &= rest - 1, ++i) {
            const int lane = __builtin_ctzll(rest);
            uint64_t planes[MAX_PLANES][MAX_WORDS];
            for (int p = 0; p < shape.planes; ++p)
                for (int w = 0; w < shape.words; ++w)
                    planes[p][w] = gather_word(group.data + p * group.stride + w * 8 * GROUP, lane);
            deficits[i] = static_cast<int64_t>(deficit_of(shape, query, planes));
            classes[i] = static_cast<int32_t>(class_of(shape, planes));
        }
    });
}

// Words stand as [planes · words][64].
inline void transpose(const Shape &shape, Group group, uint64_t *out) {
    for (int p = 0; p < shape.planes; ++p)
        for (int w = 0; w < shape.words; ++w, out += GROUP) {
            const uint8_t *rows = group.data + p * group.stride + w * 8 * GROUP;
            for (int lane = 0; lane < GROUP; ++lane) out[lane] = gather_word(rows, lane);
        }
}

// The places of the set bits of `candidates` [groups], and LISTED that mean nothing; returns their number. Most groups
// have few, and a loop over their bits would end differently each time, which no CPU predicts.
inline int list_places(const uint64_t *candidates, int groups, uint16_t *places) {
    int count = 0;
    for (int g = 0; g < groups; ++g) {
        uint64_t lanes = candidates[g];
        const int end = count + __builtin_popcountll(lanes);
        const auto next = [&] {
            const int lane = __builtin_ctzll(lanes | uint64_t{1} << (GROUP - 1));
            lanes &= lanes - 1;
            return static_cast<uint16_t>(g * GROUP + lane);
        };
#pragma GCC unroll 4
        for (int i = 0; i < LISTED; ++i) places[count + i] = next();
        for (int i = count + LISTED; i < end; ++i) places[i] = next();
        count = end;
    }
    return count;
}

inline int exact_each(const Shape &any_shape, const QueryBits &any_query, const Reach &reaches, const uint64_t *words,
                      const uint64_t *candidates, int groups, uint16_t *__restrict places,
                      int64_t *__restrict deficits, int32_t *__restrict classes) {
    const int count = list_places(candidates, groups, places);
    int found = 0;
    unrolled(any_shape, any_query, [&](const Shape &shape, const QueryBits &query) __attribute__((always_inline)) {
        const Reach reach = reaches;
        int kept = 0;
        for (int i = 0; i < count; ++i) {
            const uint16_t place = places[i];
            const uint64_t *word = words + static_cast<size_t>(place / GROUP * shape.planes * shape.words) * GROUP;
            uint64_t planes[MAX_PLANES][MAX_WORDS];
            for (int p = 0; p < shape.planes; ++p)
                for (int w = 0; w < shape.words; ++w, word += GROUP) planes[p][w] = word[place % GROUP];
            const auto deficit = static_cast<int64_t>(deficit_of(shape, query, planes));
            const auto cls = static_cast<int32_t>(class_of(shape, planes));
            places[kept] = place;
            deficits[kept] = deficit;
            classes[kept] = cls;
            kept += reach(deficit, cls);
        }
        found = kept;
    });
    return found;
}

// The rows of all planes of a group, one after the other; returns the end of the copy.
inline uint8_t *copy_rows(const Shape &shape, Group group, uint8_t *to) {
    for (int p = 0; p < shape.planes; ++p, to += shape.plane_bytes())
        __builtin_memcpy(to, group.data + p * group.stride, shape.plane_bytes());
    return to;
}

// Kernel::filter_raw, where lanes_of(group) are the keywords of a group that pass. Long runs of groups are read in a few
// places in turn: the hardware prefetches each stream apart, and one stream alone does not use all of the bandwidth of
// a core.
template <class Lanes>
RBEGIR_INLINE int filter_where_they_lie(const Shape &shape, Group first, int groups, const uint64_t *candidates,
                                        Event *out, uint8_t *rows, const Lanes &lanes_of) {
    constexpr size_t STREAMS = 4, ENOUGH = 512;
    const size_t all = static_cast<size_t>(groups), part = all < ENOUGH ? 0 : all / STREAMS;
    int events = 0;
    for (size_t i = 0; i < all; ++i) {
        const size_t g = i < STREAMS * part ? i % STREAMS * part + i / STREAMS : i;
        const Group group{first.data + g * shape.plane_bytes(), first.stride};
        uint64_t lanes = lanes_of(group);
        if (candidates) lanes &= candidates[g];
        if (__builtin_expect(lanes != 0, 0)) {
            out[events++] = {static_cast<uint32_t>(g), lanes};
            rows = copy_rows(shape, group, rows);
        }
    }
    return events;
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

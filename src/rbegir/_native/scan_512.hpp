// Vectors of 64 bytes with tables of 128: the trait of AVX-512 with VBMI, and of its emulation.
//
// A row holds 8 dimensions of 64 keywords. Its low 7 bits are an index as they are; the high bits of the 8 rows of
// a word make a ninth index. That leaves one dimension a word: 9 lookups instead of 64 / 6 = 11 with tables of 64
// bytes. For one word the left-out bit costs nothing, as it joins the index of the limit.
#pragma once

#include "scan_dot.hpp"

namespace rbegir::scan {
namespace {

// `Ops` supplies the vector and the operations that are one instruction (scan_avx512.hpp, scan_emulated512.hpp).
template <class Ops>
struct Trait512 : Shared<Ops> {
    using V = typename Ops::V;
    static constexpr int INDEX_BITS = 7, LOOKUPS = 9, CHUNK = 5;
    static constexpr bool LEFT = true, KEEPS_ROWS = true;
    struct Table {
        V low, high;
    };

    RBEGIR_INLINE static Table table(const uint8_t *p) { return {Ops::load(p), Ops::load(p + 64)}; }
    RBEGIR_INLINE static V lookup(const Table &t, V index) { return Ops::permute8(t.low, index, t.high); }
    // Compilers would rather load the 18 registers again for every group.
    RBEGIR_INLINE static void pin(Table &t) {
        Ops::pin(t.low);
        Ops::pin(t.high);
    }

    // The index vectors of a word: its rows, and their high bits.
    struct Rows {
        V index[LOOKUPS];
        RBEGIR_INLINE Rows() = default;
        RBEGIR_INLINE explicit Rows(const uint8_t *rows) {
            const V below = Ops::set8(0x7f);
            V high = index[0] = Ops::load(rows);
#pragma GCC unroll 8
            for (int r = 1; r < 8; ++r) {  // high bit of row r to bit r: shift down, then take bit 7 from the row
                index[r] = Ops::load(rows + r * GROUP);
                high = Ops::select(below, Ops::shift_right16(high, 1), index[r]);
            }
            index[8] = high;
        }
        RBEGIR_INLINE V operator[](int j) const { return index[j]; }
    };
};

template <class Ops>
void compact_512(const Shape &shape, Group group, uint64_t lanes, uint8_t *out, int fill) {
    for (int p = 0; p < shape.planes; ++p)
        for (size_t r = 0; r < shape.rows(); ++r, out += COMPACT_ROW)
            Ops::store(out + fill, Ops::compress8(lanes, Ops::load(group.data + p * group.stride + r * GROUP)));
}

// Where the words of a keyword stand among those of its group, and back.
template <class Number>
RBEGIR_INLINE Number slot_of(const Number &lane) { return (lane & 15) << 2 | lane >> 4; }
RBEGIR_INLINE int lane_in(int slot) { return (slot & 3) << 4 | slot >> 2; }

// The words of each keyword side by side, [64 slots][planes · words]. Sixteen rows of bytes are two words of 64
// keywords.
// Interleaving the bytes of rows i and i + 8, in each 16 bytes, to vectors 2·i and 2·i + 1 moves the highest bit of the
// number of a row to the lowest of the place in 16 bytes, and the highest of that to the lowest of the number of a
// vector. After four times both have changed places: vector i has two words of keywords i, 16 + i, 32 + i and 48 + i.
template <class Ops>
void transpose_512(const Shape &shape, Group group, uint64_t *out) {
    using V = typename Ops::V;
    const int width = shape.planes * shape.words;
    for (int word = 0; word < width; word += 2) {
        const bool both = word + 1 < width;
        V rows[16], next[16];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const int w = both ? word + half : word;
            const uint8_t *from = group.data + w / shape.words * group.stride + w % shape.words * 8 * GROUP;
#pragma GCC unroll 8
            for (int r = 0; r < 8; ++r) rows[8 * half + r] = Ops::load(from + r * GROUP);
        }
#pragma GCC unroll 4
        for (int step = 0; step < 4; ++step) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) {
                next[2 * i] = Ops::low_turns8(rows[i], rows[i + 8]);
                next[2 * i + 1] = Ops::high_turns8(rows[i], rows[i + 8]);
            }
#pragma GCC unroll 16
            for (int i = 0; i < 16; ++i) rows[i] = next[i];
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            if (width == 2) {
                Ops::store(reinterpret_cast<uint8_t *>(out + 8 * i), rows[i]);
                continue;
            }
            uint8_t words[GROUP];
            Ops::store(words, rows[i]);
            for (int j = 0; j < 4; ++j)
                __builtin_memcpy(out + (4 * i + j) * width + word, words + 16 * j, both ? 16 : 8);
        }
    }
}

// As list_places, but slots, and in another order: one of each of eight groups at a time, then again of those groups
// that have more.
template <class Ops>
int list_abreast(const uint64_t *candidates, int groups, uint16_t *places) {
    uint64_t left[MAX_EACH + ABREAST], starts[MAX_EACH + ABREAST];  // groups that have more, and their first places
    int count = 0, more = 0;
    const auto take = [&](const Words &lanes, const Words &start) __attribute__((always_inline)) {
        const Words below = lanes - 1, rest = lanes & below, lane = popcounts(~lanes & below);
        const uint32_t some = Ops::nonzero64(lanes), again = Ops::nonzero64(rest);
        const Words place = start + slot_of(lane);
        const Words next = Ops::compress64(again, rest), at = Ops::compress64(again, start);
        Ops::narrow64(Ops::compress64(some, place), places + count);
        __builtin_memcpy(left + more, &next, sizeof next);
        __builtin_memcpy(starts + more, &at, sizeof at);
        count += __builtin_popcount(some);
        more += __builtin_popcount(again);
    };
    Words lanes{}, start{};
    for (int i = 0; i < ABREAST; ++i) start[i] = static_cast<uint64_t>(i) * GROUP;
    int g = 0;
    for (; g + ABREAST <= groups; g += ABREAST, start += GROUP * ABREAST) {
        __builtin_memcpy(&lanes, candidates + g, sizeof lanes);
        take(lanes, start);
    }
    if (g < groups) {
        lanes = Words{};
        __builtin_memcpy(&lanes, candidates + g, (groups - g) * sizeof *candidates);
        take(lanes, start);
    }
    while (more) {
        const int all = more;
        const Words none{};
        __builtin_memcpy(left + all, &none, sizeof none);
        more = 0;
        for (int i = 0; i < all; i += ABREAST) {
            __builtin_memcpy(&lanes, left + i, sizeof lanes);
            __builtin_memcpy(&start, starts + i, sizeof start);
            take(lanes, start);
        }
    }
    return count;
}

// As exact_each, for eight keywords at a time.
template <class Ops>
int exact_abreast(const Shape &any_shape, const QueryBits &any_query, const Reach &reach, const uint64_t *words,
                  const uint64_t *candidates, int groups, uint16_t *__restrict places,
                  int64_t *__restrict deficits, int32_t *__restrict classes) {
    const int count = list_abreast<Ops>(candidates, groups, places);
    for (int i = 0; i < ABREAST; ++i) places[count + i] = 0;  // scored with the last ones, then left out
    int found = 0;
    unrolled(any_shape, any_query, [&](const Shape &shape, const QueryBits &query) __attribute__((always_inline)) {
        const Reach reaches = reach;
        int kept = 0;
        for (int i = 0; i < count; i += ABREAST) {
            const uint16_t *at = places + i;
            Words planes[MAX_PLANES][MAX_WORDS];
            const int width = shape.planes * shape.words;
            for (int word = 0; word < width; word += 2) {
                Words first, second;
                Ops::pairs64(words + word, width, at, first, second);
                planes[word / shape.words][word % shape.words] = first;
                if (word + 1 < width) planes[(word + 1) / shape.words][(word + 1) % shape.words] = second;
            }
            const Words deficit = deficit_of(shape, query, planes), cls = class_of(shape, planes);
            uint32_t lanes = Ops::signs64(
                reaches(__builtin_convertvector(deficit, Doubles), __builtin_convertvector(cls, Doubles)));
            if (i + ABREAST > count) lanes &= (1u << (count - i)) - 1;
            for (; lanes; lanes &= lanes - 1, ++kept) {
                const int lane = __builtin_ctz(lanes);
                places[kept] = static_cast<uint16_t>(at[lane] / GROUP * GROUP + lane_in(at[lane] % GROUP));
                deficits[kept] = static_cast<int64_t>(deficit[lane]);
                classes[kept] = static_cast<int32_t>(cls[lane]);
            }
        }
        found = kept;
    });
    return found;
}

template <class Ops>
constexpr Kernel kernel_512(const char *name) {
    using Filters = Simd<Trait512<Ops>>;
    using Products = Dot<Ops, Filters>;
    const auto expanded_bytes = [](const Shape &shape, Kind kind) {
        return kind == DOT ? Products::expanded_bytes(shape) : Filters::expanded_bytes(shape, kind);
    };
    const auto expand = [](const Shape &shape, Kind kind, Group group, int shift, uint8_t *out) {
        if (kind == DOT) Products::expand(shape, group, shift, out);
        else Filters::expand(shape, kind, group, shift, out);
    };
    constexpr double FEW = 5;
    return {name,        Filters::PLAN,      expanded_bytes,     expand,           Filters::filter, Filters::filter_raw,
            exact_lanes, transpose_512<Ops>, exact_abreast<Ops>, compact_512<Ops>, count_bits,      Products::filter, FEW};
}

}  // namespace
}  // namespace rbegir::scan

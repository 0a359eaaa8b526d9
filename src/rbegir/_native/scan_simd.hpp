// The filters, written once for every vector instruction set. A trait T supplies a vector of T::LANES bytes and
// its few operations; a group of 64 keywords is 64 / LANES such vectors a row.
//
//   BYTE    words = 1: the deficit in one saturating byte, all tables in registers. Planes are folded from the last
//           to the first by halving, s₀ + (s₁ + (s₂ + …)/2)/2, which keeps the sum in a byte where doubling would
//           not; each halving rounds up by at most one half, and limits are raised by as much.
//   WIDE    any shape: chunks of lookups are added in bytes, chunks in 16 bits (even and odd bytes apart).
//   COARSE  the same with chunks of two, hence larger entries: for queries of many bits.
//
// An expanded group is its index rows, 64 bytes each: for every plane the rows of each word, then the rows of
// left-out dimensions (not with BYTE), and in the end one row of limit indices.
#pragma once

#include <type_traits>

#include "scan_exact.hpp"

namespace rbegir::scan {
namespace {

// Operations that are the same few instructions everywhere. `Ops` supplies those that are one instruction.
template <class Ops>
struct Shared : Ops {
    using V = typename Ops::V;
    RBEGIR_INLINE static V shift_right8(V a, int by) {
        return Ops::bit_and(Ops::shift_right16(a, by), Ops::set8(255 >> by));
    }
    RBEGIR_INLINE static V low_bytes(V a) { return Ops::bit_and(a, Ops::set16(255)); }
    RBEGIR_INLINE static V high_bytes(V a) { return Ops::shift_right16(a, 8); }
    RBEGIR_INLINE static V halve8(V a) { return Ops::average8(a, Ops::zero()); }  // rounds up
};

template <class T>
struct Simd {
    using V = typename T::V;
    using Table = typename T::Table;
    static constexpr int HALVES = GROUP / T::LANES;
    static constexpr int LOOKUPS = T::LOOKUPS;
    static constexpr int TABLE = 1 << T::INDEX_BITS;
    static constexpr Plan PLAN{T::INDEX_BITS, LOOKUPS, T::LEFT, T::KEEPS_ROWS, {255 / T::CHUNK, 255 / T::CHUNK, 127}};

    // ---- reading rows: from an expanded group, or made on the fly from a raw one ----

    // Where the index vectors of one word of one plane come from.
    struct Expanded {
        const uint8_t *rows;
        RBEGIR_INLINE V operator[](int j) const { return T::load(rows + j * GROUP); }
    };
    using Raw = typename T::Rows;

    // ---- sums of N rows of indices: each table serves all of them while it is in a register ----

    // The tables of a query: held in registers where they all fit, else loaded when their turn comes.
    template <int COUNT>
    struct Held {
        Table tables[COUNT];
        RBEGIR_INLINE explicit Held(const uint8_t *from) {
#pragma GCC unroll 16
            for (int j = 0; j < COUNT; ++j) {
                Table table = T::table(from + j * TABLE);
                T::pin(table);
                tables[j] = table;
            }
        }
        RBEGIR_INLINE const Table &operator[](int j) const { return tables[j]; }
    };
    struct Loaded {
        const uint8_t *tables;
        RBEGIR_INLINE Table operator[](int j) const { return T::table(tables + j * TABLE); }
    };

    // The chunk of tables from `first` on, of COUNT in all.
    template <int CHUNK, int COUNT, int N, class Tables, class Source>
    RBEGIR_INLINE static void chunk_sums(const Tables &tables, int first, const Source (&sources)[N], V (&sums)[N]) {
#pragma GCC unroll 8
        for (int j = first; j < first + CHUNK; ++j) {
            if (j >= COUNT) break;
            const Table &table = tables[j];
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                const V entry = T::lookup(table, sources[i][j]);
                sums[i] = j == first ? entry : T::add8(sums[i], entry);
                if constexpr (N > 1) T::pin(sums[i]);  // GCC would store all entries and add them up later
            }
        }
    }

    // ---- 16-bit sums of one word ----

    struct Pair {  // 16-bit numbers of the even and of the odd lanes
        V even, odd;
    };
    RBEGIR_INLINE static void widen_add(Pair &total, V bytes) {
        total.even = T::add16(total.even, T::low_bytes(bytes));
        total.odd = T::add16(total.odd, T::high_bytes(bytes));
    }

    template <int CHUNK, int N, class Source>
    RBEGIR_INLINE static void wide_sums(Pair (&totals)[N], const uint8_t *tables, const Source (&sources)[N]) {
#pragma GCC unroll 8
        for (int first = 0; first < LOOKUPS; first += CHUNK) {
            V sums[N];
            chunk_sums<CHUNK, LOOKUPS>(Loaded{tables}, first, sources, sums);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) widen_add(totals[i], sums[i]);
        }
    }

    RBEGIR_INLINE static Pair doubled_plus(const Pair &acc, const Pair &plane) {
        return {T::adds16(T::adds16(acc.even, acc.even), plane.even),
                T::adds16(T::adds16(acc.odd, acc.odd), plane.odd)};
    }

    // ---- the class of each keyword, shifted to a bin ----

    RBEGIR_INLINE static V different_bits(const uint8_t *a, const uint8_t *b) {  // of one word: 0 … 64
        V count = T::zero();
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) {
            const V different = T::bit_xor(T::load(a + r * GROUP), T::load(b + r * GROUP));
            count = T::add8(count, T::popcount8(different));
        }
        return count;
    }

    RBEGIR_INLINE static V class_bins(const Shape &shape, Group group, int half, int shift, int bins) {
        if (shape.planes == 1) return T::zero();
        const uint8_t *data = group.data + half * T::LANES;
        if (shape.planes == 2 && shape.words == 1)
            return T::min8(T::shift_right8(different_bits(data, data + group.stride), shift), T::set8(bins - 1));
        Pair cls{T::zero(), T::zero()};
        for (int i = 0; i < shape.planes; ++i)
            for (int j = i + 1; j < shape.planes; ++j)
                for (int w = 0; w < shape.words; ++w) {
                    const size_t word = static_cast<size_t>(w) * 8 * GROUP;
                    const V count = different_bits(data + i * group.stride + word, data + j * group.stride + word);
                    const int weight = 2 * shape.planes - 3 - i - j;
                    cls.even = T::add16(cls.even, T::shift_left16(T::low_bytes(count), weight));
                    cls.odd = T::add16(cls.odd, T::shift_left16(T::high_bytes(count), weight));
                }
        const V last = T::set16(bins - 1);
        cls.even = T::min16(T::shift_right16(cls.even, shift), last);
        cls.odd = T::min16(T::shift_right16(cls.odd, shift), last);
        return T::bit_or(cls.even, T::shift_left16(cls.odd, 8));
    }

    // ---- BYTE: one word ----

    template <int P>
    static constexpr bool LEFT_ROW = T::LEFT && !PLAN.left_in_limit(BYTE, P);  // the left-out dimension has a row
    template <int P>
    static constexpr int BYTE_TABLES = LOOKUPS + LEFT_ROW<P>;  // index rows of a plane, then there is a limit row

    // The left-out dimension is the highest bit of the last row of a word: here as an index of its own.
    RBEGIR_INLINE static V left_bit(const uint8_t *rows) {
        return T::bit_and(T::shift_right16(T::load(rows + 7 * GROUP), 7), T::set8(1));
    }
    // And here as a bit of the limit index, above the bin.
    template <int P>
    RBEGIR_INLINE static V left_in_limit(const uint8_t *rows, int plane) {
        const int place = T::INDEX_BITS - P + plane;
        return T::bit_and(T::shift_right16(T::load(rows + 7 * GROUP), 7 - place), T::set8(1 << place));
    }

    template <int P>
    using ByteTables = std::conditional_t<T::TILE == 1, Held<BYTE_TABLES<P>>, Loaded>;

    // Groups whose sums are computed together: as many as fill a tile, one where a tile is less than a group.
    template <int P>
    static constexpr int BYTE_GROUPS = T::TILE > HALVES * P ? T::TILE / (HALVES * P) : 1;

    // The saturating sums of N planes.
    template <int P, int N, class Source>
    RBEGIR_INLINE static void byte_sums(const ByteTables<P> &tables, const Source (&sources)[N], V (&totals)[N]) {
        constexpr int COUNT = BYTE_TABLES<P>;
#pragma GCC unroll 8
        for (int first = 0; first < COUNT; first += T::CHUNK) {
            V sums[N];
            chunk_sums<T::CHUNK, COUNT>(tables, first, sources, sums);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) totals[i] = first ? T::adds8(totals[i], sums[i]) : sums[i];
        }
    }

    // Index vectors of a plane made from its rows, the left-out one included.
    template <int P>
    struct RawByte {
        Raw raw;
        V left;
        RBEGIR_INLINE RawByte() = default;
        RBEGIR_INLINE explicit RawByte(const uint8_t *rows) : raw(rows) {
            if constexpr (LEFT_ROW<P>) left = left_bit(rows);
        }
        RBEGIR_INLINE V operator[](int j) const { return j < LOOKUPS ? raw[j] : left; }
    };

    // The indices of limits of half a group.
    template <int P>
    RBEGIR_INLINE static V limit_index(Group group, int half, int shift) {
        V index = class_bins(Shape{1, P}, group, half, shift, PLAN.limit_bins(BYTE, P));
        if constexpr (PLAN.left_in_limit(BYTE, P))
            for (int p = 0; p < P; ++p)
                index = T::bit_or(index, left_in_limit<P>(group.data + p * group.stride + half * T::LANES, p));
        return index;
    }

    template <int P>
    static void byte_expand(Group group, int shift, uint8_t *out) {
        for (int half = 0; half < HALVES; ++half, out += T::LANES) {
            T::store(out + P * BYTE_TABLES<P> * GROUP, limit_index<P>(group, half, shift));
            for (int p = 0; p < P; ++p) {
                const RawByte<P> raw(group.data + p * group.stride + half * T::LANES);
                for (int j = 0; j < BYTE_TABLES<P>; ++j) T::store(out + (p * BYTE_TABLES<P> + j) * GROUP, raw[j]);
            }
        }
    }

    // The keywords of N groups that pass. source(n, plane, half) gives the index vectors of a plane, index(n, half) the
    // indices of limits. A tile takes all planes and halves; without one, plane follows plane and half follows half.
    template <int P, int N, class Source, class Index>
    RBEGIR_INLINE static void byte_lanes(const ByteTables<P> &tables, const Table &limits, const Source &source,
                                         const Index &index, uint64_t (&lanes)[N]) {
        constexpr int PLANES = T::TILE > 1 ? P : 1, SIDES = T::TILE > 1 ? HALVES : 1, COUNT = N * PLANES * SIDES;
        for (int n = 0; n < N; ++n) lanes[n] = 0;
#pragma GCC unroll 2
        for (int half = 0; half < HALVES; half += SIDES) {
            V deficits[N * SIDES];
#pragma GCC unroll 4
            for (int last = P - 1; last >= 0; last -= PLANES) {
                decltype(source(0, 0, 0)) sources[COUNT];
                V sums[COUNT];
#pragma GCC unroll 8
                for (int i = 0; i < COUNT; ++i)
                    sources[i] = source(i / SIDES / PLANES, last - i / SIDES % PLANES, half + i % SIDES);
                byte_sums<P>(tables, sources, sums);
#pragma GCC unroll 8
                for (int i = 0; i < COUNT; ++i) {
                    V &deficit = deficits[i / SIDES / PLANES * SIDES + i % SIDES];
                    const bool first = last - i / SIDES % PLANES == P - 1;
                    deficit = first ? sums[i] : T::adds8(T::halve8(deficit), sums[i]);
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < N * SIDES; ++i) {
                const int n = i / SIDES, side = half + i % SIDES;
                lanes[n] |= T::at_most8(deficits[i], T::lookup(limits, index(n, side))) << (side * T::LANES);
            }
        }
    }

    template <int P>
    static int byte_filter(const Lut &lut, const uint8_t *expanded, int groups, const uint64_t *candidates, Event *out) {
        constexpr int ROWS = BYTE_TABLES<P>, STRIDE = (P * ROWS + 1) * GROUP;
        const ByteTables<P> tables{lut.tables};
        const Table limits = T::table(lut.limit_low);
        int events = 0, g = 0;
        const auto filter = [&]<int N>() __attribute__((always_inline)) {
            for (; g + N <= groups; g += N) {
                const uint8_t *first = expanded + g * STRIDE;
                const auto source = [=](int n, int plane, int half) __attribute__((always_inline)) {
                    return Expanded{first + n * STRIDE + plane * ROWS * GROUP + half * T::LANES};
                };
                const auto index = [=](int n, int half) __attribute__((always_inline)) {
                    return T::load(first + n * STRIDE + P * ROWS * GROUP + half * T::LANES);
                };
                uint64_t lanes[N];
                byte_lanes<P>(tables, limits, source, index, lanes);
#pragma GCC unroll 4
                for (int n = 0; n < N; ++n) {
                    lanes[n] &= candidates[g + n];
                    if (__builtin_expect(lanes[n] != 0, 0)) out[events++] = {static_cast<uint32_t>(g + n), lanes[n]};
                }
            }
        };
        filter.template operator()<BYTE_GROUPS<P>>();
        if constexpr (BYTE_GROUPS<P> > 1) filter.template operator()<1>();
        return events;
    }

    template <int P>
    static int byte_filter_raw(const Lut &lut, Group first, int groups, const uint64_t *candidates, Event *out,
                               uint8_t *rows) {
        const ByteTables<P> tables{lut.tables};
        const Table limits = T::table(lut.limit_low);
        const auto lanes_of = [&](Group group) __attribute__((always_inline)) {
            V indices[HALVES];
#pragma GCC unroll 4
            for (int half = 0; half < HALVES; ++half) indices[half] = limit_index<P>(group, half, lut.bin_shift);
            // Rows are in L1 now. Holding them in registers until they are looked up would spill the tables.
            asm volatile("" : "+r"(group.data));
            const auto source = [=](int, int plane, int half) __attribute__((always_inline)) {
                return RawByte<P>(group.data + plane * group.stride + half * T::LANES);
            };
            uint64_t lanes[1];
            byte_lanes<P>(tables, limits, source, [&](int, int half) { return indices[half]; }, lanes);
            return lanes[0];
        };
        return filter_where_they_lie(Shape{1, P}, first, groups, candidates, out, rows, lanes_of);
    }

    // ---- WIDE and COARSE: any shape ----

    static size_t wide_plane_rows(const Shape &shape) { return static_cast<size_t>(PLAN.tables(shape.words)); }

    // Adds the left-out bit of word w to its row; row w / INDEX_BITS, bit w % INDEX_BITS.
    RBEGIR_INLINE static V with_left_bit(V row, const uint8_t *rows, int w) {
        return T::bit_or(row, T::shift_left16(left_bit(rows), w % T::INDEX_BITS));
    }

    static void wide_expand(const Shape &shape, Group group, int shift, uint8_t *out) {
        const size_t plane_rows = wide_plane_rows(shape);
        for (int half = 0; half < HALVES; ++half) {
            uint8_t *to = out + half * T::LANES;
            for (int p = 0; p < shape.planes; ++p, to += plane_rows * GROUP) {
                V left = T::zero();
                for (int w = 0; w < shape.words; ++w) {
                    const uint8_t *rows = group.data + p * group.stride + w * 8 * GROUP + half * T::LANES;
                    const Raw raw(rows);
                    for (int j = 0; j < LOOKUPS; ++j) T::store(to + (w * LOOKUPS + j) * GROUP, raw[j]);
                    if constexpr (T::LEFT) {
                        left = with_left_bit(w % T::INDEX_BITS ? left : T::zero(), rows, w);
                        T::store(to + (shape.words * LOOKUPS + w / T::INDEX_BITS) * GROUP, left);
                    }
                }
            }
            T::store(to, class_bins(shape, group, half, shift, TABLE));
        }
    }

    RBEGIR_INLINE static uint64_t wide_at_most(const Lut &lut, const Pair &deficit, V bins) {
        const V low = T::lookup(T::table(lut.limit_low), bins), high = T::lookup(T::table(lut.limit_high), bins);
        const V even = T::bit_or(T::low_bytes(low), T::shift_left16(high, 8));
        const V odd = T::bit_or(T::high_bytes(low), T::shift_left16(T::high_bytes(high), 8));
        return T::at_most16(deficit.even, deficit.odd, even, odd);
    }

    // Adds the next PLANES planes of SIDES halves, whose index rows start at `rows`, to the deficits.
    template <int CHUNK, int PLANES, int SIDES>
    RBEGIR_INLINE static void wide_planes(const Shape &shape, const Lut &lut, const uint8_t *rows,
                                          Pair (&deficits)[SIDES]) {
        constexpr int N = PLANES * SIDES;
        const int plane_rows = static_cast<int>(wide_plane_rows(shape));
        const uint8_t *starts[N];
        Pair sums[N];
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) {
            starts[i] = rows + i / SIDES * plane_rows * GROUP + i % SIDES * T::LANES;
            sums[i] = {T::zero(), T::zero()};
        }
        for (int w = 0; w < shape.words; ++w) {
            Expanded sources[N];
#pragma GCC unroll 4
            for (int i = 0; i < N; ++i) sources[i] = {starts[i] + w * LOOKUPS * GROUP};
            wide_sums<CHUNK>(sums, lut.tables + w * LOOKUPS * TABLE, sources);
        }
        for (int j = shape.words * LOOKUPS; j < plane_rows; ++j)
#pragma GCC unroll 4
            for (int i = 0; i < N; ++i)
                widen_add(sums[i], T::lookup(T::table(lut.tables + j * TABLE), T::load(starts[i] + j * GROUP)));
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) deficits[i % SIDES] = doubled_plus(deficits[i % SIDES], sums[i]);
    }

    template <int CHUNK>
    static int wide_filter(const Shape &shape, const Lut &lut, const uint8_t *expanded, int groups,
                           const uint64_t *candidates, Event *out) {
        constexpr int SIDES = T::TILE > 1 ? HALVES : 1;
        const size_t plane_bytes = wide_plane_rows(shape) * GROUP;
        int events = 0;
        for (int g = 0; g < groups; ++g, expanded += plane_bytes * shape.planes + GROUP) {
            uint64_t lanes = 0;
            for (int half = 0; half < HALVES; half += SIDES) {
                const uint8_t *rows = expanded + half * T::LANES;
                Pair deficits[SIDES]{};
                int p = 0;
                if constexpr (T::TILE > 1)  // 16-bit sums of two planes take as many registers as a tile of bytes
                    for (; p + 2 <= shape.planes; p += 2, rows += 2 * plane_bytes)
                        wide_planes<CHUNK, 2>(shape, lut, rows, deficits);
                for (; p < shape.planes; ++p, rows += plane_bytes) wide_planes<CHUNK, 1>(shape, lut, rows, deficits);
#pragma GCC unroll 2
                for (int side = 0; side < SIDES; ++side) {
                    const V bins = T::load(rows + side * T::LANES);
                    lanes |= wide_at_most(lut, deficits[side], bins) << ((half + side) * T::LANES);
                }
            }
            lanes &= candidates[g];
            if (lanes) out[events++] = {static_cast<uint32_t>(g), lanes};
        }
        return events;
    }

    template <int CHUNK>
    static int wide_filter_raw(const Shape &shape, const Lut &lut, Group first, int groups,
                               const uint64_t *candidates, Event *out, uint8_t *rows) {
        const auto lanes_of = [&](Group group) __attribute__((always_inline)) {
            uint64_t lanes = 0;
            for (int half = 0; half < HALVES; ++half) {
                Pair deficit{T::zero(), T::zero()};
                for (int p = 0; p < shape.planes; ++p) {
                    Pair sum[1] = {{T::zero(), T::zero()}};
                    V left = T::zero();
                    for (int w = 0; w < shape.words; ++w) {
                        const uint8_t *word = group.data + p * group.stride + w * 8 * GROUP + half * T::LANES;
                        const Raw raw[1] = {Raw(word)};
                        wide_sums<CHUNK>(sum, lut.tables + w * LOOKUPS * TABLE, raw);
                        if constexpr (T::LEFT) {
                            left = with_left_bit(left, word, w);
                            if (w == shape.words - 1 || w % T::INDEX_BITS == T::INDEX_BITS - 1) {
                                const int j = shape.words * LOOKUPS + w / T::INDEX_BITS;
                                widen_add(sum[0], T::lookup(T::table(lut.tables + j * TABLE), left));
                                left = T::zero();
                            }
                        }
                    }
                    deficit = p ? doubled_plus(deficit, sum[0]) : sum[0];
                }
                const V bins = class_bins(shape, group, half, lut.bin_shift, TABLE);
                lanes |= wide_at_most(lut, deficit, bins) << (half * T::LANES);
            }
            return lanes;
        };
        return filter_where_they_lie(shape, first, groups, candidates, out, rows, lanes_of);
    }

    // ---- the interface: one dispatch on the shape a call ----

    // Calls call.template operator()<P>() for the number of planes.
    template <class Call>
    RBEGIR_INLINE static auto with_planes(const Shape &shape, const Call &call) {
        switch (shape.planes) {
            case 1: return call.template operator()<1>();
            case 2: return call.template operator()<2>();
            case 3: return call.template operator()<3>();
            default: return call.template operator()<4>();
        }
    }

    static size_t expanded_bytes(const Shape &shape, Kind kind) {
        if (kind != BYTE) return GROUP * (wide_plane_rows(shape) * shape.planes + 1);
        return GROUP * with_planes(shape, [&]<int P>() -> size_t { return P * BYTE_TABLES<P> + 1; });
    }

    static void expand(const Shape &shape, Kind kind, Group group, int shift, uint8_t *out) {
        if (kind != BYTE) return wide_expand(shape, group, shift, out);
        with_planes(shape, [&]<int P>() { byte_expand<P>(group, shift, out); });
    }

    static int filter(const Shape &shape, Kind kind, const Lut &lut, const uint8_t *expanded, int groups,
                      const uint64_t *candidates, Event *out) {
        if (kind == WIDE) return wide_filter<T::CHUNK>(shape, lut, expanded, groups, candidates, out);
        if (kind == COARSE) return wide_filter<2>(shape, lut, expanded, groups, candidates, out);
        return with_planes(shape, [&]<int P>() { return byte_filter<P>(lut, expanded, groups, candidates, out); });
    }

    static int filter_raw(const Shape &shape, Kind kind, const Lut &lut, Group first, int groups,
                          const uint64_t *candidates, Event *out, uint8_t *rows) {
        if (kind == WIDE) return wide_filter_raw<T::CHUNK>(shape, lut, first, groups, candidates, out, rows);
        if (kind == COARSE) return wide_filter_raw<2>(shape, lut, first, groups, candidates, out, rows);
        return with_planes(shape, [&]<int P>() {
            return byte_filter_raw<P>(lut, first, groups, candidates, out, rows);
        });
    }
};

}  // namespace
}  // namespace rbegir::scan

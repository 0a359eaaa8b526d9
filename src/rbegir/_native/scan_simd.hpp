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

#include "scan_exact.hpp"

namespace rbegir::scan {
namespace {

// The order in which groups are read from memory: a few places in turn. The hardware prefetches each stream apart,
// and one stream alone does not use all of the bandwidth of a core.
class Turn {
  public:
    RBEGIR_INLINE explicit Turn(int groups)
        : part_(groups < ENOUGH ? 0 : groups / STREAMS), left_(groups - part_ * (STREAMS - 1)) {}
    RBEGIR_INLINE bool more() const { return step_ < left_; }
    RBEGIR_INLINE int group() const {  // in the end those that do not divide by the number of streams
        return step_ < part_ ? stream_ * part_ + step_ : part_ * STREAMS + step_ - part_;
    }
    RBEGIR_INLINE void next() {
        if (step_ < part_ && ++stream_ < STREAMS) return;
        stream_ = 0;
        ++step_;
    }

  private:
    static constexpr int STREAMS = 4, ENOUGH = 512;  // groups; shorter runs are read in order
    int part_, left_, step_ = 0, stream_ = 0;
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
    struct Raw {
        V index[LOOKUPS];
        RBEGIR_INLINE explicit Raw(const uint8_t *rows) { T::indices(rows, index); }
        RBEGIR_INLINE V operator[](int j) const { return index[j]; }
    };

    // ---- 16-bit sums of one word ----

    struct Pair {  // 16-bit numbers of the even and of the odd lanes
        V even, odd;
    };
    RBEGIR_INLINE static void widen_add(Pair &total, V bytes) {
        total.even = T::add16(total.even, T::low_bytes(bytes));
        total.odd = T::add16(total.odd, T::high_bytes(bytes));
    }

    template <int CHUNK, class Source>
    RBEGIR_INLINE static void wide_sum(Pair &total, const uint8_t *tables, const Source &source) {
#pragma GCC unroll 8
        for (int first = 0; first < LOOKUPS; first += CHUNK) {
            V sum = T::lookup(T::table(tables + first * TABLE), source[first]);
#pragma GCC unroll 8
            for (int j = first + 1; j < first + CHUNK; ++j)
                if (j < LOOKUPS) sum = T::add8(sum, T::lookup(T::table(tables + j * TABLE), source[j]));
            widen_add(total, sum);
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

    // The left-out dimension as a bit of the limit index, above the bin.
    template <int P>
    RBEGIR_INLINE static V left_in_limit(V last_index, int plane) {
        const int place = T::INDEX_BITS - P + plane;
        return T::bit_and(T::shift_right16(last_index, 7 - place), T::set8(1 << place));
    }
    RBEGIR_INLINE static V left_row(V last_index) {
        return T::bit_and(T::shift_right16(last_index, 7), T::set8(1));
    }

    // The sum of one plane. `source` gives its index vectors.
    template <int P, class Source>
    RBEGIR_INLINE static V byte_sum(const Table (&tables)[BYTE_TABLES<P>], const Source &source) {
        constexpr int COUNT = BYTE_TABLES<P>;
        V total = T::zero();
#pragma GCC unroll 8
        for (int first = 0; first < COUNT; first += T::CHUNK) {
            V sum = T::lookup(tables[first], source[first]);
#pragma GCC unroll 8
            for (int j = first + 1; j < first + T::CHUNK; ++j)
                if (j < COUNT) sum = T::add8(sum, T::lookup(tables[j], source[j]));
            total = first ? T::adds8(total, sum) : sum;
        }
        return total;
    }

    template <int P>
    RBEGIR_INLINE static void load_tables(const uint8_t *from, Table (&tables)[BYTE_TABLES<P>]) {
#pragma GCC unroll 16
        for (int j = 0; j < BYTE_TABLES<P>; ++j) {
            tables[j] = T::table(from + j * TABLE);
            T::pin(tables[j]);
        }
    }

    // Index vectors of a plane made from its rows, the left-out one included.
    template <int P>
    struct RawByte {
        V index[LOOKUPS + 1];
        RBEGIR_INLINE explicit RawByte(const uint8_t *rows) {
            T::indices(rows, index);
            index[LOOKUPS] = LEFT_ROW<P> ? left_row(index[LOOKUPS - 1]) : T::zero();
        }
        RBEGIR_INLINE V operator[](int j) const { return index[j]; }
    };

    template <int P>
    static void byte_expand(Group group, int shift, uint8_t *out) {
        for (int half = 0; half < HALVES; ++half, out += T::LANES) {
            V limit = class_bins(Shape{1, P}, group, half, shift, PLAN.limit_bins(BYTE, P));
            for (int p = 0; p < P; ++p) {
                const RawByte<P> raw(group.data + p * group.stride + half * T::LANES);
                for (int j = 0; j < BYTE_TABLES<P>; ++j) T::store(out + (p * BYTE_TABLES<P> + j) * GROUP, raw[j]);
                if constexpr (PLAN.left_in_limit(BYTE, P))
                    limit = T::bit_or(limit, left_in_limit<P>(raw[LOOKUPS - 1], p));
            }
            T::store(out + P * BYTE_TABLES<P> * GROUP, limit);
        }
    }

    template <int P>
    static int byte_filter(const Lut &lut, const uint8_t *expanded, int groups, Event *out) {
        Table tables[BYTE_TABLES<P>];
        load_tables<P>(lut.tables, tables);
        const Table limits = T::table(lut.limit_low);
        int events = 0;
        for (int g = 0; g < groups; ++g) {
            uint64_t lanes = 0;
#pragma GCC unroll 2
            for (int half = 0; half < HALVES; ++half) {
                const uint8_t *rows = expanded + g * (P * BYTE_TABLES<P> + 1) * GROUP + half * T::LANES;
                V sum = T::zero();
#pragma GCC unroll 4
                for (int p = P - 1; p >= 0; --p) {
                    const V plane = byte_sum<P>(tables, Expanded{rows + p * BYTE_TABLES<P> * GROUP});
                    sum = p < P - 1 ? T::adds8(T::halve8(sum), plane) : plane;
                }
                const V limit = T::lookup(limits, T::load(rows + P * BYTE_TABLES<P> * GROUP));
                lanes |= T::at_most8(sum, limit) << (half * T::LANES);
            }
            if (__builtin_expect(lanes != 0, 0)) out[events++] = {static_cast<uint32_t>(g), lanes};
        }
        return events;
    }

    template <int P>
    static int byte_filter_raw(const Lut &lut, Group first, int groups, Event *out, uint8_t *rows) {
        constexpr Shape ONE{1, P};
        Table tables[BYTE_TABLES<P>];
        load_tables<P>(lut.tables, tables);
        const Table limits = T::table(lut.limit_low);
        int events = 0;
        for (Turn turn(groups); turn.more(); turn.next()) {
            const int g = turn.group();
            Group group{first.data + static_cast<size_t>(g) * ONE.plane_bytes(), first.stride};
            uint64_t lanes = 0;
#pragma GCC unroll 2
            for (int half = 0; half < HALVES; ++half) {
                V limit = class_bins(ONE, group, half, lut.bin_shift, PLAN.limit_bins(BYTE, P));
                // Rows are in L1 now. Holding them in registers until they are looked up would spill the tables.
                asm volatile("" : "+r"(group.data));
                V sum = T::zero();
#pragma GCC unroll 4
                for (int p = P - 1; p >= 0; --p) {
                    const RawByte<P> raw(group.data + p * group.stride + half * T::LANES);
                    const V plane = byte_sum<P>(tables, raw);
                    sum = p < P - 1 ? T::adds8(T::halve8(sum), plane) : plane;
                    if constexpr (PLAN.left_in_limit(BYTE, P))
                        limit = T::bit_or(limit, left_in_limit<P>(raw[LOOKUPS - 1], p));
                }
                lanes |= T::at_most8(sum, T::lookup(limits, limit)) << (half * T::LANES);
            }
            if (__builtin_expect(lanes != 0, 0)) {
                out[events++] = {static_cast<uint32_t>(g), lanes};
                for (int p = 0; p < P; ++p, rows += 8 * GROUP)
                    __builtin_memcpy(rows, group.data + p * group.stride, 8 * GROUP);
            }
        }
        return events;
    }

    // ---- WIDE and COARSE: any shape ----

    static size_t wide_plane_rows(const Shape &shape) { return static_cast<size_t>(PLAN.tables(shape.words)); }

    // Adds the left-out bit of word w to its row; row w / INDEX_BITS, bit w % INDEX_BITS.
    RBEGIR_INLINE static V with_left_bit(V row, V last_index, int w) {
        const V bit = T::bit_and(T::shift_right16(last_index, 7), T::set8(1));
        return T::bit_or(row, T::shift_left16(bit, w % T::INDEX_BITS));
    }

    static void wide_expand(const Shape &shape, Group group, int shift, uint8_t *out) {
        const size_t plane_rows = wide_plane_rows(shape);
        for (int half = 0; half < HALVES; ++half) {
            uint8_t *to = out + half * T::LANES;
            for (int p = 0; p < shape.planes; ++p, to += plane_rows * GROUP) {
                V left = T::zero();
                for (int w = 0; w < shape.words; ++w) {
                    const Raw raw(group.data + p * group.stride + w * 8 * GROUP + half * T::LANES);
                    for (int j = 0; j < LOOKUPS; ++j) T::store(to + (w * LOOKUPS + j) * GROUP, raw[j]);
                    if constexpr (T::LEFT) {
                        left = with_left_bit(w % T::INDEX_BITS ? left : T::zero(), raw[LOOKUPS - 1], w);
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

    template <int CHUNK>
    static int wide_filter(const Shape &shape, const Lut &lut, const uint8_t *expanded, int groups, Event *out) {
        const size_t plane_rows = wide_plane_rows(shape);
        int events = 0;
        for (int g = 0; g < groups; ++g, expanded += (plane_rows * shape.planes + 1) * GROUP) {
            uint64_t lanes = 0;
            for (int half = 0; half < HALVES; ++half) {
                const uint8_t *rows = expanded + half * T::LANES;
                Pair deficit{T::zero(), T::zero()};
                for (int p = 0; p < shape.planes; ++p, rows += plane_rows * GROUP) {
                    Pair sum{T::zero(), T::zero()};
                    for (int w = 0; w < shape.words; ++w)
                        wide_sum<CHUNK>(sum, lut.tables + w * LOOKUPS * TABLE, Expanded{rows + w * LOOKUPS * GROUP});
                    for (int j = shape.words * LOOKUPS; j < static_cast<int>(plane_rows); ++j)
                        widen_add(sum, T::lookup(T::table(lut.tables + j * TABLE), T::load(rows + j * GROUP)));
                    deficit = p ? doubled_plus(deficit, sum) : sum;
                }
                lanes |= wide_at_most(lut, deficit, T::load(rows)) << (half * T::LANES);
            }
            if (lanes) out[events++] = {static_cast<uint32_t>(g), lanes};
        }
        return events;
    }

    template <int CHUNK>
    static int wide_filter_raw(const Shape &shape, const Lut &lut, Group first, int groups, Event *out,
                               uint8_t *rows) {
        int events = 0;
        for (Turn turn(groups); turn.more(); turn.next()) {
            const int g = turn.group();
            const Group group{first.data + static_cast<size_t>(g) * shape.plane_bytes(), first.stride};
            uint64_t lanes = 0;
            for (int half = 0; half < HALVES; ++half) {
                Pair deficit{T::zero(), T::zero()};
                for (int p = 0; p < shape.planes; ++p) {
                    Pair sum{T::zero(), T::zero()};
                    V left = T::zero();
                    for (int w = 0; w < shape.words; ++w) {
                        const Raw raw(group.data + p * group.stride + w * 8 * GROUP + half * T::LANES);
                        wide_sum<CHUNK>(sum, lut.tables + w * LOOKUPS * TABLE, raw);
                        if constexpr (T::LEFT) {
                            left = with_left_bit(left, raw[LOOKUPS - 1], w);
                            if (w == shape.words - 1 || w % T::INDEX_BITS == T::INDEX_BITS - 1) {
                                const int j = shape.words * LOOKUPS + w / T::INDEX_BITS;
                                widen_add(sum, T::lookup(T::table(lut.tables + j * TABLE), left));
                                left = T::zero();
                            }
                        }
                    }
                    deficit = p ? doubled_plus(deficit, sum) : sum;
                }
                const V bins = class_bins(shape, group, half, lut.bin_shift, TABLE);
                lanes |= wide_at_most(lut, deficit, bins) << (half * T::LANES);
            }
            if (lanes) {
                out[events++] = {static_cast<uint32_t>(g), lanes};
                rows = copy_rows(shape, group, rows);
            }
        }
        return events;
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

    static int filter(const Shape &shape, Kind kind, const Lut &lut, const uint8_t *expanded, int groups, Event *out) {
        if (kind == WIDE) return wide_filter<T::CHUNK>(shape, lut, expanded, groups, out);
        if (kind == COARSE) return wide_filter<2>(shape, lut, expanded, groups, out);
        return with_planes(shape, [&]<int P>() { return byte_filter<P>(lut, expanded, groups, out); });
    }

    static int filter_raw(const Shape &shape, Kind kind, const Lut &lut, Group first, int groups, Event *out,
                          uint8_t *rows) {
        if (kind == WIDE) return wide_filter_raw<T::CHUNK>(shape, lut, first, groups, out, rows);
        if (kind == COARSE) return wide_filter_raw<2>(shape, lut, first, groups, out, rows);
        return with_planes(shape, [&]<int P>() { return byte_filter_raw<P>(lut, first, groups, out, rows); });
    }
};

}  // namespace
}  // namespace rbegir::scan

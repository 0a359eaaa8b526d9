// DOT: many queries against the same groups by multiplication, for AVX-512 with VNNI and its emulation.
//
// The filters of scan_simd.hpp look up tables of each query: their work grows with the planes, and they round queries
// of many bits coarsely. Here the codes of a group are unpacked once, to bytes c = 0 … top, and vpdpbusd adds four
// products v'·c of 16 keywords at a time, whatever the planes. That pays for enough queries (Searcher::choose_dot).
//
// A query is scaled by h, 1 or 2, to bytes: v'_d = v_d / h rounded towards zero, |v'_d| ≤ 127. A plane bit that
// disagrees with the sign of v_d costs |v_d| times its weight; write x_d = 0 … top for the sum of those weights, that is
// top − c_d where v_d > 0 and c_d where v_d < 0. Then, with h·|v'_d| ≤ |v_d| and all terms non-negative,
//
//     deficit / h = Σ|v_d|·x_d / h  ≥  Σ|v'_d|·x_d = top·Σ max(v'_d, 0) − Σ v'_d·c_d
//
// so deficit ≤ D implies Σ v'_d·c_d ≥ top·Σ max(v'_d, 0) − ⌊D / h⌋. The sums are whole and at most 1024 · 127 · 15
// < 2²¹, so nothing is rounded or saturates in 32 bits. With h = 1 the condition is also sufficient but for the bins.
//
// An expanded group is [n / 4][64] dwords, four dimensions of a keyword each, then a row of the bins of the keywords.
#pragma once

#include "scan_simd.hpp"

namespace rbegir::scan {
namespace {

// `Tables` are the filters of the same vectors.
template <class Ops, class Tables>
struct Dot {
    using V = typename Ops::V;
    static constexpr int ACROSS = 16, PARTS = GROUP / ACROSS;  // keywords of a vector, vectors of a group
    static constexpr int TILE = 4;  // queries at a time: with four vectors of sums each, of 32 registers

    static size_t expanded_bytes(const Shape &shape) { return GROUP * (static_cast<size_t>(shape.n()) + 1); }

    // The first bits for fields8, which bring the four dimensions of one half of a row to bit `place` of a byte each.
    // Keywords are dwords, of which only the low byte is set, two in a 64-bit number.
    RBEGIR_INLINE static V first_bits(int half, int place) {
        uint8_t first[GROUP];
        for (int i = 0; i < GROUP; ++i) {
            const int bit = i / 4 % 2 * 32 + 4 * half + i % 4;
            first[i] = static_cast<uint8_t>((bit - place) & 63);
        }
        return Ops::load(first);
    }

    template <int P>
    static void expand_planes(const Shape &shape, Group group, uint8_t *out) {
        V first[P][2];
        for (int p = 0; p < P; ++p)
            for (int half = 0; half < 2; ++half) first[p][half] = first_bits(half, P - 1 - p);
        for (size_t r = 0; r < shape.rows(); ++r, out += 8 * GROUP)
            for (int part = 0; part < PARTS; ++part) {
                V codes[2] = {Ops::zero(), Ops::zero()};
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) {
                    const V bytes = Ops::widen8(group.data + p * group.stride + r * GROUP + part * ACROSS);
                    const V place = Ops::set8(1 << (P - 1 - p));
                    for (int half = 0; half < 2; ++half)
                        codes[half] = Ops::select(place, Ops::fields8(first[p][half], bytes), codes[half]);
                }
                for (int half = 0; half < 2; ++half) Ops::store(out + (half * PARTS + part) * 64, codes[half]);
            }
    }

    static void expand(const Shape &shape, Group group, int shift, uint8_t *out) {
        Tables::with_planes(shape, [&]<int P>() { expand_planes<P>(shape, group, out); });
        Ops::store(out + GROUP * shape.n(), Tables::class_bins(shape, group, 0, shift, DOT_BINS));
    }

    // Groups in the outer loop: the codes of one stay in L1, and queries are much smaller.
    static void filter(const Shape &shape, const Lut *luts, int queries, const uint8_t *expanded, int groups,
                       uint64_t *out) {
        for (int g = 0; g < groups; ++g, expanded += expanded_bytes(shape)) {
            V bins[PARTS];
            for (int i = 0; i < PARTS; ++i) bins[i] = Ops::widen8(expanded + GROUP * shape.n() + i * ACROSS);
            for (int q = 0; q < queries; q += TILE) {
                const Lut *tile[TILE];  // the last query again where there are no more
                for (int t = 0; t < TILE; ++t) tile[t] = luts + (q + t < queries ? q + t : queries - 1);
                V sums[TILE][PARTS];
                multiply(shape, tile, expanded, sums);
                for (int t = 0; t < TILE && q + t < queries; ++t) {
                    const V low = Ops::load(tile[t]->limit_low), high = Ops::load(tile[t]->limit_low + 64);
                    uint64_t lanes = 0;
                    for (int i = 0; i < PARTS; ++i)
                        lanes |= Ops::at_least32(sums[t][i], Ops::permute32(low, bins[i], high)) << (i * ACROSS);
                    out[static_cast<size_t>(q + t) * groups + g] = lanes;
                }
            }
        }
    }

    RBEGIR_INLINE static void multiply(const Shape &shape, const Lut *const (&tile)[TILE], const uint8_t *codes,
                                       V (&sums)[TILE][PARTS]) {
        const uint8_t *values[TILE];
#pragma GCC unroll 4
        for (int t = 0; t < TILE; ++t) {
            values[t] = tile[t]->tables;
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; ++i) sums[t][i] = Ops::zero();
        }
        for (int d = 0; d < shape.n(); d += 4, codes += 4 * GROUP) {
            V code[PARTS];
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; ++i) code[i] = Ops::load(codes + i * 64);
#pragma GCC unroll 4
            for (int t = 0; t < TILE; ++t) {
                const V value = Ops::repeat4(values[t] + d);
#pragma GCC unroll 4
                for (int i = 0; i < PARTS; ++i) {
                    sums[t][i] = Ops::dot32(sums[t][i], code[i], value);
                    Ops::pin(sums[t][i]);  // GCC would copy each sum to another register and back
                }
            }
        }
    }
};

}  // namespace
}  // namespace rbegir::scan

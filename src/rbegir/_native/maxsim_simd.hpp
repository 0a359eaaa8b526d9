// MaxSim: for each vector of a query the best match among the keywords of an item, summed over the vectors.
//
// The dot product of a query vector with a plane of a keyword is a sum over its bytes, of 8 dimensions each, of one of 256
// numbers. These are tabulated for 32 query vectors side by side, so that one lookup finds a row of numbers to add. Up to 8
// query vectors take a block of 8, whose sum is that of a block of 32 with zeros.
//
//     tables[byte][256][32]     Σ of ±v over the 8 dimensions of the byte
//     dot[32]                   Σ over planes and bytes, planes folded by doubling; exact integers
//     best[32]                  max over the keywords of the item of dot · 1/‖k‖
//     score                     Σ over the vectors of best · 1/‖q‖: in a block of 32 vectors by halves, then over blocks
//
// Keywords come item after item, so nothing is kept of other items. The scan has it the other way round, keywords side by
// side and one query: it finds what passes a threshold, and here there is none. Rejected: tables of 4 bits, which fit in
// L1 but take twice the lookups.
#pragma once

#include "float_simd.hpp"

namespace rbegir::floats {

// A block of numbers T as vectors of the instruction set, or as a shorter one.
template <class Isa, class T, int BLOCK>
struct Row {
    static constexpr size_t REGISTER = Isa::LANES * sizeof(float), BYTES = BLOCK * sizeof(T);
    static constexpr size_t SIZE = BYTES < REGISTER ? BYTES : REGISTER;
    typedef T V __attribute__((vector_size(SIZE)));
    static constexpr int PARTS = BYTES / SIZE;
};

// The part that holds a position; null if there is none.
RBEGIR_INLINE const MaxSimPart *part_with(const MaxSim &job, int64_t position) {
    size_t low = 0, high = job.part_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (job.parts[middle].first + job.parts[middle].count <= position) low = middle + 1;
        else high = middle;
    }
    return low < job.part_count && job.parts[low].first <= position ? &job.parts[low] : nullptr;
}

// Dot products of one keyword, whose byte r of plane p is at column[p · stride + 64 r], with a block of query vectors.
template <class Isa, int BLOCK, class T>
RBEGIR_INLINE void dots_of(const MaxSim &job, const T *tables, const uint8_t *column, size_t stride, T *out) {
    using V = typename Row<Isa, T, BLOCK>::V;
    constexpr int PARTS = Row<Isa, T, BLOCK>::PARTS;
    constexpr size_t LANES = sizeof(V) / sizeof(T);
    V sums[PARTS] = {};
    for (int p = 0; p < job.planes; ++p, column += stride) {
#pragma GCC unroll 8
        for (int i = 0; i < PARTS; ++i) sums[i] += sums[i];
        const T *table = tables;
        for (size_t r = 0; r < job.rows; ++r, table += 256 * BLOCK) {
            const T *entry = table + column[64 * r] * BLOCK;
#pragma GCC unroll 8
            for (int i = 0; i < PARTS; ++i) sums[i] += load<V>(entry + i * LANES);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < PARTS; ++i) store(out + i * LANES, sums[i]);
}

constexpr int AHEAD = 4;  // keywords whose codes are on their way from memory

// Begins to read the codes of a keyword that is not in the group of the one before it.
RBEGIR_INLINE void prefetch(const MaxSim &job, const MaxSimPart &part, int64_t next, int64_t here) {
    const int64_t place = next - part.first;
    if (place < 0 || place >= part.count || place / 64 == (here - part.first) / 64) return;
    const uint8_t *group = part.packed + static_cast<size_t>(place) / 64 * job.rows * 64;
    for (int p = 0; p < job.planes; ++p)
        for (size_t r = 0; r < job.rows; ++r) __builtin_prefetch(group + p * part.stride + 64 * r);
}

// Scores of the items from `begin` to `end` for one block of query vectors, added to out[item]; first[item] becomes the
// position of the first keyword of the item that passes, −1 if none does.
template <class Isa, int BLOCK, class T>
void maxsim_block(const MaxSim &job, const T *tables, const double *inverse, size_t begin, size_t end, double *out,
                  int64_t *first) {
    const uint8_t *group = nullptr;  // whose classes are known
    uint16_t classes[64];
    for (size_t item = begin; item < end; ++item) {
        double best[BLOCK];
        for (double &one : best) one = -__builtin_inf();
        first[item] = -1;
        const MaxSimPart *part = nullptr;
        for (int64_t at = job.starts[item]; at < job.starts[item + 1]; ++at) {
            const int64_t position = job.order[at];
            if (!part || position < part->first || position >= part->first + part->count)
                part = part_with(job, position);
            if (!part) continue;
            if (at + AHEAD < job.starts[end]) prefetch(job, *part, job.order[at + AHEAD], position);
            const size_t place = static_cast<size_t>(position - part->first), lane = place % 64;
            if (part->mask && !(part->mask[place / 64] >> lane & 1)) continue;
            const uint8_t *here = part->packed + place / 64 * job.rows * 64;
            if (here != group) classes_of(job.planes, job.rows, group = here, part->stride, classes);
            alignas(64) T dots[BLOCK];
            dots_of<Isa, BLOCK>(job, tables, here + lane, part->stride, dots);
            const double scale = job.inverse_norms[classes[lane]];
            for (int v = 0; v < BLOCK; ++v) {
                const double match = dots[v] * scale;
                best[v] = match > best[v] ? match : best[v];
            }
            if (first[item] < 0) first[item] = position;
        }
        if (first[item] < 0) continue;
        for (int v = 0; v < BLOCK; ++v) best[v] *= inverse[v];
#pragma GCC unroll 5
        for (int half = BLOCK / 2; half; half /= 2)
            for (int v = 0; v < half; ++v) best[v] += best[v + half];
        out[item] += best[0];
    }
}

template <class Isa, int BLOCK>
void maxsim_blocks(const MaxSim &job, size_t begin, size_t end, double *out, int64_t *first) {
    for (size_t block = 0; block < job.blocks; ++block) {
        const size_t tables = block * job.rows * 256 * BLOCK;
        const double *inverse = job.inverse_queries + block * BLOCK;
        if (job.narrow) maxsim_block<Isa, BLOCK>(job, job.narrow + tables, inverse, begin, end, out, first);
        else maxsim_block<Isa, BLOCK>(job, job.wide + tables, inverse, begin, end, out, first);
    }
}

template <class Isa>
void maxsim(const MaxSim &job, size_t begin, size_t end, double *out, int64_t *first) {
    if (job.block == MAXSIM_FEW) maxsim_blocks<Isa, MAXSIM_FEW>(job, begin, end, out, first);
    else maxsim_blocks<Isa, MAXSIM_MANY>(job, begin, end, out, first);
}

}  // namespace rbegir::floats

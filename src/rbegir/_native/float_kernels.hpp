// The floating-point kernels of the tower, the Binarizer and MaxSim: one table of functions per instruction set.
//
// Every kernel gives the same bits on every instruction set, so a text or a vector has one code on every machine, in
// any batch, with any number of threads. Three rules make it so:
//
//     order    every output is one chain of operations in a fixed order, whatever the width of a register
//     fma      a multiply-add is fused where the code says so (Isa::fused) and nowhere else: the build turns the
//              compiler's own contraction off, which would depend on the optimisation level
//     libm     tanh is our own; only operations that IEEE 754 rounds correctly are used (+ − · / √ fma)
//
// A BLAS was rejected for that reason: its blocking, and with it the rounding, depends on the machine and the batch.
// An x86 CPU without FMA instructions runs `portable`, where the C library computes each fma: right, but slow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "isa.hpp"

namespace rbegir::floats {

inline constexpr size_t ROW_TILE = 6;     // rows of a product that are computed together
inline constexpr size_t COLUMN_PAD = 16;  // columns of a product must be a multiple of this; arrays of a search too

constexpr size_t padded(size_t columns) { return (columns + COLUMN_PAD - 1) / COLUMN_PAD * COLUMN_PAD; }

// What the searches for codes have in common.
struct Problem {
    const float *gram;   // [n, stride]
    size_t stride;       // n rounded up to COLUMN_PAD
    int n, limit, moves;
    int tenure;          // moves that a dimension rests, and as many more at random
    uint32_t seed;
};

// What the search of one vector works on: arrays of `stride` numbers, each on cache lines of its own.
struct Desk {
    float *g, *v, *b, *h, *diagonal, *best;
    int *until;        // the move until which a dimension rests
    int *flip, *keep;  // masks that turn f into its size, with the sign of a move that b allows (refine_search.hpp)
};

inline constexpr int MAXSIM_FEW = 8, MAXSIM_MANY = 32;  // query vectors that are scored together: a block

// Packed keywords (codes/layout.py) and which of them are candidates.
struct MaxSimPart {
    const uint8_t *packed;
    const uint64_t *mask;  // null: all
    size_t stride;         // bytes of a plane
    int64_t first, count;  // position of the first keyword, and how many there are
};

// One query against all items; see maxsim_simd.hpp.
struct MaxSim {
    int planes;
    size_t rows;  // n / 8
    const MaxSimPart *parts;  // by position
    size_t part_count;
    const int64_t *order;   // positions of the keywords, item after item
    const int64_t *starts;  // [items + 1] where the keywords of an item begin in `order`
    int block;              // query vectors per block, few or many
    size_t blocks;
    const int16_t *narrow;  // [blocks][rows][256][block] tables; null if their sums need 32 bits …
    const int32_t *wide;    // … which these have
    const double *inverse_norms;    // [classes] 1/‖k‖
    const double *inverse_queries;  // [blocks][block] 1/‖q‖
};

// Matrices are row-major.
struct Kernels {
    const char *name;
    size_t panel;  // columns of a product that are computed together
    // out[width] = Σ table[rows[i]]: the vector of a word from its grams.
    void (*sum_rows)(const float *table, size_t width, const int32_t *rows, size_t count, float *out);
    // The same of a table of bytes: each of the three parts of a row has a scale, whose products with bytes are exact.
    void (*sum_bytes)(const int8_t *table, const float *scales, size_t width, const int32_t *rows, size_t count,
                      float *out);
    // One more word of a text: close the window of the word before it (peak), move the two open ones on.
    void (*slide)(const float *word, const float *bias, size_t width, float *open, float *next, float *peak);
    void (*tanh)(float *values, size_t count);
    // out = in · weight + bias: in [rows, depth] with row stride in_stride, weight [depth, columns].
    void (*multiply)(const float *in, size_t in_stride, size_t rows, size_t depth, const float *weight,
                     const float *bias, size_t columns, float *out, size_t out_stride);
    float (*dot)(const float *a, const float *b, size_t count);
    // The odd integers within ±limit whose direction is nearest to y [n], of the roundings with each of the steps.
    // `scratch` holds 3·n floats, n rounded up to COLUMN_PAD; all must be finite.
    void (*nearest)(const float *y, size_t n, float limit, const float *steps, size_t count, float *scratch,
                    int16_t *out);
    // Improves `count` codes b [count, n] in place, two vectors by turns; one_plane says that b is ±1.
    void (*refine)(const Problem &problem, bool one_plane, const float *g, const float *v, float *b, const float *h,
                   size_t count, const Desk desks[2]);
    // Scores of the items from begin to end, added to out[items], and the positions of their first candidates.
    void (*maxsim)(const MaxSim &job, size_t begin, size_t end, double *out, int64_t *first);
};

extern const Kernels PORTABLE;
#if defined(__x86_64__)
extern const Kernels AVX512, AVX512BW, AVX2;
#elif defined(__aarch64__)
extern const Kernels NEON;
#endif

inline const Kernels &kernels(const std::string &isa) {
    return kernels_for<Kernels>(isa, {
#if defined(__x86_64__)
                                         &AVX512, &AVX512BW, &AVX2,
#elif defined(__aarch64__)
                                         &NEON,
#endif
                                         &PORTABLE});
}

}  // namespace rbegir::floats

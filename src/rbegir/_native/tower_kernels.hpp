// The arithmetic of the tower, written once and compiled for each instruction set.
//
// Every output is one chain of additions in a fixed order (grams as they come, k = 0, 1, 2 … in a product), every
// multiply-add is fused (one rounding), and tanh is our own. Vector width therefore changes nothing: a text has
// the same bits on AVX-512, AVX2 and the portable build, in any batch, with any number of threads. A BLAS was
// rejected for that reason: its blocking, and with it the rounding, depends on the machine and on the batch.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors never cross a call here: everything is inlined
#endif

namespace tower {

#define RBEGIR_INLINE inline __attribute__((always_inline))

inline constexpr size_t ROW_TILE = 6;   // rows of a product computed together; blocks of texts are multiples
inline constexpr size_t COLUMN_PAD = 16;  // outputs are padded to this many columns

// What one instruction set offers. Matrices are row-major floats.
struct Kernels {
    const char *name;
    // out[width] = Σ table[rows[i]]: the vector of a word from its grams.
    void (*sum_rows)(const float *table, size_t width, const int32_t *rows, size_t count, float *out);
    // One more word of a text: close the window of the word before it (peak), move the two open ones on.
    void (*slide)(const float *word, const float *bias, size_t width, float *open, float *next, float *peak);
    void (*tanh)(float *values, size_t count);
    // out = in · weight + bias: in [rows, depth] with row stride in_stride, weight [depth, columns].
    void (*multiply)(const float *in, size_t in_stride, size_t rows, size_t depth, const float *weight,
                     const float *bias, size_t columns, float *out, size_t out_stride);
};

namespace body {

// The next row is fetched while one is added: rows lie far apart, and the wait for them is most of the cost.
RBEGIR_INLINE void sum_rows(const float *table, size_t width, const int32_t *rows, size_t count,
                            float *__restrict out) {
    constexpr size_t LINE = 64 / sizeof(float);
    std::memcpy(out, table + size_t(rows[0]) * width, width * sizeof(float));
    for (size_t i = 1; i < count; ++i) {
        const float *__restrict row = table + size_t(rows[i]) * width;
        const float *ahead = table + size_t(rows[i + 1 < count ? i + 1 : i]) * width;
        for (size_t j = 0; j < width; j += LINE) {
            __builtin_prefetch(ahead + j);
            for (size_t l = j; l < j + LINE && l < width; ++l) out[l] += row[l];
        }
    }
}

// A word's vector is left | centre | right, what it adds as the word before, the word itself, the word after.
RBEGIR_INLINE void slide(const float *__restrict word, const float *__restrict bias, size_t width,
                         float *__restrict open, float *__restrict next, float *__restrict peak) {
    const float *__restrict left = word, *__restrict centre = word + width, *__restrict right = word + 2 * width;
    for (size_t j = 0; j < width; ++j) {
        float closed = open[j] + right[j];
        peak[j] = closed > peak[j] ? closed : peak[j];
        open[j] = next[j] + centre[j];
        next[j] = bias[j] + left[j];
    }
}

// tanh |x| = e / (e + 2) with e = exp(2|x|) − 1 = 2^k·p + (2^k − 1), p = exp(r) − 1, 2|x| = k·ln 2 + r.
// Taylor's p to r⁷ errs by less than 2⁻²⁶ of r for |r| ≤ ½ ln 2; beyond 2|x| = 20 the float is 1. The whole is
// within 3 units of the last place, and small x keep their relative precision.
RBEGIR_INLINE float tanh_of(float x) {
    constexpr float ROUND = 12582912.0f;  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
    float y = 2.0f * __builtin_fabsf(x);
    y = y < 20.0f ? y : 20.0f;
    float shifted = __builtin_fmaf(y, 1.44269504f, ROUND);
    float k = shifted - ROUND;
    float r = __builtin_fmaf(k, -0.693359375f, y);  // ln 2 in two parts, the first exact in 9 bits
    r = __builtin_fmaf(k, 2.12194440e-4f, r);
    float p = 1.0f / 5040;
    p = __builtin_fmaf(p, r, 1.0f / 720);
    p = __builtin_fmaf(p, r, 1.0f / 120);
    p = __builtin_fmaf(p, r, 1.0f / 24);
    p = __builtin_fmaf(p, r, 1.0f / 6);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p * r, r, r);
    int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(ROUND);
    float scale = std::bit_cast<float>((exponent + 127) << 23);
    float e = __builtin_fmaf(scale, p, scale - 1.0f);
    return __builtin_copysignf(e / (e + 2.0f), x);
}

RBEGIR_INLINE void tanh(float *values, size_t count) {
    for (size_t i = 0; i < count; ++i) values[i] = tanh_of(values[i]);
}

template <size_t Lanes>
struct Vector {
    typedef float type __attribute__((vector_size(Lanes * sizeof(float))));
};

// ROW_TILE rows × Width vectors of the product, held in registers over the whole depth.
template <size_t Lanes, bool Fused, size_t Width>
RBEGIR_INLINE void tile(const float *in, size_t in_stride, size_t depth, const float *weight, const float *bias,
                        size_t columns, float *out, size_t out_stride) {
    using Vec = typename Vector<Lanes>::type;
    Vec sum[ROW_TILE][Width];
    for (size_t w = 0; w < Width; ++w) {
        Vec b;
        std::memcpy(&b, bias + w * Lanes, sizeof b);
        for (size_t r = 0; r < ROW_TILE; ++r) sum[r][w] = b;
    }
    for (size_t k = 0; k < depth; ++k) {
        Vec row[Width];
        for (size_t w = 0; w < Width; ++w) std::memcpy(&row[w], weight + k * columns + w * Lanes, sizeof(Vec));
        for (size_t r = 0; r < ROW_TILE; ++r) {
            const float a = in[r * in_stride + k];
            for (size_t w = 0; w < Width; ++w) {
                if constexpr (Fused) {
                    sum[r][w] = a * row[w] + sum[r][w];  // one instruction: contraction is on
                } else {
                    for (size_t l = 0; l < Lanes; ++l) sum[r][w][l] = __builtin_fmaf(a, row[w][l], sum[r][w][l]);
                }
            }
        }
    }
    for (size_t r = 0; r < ROW_TILE; ++r)
        for (size_t w = 0; w < Width; ++w) std::memcpy(out + r * out_stride + w * Lanes, &sum[r][w], sizeof(Vec));
}

template <size_t Lanes, bool Fused, size_t Width>
RBEGIR_INLINE void multiply(const float *in, size_t in_stride, size_t rows, size_t depth, const float *weight,
                            const float *bias, size_t columns, float *out, size_t out_stride) {
    for (size_t c = 0; c < columns;) {
        const bool whole = c + Width * Lanes <= columns;
        for (size_t r = 0; r < rows; r += ROW_TILE) {
            const float *a = in + r * in_stride;
            float *o = out + r * out_stride + c;
            if (whole)
                tile<Lanes, Fused, Width>(a, in_stride, depth, weight + c, bias + c, columns, o, out_stride);
            else
                tile<Lanes, Fused, 1>(a, in_stride, depth, weight + c, bias + c, columns, o, out_stride);
        }
        c += whole ? Width * Lanes : Lanes;
    }
}

}  // namespace body

#define RBEGIR_KERNELS(NAME, LANES, FUSED, WIDTH, TARGET)                                                            \
    namespace NAME {                                                                                                 \
    TARGET inline void sum_rows(const float *table, size_t width, const int32_t *rows, size_t count, float *out) {   \
        body::sum_rows(table, width, rows, count, out);                                                              \
    }                                                                                                                \
    TARGET inline void slide(const float *word, const float *bias, size_t width, float *open, float *next,           \
                             float *peak) {                                                                          \
        body::slide(word, bias, width, open, next, peak);                                                            \
    }                                                                                                                \
    TARGET inline void tanh(float *values, size_t count) { body::tanh(values, count); }                              \
    TARGET inline void multiply(const float *in, size_t in_stride, size_t rows, size_t depth, const float *weight,   \
                                const float *bias, size_t columns, float *out, size_t out_stride) {                  \
        body::multiply<LANES, FUSED, WIDTH>(in, in_stride, rows, depth, weight, bias, columns, out, out_stride);     \
    }                                                                                                                \
    inline constexpr Kernels kernels{#NAME, sum_rows, slide, tanh, multiply};                                        \
    }

#if defined(__x86_64__)
RBEGIR_KERNELS(avx512, 16, true, 4, __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"))))
RBEGIR_KERNELS(avx2, 8, true, 2, __attribute__((target("avx2,fma"))))
#endif
#if defined(__aarch64__)  // fused multiply-add is part of the base instruction set
RBEGIR_KERNELS(portable, 4, true, 4, )
#else
RBEGIR_KERNELS(portable, 4, false, 1, )
#endif

}  // namespace tower

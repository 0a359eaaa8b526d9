// The bodies of the floating-point kernels, written once for an instruction set `Isa`:
//
//     V, I            LANES floats or ints: vectors of the compiler, with + − · & ^ and comparisons
//     fused(a, b, c)  a·b + c with one rounding
//     min, max        as in  a < b ? a : b
//     WIDTH           vectors that a tile of a product is wide
//
// Files that include this are compiled for one instruction set. All functions are templates over Isa or inlined, and
// nothing of the standard library is called, so that no function compiled for a newer CPU can stand in for
// another file's.
#pragma once

#include <cstring>

#include "float_kernels.hpp"
#include "norm_class.hpp"

namespace rbegir::floats {

template <size_t Lanes>
struct Vectors {
    typedef float V __attribute__((vector_size(Lanes * sizeof(float))));
    typedef int32_t I __attribute__((vector_size(Lanes * sizeof(int32_t))));
};

template <class T>
RBEGIR_INLINE T load(const void *from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class T>
RBEGIR_INLINE void store(void *to, const T &value) {
    std::memcpy(to, &value, sizeof value);
}

template <class Isa>
RBEGIR_INLINE typename Isa::V all(float value) {
    return value - typename Isa::V{};
}

// Where each row begins is fetched at once, as rows lie far apart; then the next row while one is added.
template <class Isa>
void sum_rows(const float *table, size_t width, const int32_t *rows, size_t count, float *__restrict out) {
    using V = typename Isa::V;
    constexpr size_t LINE = 64 / sizeof(float);
    for (size_t i = 0; i < count; ++i) __builtin_prefetch(table + size_t(rows[i]) * width);
    std::memcpy(out, table + size_t(rows[0]) * width, width * sizeof(float));
    for (size_t i = 1; i < count; ++i) {
        const float *__restrict row = table + size_t(rows[i]) * width;
        const float *ahead = table + size_t(rows[i + 1 < count ? i + 1 : i]) * width;
        size_t j = 0;
        for (; j + LINE <= width; j += LINE) {
            __builtin_prefetch(ahead + j);
            for (size_t l = j; l < j + LINE; l += Isa::LANES) store(out + l, load<V>(out + l) + load<V>(row + l));
        }
        for (; j < width; ++j) out[j] += row[j];
    }
}

template <class Isa>
void sum_bytes(const int8_t *table, const float *scales, size_t width, const int32_t *rows, size_t count,
               float *__restrict out) {
    const size_t part = width / 3;
    for (size_t j = 0; j < width; ++j) out[j] = 0.0f;
    for (size_t i = 0; i < count; ++i) {
        const int8_t *__restrict row = table + size_t(rows[i]) * width;
        const int8_t *ahead = table + size_t(rows[i + 1 < count ? i + 1 : i]) * width;
        for (size_t j = 0; j < width; j += 64) __builtin_prefetch(ahead + j);
        for (size_t p = 0; p < 3; ++p) {
            const float scale = scales[size_t(rows[i]) * 3 + p];
            float *__restrict to = out + p * part;
            const int8_t *__restrict from = row + p * part;
            for (size_t j = 0; j < part; ++j) to[j] += scale * float(from[j]);
        }
    }
}

// A word's vector is left | centre | right, what it adds as the word before, the word itself, the word after.
template <class Isa>
void slide(const float *__restrict word, const float *__restrict bias, size_t width, float *__restrict open,
           float *__restrict next, float *__restrict peak) {
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
    int32_t exponent = __builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, ROUND);
    float scale = __builtin_bit_cast(float, (exponent + 127) << 23);
    float e = __builtin_fmaf(scale, p, scale - 1.0f);
    return __builtin_copysignf(e / (e + 2.0f), x);
}

template <class Isa>
void tanh(float *values, size_t count) {
    for (size_t i = 0; i < count; ++i) values[i] = tanh_of(values[i]);
}

// out = from + in · weight for Rows rows × Width vectors, held in registers over the whole depth.
template <class Isa, size_t Rows, size_t Width>
RBEGIR_INLINE void tile(const float *in, size_t in_stride, size_t depth, const float *weight, size_t columns,
                        const float *from, size_t from_stride, float *out, size_t out_stride) {
    using V = typename Isa::V;
    V sum[Rows][Width];
    for (size_t r = 0; r < Rows; ++r)
        for (size_t w = 0; w < Width; ++w) sum[r][w] = load<V>(from + r * from_stride + w * Isa::LANES);
    for (size_t k = 0; k < depth; ++k) {
        V row[Width];
        for (size_t w = 0; w < Width; ++w) row[w] = load<V>(weight + k * columns + w * Isa::LANES);
        for (size_t r = 0; r < Rows; ++r) {
            const V a = all<Isa>(in[r * in_stride + k]);
            for (size_t w = 0; w < Width; ++w) sum[r][w] = Isa::fused(a, row[w], sum[r][w]);
        }
    }
    for (size_t r = 0; r < Rows; ++r)
        for (size_t w = 0; w < Width; ++w) store(out + r * out_stride + w * Isa::LANES, sum[r][w]);
}

// Whole tiles of Rows rows. A tile's columns of the weight are read for all rows in turn, so their depth is limited to
// what the first-level cache holds, and for many rows they are copied together first: rows of a weight that lie a
// large power of two apart would evict each other. The sums go on where those of the depth before ended.
template <class Isa, size_t Rows, size_t Width>
RBEGIR_INLINE void multiply_rows(const float *in, size_t in_stride, size_t rows, size_t depth, const float *weight,
                                 const float *bias, size_t columns, float *out, size_t out_stride) {
    constexpr size_t PANEL = Width * Isa::LANES, DEPTH = 16384 / (PANEL * sizeof(float)), MANY = 4 * ROW_TILE;
    alignas(64) float packed[DEPTH * PANEL];
    for (size_t c = 0; c < columns;) {
        const bool whole = c + PANEL <= columns, pack = whole && columns > PANEL && rows >= MANY;
        for (size_t k = 0; k == 0 || k < depth; k += DEPTH) {
            const size_t deep = depth - k < DEPTH ? depth - k : DEPTH;
            const float *w = weight + k * columns + c;
            for (size_t i = 0; pack && i < deep; ++i)
                std::memcpy(packed + i * PANEL, w + i * columns, PANEL * sizeof(float));
            for (size_t r = 0; r + Rows <= rows; r += Rows) {
                const float *a = in + r * in_stride + k;
                float *o = out + r * out_stride + c;
                const float *from = k ? o : bias + c;
                const size_t from_stride = k ? out_stride : 0;
                if (pack)
                    tile<Isa, Rows, Width>(a, in_stride, deep, packed, PANEL, from, from_stride, o, out_stride);
                else if (whole)
                    tile<Isa, Rows, Width>(a, in_stride, deep, w, columns, from, from_stride, o, out_stride);
                else
                    tile<Isa, Rows, 1>(a, in_stride, deep, w, columns, from, from_stride, o, out_stride);
            }
        }
        c += whole ? PANEL : Isa::LANES;
    }
}

template <class Isa>
void multiply(const float *in, size_t in_stride, size_t rows, size_t depth, const float *weight, const float *bias,
              size_t columns, float *out, size_t out_stride) {
    const size_t tiled = rows / ROW_TILE * ROW_TILE;
    multiply_rows<Isa, ROW_TILE, Isa::WIDTH>(in, in_stride, tiled, depth, weight, bias, columns, out, out_stride);
    // One row alone: a wide tile, as each sum waits for its last addition.
    multiply_rows<Isa, 1, 64 / Isa::LANES>(in + tiled * in_stride, in_stride, rows - tiled, depth, weight, bias,
                                           columns, out + tiled * out_stride, out_stride);
}

// Sum l of sixteen takes the products l, l + 16, l + 32 …; the sums are then added two by two.
template <class Isa>
RBEGIR_INLINE float dot(const float *a, const float *b, size_t count) {
    constexpr size_t SUMS = 16, PARTS = SUMS / Isa::LANES;
    using V = typename Isa::V;
    V parts[PARTS] = {};
    size_t at = 0;
    for (; at + SUMS <= count; at += SUMS)
        for (size_t p = 0; p < PARTS; ++p) {
            const size_t from = at + p * Isa::LANES;
            parts[p] = Isa::fused(load<V>(a + from), load<V>(b + from), parts[p]);
        }
    float sums[SUMS];
    std::memcpy(sums, parts, sizeof sums);
    for (size_t l = 0; at + l < count; ++l) sums[l] = __builtin_fmaf(a[at + l], b[at + l], sums[l]);
    for (size_t half = SUMS / 2; half; half /= 2)
        for (size_t l = 0; l < half; ++l) sums[l] += sums[l + half];
    return sums[0];
}

// y is divided by its root mean square first, so that steps mean the same for every row. A row of zeros becomes ones.
template <class Isa>
void nearest(const float *__restrict y, size_t n, float limit, const float *steps, size_t count,
             float *scratch, int16_t *__restrict out) {
    using V = typename Isa::V;
    using I = typename Isa::I;
    const size_t stride = padded(n);
    float *scaled = scratch, *b = scratch + stride, *best = scratch + 2 * stride;
    const float spread = __builtin_sqrtf(dot<Isa>(y, y, n) / float(n));
    for (size_t j = 0; j < n; ++j) scaled[j] = spread > 0 ? y[j] / spread : 0.0f;
    const V low = all<Isa>(-limit), high = all<Isa>(limit);
    float closest = 0;
    for (size_t i = 0; i < count; ++i) {
        const V step = all<Isa>(steps[i]);
        for (size_t j = 0; j < stride; j += Isa::LANES) {
            const V half = Isa::min(Isa::max(load<V>(scaled + j) / step * 0.5f, low), high);  // within the ints
            const V towards = __builtin_convertvector(__builtin_convertvector(half, I), V);
            const V below = towards > half ? towards - 1.0f : towards;
            store(b + j, Isa::min(Isa::max(2.0f * below + 1.0f, low), high));
        }
        const float agreement = dot<Isa>(scaled, b, n) / __builtin_sqrtf(dot<Isa>(b, b, n));
        if (i == 0 || agreement > closest) {
            closest = agreement;
            std::memcpy(best, b, n * sizeof(float));
        }
    }
    for (size_t j = 0; j < n; ++j) out[j] = int16_t(best[j]);
}

template <class Isa>
float dot_of(const float *a, const float *b, size_t count) {
    return dot<Isa>(a, b, count);
}

}  // namespace rbegir::floats

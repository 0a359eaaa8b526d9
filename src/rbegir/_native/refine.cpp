// The search for the code that stands for a vector best: descent, then tabu moves out of every local minimum.
//
// A code b of odd integers stands for A·b/‖b‖. With G = AᵀA, g = Aᵀx and h = G·b its squared error is, up to ‖x‖²,
//
//     J(b) = s/m − 2t/√m          s = bᵀGb = h·b,  t = g·b,  m = b·b
//
// G is one matrix for all vectors plus vvᵀ, where v belongs to the vector: the error along it counts more
// (rbegir/binarizer/learn.py), at the price of one more product a dimension and move.
//
// A move changes one b_j by ±2. It changes s by ±4h_j + 4G_jj, t by ±2g_j and m by ±4b_j + 4, so all moves are
// judged in one pass over the arrays, the pass that also makes h right after the move before: h += ±2·G[j]. A move
// is judged by the derivative and the largest part of the second one,
//
//     ΔJ ≈ (4/m)·(G_jj − |f_j|)          f_j = h_j − √m·(g_j + slope·b_j),  slope = (s/√m − t)/m
//
// (+|f_j| where b_j is at its limit and cannot follow f_j); what is left out is of the order 1/n of it. The J that the
// search goes by is exact. With one plane m is n for every code, a move is a flip of sign, and with slope = 0 the
// formula is exact. The pass packs (cost, index) into one integer: the best move is a minimum of integers, which
// compilers vectorise.
//
// After the descent the least bad move is taken again and again, and a dimension that moved stays as it is for a few
// moves (tabu), so that the search leaves a minimum instead of falling back; the best code seen is the result.
// Random kicks with descents between them needed five times the time for the same error.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "parallel.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace refine {
namespace {

#define RBEGIR_INLINE inline __attribute__((always_inline))

constexpr int INDEX_BITS = 10;                       // n ≤ 1024
constexpr float RESOLUTION = 16384, LARGEST = 1e6f;  // of packed costs: the largest G_jj, and where they are cut off
constexpr int NEVER = INT_MAX - (1 << INDEX_BITS) + 1;
constexpr size_t CHUNK = 16;                         // vectors that a thread takes at a time

struct Problem {
    const float *gram;  // [n, n]
    int n, limit, moves;
    int tenure;         // moves that a dimension rests, and as many more at random
};

struct Work {
    std::vector<float> best, diagonal;
    std::vector<int> until;
};

struct State {
    float s, t, m, J;
};

RBEGIR_INLINE int packed(float cost, int index) {
    cost = cost < LARGEST ? cost : LARGEST;
    cost = cost > -LARGEST ? cost : -LARGEST;
    return static_cast<int>(cost) * (1 << INDEX_BITS) + index;
}

// b and h of one vector; on return b is the best code seen.
template <bool ONE>
RBEGIR_INLINE void search(const Problem &problem, const float *__restrict g, const float *__restrict v,
                          float *__restrict b, float *__restrict h, Work &work, uint32_t seed) {
    const int n = problem.n;
    const float limit = static_cast<float>(problem.limit);
    float *__restrict diagonal = work.diagonal.data();  // of G + vvᵀ
    int *__restrict until = work.until.data();
    float *__restrict best = work.best.data();
    State now{0, 0, 0, 0};
    for (int j = 0; j < n; ++j) now.s += h[j] * b[j], now.t += g[j] * b[j], now.m += b[j] * b[j];
    now.J = now.s / now.m - 2 * now.t / std::sqrt(now.m);
    float largest = 1e-30f;
    for (int j = 0; j < n; ++j) {
        diagonal[j] = problem.gram[size_t(j) * n + j] + v[j] * v[j];
        largest = std::max(largest, diagonal[j]);
    }
    const float scale = RESOLUTION / largest;  // of packed costs, for costs in units of the diagonal
    if constexpr (ONE) {
        const float root = std::sqrt(now.m);
        for (int j = 0; j < n; ++j) h[j] -= root * g[j];  // f of the comment above
    }
    std::fill_n(until, n, 0);
    std::memcpy(best, b, n * sizeof(float));
    float lowest = now.J;
    bool saved = true, descending = true;
    float step = 0, along = 0;
    const float *__restrict row = problem.gram;
    const int most = problem.moves + 4 * n;  // the descent is not counted, but bounded
    for (int move = 0, counted = 0; move < most && counted <= problem.moves; ++move) {
        int least = INT_MAX;
        const float root = std::sqrt(now.m);
        const float slope = (now.s / root - now.t) / now.m;
        for (int k = 0; k < n; ++k) {
            const float hk = h[k] + (step * row[k] + along * v[k]);
            h[k] = hk;
            float cost;
            if constexpr (ONE) {
                cost = diagonal[k] - b[k] * hk;
            } else {
                const float f = hk - root * (g[k] + slope * b[k]), size = std::fabs(f);
                const bool stuck = std::fabs(b[k]) == limit && b[k] * f < 0;
                cost = diagonal[k] - (stuck ? -size : size);
            }
            int value = packed(cost * scale, k);
            value = until[k] > move ? NEVER + k : value;
            least = value < least ? value : least;
        }
        const int j = least & ((1 << INDEX_BITS) - 1);
        float sign, after;
        if constexpr (ONE) {
            sign = -b[j];
            after = now.J + 4 / now.m * (diagonal[j] - b[j] * h[j]);
        } else {
            const float f = h[j] - root * (g[j] + slope * b[j]);
            sign = f > 0 ? -1.0f : 1.0f;
            if (std::fabs(b[j]) == limit) sign = b[j] > 0 ? -1.0f : 1.0f;
            now.s += sign * 4 * h[j] + 4 * diagonal[j];
            now.t += sign * 2 * g[j];
            now.m += sign * 4 * b[j] + 4;
            after = now.s / now.m - 2 * now.t / std::sqrt(now.m);
        }
        if (after >= now.J) {
            descending = false;
            if (!saved) std::memcpy(best, b, n * sizeof(float)), saved = true;
        }
        if (!descending) {
            ++counted;
            seed = seed * 1664525u + 1013904223u;
            until[j] = move + 1 + problem.tenure + static_cast<int>((seed >> 16) % uint32_t(problem.tenure + 1));
        }
        step = 2 * sign;
        along = step * v[j];
        b[j] += step;
        row = problem.gram + size_t(j) * n;
        now.J = after;
        if (after < lowest - 1e-7f * std::fabs(lowest)) lowest = after, saved = false;
    }
    if (saved || now.J > lowest) std::memcpy(b, best, n * sizeof(float));
}

using Run = void (*)(const Problem &, const float *, const float *, float *, float *, Work &, uint32_t);

#define RBEGIR_REFINE(name, ...)                                                                                     \
    template <bool ONE>                                                                                              \
    __VA_ARGS__ void name(const Problem &problem, const float *g, const float *v, float *b, float *h, Work &work,    \
                          uint32_t seed) {                                                                           \
        search<ONE>(problem, g, v, b, h, work, seed);                                                                   \
    }
#if defined(__x86_64__)
RBEGIR_REFINE(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512"))))
RBEGIR_REFINE(avx2, __attribute__((target("avx2,fma"))))
#endif
RBEGIR_REFINE(portable)

template <bool ONE>
Run fastest() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return avx512<ONE>;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2<ONE>;
#endif
    return portable<ONE>;
}

using In = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using InOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void refine(In g, In v, In gram, InOut b, InOut h, int planes, int moves, int tenure, size_t threads, uint32_t seed) {
    const size_t count = b.shape(0), n = b.shape(1);
    if (g.shape(0) != count || v.shape(0) != count || v.shape(1) != n || h.shape(0) != count || g.shape(1) != n || h.shape(1) != n || gram.shape(0) != n ||
        gram.shape(1) != n || !n || n > (1u << INDEX_BITS))
        throw nb::value_error("g, b and h must be [count, n], gram [n, n]");
    if (planes < 1 || planes > 4 || moves < 0 || tenure < 1 || !threads)
        throw nb::value_error("planes must be 1 to 4, moves not negative, tenure and threads positive");
    const Problem problem{gram.data(), int(n), (1 << planes) - 1, moves, tenure};
    const Run run = planes == 1 ? fastest<true>() : fastest<false>();
    std::atomic<size_t> next{0};
    nb::gil_scoped_release release;
    in_parallel(std::min(threads, (count + CHUNK - 1) / CHUNK), [&](size_t) {
        Work work{std::vector<float>(n), std::vector<float>(n), std::vector<int>(n)};
        for (size_t start; (start = next.fetch_add(CHUNK)) < count;)
            for (size_t i = start; i < std::min(start + CHUNK, count); ++i)
                run(problem, g.data() + i * n, v.data() + i * n, b.data() + i * n, h.data() + i * n, work, seed);
    });
}

}  // namespace
}  // namespace refine

void bind_refine(nb::module_ &m) {
    m.def("refine", &refine::refine, "g"_a, "v"_a, "gram"_a, "b"_a, "h"_a, "planes"_a, "moves"_a, "tenure"_a, "threads"_a,
          "seed"_a, "Improve codes b [count, n] in place; g = x·A, h = b·gram + (b·v)·v (overwritten), gram = AᵀA.");
}

// The search for the code that stands for a vector best: descent, then tabu moves out of every local minimum.
//
// A code b of odd integers stands for A·b/‖b‖. With G = AᵀA, g = Aᵀx and h = G·b its squared error is, up to ‖x‖²,
//
//     J(b) = s/m − 2t/√m          s = bᵀGb = h·b,  t = g·b,  m = b·b
//
// G is one matrix for all vectors plus vvᵀ, where v belongs to the vector: the error along it counts more
// (rbegir/encode/binarizer/learn.py), at the price of one more product a dimension and move.
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
// A move is short, and the next one needs its outcome. So nothing in it branches on what cannot be predicted, and a
// thread searches for two vectors by turns: the pass for one fills the time that the other waits for its roots.
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
constexpr float SIGNS[2] = {1, -1};                  // a table, where compilers would branch
constexpr size_t CHUNK = 16;                         // vectors that a thread takes at a time

struct Problem {
    const float *gram;  // [n, n]
    int n, limit, moves;
    int tenure;         // moves that a dimension rests, and as many more at random
};

// What the search of one vector works on, copied together: on cache lines of its own, and nothing a multiple of a page
// from something else, which a store to the one would make loads of the other wait for.
class Work {
public:
    explicit Work(size_t n) : floats(6 * stride(n) + LINE), ints(n + LINE) {
        float *at = on_line(floats);
        for (float **array : {&g, &v, &b, &h, &diagonal, &best}) *array = at, at += stride(n);
        until = on_line(ints);
    }
    Work(const Work &) = delete;
    float *g, *v, *b, *h, *diagonal, *best;
    int *until;

private:
    static constexpr size_t LINE = 16;  // numbers of 4 bytes in a cache line
    static size_t stride(size_t n) { return (n + LINE - 1) / LINE * LINE + LINE; }
    template <class T>
    static T *on_line(std::vector<T> &memory) {
        const size_t place = reinterpret_cast<uintptr_t>(memory.data()) / sizeof(T) % LINE;
        return memory.data() + (LINE - place) % LINE;
    }
    std::vector<float> floats;
    std::vector<int> ints;
};

struct State {
    float s, t, m, J;
};

RBEGIR_INLINE int packed(float cost, int index) {
    cost = cost < LARGEST ? cost : LARGEST;
    cost = cost > -LARGEST ? cost : -LARGEST;
    return static_cast<int>(static_cast<uint32_t>(static_cast<int>(cost)) << INDEX_BITS) + index;
}

struct Move {
    float step, along;  // of the move before: h += step·row + along·v
    float root, slope, limit, scale;
    int number;
};

// Makes h right after the move before and judges all moves: the best one's index in the low bits.
template <bool ONE>
RBEGIR_INLINE int pass(int n, const Move &last, const float *__restrict row, const float *__restrict v,
                       const float *__restrict g, const float *__restrict diagonal, const float *__restrict b,
                       const int *__restrict until, float *__restrict h) {
    int least = INT_MAX;
    for (int k = 0; k < n; ++k) {
        const float hk = h[k] + (last.step * row[k] + last.along * v[k]);
        h[k] = hk;
        float cost;
        if constexpr (ONE) {
            cost = diagonal[k] - b[k] * hk;
        } else {
            const float f = hk - last.root * (g[k] + last.slope * b[k]), size = std::fabs(f);
            const bool stuck = std::fabs(b[k]) == last.limit && b[k] * f < 0;
            cost = diagonal[k] - (stuck ? -size : size);
        }
        int value = packed(cost * last.scale, k);
        value = until[k] > last.number ? NEVER + k : value;
        least = value < least ? value : least;
    }
    return least;
}

// The search of one vector: begin, advance until it says that it is over, end; b is then the best code seen.
template <bool ONE>
class Search {
public:
    RBEGIR_INLINE void begin(const Problem &given, const float *g_, const float *v_, float *b_, const float *h_, Work &work,
                             uint32_t seed_) {
        problem = &given, seed = seed_, result = b_;
        g = work.g, v = work.v, b = work.b, h = work.h, diagonal = work.diagonal, until = work.until, best = work.best;
        const int n = problem->n;
        std::copy_n(g_, n, g), std::copy_n(v_, n, v), std::copy_n(b_, n, b), std::copy_n(h_, n, h);
        now = {0, 0, 0, 0};
        for (int j = 0; j < n; ++j) now.s += h[j] * b[j], now.t += g[j] * b[j], now.m += b[j] * b[j];
        now.J = now.s / now.m - 2 * now.t / std::sqrt(now.m);
        float largest = 1e-30f;
        for (int j = 0; j < n; ++j) {
            diagonal[j] = problem->gram[size_t(j) * n + j] + v[j] * v[j];
            largest = std::max(largest, diagonal[j]);
        }
        scale = RESOLUTION / largest;
        if constexpr (ONE) {
            const float root = std::sqrt(now.m);
            for (int j = 0; j < n; ++j) h[j] -= root * g[j];  // f of the comment above
        }
        std::fill_n(until, n, 0);
        std::memcpy(best, b, n * sizeof(float));
        lowest = now.J;
        saved = descending = true;
        step = along = 0;
        row = problem->gram;
        move = counted = 0;
    }

    // One move; false when there are no more.
    RBEGIR_INLINE bool advance() {
        const int n = problem->n;
        const int most = problem->moves + 4 * n;  // the descent is not counted, but bounded
        if (move >= most || counted > problem->moves) return false;
        const float limit = static_cast<float>(problem->limit), root = std::sqrt(now.m);
        const float slope = (now.s / root - now.t) / now.m;
        const Move last{step, along, root, slope, limit, scale, move};
        const int least = pass<ONE>(n, last, row, v, g, diagonal, b, until, h);
        const int j = least & ((1 << INDEX_BITS) - 1);
        float sign, after;
        if constexpr (ONE) {
            sign = -b[j];
            after = now.J + 4 / now.m * (diagonal[j] - b[j] * h[j]);
        } else {
            const float f = h[j] - root * (g[j] + slope * b[j]);
            const float either[2] = {f, b[j]};  // at its limit b can only go back
            sign = SIGNS[either[std::fabs(b[j]) == limit] > 0];
            now.s += sign * 4 * h[j] + 4 * diagonal[j];
            now.t += sign * 2 * g[j];
            now.m += sign * 4 * b[j] + 4;
            after = now.s / now.m - 2 * now.t / std::sqrt(now.m);
        }
        const bool worse = after >= now.J;  // as often as not: no branch
        descending = descending & !worse;
        if (worse & !saved) std::memcpy(best, b, n * sizeof(float)), saved = true;
        if (!descending) {
            ++counted;
            seed = seed * 1664525u + 1013904223u;
            until[j] = move + 1 + problem->tenure + static_cast<int>((seed >> 16) % uint32_t(problem->tenure + 1));
        }
        step = 2 * sign;
        along = step * v[j];
        b[j] += step;
        row = problem->gram + size_t(j) * n;
        now.J = after;
        if (after < lowest - 1e-7f * std::fabs(lowest)) lowest = after, saved = false;
        ++move;
        return true;
    }

    RBEGIR_INLINE void end() {
        std::memcpy(result, saved || now.J > lowest ? best : b, problem->n * sizeof(float));
    }

private:
    const Problem *problem;
    const float *row;  // of the Gram matrix, for the move before
    float *g, *v, *b, *h, *diagonal, *best, *result;
    int *until, move, counted;
    State now;
    float scale, lowest, step, along;  // scale: of packed costs, for costs in units of the diagonal
    bool saved, descending;
    uint32_t seed;
};

// Vectors two by two, a move of each by turns.
template <bool ONE>
RBEGIR_INLINE void search(const Problem &problem, const float *g, const float *v, float *b, const float *h, size_t count,
                          Work &one, Work &two, uint32_t seed) {
    const size_t n = problem.n;
    Search<ONE> first, second;
    for (size_t i = 0; i < count; i += 2) {
        const size_t at = i * n, behind = i + 1 < count ? at + n : at;  // an odd last one is searched for twice, alike
        first.begin(problem, g + at, v + at, b + at, h + at, one, seed);
        second.begin(problem, g + behind, v + behind, b + behind, h + behind, two, seed);
        for (bool more = true; more;) {
            more = first.advance();
            more |= second.advance();
        }
        first.end(), second.end();
    }
}

using Run = void (*)(const Problem &, const float *, const float *, float *, const float *, size_t, Work &, Work &,
                     uint32_t);

#define RBEGIR_REFINE(name, ...)                                                                                      \
    template <bool ONE>                                                                                               \
    __VA_ARGS__ void name(const Problem &problem, const float *g, const float *v, float *b, const float *h,           \
                          size_t count, Work &one, Work &two, uint32_t seed) {                                        \
        search<ONE>(problem, g, v, b, h, count, one, two, seed);                                                      \
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

void refine(In g, In v, In gram, InOut b, In h, int planes, int moves, int tenure, size_t threads, uint32_t seed) {
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
        Work one(n), two(n);
        for (size_t start; (start = next.fetch_add(CHUNK)) < count;)
            run(problem, g.data() + start * n, v.data() + start * n, b.data() + start * n, h.data() + start * n,
                std::min(CHUNK, count - start), one, two, seed);
    });
}

}  // namespace
}  // namespace refine

void bind_refine(nb::module_ &m) {
    m.def("refine", &refine::refine, "g"_a, "v"_a, "gram"_a, "b"_a, "h"_a, "planes"_a, "moves"_a, "tenure"_a, "threads"_a,
          "seed"_a, "Improve codes b [count, n] in place; g = x·A, h = b·gram + (b·v)·v, gram = AᵀA.");
}

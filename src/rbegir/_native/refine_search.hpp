// The search for the code that stands for a vector best: descent, then tabu moves out of every local minimum.
//
// A code b of odd integers stands for A·b/‖b‖. With G = AᵀA, g = Aᵀx and h = G·b its squared error is, up to ‖x‖²,
//
//     J(b) = s/m − 2t/√m          s = bᵀGb = h·b,  t = g·b,  m = b·b
//
// G is one matrix for all vectors plus vvᵀ, where v belongs to the vector: the error along it counts more
// (rbegir/binarizer/learn.py), at the price of one more product per dimension and move.
//
// A move changes one b_j by ±2. It changes s by ±4h_j + 4G_jj, t by ±2g_j and m by ±4b_j + 4, so all moves are
// judged in one pass over the arrays, the pass that also updates h for the previous move: h += ±2·G[j]. A move
// is judged by the derivative and the largest part of the second one,
//
//     ΔJ ≈ (4/m)·(G_jj − |f_j|)          f_j = h_j − √m·(g_j + slope·b_j),  slope = (s/√m − t)/m
//
// (+|f_j| where b_j is at its limit and cannot follow f_j); what is left out is of the order 1/n of it. The J that the
// search goes by is exact. With one plane m is n for every code, a move is a flip of sign, and with slope = 0 the
// formula is exact. The pass packs (cost, index) into one integer, so that the best move is a minimum of integers,
// which does not depend on the order in which they are compared.
//
// A move is short, and the next one needs its outcome. So nothing in it branches on what cannot be predicted, and a
// thread searches for two vectors by turns: the pass for one fills the time that the other waits for its roots.
//
// After the descent the least bad move is taken again and again, and a dimension that moved stays as it is for a few
// moves (tabu), so that the search leaves a minimum instead of falling back; the best code seen is the result.
// Random kicks with descents between them needed five times the time for the same error.
#pragma once

#include <climits>

#include "float_simd.hpp"
#include "maxsim_simd.hpp"

namespace rbegir::floats {

inline constexpr int INDEX_BITS = 10;                       // n ≤ 1024
inline constexpr float RESOLUTION = 16384, LARGEST = 1e6f;  // of packed costs: the largest G_jj, and the cut-off
inline constexpr int NEVER = INT_MAX - (1 << INDEX_BITS) + 1;
inline constexpr int SIGN = INT_MIN;             // the bit of a float that holds its sign
inline constexpr float SIGNS[2] = {1, -1};       // a table, where compilers would branch

struct State {
    float s, t, m, J;
};

struct Move {
    float step, along;  // of the move before: h += step·row + along·v
    float root, slope, scale;
    int number;
};

// Updates h for the previous move and judges all moves: the best one's index is in the low bits.
template <class Isa, bool ONE>
RBEGIR_INLINE int pass(size_t count, const Move &last, const float *__restrict row, const Desk &desk) {
    using V = typename Isa::V;
    using I = typename Isa::I;
    I index{};
    for (size_t l = 0; l < Isa::LANES; ++l) index[l] = int(l);
    I least = INT_MAX - I{};
    const V step = all<Isa>(last.step), along = all<Isa>(last.along), back = all<Isa>(-last.root);
    const V slope = all<Isa>(last.slope), scale = all<Isa>(last.scale);
    for (size_t k = 0; k < count; k += Isa::LANES) {
        const V b = load<V>(desk.b + k), diagonal = load<V>(desk.diagonal + k);
        const V h = Isa::fused(step, load<V>(row + k), Isa::fused(along, load<V>(desk.v + k), load<V>(desk.h + k)));
        store(desk.h + k, h);
        V cost;
        if constexpr (ONE) {
            cost = Isa::fused(-b, h, diagonal);
        } else {
            const V f = Isa::fused(back, Isa::fused(slope, b, load<V>(desk.g + k)), h);
            cost = diagonal - (V)(((I)f ^ load<I>(desk.flip + k)) & load<I>(desk.keep + k));
        }
        cost = Isa::max(Isa::min(cost * scale, all<Isa>(LARGEST)), all<Isa>(-LARGEST));
        I value = (__builtin_convertvector(cost, I) << INDEX_BITS) + index;
        value = load<I>(desk.until + k) > last.number ? NEVER + index : value;
        least = value < least ? value : least;
        index += int(Isa::LANES);
    }
    int best = least[0];
    for (size_t l = 1; l < Isa::LANES; ++l) best = least[l] < best ? least[l] : best;
    return best;
}

// The search of one vector: begin, advance until it says that it is over, end; b is then the best code seen.
template <class Isa, bool ONE>
class Search {
public:
    RBEGIR_INLINE void begin(const Problem &given, const float *g, const float *v, float *b, const float *h,
                             const Desk &at) {
        problem = &given, desk = at, seed = given.seed, result = b;
        const int n = given.n;
        place(desk.g, g), place(desk.v, v), place(desk.b, b), place(desk.h, h);
        now.s = dot<Isa>(h, b, n), now.t = dot<Isa>(g, b, n), now.m = dot<Isa>(b, b, n);
        const float root = __builtin_sqrtf(now.m);
        now.J = now.s / now.m - 2 * now.t / root;
        float largest = 1e-30f;
        for (int j = 0; j < n; ++j) {
            desk.diagonal[j] = given.gram[j * given.stride + j] + v[j] * v[j];
            largest = desk.diagonal[j] > largest ? desk.diagonal[j] : largest;
            desk.until[j] = 0;
            mark(j);
            if constexpr (ONE) desk.h[j] -= root * g[j];  // f of the comment above
        }
        for (size_t j = n; j < given.stride; ++j) {
            desk.diagonal[j] = 0;
            desk.until[j] = INT_MAX;  // padding never moves
            desk.flip[j] = desk.keep[j] = 0;
        }
        scale = RESOLUTION / largest;
        std::memcpy(desk.best, desk.b, n * sizeof(float));
        lowest = now.J;
        saved = descending = true;
        step = along = 0;
        row = given.gram;
        move = counted = 0;
    }

    // One move; false when there are no more.
    RBEGIR_INLINE bool advance() {
        const int n = problem->n;
        const int most = problem->moves + 4 * n;  // the descent is not counted, but bounded
        if (move >= most || counted > problem->moves) return false;
        const float root = __builtin_sqrtf(now.m), slope = (now.s / root - now.t) / now.m;
        const int least = pass<Isa, ONE>(problem->stride, {step, along, root, slope, scale, move}, row, desk);
        const int j = least & ((1 << INDEX_BITS) - 1);
        const float b = desk.b[j], h = desk.h[j], g = desk.g[j], diagonal = desk.diagonal[j];
        float sign, after;
        if constexpr (ONE) {
            sign = -b;
            after = now.J + 4 / now.m * (diagonal - b * h);
        } else {
            const float either[2] = {h - root * (g + slope * b), b};  // at its limit b can only go back
            sign = SIGNS[either[desk.keep[j] < 0] > 0];
            now.s += sign * 4 * h + 4 * diagonal;
            now.t += sign * 2 * g;
            now.m += sign * 4 * b + 4;
            after = now.s / now.m - 2 * now.t / __builtin_sqrtf(now.m);
        }
        const bool worse = after >= now.J;  // as often as not: no branch
        descending = descending & !worse;
        if (worse & !saved) std::memcpy(desk.best, desk.b, n * sizeof(float)), saved = true;
        if (!descending) {
            ++counted;
            seed = seed * 1664525u + 1013904223u;
            desk.until[j] = move + 1 + problem->tenure + int((seed >> 16) % uint32_t(problem->tenure + 1));
        }
        step = 2 * sign;
        along = step * desk.v[j];
        desk.b[j] = b + step;
        mark(j);
        row = problem->gram + j * problem->stride;
        now.J = after;
        if (after < lowest - 1e-7f * __builtin_fabsf(lowest)) lowest = after, saved = false;
        ++move;
        return true;
    }

    RBEGIR_INLINE void end() {
        std::memcpy(result, saved || now.J > lowest ? desk.best : desk.b, problem->n * sizeof(float));
    }

private:
    RBEGIR_INLINE void place(float *to, const float *from) {
        std::memcpy(to, from, problem->n * sizeof(float));
        std::memset(to + problem->n, 0, (problem->stride - problem->n) * sizeof(float));
    }

    // At its limit b_j can only move against its sign: f then keeps a sign, plus where the move is possible.
    RBEGIR_INLINE void mark(int j) {
        if constexpr (ONE) return;
        const float b = desk.b[j];
        const int edge = -int(__builtin_fabsf(b) == float(problem->limit));  // all ones, or 0
        desk.flip[j] = edge & SIGN & __builtin_bit_cast(int, b);
        desk.keep[j] = edge | ~SIGN;
    }

    const Problem *problem;
    const float *row;  // of the Gram matrix, for the move before
    float *result;
    Desk desk;
    int move, counted;
    State now;
    float scale, lowest, step, along;  // scale: of packed costs, for costs in units of the diagonal
    bool saved, descending;
    uint32_t seed;
};

template <class Isa, bool ONE>
RBEGIR_INLINE void search(const Problem &problem, const float *g, const float *v, float *b, const float *h,
                          size_t count, const Desk desks[2]) {
    const size_t n = problem.n;
    Search<Isa, ONE> first, second;
    for (size_t i = 0; i < count; i += 2) {
        const size_t at = i * n, behind = i + 1 < count ? at + n : at;  // an odd last one is searched for twice, alike
        first.begin(problem, g + at, v + at, b + at, h + at, desks[0]);
        second.begin(problem, g + behind, v + behind, b + behind, h + behind, desks[1]);
        for (bool more = true; more;) {
            more = first.advance();
            more |= second.advance();
        }
        first.end(), second.end();
    }
}

template <class Isa>
void refine(const Problem &problem, bool one_plane, const float *g, const float *v, float *b, const float *h,
            size_t count, const Desk desks[2]) {
    if (one_plane)
        search<Isa, true>(problem, g, v, b, h, count, desks);
    else
        search<Isa, false>(problem, g, v, b, h, count, desks);
}

template <class Isa>
constexpr Kernels table(const char *name) {
    constexpr size_t PANEL = Isa::WIDTH * Isa::LANES;
    return {name, PANEL > COLUMN_PAD ? PANEL : COLUMN_PAD, sum_rows<Isa>, sum_bytes<Isa>, slide<Isa>, tanh<Isa>, multiply<Isa>, dot_of<Isa>, nearest<Isa>, refine<Isa>, maxsim<Isa>};
}

}  // namespace rbegir::floats

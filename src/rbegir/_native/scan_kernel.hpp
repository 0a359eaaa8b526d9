// The scan: what its parts say to each other. Plain data only, because the kernels are compiled once per
// instruction set and must not share inline library code with the rest of the module.
//
// The dot product of a query v with a keyword of P planes is linear in the keyword's bits. Write it as what is
// lost against the best possible keyword (every bit equal to the sign of v):
//
//     dot     = (2^P − 1)·Σ|v_d| − 2·deficit
//     deficit = Σ_p 2^(P−1−p) · Σ_d |v_d|·[bit (p, d) disagrees with the sign of v_d]          ≥ 0
//
// The inner sum is the same function for every plane, so a query needs one set of lookup tables however many
// planes a keyword has, and planes are folded by doubling or halving (Horner). All terms are non-negative: sums
// may saturate, entries may be rounded down, and "deficit ≤ limit" stays a necessary condition. The largest
// limit lets everything pass.
//
// ‖k‖² = (2^P − 1)²·n − 8·class, where class is a weighted sum of popcounts of XORs of planes. A threshold on
// the exact order key is therefore one limit on the deficit for every class.
//
// A keyword whose rounded deficit is within the limit of its class is reported; its exact deficit and class are
// then computed from its bits. No decision to keep a keyword is taken on a rounded number.
#pragma once

#include "norm_class.hpp"

// How vectors larger than a register are passed is not settled; functions that take them are inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace rbegir::scan {

constexpr int GROUP = 64;  // keywords side by side: one byte of each is one row
constexpr int MAX_PLANES = 4;
constexpr int MAX_WORDS = 16;
constexpr int MAGNITUDE_BITS = 8;  // |v| ≤ 255
constexpr int LISTED = 3;          // places of a group that are always written, used or not
constexpr int ABREAST = 8;         // keywords that may be scored side by side
constexpr int MAX_EACH = 256;      // groups whose candidates are scored in one call
constexpr int DOT_BINS = 32;       // limits of DOT, of 32 bits each
constexpr int COMPACT_ROW = 128;   // bytes of a row while columns are gathered: it may run over by a group

struct Shape {
    int words;   // n / 64
    int planes;  // of a keyword

    RBEGIR_INLINE constexpr int n() const { return words * 64; }
    RBEGIR_INLINE constexpr size_t rows() const { return 8 * static_cast<size_t>(words); }  // of a plane of a group
    RBEGIR_INLINE constexpr size_t plane_bytes() const { return rows() * GROUP; }           // of a group
    RBEGIR_INLINE constexpr int top() const { return (1 << planes) - 1; }  // the largest value of a dimension
    // The largest class there is. A dimension is an odd integer, so its square is at least 1 and the norm at least n:
    // top²·n − 8·class ≥ n gives class ≤ (top² − 1)/8·n, a whole number since odd squares are 1 modulo 8. A keyword
    // whose dimensions are all ±1 attains it. The weights of the pairs of planes add up to more for three planes and
    // up, since no bits make all pairs of planes disagree; classes beyond this bound would have norms below n, down
    // to negative ones.
    RBEGIR_INLINE constexpr int max_class() const { return (top() * top() - 1) / 8 * n(); }
    RBEGIR_INLINE constexpr int64_t norm(int cls) const {
        return static_cast<int64_t>(top()) * top() * n() - 8 * static_cast<int64_t>(cls);
    }
};

// A group in memory: plane p starts at data + p·stride, rows of 64 bytes follow each other.
struct Group {
    const uint8_t *data;
    size_t stride;
};

// The ways to find what may reach a threshold: sums of tables, the fastest first (scan_simd.hpp), products
// (scan_dot.hpp), or the exact score of each candidate (scan_exact.hpp).
enum Kind { BYTE = 0, WIDE = 1, COARSE = 2, TABLE_KINDS = 3, DOT = 3, EACH = 4 };

// How a kernel cuts the 64·words dimensions into tables.
struct Plan {
    int index_bits;  // a table has 2^index_bits entries of one byte
    int lookups;     // tables of a word (64 dimensions)
    bool left;       // the last dimension of each word is not in them: it is gathered in tables of its own
    bool keeps_rows;  // the first 8 index rows of a word are its rows, unchanged
    int cap[TABLE_KINDS];  // largest entry with which chunks of lookups add up in bytes; 0: the kind is not there

    RBEGIR_INLINE constexpr int table() const { return 1 << index_bits; }
    RBEGIR_INLINE constexpr int left_tables(int words) const {
        return left ? (words + index_bits - 1) / index_bits : 0;
    }
    RBEGIR_INLINE constexpr int tables(int words) const { return words * lookups + left_tables(words); }
    // Limits are looked up by class; where bits can be spared, the left-out dimensions join that index.
    RBEGIR_INLINE constexpr bool left_in_limit(Kind kind, int planes) const {
        return left && kind == BYTE && planes <= 2;
    }
    RBEGIR_INLINE constexpr int limit_bins(Kind kind, int planes) const {
        if (kind == DOT) return DOT_BINS;
        return left_in_limit(kind, planes) ? table() >> planes : table();
    }
    // The class is shifted right by this much, and what is still too large counts as the last bin.
    RBEGIR_INLINE int bin_shift(Kind kind, const Shape &shape) const {
        int shift = 0;
        while ((shape.max_class() >> shift) > limit_bins(kind, shape.planes)) ++shift;
        return shift;
    }
};

// One query as the filters see it.
struct Lut {
    const uint8_t *tables;      // [plan.tables(words)][plan.table()], 64-byte aligned; DOT: int8 [n] values
    const uint8_t *limit_low;   // [plan.table()] low byte of the limit: a keyword passes with a sum up to it;
                                // DOT: int32 [DOT_BINS] the least sum with which it passes
    const uint8_t *limit_high;  // [plan.table()] high byte; read by WIDE and COARSE
    int bin_shift;
};

// One query as the exact sums see it: bit planes of its signs and magnitudes.
struct QueryBits {
    const uint64_t *sign;       // [words] set where v > 0
    const uint64_t *magnitude;  // [bits][words] bit m of |v|
    int bits;
};

// Whether a keyword may reach a threshold on the order key: dot² / norm ≥ least.
struct Reach {
    double best_dot, best_norm, least;

    // Of one keyword, or of several side by side.
    template <class Number>
    RBEGIR_INLINE auto operator()(const Number &deficit, const Number &cls) const {
        const Number dot = best_dot - 2 * deficit;
        return dot * magnitude(dot) >= least * (best_norm - 8 * cls);
    }
    RBEGIR_INLINE bool operator()(int64_t deficit, int32_t cls) const {
        return (*this)(static_cast<double>(deficit), static_cast<double>(cls));
    }

  private:
    // Instead of a test of the sign, which would be a coin toss for the branch predictor.
    RBEGIR_INLINE static double magnitude(double x) { return __builtin_fabs(x); }
    template <class Numbers>
    RBEGIR_INLINE static Numbers magnitude(const Numbers &x) { return x < 0 ? -x : x; }
};

struct Event {
    uint32_t group;  // of the call
    uint64_t lanes;  // keywords that passed
};

struct Kernel {
    const char *name;
    Plan plan;
    // Bytes that `expand` writes for a group.
    size_t (*expanded_bytes)(const Shape &, Kind);
    // Index rows of a group, made once and used by every query of a batch.
    void (*expand)(const Shape &, Kind, Group, int bin_shift, uint8_t *out);
    // One query, not of DOT, against `groups` expanded groups; at most `groups` events. Only keywords in `candidates`
    // [groups] count.
    int (*filter)(const Shape &, Kind, const Lut &, const uint8_t *expanded, int groups, const uint64_t *candidates,
                  Event *out);
    // One query against `groups` groups where they lie, one after the other; events come in any order. Only keywords
    // in `candidates` [groups] count, or all if it is null. The rows of the group of each event are copied
    // to `rows` [events][planes · plane_bytes] while they are in L1.
    int (*filter_raw)(const Shape &, Kind, const Lut &, Group first, int groups, const uint64_t *candidates,
                      Event *out, uint8_t *rows);
    // Exact deficits and classes of the keywords in `lanes`, in ascending order of lane.
    void (*exact)(const Shape &, const QueryBits &, Group, uint64_t lanes, int64_t *deficits, int32_t *classes);
    // The words of the keywords of a group [64 · planes · words], in an order that exact_each knows.
    void (*transpose)(const Shape &, Group, uint64_t *out);
    // Exact deficits and classes of the keywords in `candidates` [groups] of such groups that may reach the threshold,
    // and their places (64 · group + lane), in any order; returns their number. There are at most MAX_EACH groups.
    // `places` has room for all candidates and ABREAST more, and one word behind `words` may be read.
    int (*exact_each)(const Shape &, const QueryBits &, const Reach &, const uint64_t *words, const uint64_t *candidates,
                      int groups, uint16_t *places, int64_t *deficits, int32_t *classes);
    // Appends the columns in `lanes` to rows of COMPACT_ROW bytes from column `fill` on. [planes · rows]
    void (*compact)(const Shape &, Group, uint64_t lanes, uint8_t *out, int fill);
    // Set bits of a mask.
    size_t (*count)(const uint64_t *mask, size_t words);
    // Several queries against groups expanded for DOT: the keywords that pass, [queries][groups]. Null: there is no DOT.
    void (*filter_dot)(const Shape &, const Lut *, int queries, const uint8_t *expanded, int groups,
                       uint64_t *out) = nullptr;
    double few = 1.25;  // keywords per group up to which it is faster to score each, as measured
};

extern const Kernel PORTABLE;
extern const Kernel EMULATED512, EMULATED512BW;
#if defined(__x86_64__)
extern const Kernel AVX2, AVX512BW, AVX512;
#elif defined(__aarch64__)
extern const Kernel NEON;
#endif

}  // namespace rbegir::scan

// A query made ready for the scan: exact bit planes, exact table entries, and from them the rounded tables and the
// limits that stand for a threshold on the order key.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "scan_best.hpp"
#include "scan_kernel.hpp"

namespace rbegir::scan {

constexpr int FRACTION_BITS = 36;  // of the order key, as in codes/score.py

// sign(dot) · ⌊2³⁶ · dot² / norm⌋
inline int64_t order_key(int64_t dot, int64_t norm) {
    const uint64_t square = static_cast<uint64_t>(dot * dot), divisor = static_cast<uint64_t>(norm);
    const uint64_t whole = square / divisor, rest = square % divisor;
    const int64_t key = static_cast<int64_t>((whole << FRACTION_BITS) + (rest << FRACTION_BITS) / divisor);
    return dot < 0 ? -key : key;
}

struct AlignedDelete {
    void operator()(uint8_t *p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<uint8_t[], AlignedDelete>;
AlignedBytes aligned_bytes(size_t size);

class Query {
  public:
    // `values` [n] must outlive it.
    Query(const Shape &shape, const Kernel &kernel, const int16_t *values, const Limit &limit);

    const Limit &limit() const { return limit_; }

    // Unless its kind is EACH: chooses the cheapest kind that is sharp enough at this threshold and rounds the tables
    // for it.
    void prepare(int64_t threshold);
    // After `prepare`: chooses DOT instead.
    void multiply();
    Kind kind() const { return kind_; }
    bool rounded() const { return scale_ > 1; }
    int bin_shift() const { return kernel_.plan.bin_shift(kind_, shape_); }
    const uint8_t *tables() const { return tables_.get(); }
    // Limits of the prepared kind for a threshold that is not below the prepared one. Both [plan.table()].
    void limits(int64_t threshold, uint8_t *low, uint8_t *high) const;

    QueryBits bits() const { return {sign_.data(), magnitude_.data(), magnitude_bits_}; }
    int64_t key(int64_t deficit, int32_t cls) const { return order_key(best_dot_ - 2 * deficit, shape_.norm(cls)); }
    // What says whether that key may reach a threshold: a hair generous, and much cheaper than its divisions.
    Reach reach(int64_t threshold) const {
        const double least = static_cast<double>(threshold) / (int64_t{1} << FRACTION_BITS) * (1 - 1e-9);
        const double any = -std::numeric_limits<double>::infinity();
        return {static_cast<double>(best_dot_), static_cast<double>(shape_.norm(0)), threshold <= 0 ? any : least};
    }

  private:
    double largest_deficit(int64_t threshold, int cls) const;
    // The deficit that one unit of the filter's sum stands for, before scaling: BYTE adds the first plane with weight
    // one, the others add the last one so.
    double unit() const { return kind_ == BYTE ? 1 << (shape_.planes - 1) : 1; }
    double top_limit() const { return kind_ == BYTE ? 255 : 65535; }  // lets everything pass

    Shape shape_;
    const Kernel &kernel_;
    const Limit limit_;
    std::vector<uint64_t> sign_, magnitude_;
    int magnitude_bits_ = 0;
    int64_t best_dot_ = 0;            // (2^P − 1)·Σ|v|
    double deviation_ = 0;            // of the deficit of random keywords
    const int16_t *values_;           // v
    int largest_ = 0;                 // |v|
    std::vector<uint16_t> entries_;   // [tables][table] exact
    int largest_entry_ = 0;
    Kind kind_ = WIDE;
    double scale_ = 1;                // of tables and limits; 1: not rounded
    int64_t dot_best_ = 0;            // the largest sum of DOT
    AlignedBytes tables_;
};

}  // namespace rbegir::scan

#include "scan_query.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

namespace rbegir::scan {

AlignedBytes aligned_bytes(size_t size) {
    return AlignedBytes(static_cast<uint8_t *>(::operator new[](size, std::align_val_t{64})));
}

namespace {

// Dimension of bit `bit` of the index of table `table`, or −1: the one place that knows how kernels cut a word.
int dimension_of(const Plan &plan, int words, int table, int bit) {
    if (table >= words * plan.lookups) {  // left-out dimensions, one a word
        const int word = (table - words * plan.lookups) * plan.index_bits + bit;
        return word < words ? word * 64 + 63 : -1;
    }
    const int word = table / plan.lookups, j = table % plan.lookups;
    if (!plan.left) return word * 64 + j * plan.index_bits + bit;
    return word * 64 + (j < 8 ? 8 * j + bit : 8 * bit + 7);
}

}  // namespace

Query::Query(const Shape &shape, const Kernel &kernel, const int16_t *values, const Limit &limit)
    : shape_(shape), kernel_(kernel), limit_(limit), sign_(shape.words), magnitude_(MAGNITUDE_BITS * shape.words),
      values_(values) {
    const Plan &plan = kernel.plan;
    int64_t sum = 0, squares = 0;
    for (int d = 0; d < shape.n(); ++d) {
        const int v = values[d], size = std::abs(v);
        sum += size;
        largest_ = std::max(largest_, size);
        squares += size * size;
        sign_[d / 64] |= static_cast<uint64_t>(v > 0) << (d % 64);
        for (int m = 0; m < MAGNITUDE_BITS; ++m)
            if (size >> m & 1) {
                magnitude_[m * shape.words + d / 64] |= uint64_t{1} << (d % 64);
                magnitude_bits_ = std::max(magnitude_bits_, m + 1);
            }
    }
    best_dot_ = shape.top() * sum;
    double weights = 0;
    for (int p = 0; p < shape.planes; ++p) weights += std::pow(4.0, p);
    deviation_ = std::sqrt(static_cast<double>(squares) / 4 * weights);

    if (limit.few) {
        kind_ = EACH;
        return;
    }
    const int tables = plan.tables(shape.words), size = plan.table();
    entries_.resize(static_cast<size_t>(tables) * size);
    for (int t = 0; t < tables; ++t) {
        uint16_t *entry = &entries_[static_cast<size_t>(t) * size];
        int value[8] = {};
        for (int bit = 0; bit < plan.index_bits; ++bit) {
            const int d = dimension_of(plan, shape.words, t, bit);
            value[bit] = d < 0 ? 0 : values[d];
            entry[0] = static_cast<uint16_t>(entry[0] + std::max(value[bit], 0));  // clear bits disagree with v > 0
        }
        for (int x = 1; x < size; ++x)
            entry[x] = static_cast<uint16_t>(entry[x & (x - 1)] - value[__builtin_ctz(x)]);
        largest_entry_ = std::max<int>(largest_entry_, *std::max_element(entry, entry + size));
    }
    tables_ = aligned_bytes(entries_.size());
}

// The largest deficit with which a keyword of this class can reach the threshold; a hair generous.
double Query::largest_deficit(int64_t threshold, int cls) const {
    if (threshold == NO_THRESHOLD) return static_cast<double>(best_dot_);
    const double unit = std::ldexp(static_cast<double>(shape_.norm(cls)), -FRACTION_BITS);
    const double size = static_cast<double>(threshold);
    const double dot = threshold > 0 ? std::sqrt(size * unit) : -std::sqrt((1 - size) * unit);
    return std::floor((static_cast<double>(best_dot_) - dot) / 2 + 1e-6);
}

void Query::prepare(int64_t threshold) {
    const Plan &plan = kernel_.plan;
    const double largest =
        std::max(largest_deficit(threshold, 0), largest_deficit(threshold, shape_.max_class()));
    for (int kind = shape_.words == 1 ? BYTE : WIDE; kind < TABLE_KINDS; ++kind) {
        if (plan.cap[kind] == 0) continue;
        kind_ = static_cast<Kind>(kind);
        const double for_entries = static_cast<double>(largest_entry_) / plan.cap[kind];
        scale_ = std::max({1.0, for_entries, largest / unit() / (top_limit() - 1)});
        // Rounding down loses about half a unit a lookup; entries are integers, so a small scale is better whole.
        // Half a deviation of slack passes a few times more keywords than needed, cheaper than a slower kind.
        if (scale_ < 16) scale_ = std::ceil(scale_);
        const double slack = (scale_ - 1) / 2 * shape_.top() * plan.tables(shape_.words);
        if (slack <= deviation_ / 2) break;
    }
    const double factor = (scale_ == 1 ? 1.0 : 1 - 1e-9) / scale_;
    for (size_t i = 0; i < entries_.size(); ++i) tables_[i] = static_cast<uint8_t>(entries_[i] * factor);
}

void Query::multiply() {
    kind_ = DOT;
    scale_ = largest_ > 127 ? 2 : 1;
    dot_best_ = 0;
    for (int d = 0; d < shape_.n(); ++d) {
        const int value = values_[d] / static_cast<int>(scale_);  // towards zero: see scan_dot.hpp
        tables_[d] = static_cast<uint8_t>(value);
        dot_best_ += shape_.top() * std::max(value, 0);
    }
}

void Query::limits(int64_t threshold, uint8_t *low, uint8_t *high) const {
    const Plan &plan = kernel_.plan;
    const int bins = plan.limit_bins(kind_, shape_.planes), shift = bin_shift();
    const double rounding = 1 - 1 / unit();  // what the halvings of BYTE add at most: ½ + ¼ + …
    for (int bin = 0; bin < bins; ++bin) {
        // Within a bin the generous end counts: small norms for positive scores, large ones for negative.
        const int first = std::min(bin << shift, shape_.max_class());
        const int last = bin == bins - 1 ? shape_.max_class() : std::min(((bin + 1) << shift) - 1, shape_.max_class());
        const double largest = std::max(largest_deficit(threshold, first), largest_deficit(threshold, last));
        if (kind_ == DOT) {
            const double least = static_cast<double>(dot_best_) - std::floor(largest / scale_);
            const auto whole = static_cast<int32_t>(std::clamp(least, -0x1p30, 0x1p30));
            std::memcpy(low + sizeof whole * bin, &whole, sizeof whole);
            continue;
        }
        for (int x = bin; x < plan.table(); x += bins) {  // higher bits: left-out dimensions
            double rest = largest;
            for (int p = 0; p < shape_.planes && bins < plan.table(); ++p) {
                const bool set = x / bins >> p & 1;
                if (set != (values_[63] > 0)) rest -= std::abs(values_[63]) << (shape_.planes - 1 - p);
            }
            // A limit below 0 becomes 0, which the exact score will refuse.
            const double limit = std::floor(rest / unit() / scale_ * (1 + 1e-9) + rounding);
            const int whole = static_cast<int>(std::clamp(limit, 0.0, top_limit()));
            low[x] = static_cast<uint8_t>(whole & 255);
            high[x] = static_cast<uint8_t>(whole >> 8);
        }
    }
}

}  // namespace rbegir::scan

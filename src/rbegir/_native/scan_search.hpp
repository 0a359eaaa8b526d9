// Exact top k over any number of partitions: threshold from a sample, one scan, proof by count.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "scan_best.hpp"
#include "scan_work.hpp"

namespace rbegir::scan {

constexpr int64_t NO_KEY = -std::numeric_limits<int64_t>::max();  // where a query has fewer hits than another

// The best of each query in the total order, row by row.
struct Found {
    size_t k = 0;  // the most hits of a query
    std::vector<int64_t> keys, positions;  // [queries, k] NO_KEY and −1 behind the last hit of a query

    Found() = default;
    explicit Found(std::vector<std::vector<Hit>> &&hits);  // of each query, in order
};

// The best k of each query, or as many as pass the masks and its limit. Values are int16 [queries, n].
Found search(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions,
             const int16_t *values, std::vector<Limit> limits, size_t k, int threads);

// The best k of the keywords at `among` [queries, count] of each query; count ≥ k.
Found rescore(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions,
              const int16_t *values, size_t queries, const int64_t *among, size_t count, size_t k, int threads);

}  // namespace rbegir::scan

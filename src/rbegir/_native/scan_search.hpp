// Exact top k over any number of partitions: threshold from a sample, one scan, proof by count.
#pragma once

#include <cstdint>
#include <vector>

#include "scan_best.hpp"
#include "scan_work.hpp"

namespace rbegir::scan {

// The best of each query in the total order, row by row.
struct Found {
    size_t k;  // hits of a query
    std::vector<int64_t> keys, positions;  // [queries, k]

    void write(size_t query, const std::vector<Hit> &hits);
};

// The best k of each query, or as many as pass the masks. Values are int16 [queries, n].
Found search(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions,
             const int16_t *values, size_t queries, size_t k, int threads);

// The best k of the keywords at `among` [queries, count] of each query; count ≥ k.
Found rescore(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions,
              const int16_t *values, size_t queries, const int64_t *among, size_t count, size_t k, int threads);

}  // namespace rbegir::scan

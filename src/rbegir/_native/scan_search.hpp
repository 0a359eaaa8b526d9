// Exact top k over any number of partitions: threshold from a sample, one scan, proof by count.
#pragma once

#include <cstdint>
#include <vector>

#include "scan_work.hpp"

namespace rbegir::scan {

// Keywords that pass the masks.
size_t count_candidates(const std::vector<Partition> &partitions);

// The best k (at most count_candidates) of each query in the total order, written row by row to keys and positions
// [queries, k]. Values are int16 [queries, n].
void search(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions,
            const int16_t *values, size_t queries, size_t k, int threads, int64_t *keys, int64_t *positions);

// The best k of the keywords at `among` [queries, count] of each query (count ≥ k), written as `search` does.
void rescore(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions,
             const int16_t *values, size_t queries, const int64_t *among, size_t count, size_t k, int threads,
             int64_t *keys, int64_t *positions);

}  // namespace rbegir::scan

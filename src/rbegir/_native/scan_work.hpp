// What there is to scan: partitions cut into spans, all of them or a random sample.
#pragma once

#include <cstdint>
#include <vector>

#include "scan_kernel.hpp"

namespace rbegir::scan {

struct Partition {
    const uint8_t *packed;  // [planes, groups, rows, 64]
    size_t count;           // keywords
    const uint64_t *mask;   // [groups] candidates, or null: all
    int64_t first;          // position of its first keyword
    std::vector<const uint64_t *> filters;  // [filters][groups] what the filters of queries pass; null: all

    size_t groups() const { return (count + GROUP - 1) / GROUP; }
    int64_t position(size_t group) const { return first + static_cast<int64_t>(group * GROUP); }
    Group group(const Shape &shape, size_t index) const {
        return {packed + index * shape.plane_bytes(), groups() * shape.plane_bytes()};
    }
    // Keywords of a group that are there and pass the mask.
    uint64_t candidates(size_t group) const {
        const size_t rest = count - group * GROUP;
        const uint64_t valid = rest >= GROUP ? ~uint64_t{0} : (uint64_t{1} << rest) - 1;
        return mask ? mask[group] & valid : valid;
    }
    // Those that also pass a filter; −1: none.
    uint64_t candidates(size_t group, int64_t filter) const {
        const uint64_t *passing = filter < 0 ? nullptr : filters[filter];
        return passing ? candidates(group) & passing[group] : candidates(group);
    }
    // What excludes the most with a single mask: the filter or else the candidates. Null: nothing is excluded.
    const uint64_t *passing(int64_t filter) const { return filter < 0 || !filters[filter] ? mask : filters[filter]; }
};

// Consecutive groups of one partition.
struct Span {
    uint32_t partition;
    uint32_t groups;
    size_t first;
};

struct Work {
    std::vector<Span> spans;    // in ascending order
    std::vector<size_t> tasks;  // first span of each task, then the end
    size_t groups = 0, candidates = 0;

    // All groups with candidates, in spans and tasks of at most `task_groups`. Where most groups have candidates, the
    // others are scanned with them, as memory is read faster in one go.
    static Work whole(const Kernel &kernel, const std::vector<Partition> &partitions, size_t task_groups);
    // A random one of every `share` runs of groups, in order. A fixed stride would follow any period of the data.
    Work sample(const std::vector<Partition> &partitions, size_t share, size_t run) const;

  private:
    void add(uint32_t partition, size_t first, size_t count) {
        spans.push_back({partition, static_cast<uint32_t>(count), first});
        groups += count;
    }
    void add_masked(uint32_t index, const Partition &partition, size_t first, size_t end, size_t task_groups);
    void cut(size_t task_groups);
};

}  // namespace rbegir::scan

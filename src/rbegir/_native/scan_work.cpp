#include "scan_work.hpp"

#include <algorithm>
#include <bit>

namespace rbegir::scan {

Work Work::whole(const Kernel &kernel, const std::vector<Partition> &partitions, size_t task_groups) {
    constexpr size_t WINDOW = 64;  // groups of a mask that are looked at together
    Work work;
    for (uint32_t p = 0; p < partitions.size(); ++p) {
        const size_t groups = partitions[p].groups();
        if (partitions[p].mask && groups) {
            const size_t last = groups - 1;  // it may have bits set of keywords that are not there
            work.candidates += kernel.count(partitions[p].mask, last) + std::popcount(partitions[p].candidates(last));
            for (size_t g = 0; g < groups; g += WINDOW)
                work.add_masked(p, partitions[p], g, std::min(g + WINDOW, groups), task_groups);
        } else {
            for (size_t g = 0; g < groups; g += task_groups) work.add(p, g, std::min(task_groups, groups - g));
            work.candidates += partitions[p].count;
        }
    }
    work.cut(task_groups);
    return work;
}

void Work::add_masked(uint32_t index, const Partition &partition, size_t first, size_t end, size_t task_groups) {
    size_t filled = 0;
    for (size_t g = first; g < end; ++g) filled += partition.mask[g] != 0;  // at most, as bits behind the end may be set
    if (3 * filled > end - first) {  // measured crossover
        Span *last = spans.empty() ? nullptr : &spans.back();
        const bool follows = last && last->partition == index && last->first + last->groups == first;
        if (!follows || last->groups == 1 || last->groups + (end - first) > task_groups)
            return add(index, first, end - first);
        last->groups += static_cast<uint32_t>(end - first);
        groups += end - first;
        return;
    }
    for (size_t g = first; g < end && filled; ++g)
        if (partition.candidates(g)) add(index, g, 1), --filled;
}

void Work::cut(size_t task_groups) {
    size_t size = task_groups;
    for (size_t i = 0; i < spans.size(); ++i) {
        if (size + spans[i].groups > task_groups) tasks.push_back(i), size = 0;
        size += spans[i].groups;
    }
    tasks.push_back(spans.size());
}

Work Work::sample(const std::vector<Partition> &partitions, size_t share, size_t run) const {
    Work work;
    uint64_t state = groups;
    const auto draw = [&] {  // splitmix64
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return (z ^ z >> 31) % share;
    };
    const size_t stride = share * run;
    size_t seen = 0, next = draw() * run;
    for (const Span &span : spans) {
        while (next < seen + span.groups) {
            const size_t from = std::max(next, seen), end = std::min(next + run, seen + span.groups);
            work.add(span.partition, span.first + from - seen, end - from);
            for (size_t g = from; g < end; ++g)
                work.candidates += std::popcount(partitions[span.partition].candidates(span.first + g - seen));
            if (end < next + run) break;  // the rest is in the next span
            next = (next / stride + 1) * stride + draw() * run;
        }
        seen += span.groups;
    }
    work.cut(64);
    return work;
}

}  // namespace rbegir::scan

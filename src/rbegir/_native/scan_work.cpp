#include "scan_work.hpp"

#include <algorithm>
#include <bit>

namespace rbegir::scan {

Work Work::whole(const std::vector<Partition> &partitions, size_t span_groups) {
    Work work;
    for (uint32_t p = 0; p < partitions.size(); ++p) {
        const Partition &partition = partitions[p];
        const size_t groups = partition.groups();
        if (!partition.mask) {
            for (size_t g = 0; g < groups; g += span_groups) work.add(p, g, std::min(span_groups, groups - g));
            work.candidates += partition.count;
            continue;
        }
        work.masked = true;
        size_t first = 0;
        for (size_t g = 0; g < groups; ++g) {
            const uint64_t lanes = partition.candidates(g);
            work.candidates += std::popcount(lanes);
            if (lanes && g - first < span_groups) continue;
            if (g > first) work.add(p, first, g - first);
            first = lanes ? g : g + 1;
        }
        if (groups > first) work.add(p, first, groups - first);
    }
    return work;
}

Work Work::sample(const std::vector<Partition> &partitions, size_t share) const {
    Work work;
    work.masked = masked;
    uint64_t state = groups;
    const auto draw = [&] {  // splitmix64
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return (z ^ z >> 31) % share;
    };
    size_t seen = 0, next = draw();
    for (const Span &span : spans) {
        for (; next < seen + span.groups; next = (next / share + 1) * share + draw()) {
            const size_t group = span.first + next - seen;
            work.add(span.partition, group, 1);
            work.candidates += std::popcount(partitions[span.partition].candidates(group));
        }
        seen += span.groups;
    }
    return work;
}

}  // namespace rbegir::scan

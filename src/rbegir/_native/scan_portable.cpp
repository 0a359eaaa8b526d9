// Plain C++ that any CPU runs: a row is the index of a table of 256 entries, so a word takes 8 lookups and nothing
// needs expanding. The chunk is one lookup, so entries may use the whole byte; BYTE does not exist.
#include "scan_exact.hpp"

namespace rbegir::scan {
namespace {

constexpr int TABLE = 256;
constexpr Plan PLAN{8, 8, false, true, {0, 255, 255}};

size_t expanded_bytes(const Shape &shape, Kind) { return shape.planes * shape.plane_bytes() + GROUP; }

void bins_of(const Shape &shape, Group group, int shift, uint8_t *bins) {
    uint16_t cls[GROUP];
    classes_of(shape.planes, shape.rows(), group.data, group.stride, cls);
    for (int lane = 0; lane < GROUP; ++lane) {
        const int bin = cls[lane] >> shift;
        bins[lane] = static_cast<uint8_t>(bin < TABLE ? bin : TABLE - 1);
    }
}

uint64_t within_limit(const Shape &shape, const Lut &lut, Group group, const uint8_t *bins) {
    uint32_t deficit[GROUP] = {};
    for (int p = 0; p < shape.planes; ++p) {
        const uint8_t *rows = group.data + p * group.stride;
        for (int lane = 0; lane < GROUP; ++lane) deficit[lane] *= 2;
        for (size_t r = 0; r < shape.rows(); ++r, rows += GROUP) {
            const uint8_t *table = lut.tables + r * TABLE;
            for (int lane = 0; lane < GROUP; ++lane) deficit[lane] += table[rows[lane]];
        }
    }
    uint64_t lanes = 0;
    for (int lane = 0; lane < GROUP; ++lane) {
        const uint32_t limit = lut.limit_low[bins[lane]] | static_cast<uint32_t>(lut.limit_high[bins[lane]]) << 8;
        lanes |= static_cast<uint64_t>(deficit[lane] <= limit) << lane;
    }
    return lanes;
}

void expand(const Shape &shape, Kind, Group group, int shift, uint8_t *out) {
    bins_of(shape, group, shift, copy_rows(shape, group, out));
}

int filter(const Shape &shape, Kind kind, const Lut &lut, const uint8_t *expanded, int groups,
           const uint64_t *candidates, Event *out) {
    int events = 0;
    for (int g = 0; g < groups; ++g, expanded += expanded_bytes(shape, kind)) {
        const Group group{expanded, shape.plane_bytes()};
        const uint8_t *bins = expanded + shape.planes * shape.plane_bytes();
        const uint64_t lanes = candidates[g] & within_limit(shape, lut, group, bins);
        if (lanes) out[events++] = {static_cast<uint32_t>(g), lanes};
    }
    return events;
}

int filter_raw(const Shape &shape, Kind, const Lut &lut, Group first, int groups, const uint64_t *candidates,
               Event *out, uint8_t *rows) {
    return filter_where_they_lie(shape, first, groups, candidates, out, rows, [&](Group group) {
        uint8_t bins[GROUP];
        bins_of(shape, group, lut.bin_shift, bins);
        return within_limit(shape, lut, group, bins);
    });
}

}  // namespace

const Kernel PORTABLE{"portable", PLAN,      expanded_bytes, expand,          filter,    filter_raw,
                      exact_lanes, transpose, exact_each,     compact_columns, count_bits};

}  // namespace rbegir::scan

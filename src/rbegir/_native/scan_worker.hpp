// One thread of a scan: takes spans, filters them for every query, scores what passes.
//
// For one or two queries the groups are read where they lie. For more, a block of groups is expanded to index rows
// that stay in L1 while all queries pass over it. Groups of which few keywords pass a mask are gathered first, so
// that a block is full of candidates; not if queries have filters of their own, which know groups only. The blocks of
// DOT, which reads a block group by group for all queries, are larger.
//
// Queries whose own filters pass few keywords score each of them (EACH): the groups of a task are transposed to words,
// once for all of these queries, unless none of them has a candidate there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "scan_best.hpp"
#include "scan_query.hpp"
#include "scan_work.hpp"

namespace rbegir::scan {

constexpr size_t RAW_QUERIES = 2;  // up to so many queries, expanding does not pay
constexpr size_t MAX_SLOTS = 16;   // groups of a block; with their tables they fit into L1

// What the threads of a scan share. The queries are of one kind.
struct ScanState {
    Shape shape;
    const Kernel &kernel;
    const std::vector<Partition> &partitions;
    const std::vector<const Query *> &queries;
    size_t k;
    std::vector<std::atomic<int64_t>> thresholds;  // of each query, ever rising
};

class Worker {
  public:
    explicit Worker(ScanState &state);

    void scan(const Span *spans, const Span *end);  // a task; tasks come in ascending order
    void flush();  // after the last span
    std::vector<Hit> &hits(size_t q) { return best_[q].hits(); }

  private:
    // 64 keywords gathered from groups of which few pass.
    struct Block {
        AlignedBytes rows;  // [planes · rows][64]
        int64_t positions[GROUP];
    };
    // An expanded group: where its keywords lie, and their positions: consecutive from `first` on, or those of a block.
    struct Slot {
        Group group;
        int64_t first;
        const Block *block;
    };

    void set_limits(size_t q);
    void exchange_thresholds(size_t q, int64_t before);
    void add(size_t q, int64_t deficit, int32_t cls, int64_t position);
    template <class Position>
    void score(size_t q, Group group, uint64_t lanes, const Position &position);
    bool score_filtered(size_t q, const uint64_t *candidates);
    void filter_in_place(size_t q, const Partition &partition, size_t first, size_t groups);
    void scan_in_place(const Partition &partition, const Span &span);
    void scan_block(const Partition &partition, const Span &span);
    void scan_each(const Span *spans, const Span *end);
    void score_each();
    void prefetch(Group group) const;
    void expand(Slot slot, uint64_t lanes);
    void apply_filters(const Span *spans, const Span *end);
    void gather(Group group, uint64_t lanes, int64_t first);
    void expand_gathered();
    void flush_slots();

    ScanState &state_;
    const Kind kind_;
    const int shift_;
    const size_t rows_;  // of a group, all planes
    std::vector<Best> best_;
    AlignedBytes limits_;  // [queries][2][table]
    std::vector<Lut> luts_;
    std::vector<Event> events_;  // of groups in place
    AlignedBytes copies_;        // [events][rows][64] their rows
    const bool own_filters_;     // whether there are queries that have filters
    size_t expanded_bytes_ = 0, capacity_ = 0;
    AlignedBytes expanded_;
    std::vector<Slot> slots_;
    uint64_t lanes_[MAX_SLOTS];  // candidates of the slots, if queries have no filters of their own; else …
    std::vector<uint64_t> passing_;  // [queries][groups of the task] … theirs,
    size_t task_groups_ = 0, flushed_ = 0;  // of which so many are done
    std::vector<Block> blocks_;  // of the slots
    AlignedBytes columns_;       // [rows][COMPACT_ROW] being gathered
    int64_t positions_[2 * GROUP];
    int gathered_ = 0;
    std::vector<uint64_t> dot_lanes_;  // [queries][slots] what passes DOT
    AlignedBytes words_;  // [slots][64 · rows / 8] of the slots of EACH, and what exact_each finds in them:
    std::unique_ptr<uint16_t[]> places_;  // not vectors, as most of this memory is never touched
    std::unique_ptr<int64_t[]> deficits_;
    std::unique_ptr<int32_t[]> classes_;
};

}  // namespace rbegir::scan

#include "scan_worker.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace rbegir::scan {
namespace {

constexpr size_t EXPANDED_BYTES = 21504;  // of a block: most of L1
constexpr size_t DOT_BYTES = 131072;      // of one for DOT, which brings each group to L1 once: a part of L2
constexpr size_t WORD_BYTES = 262144;     // of one for EACH, which reads it here and there: a part of L2
constexpr int GATHER_LANES = 32;          // groups with at most so many candidates are gathered
constexpr int EXACT_LANES = 2;            // so few candidates of a lonely group are scored without the filter
constexpr size_t MASKS_AHEAD = 2;         // masks are prefetched so many queries before their turn
constexpr ptrdiff_t AHEAD = 8;            // groups that the hardware does not see coming are prefetched so many before

}  // namespace

Worker::Worker(ScanState &state)
    : state_(state), kind_(state.queries[0]->kind()), shift_(state.queries[0]->bin_shift()),
      rows_(state.shape.planes * state.shape.rows()), own_filters_(!state.partitions[0].filters.empty()) {
    const size_t table = state.kernel.plan.table(), queries = state.queries.size();
    for (size_t q = 0; q < queries; ++q)
        best_.emplace_back(state.k, state.thresholds[q].load(std::memory_order_relaxed));
    if (kind_ == EACH) {
        capacity_ = std::clamp<size_t>(WORD_BYTES / (rows_ * GROUP), 1, MAX_EACH);
        words_ = aligned_bytes(rows_ * GROUP * capacity_ + sizeof(uint64_t));
        places_.reset(new uint16_t[capacity_ * GROUP + ABREAST]);
        deficits_.reset(new int64_t[capacity_ * GROUP]);
        classes_.reset(new int32_t[capacity_ * GROUP]);
        return;
    }
    limits_ = aligned_bytes(2 * table * queries);
    for (size_t q = 0; q < queries; ++q) {
        uint8_t *limit = limits_.get() + 2 * table * q;
        luts_.push_back({state.queries[q]->tables(), limit, limit + table, shift_});
        set_limits(q);
    }
    if (queries <= RAW_QUERIES) return;
    expanded_bytes_ = state.kernel.expanded_bytes(state.shape, kind_);
    capacity_ = std::clamp<size_t>((kind_ == DOT ? DOT_BYTES : EXPANDED_BYTES) / expanded_bytes_, 1, MAX_SLOTS);
    expanded_ = aligned_bytes(expanded_bytes_ * capacity_);
    if (kind_ == DOT) dot_lanes_.resize(queries * capacity_);
}

void Worker::scan(const Span *spans, const Span *end) {
    if (kind_ == EACH) return scan_each(spans, end);
    if (own_filters_ && luts_.size() > RAW_QUERIES) apply_filters(spans, end);
    for (const Span *span = spans; span < end; ++span) {
        const Partition &partition = state_.partitions[span->partition];
        if (span + AHEAD < end && span[AHEAD].groups == 1)  // the hardware does not see lonely groups coming
            prefetch(state_.partitions[span[AHEAD].partition].group(state_.shape, span[AHEAD].first));
        if (luts_.size() <= RAW_QUERIES) scan_in_place(partition, *span);
        else scan_block(partition, *span);
    }
    if (own_filters_) flush_slots();
}

void Worker::set_limits(size_t q) {
    if (kind_ == EACH) return;
    const size_t table = state_.kernel.plan.table();
    uint8_t *limit = limits_.get() + 2 * table * q;
    state_.queries[q]->limits(best_[q].threshold(), limit, limit + table);
}

// After hits of query q: what this thread has proven goes to the others, and the other way round.
void Worker::exchange_thresholds(size_t q, int64_t before) {
    std::atomic<int64_t> &shared = state_.thresholds[q];
    int64_t theirs = shared.load(std::memory_order_relaxed);
    const int64_t ours = best_[q].proven();
    while (theirs < ours && !shared.compare_exchange_weak(theirs, ours, std::memory_order_relaxed)) {
    }
    best_[q].raise(theirs);
    best_[q].advance();
    if (best_[q].threshold() > before) set_limits(q);
}

void Worker::add(size_t q, int64_t deficit, int32_t cls, int64_t position) {
    const Query &query = *state_.queries[q];
    const Hit hit{query.key(deficit, cls), position};
    if (better(query.limit().before, hit)) best_[q].add(hit);
}

template <class Position>
void Worker::score(size_t q, Group group, uint64_t lanes, const Position &position) {
    int64_t deficits[GROUP];
    int32_t classes[GROUP];
    state_.kernel.exact(state_.shape, state_.queries[q]->bits(), group, lanes, deficits, classes);
    const Reach reaches = state_.queries[q]->reach(best_[q].threshold());
    for (int i = 0; lanes; lanes &= lanes - 1, ++i)
        if (reaches(deficits[i], classes[i])) add(q, deficits[i], classes[i], position(std::countr_zero(lanes)));
}

// ---- few queries: groups where they lie ----

void Worker::filter_in_place(size_t q, const Partition &partition, size_t first, size_t groups) {
    const size_t bytes = rows_ * GROUP;
    if (events_.size() < groups) {
        events_.resize(groups);
        copies_ = aligned_bytes(groups * bytes);
    }
    const int64_t filter = state_.queries[q]->limit().filter;
    const uint64_t *passing = partition.passing(filter);
    const int found = state_.kernel.filter_raw(
        state_.shape, kind_, luts_[q], partition.group(state_.shape, first), static_cast<int>(groups),
        passing ? passing + first : nullptr, events_.data(), copies_.get());
    for (int e = 0; e < found; ++e) {
        const size_t g = first + events_[e].group;
        const uint64_t lanes = events_[e].lanes & partition.candidates(g, filter);
        if (!lanes) continue;
        const int64_t start = partition.position(g);
        const Group copy{copies_.get() + e * bytes, state_.shape.plane_bytes()};
        score(q, copy, lanes, [=](int lane) { return start + lane; });
    }
}

void Worker::scan_in_place(const Partition &partition, const Span &span) {
    const int64_t start = partition.position(span.first);
    for (size_t q = 0; q < luts_.size(); ++q) {
        const int64_t before = best_[q].threshold();
        const uint64_t lanes = partition.candidates(span.first, state_.queries[q]->limit().filter);
        if (span.groups == 1 && std::popcount(lanes) <= EXACT_LANES)
            score(q, partition.group(state_.shape, span.first), lanes, [=](int lane) { return start + lane; });
        else
            filter_in_place(q, partition, span.first, span.groups);
        exchange_thresholds(q, before);
    }
}

// ---- many queries: blocks of expanded groups ----

void Worker::scan_block(const Partition &partition, const Span &span) {
    for (size_t g = span.first; g < span.first + span.groups; ++g) {
        const uint64_t lanes = partition.candidates(g);
        if (!lanes && !own_filters_) continue;
        const Group group = partition.group(state_.shape, g);
        if (span.groups > 1 && g + MAX_SLOTS < partition.groups())
            prefetch(partition.group(state_.shape, g + MAX_SLOTS));
        if (partition.mask && !own_filters_ && std::popcount(lanes) <= GATHER_LANES) {
            gather(group, lanes, partition.position(g));
        } else {
            expand_gathered();  // first, so that positions come in ascending order
            expand({group, partition.position(g), nullptr}, lanes);
        }
    }
}

void Worker::flush() {
    expand_gathered();
    flush_slots();
}

// Brings a group of the next block to L2 while this block is at work.
void Worker::prefetch(Group group) const {
    for (int p = 0; p < state_.shape.planes; ++p)
        for (size_t at = 0; at < state_.shape.plane_bytes(); at += 64)
            __builtin_prefetch(group.data + p * group.stride + at, 0, 2);
}

void Worker::expand(Slot slot, uint64_t lanes) {
    const size_t at = slots_.size();
    uint8_t *expanded = expanded_.get() + at * expanded_bytes_;
    state_.kernel.expand(state_.shape, kind_, slot.group, shift_, expanded);
    // Exact scores read the rows where they are in L1 already, if they are there as they were.
    if (state_.kernel.plan.keeps_rows && state_.shape.words == 1 && kind_ != DOT)
        slot.group = {expanded, (expanded_bytes_ - GROUP) / state_.shape.planes};
    lanes_[at] = lanes;
    slots_.push_back(slot);
    if (slots_.size() == capacity_) flush_slots();
}

void Worker::gather(Group group, uint64_t lanes, int64_t first) {
    if (blocks_.empty()) {
        blocks_.resize(capacity_);
        for (Block &block : blocks_) block.rows = aligned_bytes(rows_ * GROUP);
        columns_ = aligned_bytes(rows_ * COMPACT_ROW);
        std::memset(columns_.get(), 0, rows_ * COMPACT_ROW);
    }
    state_.kernel.compact(state_.shape, group, lanes, columns_.get(), gathered_);
    for (uint64_t rest = lanes; rest; rest &= rest - 1) positions_[gathered_++] = first + std::countr_zero(rest);
    if (gathered_ >= GROUP) expand_gathered();
}

// The first 64 gathered columns become a group of their own; what ran over stays for the next.
void Worker::expand_gathered() {
    if (!gathered_) return;
    Block &block = blocks_[slots_.size()];
    for (size_t r = 0; r < rows_; ++r) {
        uint8_t *row = columns_.get() + r * COMPACT_ROW;
        std::memcpy(block.rows.get() + r * GROUP, row, GROUP);
        std::memcpy(row, row + GROUP, GROUP);
    }
    const int count = std::min(gathered_, GROUP);
    std::copy(positions_, positions_ + count, block.positions);
    std::copy(positions_ + count, positions_ + gathered_, positions_);
    gathered_ -= count;
    const Group group{block.rows.get(), state_.shape.plane_bytes()};
    expand({group, block.positions[0], &block}, ~uint64_t{0} >> (GROUP - count));
}

// The candidates of each query in the groups of a task. A filter is read in long runs, as each has pages of its own.
void Worker::apply_filters(const Span *spans, const Span *end) {
    std::vector<uint64_t> lanes;
    for (const Span *span = spans; span < end; ++span)
        for (size_t g = 0; g < span->groups; ++g)
            lanes.push_back(state_.partitions[span->partition].candidates(span->first + g));
    flushed_ = 0;
    task_groups_ = lanes.size();
    passing_.resize(best_.size() * task_groups_);
    const auto mask_of = [&](size_t q, const Span &span) {
        const int64_t filter = q < best_.size() ? state_.queries[q]->limit().filter : -1;
        const uint64_t *mask = filter < 0 ? nullptr : state_.partitions[span.partition].filters[filter];
        return mask ? mask + span.first : nullptr;
    };
    for (size_t q = 0; q < best_.size(); ++q) {
        uint64_t *to = &passing_[q * task_groups_];
        const uint64_t *from = lanes.data();
        for (const Span *span = spans; span < end; to += span->groups, from += span->groups, ++span) {
            if (const uint64_t *later = mask_of(q + MASKS_AHEAD, *span))
                for (size_t g = 0; g < span->groups; g += 64 / sizeof *later) __builtin_prefetch(later + g);
            const uint64_t *mask = mask_of(q, *span);
            if (!mask) std::copy(from, from + span->groups, to);
            else for (size_t g = 0; g < span->groups; ++g) to[g] = from[g] & mask[g];
        }
    }
}

void Worker::flush_slots() {
    if (slots_.empty()) return;
    if (kind_ == DOT)
        state_.kernel.filter_dot(state_.shape, luts_.data(), static_cast<int>(luts_.size()), expanded_.get(),
                                 static_cast<int>(slots_.size()), dot_lanes_.data());
    for (size_t q = 0; q < luts_.size(); ++q) {
        const uint64_t *candidates = own_filters_ ? &passing_[q * task_groups_ + flushed_] : lanes_;
        const int64_t before = best_[q].threshold();
        if (score_filtered(q, candidates) || state_.thresholds[q].load(std::memory_order_relaxed) > before)
            exchange_thresholds(q, before);
    }
    flushed_ += slots_.size();
    slots_.clear();
}

// The candidates of the slots that pass the sums of query q. Returns whether there were any.
bool Worker::score_filtered(size_t q, const uint64_t *candidates) {
    const uint32_t slots = static_cast<uint32_t>(slots_.size());
    Event events[MAX_SLOTS];
    int found = 0;
    if (kind_ == DOT) {
        const uint64_t *passing = &dot_lanes_[q * slots];
        for (uint32_t g = 0; g < slots; ++g)
            if (const uint64_t lanes = passing[g] & candidates[g]) events[found++] = {g, lanes};
    } else {
        found = state_.kernel.filter(state_.shape, kind_, luts_[q], expanded_.get(), static_cast<int>(slots), candidates,
                                     events);
    }
    for (int e = 0; e < found; ++e) {
        const Slot &slot = slots_[events[e].group];
        const uint64_t lanes = events[e].lanes;
        if (slot.block) score(q, slot.group, lanes, [&](int lane) { return slot.block->positions[lane]; });
        else score(q, slot.group, lanes, [&](int lane) { return slot.first + lane; });
    }
    return found > 0;
}

// ---- queries with few candidates: each is scored ----

void Worker::scan_each(const Span *spans, const Span *end) {
    apply_filters(spans, end);
    for (const Span *span = spans; span < end; ++span) {
        const Partition &partition = state_.partitions[span->partition];
        for (size_t g = span->first; g < span->first + span->groups; ++g) {
            slots_.push_back({partition.group(state_.shape, g), partition.position(g), nullptr});
            if (slots_.size() == capacity_) score_each();
        }
    }
    score_each();
}

void Worker::score_each() {
    const size_t slots = slots_.size();
    if (!slots) return;
    const uint64_t *first = passing_.data() + flushed_;
    uint64_t wanted[MAX_EACH] = {};
    for (size_t q = 0; q < best_.size(); ++q)
        for (size_t i = 0; i < slots; ++i) wanted[i] |= first[q * task_groups_ + i];
    uint64_t *words = reinterpret_cast<uint64_t *>(words_.get());
    for (size_t i = 0; i < slots; ++i) {
        if (const size_t later = i + size_t{AHEAD}; later < slots && wanted[later]) prefetch(slots_[later].group);
        if (wanted[i]) state_.kernel.transpose(state_.shape, slots_[i].group, words + i * rows_ / 8 * GROUP);
    }
    for (size_t q = 0; q < best_.size(); ++q) {
        const Query &query = *state_.queries[q];
        const int64_t before = best_[q].threshold();
        const int found = state_.kernel.exact_each(
            state_.shape, query.bits(), query.reach(before), words, first + q * task_groups_, static_cast<int>(slots),
            places_.get(), deficits_.get(), classes_.get());
        for (int i = 0; i < found; ++i)
            add(q, deficits_[i], classes_[i], slots_[places_[i] / GROUP].first + places_[i] % GROUP);
        if (found || state_.thresholds[q].load(std::memory_order_relaxed) > before) exchange_thresholds(q, before);
    }
    flushed_ += slots;
    slots_.clear();
}

}  // namespace rbegir::scan

#include "scan_search.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "scan_parallel.hpp"
#include "scan_query.hpp"

namespace rbegir::scan {
namespace {

constexpr size_t TASK_GROUPS = 256;       // what a thread takes at a time
constexpr size_t RAW_GROUPS = 64;         // groups between two looks at the threshold, without expanding
constexpr size_t EXPANDED_BYTES = 20480;  // a block of expanded groups stays in L1
constexpr size_t MAX_SLOTS = 16;
constexpr size_t SAMPLE = 64;             // one group of so many is sampled for the first threshold
constexpr size_t SMALL = 4096;            // so few keywords are scanned without a threshold
constexpr size_t QUERY_TILE = 256;        // queries whose tables stay in L2
constexpr size_t HIT_BYTES = size_t{256} << 20;  // kept hits of a tile of queries, about
constexpr size_t RAW_QUERIES = 2;         // up to so many queries, expanding does not pay
constexpr size_t THREAD_WORK = 2048;      // groups · queries that are worth a thread
constexpr size_t SHARE = 16;              // queries to prepare or to sort that are worth a thread
constexpr int GATHER_LANES = 32;          // groups with at most so many candidates are gathered for batches
constexpr int EXACT_LANES = 2;            // up to so many candidates of a group are scored without the filter

bool better(const Hit &a, const Hit &b) { return a.key != b.key ? a.key > b.key : a.position < b.position; }

// Consecutive groups of one partition.
struct Span {
    uint32_t partition;
    uint32_t groups;
    size_t first;
};

struct Work {
    std::vector<Span> spans;
    std::vector<size_t> tasks;  // first span of each task, then the end
    size_t groups = 0, candidates = 0;

    void add(uint32_t partition, size_t first, size_t count) {
        spans.push_back({partition, static_cast<uint32_t>(count), first});
        groups += count;
    }
    void cut() {  // into tasks; spans are at most TASK_GROUPS long
        size_t size = TASK_GROUPS;
        for (size_t i = 0; i < spans.size(); ++i) {
            if (size + spans[i].groups > TASK_GROUPS) tasks.push_back(i), size = 0;
            size += spans[i].groups;
        }
        tasks.push_back(spans.size());
    }
};

uint64_t candidates_of(const Partition &partition, size_t group) {
    const size_t rest = partition.count - group * GROUP;
    const uint64_t valid = rest >= GROUP ? ~uint64_t{0} : (uint64_t{1} << rest) - 1;
    return partition.mask ? partition.mask[group] & valid : valid;
}

Group group_of(const Shape &shape, const Partition &partition, size_t group) {
    return {partition.packed + group * shape.plane_bytes(), partition.groups() * shape.plane_bytes()};
}

// Calls body(i) for i < count, on one thread for every `share` of them at most.
template <class Body>
void for_each(size_t count, int threads, size_t share, const Body &body) {
    std::atomic<size_t> next{0};
    in_parallel(static_cast<int>(std::clamp<size_t>(count / share, 1, threads)), [&](int) {
        for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
    });
}

Work whole(const std::vector<Partition> &partitions) {
    Work work;
    for (uint32_t p = 0; p < partitions.size(); ++p) {
        const Partition &partition = partitions[p];
        const size_t groups = partition.groups();
        if (!partition.mask) {
            for (size_t g = 0; g < groups; g += TASK_GROUPS) work.add(p, g, std::min(TASK_GROUPS, groups - g));
            work.candidates += partition.count;
            continue;
        }
        for (size_t g = 0; g < groups; ++g) {
            const size_t first = g;
            for (; g < groups && g - first < TASK_GROUPS; ++g) {
                const uint64_t lanes = candidates_of(partition, g);
                if (!lanes) break;
                work.candidates += std::popcount(lanes);
            }
            if (g > first) work.add(p, first, g - first);
            if (g - first == TASK_GROUPS) --g;
        }
    }
    work.cut();
    return work;
}

// A random group of every SAMPLE, in order. A fixed stride would follow any period of the data.
Work sample(const std::vector<Partition> &partitions, const Work &all) {
    Work work;
    uint64_t state = all.groups;
    const auto draw = [&] {  // splitmix64
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return (z ^ z >> 31) % SAMPLE;
    };
    size_t seen = 0, next = draw();
    for (const Span &span : all.spans) {
        while (next < seen + span.groups) {
            const size_t group = span.first + next - seen;
            work.add(span.partition, group, 1);
            work.candidates += std::popcount(candidates_of(partitions[span.partition], group));
            next = next / SAMPLE * SAMPLE + SAMPLE + draw();
        }
        seen += span.groups;
    }
    work.cut();
    return work;
}

// The best k hits a thread has seen of a query, in no order, and the threshold that a new one must reach.
class Best {
  public:
    Best(size_t k, int64_t threshold) : k_(k), limit_(2 * k + 256), threshold_(threshold) {}

    int64_t threshold() const { return threshold_; }
    void raise(int64_t threshold) { threshold_ = std::max(threshold_, threshold); }
    std::vector<Hit> &hits() { return hits_; }

    void add(Hit hit) {
        if (hit.key < threshold_) return;
        hits_.push_back(hit);
        if (hits_.size() >= limit_) shrink();
    }

  private:
    void shrink() {
        std::nth_element(hits_.begin(), hits_.begin() + (k_ - 1), hits_.end(), better);
        hits_.resize(k_);
        // Positions come in ascending order, so a later hit with the same key as the last one is worse.
        raise(hits_.back().key + 1);
    }

    size_t k_, limit_;
    int64_t threshold_;
    std::vector<Hit> hits_;
};

// One scan of `work` for queries of the same kind, with a threshold each.
class Scan {
  public:
    Scan(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions, const Work &work,
         const std::vector<const Query *> &queries, const std::vector<int64_t> &thresholds, size_t k)
        : shape_(shape), kernel_(kernel), partitions_(partitions), work_(work), queries_(queries), k_(k),
          thresholds_(queries.size()) {
        for (size_t q = 0; q < queries.size(); ++q) thresholds_[q].store(thresholds[q], std::memory_order_relaxed);
    }

    // Hits of each query, at least those among the best k that reach its threshold.
    std::vector<std::vector<Hit>> run(int threads) {
        threads = static_cast<int>(std::clamp<size_t>(work_.groups * queries_.size() / THREAD_WORK, 1, threads));
        std::vector<std::unique_ptr<Worker>> workers(threads);
        in_parallel(threads, [&](int id) {
            workers[id] = std::make_unique<Worker>(*this);
            for (size_t task; (task = next_task_.fetch_add(1, std::memory_order_relaxed)) + 1 < work_.tasks.size();)
                for (size_t i = work_.tasks[task]; i < work_.tasks[task + 1]; ++i) workers[id]->scan(work_.spans[i]);
            workers[id]->flush();
        });
        std::vector<std::vector<Hit>> found(queries_.size());
        for (size_t q = 0; q < queries_.size(); ++q)
            for (auto &worker : workers) {
                auto &hits = worker->hits(q);
                if (found[q].empty()) found[q] = std::move(hits);
                else found[q].insert(found[q].end(), hits.begin(), hits.end());
                std::vector<Hit>().swap(hits);
            }
        return found;
    }

  private:
    class Worker {
      public:
        explicit Worker(Scan &scan)
            : scan_(scan), kind_(scan.queries_[0]->kind()), shift_(scan.queries_[0]->bin_shift()),
              raw_(scan.queries_.size() <= RAW_QUERIES) {
            const size_t table = scan.kernel_.plan.table(), queries = scan.queries_.size();
            limits_ = aligned_bytes(2 * table * queries);
            for (size_t q = 0; q < queries; ++q) {
                best_.emplace_back(scan.k_, scan.thresholds_[q].load(std::memory_order_relaxed));
                uint8_t *limit = limits_.get() + 2 * table * q;
                luts_.push_back({scan.queries_[q]->tables(), limit, limit + table, shift_});
                set_limits(q);
            }
            if (raw_) return;
            expanded_bytes_ = scan.kernel_.expanded_bytes(scan.shape_, kind_);
            capacity_ = std::clamp<size_t>(EXPANDED_BYTES / expanded_bytes_, 1, MAX_SLOTS);
            expanded_ = aligned_bytes(expanded_bytes_ * capacity_);
        }

        std::vector<Hit> &hits(size_t q) { return best_[q].hits(); }

        void scan(const Span &span) {
            const Partition &partition = scan_.partitions_[span.partition];
            if (raw_) return scan_raw(partition, span);
            for (size_t g = span.first; g < span.first + span.groups; ++g) {
                const uint64_t lanes = candidates_of(partition, g);
                const int64_t first = partition.first + static_cast<int64_t>(g * GROUP);
                if (partition.mask && std::popcount(lanes) <= GATHER_LANES) {
                    gather(group_of(scan_.shape_, partition, g), lanes, first);
                } else {
                    expand_gathered();  // first: positions must come in ascending order
                    expand({group_of(scan_.shape_, partition, g), lanes, first, nullptr});
                }
            }
        }

        void flush() {
            expand_gathered();
            flush_slots();
        }

      private:
        // 64 keywords gathered from groups of which few pass.
        struct Block {
            AlignedBytes rows;  // [planes · rows][64]
            int64_t positions[GROUP];
        };
        // An expanded group: where its keywords lie, which are candidates, and their positions: consecutive from
        // `first` on, or those of a block.
        struct Slot {
            Group group;
            uint64_t lanes;
            int64_t first;
            const Block *block;
        };

        void set_limits(size_t q) {
            const size_t table = scan_.kernel_.plan.table();
            uint8_t *limit = limits_.get() + 2 * table * q;
            scan_.queries_[q]->limits(best_[q].threshold(), limit, limit + table);
        }

        // After hits of query q: what this thread learnt goes to the others and the other way round.
        void share_threshold(size_t q, int64_t before) {
            std::atomic<int64_t> &shared = scan_.thresholds_[q];
            int64_t theirs = shared.load(std::memory_order_relaxed);
            if (best_[q].threshold() > before) {
                // Ours excludes equal keys because they come later; for other threads they may come earlier.
                const int64_t ours = best_[q].threshold() - 1;
                while (theirs < ours && !shared.compare_exchange_weak(theirs, ours, std::memory_order_relaxed)) {}
            }
            best_[q].raise(theirs);
            if (best_[q].threshold() > before) set_limits(q);
        }

        template <class Position>
        void score(size_t q, Group group, uint64_t lanes, const Position &position) {
            const Query &query = *scan_.queries_[q];
            int64_t deficits[GROUP];
            int32_t classes[GROUP];
            scan_.kernel_.exact(scan_.shape_, query.bits(), group, lanes, deficits, classes);
            for (int i = 0; lanes; lanes &= lanes - 1, ++i)
                best_[q].add({query.key(deficits[i], classes[i]), position(std::countr_zero(lanes))});
        }

        void scan_raw(const Partition &partition, const Span &span) {
            const size_t end = span.first + span.groups;
            for (size_t g = span.first; g < end; g += RAW_GROUPS)
                for (size_t q = 0; q < luts_.size(); ++q) {
                    const int64_t before = best_[q].threshold();
                    raw_block(q, partition, g, std::min(RAW_GROUPS, end - g));
                    share_threshold(q, before);
                }
        }

        void raw_block(size_t q, const Partition &partition, size_t first, size_t groups) {
            const auto hits = [&](size_t g, uint64_t lanes) {
                const int64_t start = partition.first + static_cast<int64_t>(g * GROUP);
                score(q, group_of(scan_.shape_, partition, g), lanes, [=](int lane) { return start + lane; });
            };
            const auto filter = [&](size_t from, size_t to) {
                if (from == to) return;
                Event events[RAW_GROUPS];
                const int count = scan_.kernel_.filter_raw(scan_.shape_, kind_, luts_[q], group_of(scan_.shape_, partition, from),
                                                           static_cast<int>(to - from), events);
                for (int e = 0; e < count; ++e) {
                    const size_t g = from + events[e].group;
                    if (const uint64_t lanes = events[e].lanes & candidates_of(partition, g)) hits(g, lanes);
                }
            };
            size_t from = first;
            if (partition.mask)
                for (size_t g = first; g < first + groups; ++g) {
                    const uint64_t lanes = candidates_of(partition, g);
                    if (std::popcount(lanes) > EXACT_LANES) continue;
                    filter(from, g);
                    hits(g, lanes);
                    from = g + 1;
                }
            filter(from, first + groups);
        }

        void expand(const Slot &slot) {
            scan_.kernel_.expand(scan_.shape_, kind_, slot.group, shift_,
                                 expanded_.get() + slots_.size() * expanded_bytes_);
            slots_.push_back(slot);
            if (slots_.size() == capacity_) flush_slots();
        }

        void gather(Group group, uint64_t lanes, int64_t first) {
            const size_t rows = scan_.shape_.planes * scan_.shape_.rows();
            if (blocks_.empty()) {
                blocks_.resize(capacity_);
                for (Block &block : blocks_) block.rows = aligned_bytes(rows * GROUP);
                columns_ = aligned_bytes(rows * COMPACT_ROW);
                std::memset(columns_.get(), 0, rows * COMPACT_ROW);
            }
            scan_.kernel_.compact(scan_.shape_, group, lanes, columns_.get(), gathered_);
            for (uint64_t rest = lanes; rest; rest &= rest - 1)
                positions_[gathered_++] = first + std::countr_zero(rest);
            if (gathered_ >= GROUP) expand_gathered();
        }

        // The first 64 gathered columns become a group of their own; what ran over stays for the next.
        void expand_gathered() {
            if (!gathered_) return;
            Block &block = blocks_[slots_.size()];
            const size_t rows = scan_.shape_.planes * scan_.shape_.rows();
            for (size_t r = 0; r < rows; ++r) {
                uint8_t *row = columns_.get() + r * COMPACT_ROW;
                std::memcpy(block.rows.get() + r * GROUP, row, GROUP);
                std::memcpy(row, row + GROUP, GROUP);
            }
            const int count = std::min(gathered_, GROUP);
            std::copy(positions_, positions_ + count, block.positions);
            std::copy(positions_ + count, positions_ + gathered_, positions_);
            gathered_ -= count;
            expand({{block.rows.get(), scan_.shape_.plane_bytes()}, ~uint64_t{0} >> (GROUP - count), 0, &block});
        }

        void flush_slots() {
            for (size_t q = 0; q < luts_.size() && !slots_.empty(); ++q) {
                Event events[MAX_SLOTS];
                const int count = scan_.kernel_.filter(scan_.shape_, kind_, luts_[q], expanded_.get(),
                                                       static_cast<int>(slots_.size()), events);
                if (!count && scan_.thresholds_[q].load(std::memory_order_relaxed) <= best_[q].threshold()) continue;
                const int64_t before = best_[q].threshold();
                for (int e = 0; e < count; ++e) {
                    const Slot &slot = slots_[events[e].group];
                    const uint64_t lanes = events[e].lanes & slot.lanes;
                    if (!lanes) continue;
                    if (slot.block) score(q, slot.group, lanes, [&](int lane) { return slot.block->positions[lane]; });
                    else score(q, slot.group, lanes, [&](int lane) { return slot.first + lane; });
                }
                share_threshold(q, before);
            }
            slots_.clear();
        }

        Scan &scan_;
        const Kind kind_;
        const int shift_;
        const bool raw_;
        std::vector<Best> best_;
        AlignedBytes limits_;  // [queries][2][table]
        std::vector<Lut> luts_;
        size_t expanded_bytes_ = 0, capacity_ = 0;
        AlignedBytes expanded_;
        std::vector<Slot> slots_;
        std::vector<Block> blocks_;      // of the slots
        AlignedBytes columns_;           // [planes · rows][COMPACT_ROW] being gathered
        int64_t positions_[2 * GROUP];
        int gathered_ = 0;
    };

    const Shape shape_;
    const Kernel &kernel_;
    const std::vector<Partition> &partitions_;
    const Work &work_;
    const std::vector<const Query *> &queries_;
    const size_t k_;
    std::vector<std::atomic<int64_t>> thresholds_;
    std::atomic<size_t> next_task_{0};
};

// Searches for a tile of queries.
class Searcher {
  public:
    Searcher(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions, int threads)
        : shape_(shape), kernel_(kernel), partitions_(partitions), threads_(threads) {}

    // The best k of `work` (which has at least k candidates) for each query, in no order.
    //
    // The k-th best of the whole has about rank k·f in a sample of a fraction f. The key at a somewhat lower rank of
    // the sample (found by the same search) is the first threshold of the scan. It is a guess: with fewer than k
    // hits it was too high, and the scan is repeated with a lower one, at last with none.
    std::vector<std::vector<Hit>> top(const std::vector<Query *> &queries, const Work &work, size_t k) const {
        std::vector<std::vector<Hit>> best(queries.size());
        std::vector<size_t> open(queries.size());
        for (size_t q = 0; q < queries.size(); ++q) open[q] = q;
        Work some;
        if (work.candidates > SMALL) some = sample(partitions_, work);
        for (const size_t generosity : {1, 8, 0}) {
            if (open.empty()) break;
            std::vector<Query *> asked;
            for (const size_t q : open) asked.push_back(queries[q]);
            std::vector<int64_t> thresholds(open.size(), NO_THRESHOLD);
            const double expected = static_cast<double>(k) * generosity * some.candidates / work.candidates;
            const size_t rank = static_cast<size_t>(std::ceil(expected + 3 * std::sqrt(expected) + 3));
            if (generosity && rank < some.candidates / 2) {
                const auto sampled = top(asked, some, rank);
                for (size_t i = 0; i < open.size(); ++i)
                    thresholds[i] = std::max_element(sampled[i].begin(), sampled[i].end(), better)->key;
            } else if (generosity) {
                continue;
            }
            auto found = scan(asked, thresholds, work, k);
            std::vector<size_t> still_open;
            for (size_t i = 0; i < open.size(); ++i)
                if (found[i].size() < k) still_open.push_back(open[i]);
                else best[open[i]] = std::move(found[i]);
            open = std::move(still_open);
        }
        for_each(queries.size(), threads_, SHARE, [&](size_t q) {
            if (best[q].size() > k) std::nth_element(best[q].begin(), best[q].begin() + (k - 1), best[q].end(), better);
            best[q].resize(k);
        });
        return best;
    }

  private:
    std::vector<std::vector<Hit>> scan(const std::vector<Query *> &queries, const std::vector<int64_t> &thresholds,
                                       const Work &work, size_t k) const {
        for_each(queries.size(), threads_, SHARE, [&](size_t q) { queries[q]->prepare(thresholds[q]); });
        std::vector<std::vector<Hit>> found(queries.size());
        for (const Kind kind : {BYTE, WIDE, COARSE}) {
            std::vector<size_t> members;
            std::vector<const Query *> same;
            std::vector<int64_t> starts;
            for (size_t q = 0; q < queries.size(); ++q)
                if (queries[q]->kind() == kind) {
                    members.push_back(q);
                    same.push_back(queries[q]);
                    starts.push_back(thresholds[q]);
                }
            if (members.empty()) continue;
            auto hits = Scan(shape_, kernel_, partitions_, work, same, starts, k).run(threads_);
            for (size_t i = 0; i < members.size(); ++i) found[members[i]] = std::move(hits[i]);
        }
        return found;
    }

    const Shape shape_;
    const Kernel &kernel_;
    const std::vector<Partition> &partitions_;
    const int threads_;
};

}  // namespace

size_t count_candidates(const std::vector<Partition> &partitions) {
    size_t count = 0;
    for (const Partition &partition : partitions) {
        if (!partition.mask) count += partition.count;
        else
            for (size_t g = 0; g < partition.groups(); ++g) count += std::popcount(candidates_of(partition, g));
    }
    return count;
}

void search(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions, const int16_t *values,
            size_t queries, size_t k, int threads, int64_t *keys, int64_t *positions) {
    if (k == 0 || queries == 0) return;
    const Work work = whole(partitions);
    const Searcher searcher(shape, kernel, partitions, threads);
    const size_t tile = std::clamp<size_t>(HIT_BYTES / (sizeof(Hit) * 3 * k * threads), 1, QUERY_TILE);
    for (size_t first = 0; first < queries; first += tile) {
        const size_t count = std::min(tile, queries - first);
        std::vector<std::unique_ptr<Query>> made(count);
        for_each(count, threads, SHARE, [&](size_t q) {
            made[q] = std::make_unique<Query>(shape, kernel, values + (first + q) * shape.n());
        });
        std::vector<Query *> asked;
        for (const auto &query : made) asked.push_back(query.get());
        auto best = searcher.top(asked, work, k);
        for_each(count, threads, SHARE, [&](size_t q) {
            std::sort(best[q].begin(), best[q].end(), better);
            for (size_t i = 0; i < k; ++i) {
                keys[(first + q) * k + i] = best[q][i].key;
                positions[(first + q) * k + i] = best[q][i].position;
            }
        });
    }
}

void rescore(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions, const int16_t *values,
             size_t queries, const int64_t *among, size_t count, size_t k, int threads, int64_t *keys,
             int64_t *positions) {
    if (k == 0) return;
    for_each(queries, threads, 1, [&](size_t q) {
        const Query query(shape, kernel, values + q * shape.n());
        std::vector<int64_t> sorted(among + q * count, among + (q + 1) * count);
        std::sort(sorted.begin(), sorted.end());  // memory in order
        std::vector<Hit> hits;
        hits.reserve(count);
        auto partition = partitions.begin();
        for (const int64_t position : sorted) {
            while (position >= partition->first + static_cast<int64_t>(partition->count)) ++partition;
            const size_t at = static_cast<size_t>(position - partition->first);
            int64_t deficit;
            int32_t cls;
            kernel.exact(shape, query.bits(), group_of(shape, *partition, at / GROUP), uint64_t{1} << at % GROUP,
                         &deficit, &cls);
            hits.push_back({query.key(deficit, cls), position});
        }
        std::partial_sort(hits.begin(), hits.begin() + k, hits.end(), better);
        for (size_t i = 0; i < k; ++i) {
            keys[q * k + i] = hits[i].key;
            positions[q * k + i] = hits[i].position;
        }
    });
}

}  // namespace rbegir::scan

#include "scan_search.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <memory>

#include "parallel.hpp"
#include "scan_worker.hpp"

namespace rbegir::scan {
namespace {

constexpr size_t SAMPLE = 64;        // one group of so many is sampled for the first threshold
constexpr size_t FILTERED_SAMPLE = 16, FILTERED_RUN = 8;  // with filters more, and a cache line of each mask at a time
constexpr size_t SMALL = 4096;       // so few keywords are scanned without a threshold
constexpr double FEW_LANES = 1.25;   // Kernel::few for one word and one plane, at most
constexpr size_t QUERY_TILE = 256;   // queries whose tables stay in L2
constexpr size_t HIT_BYTES = size_t{256} << 20;  // kept hits of a tile of queries, about
constexpr size_t THREAD_WORK = 4096;  // groups · queries that are worth a thread
constexpr size_t SHARE = 16;          // queries to prepare or to sort that are worth a thread
constexpr size_t BLOCK_TASK = 256;    // groups that a thread takes at a time to expand them
constexpr size_t TASKS_A_THREAD = 8;  // of groups read in place: long ones are faster, many are fairer
constexpr size_t TASK_BYTES = size_t{4} << 20;  // the longest

// Calls body(i) for i < count, on one thread for every `share` of them at most.
template <class Body>
void for_each(size_t count, int threads, size_t share, const Body &body) {
    std::atomic<size_t> next{0};
    in_parallel(std::clamp<size_t>(count / share, 1, threads), [&](size_t) {
        for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
    });
}

// Searches for a tile of queries.
class Searcher {
  public:
    Searcher(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions, int threads)
        : shape_(shape), kernel_(kernel), partitions_(partitions), threads_(threads) {}

    // The best k of `work` for each query, or as many as it may have, in no order.
    //
    // The k-th best of the whole has about rank k·f in a sample of a fraction f. The key at a somewhat lower rank of
    // the sample (found by the same search) is the first threshold of the scan. It is a guess: with fewer than k
    // hits it was too high, and the scan is repeated with a lower one, at last with the floor of the query.
    std::vector<std::vector<Hit>> top(const std::vector<Query *> &queries, const Work &work, size_t k) const {
        std::vector<std::vector<Hit>> best(queries.size());
        std::vector<size_t> open(queries.size());
        for (size_t q = 0; q < queries.size(); ++q) open[q] = q;
        Work some;
        const bool filtered = !partitions_[0].filters.empty();
        if (work.candidates > SMALL)
            some = work.sample(partitions_, filtered ? FILTERED_SAMPLE : SAMPLE, filtered ? FILTERED_RUN : 1);
        for (const size_t generosity : {1, 8, 0}) {
            if (open.empty()) break;
            const double fraction = static_cast<double>(some.candidates) / static_cast<double>(work.candidates);
            const double expected = static_cast<double>(k * generosity) * fraction;
            const size_t rank = static_cast<size_t>(std::ceil(expected + 3 * std::sqrt(expected) + 3));
            if (generosity && rank >= some.candidates / 2) continue;  // the sample is too small to tell
            std::vector<Query *> asked;
            for (const size_t q : open) asked.push_back(queries[q]);
            std::vector<int64_t> thresholds;
            for (const Query *query : asked) thresholds.push_back(query->limit().floor);
            if (generosity) {
                const auto sampled = top(asked, some, rank);
                for (size_t i = 0; i < open.size(); ++i)
                    if (sampled[i].size() == rank)
                        thresholds[i] = std::max_element(sampled[i].begin(), sampled[i].end(), better)->key;
            }
            auto found = scan(asked, thresholds, work, k);
            std::vector<size_t> still_open;
            for (size_t i = 0; i < open.size(); ++i)
                if (found[i].size() < k && thresholds[i] > asked[i]->limit().floor) still_open.push_back(open[i]);
                else best[open[i]] = std::move(found[i]);
            open = std::move(still_open);
        }
        for_each(queries.size(), threads_, SHARE, [&](size_t q) {
            if (best[q].size() <= k) return;
            std::nth_element(best[q].begin(), best[q].begin() + (k - 1), best[q].end(), better);
            best[q].resize(k);
        });
        return best;
    }

  private:
    // One pass for each kind of query. Finds at least the best k of those that reach the threshold.
    std::vector<std::vector<Hit>> scan(const std::vector<Query *> &queries, const std::vector<int64_t> &thresholds,
                                       const Work &work, size_t k) const {
        std::vector<size_t> filtered;  // the others need no tables
        for (size_t q = 0; q < queries.size(); ++q)
            if (queries[q]->kind() != EACH) filtered.push_back(q);
        for_each(filtered.size(), threads_, SHARE,
                 [&](size_t i) { queries[filtered[i]]->prepare(thresholds[filtered[i]]); });
        choose_dot(queries, static_cast<double>(k) / static_cast<double>(work.candidates));
        std::vector<std::vector<Hit>> found(queries.size());
        for (const Kind kind : {BYTE, WIDE, COARSE, DOT, EACH}) {
            std::vector<size_t> members;
            for (size_t q = 0; q < queries.size(); ++q)
                if (queries[q]->kind() == kind) members.push_back(q);
            if (members.empty()) continue;
            std::vector<const Query *> same;
            for (const size_t q : members) same.push_back(queries[q]);
            ScanState state{shape_, kernel_, partitions_, same, k, std::vector<std::atomic<int64_t>>(same.size())};
            for (size_t i = 0; i < members.size(); ++i) state.thresholds[i] = thresholds[members[i]];
            auto workers = run(state, work);
            for (size_t i = 0; i < members.size(); ++i)
                for (auto &worker : workers) {
                    auto &all = found[members[i]], &part = worker->hits(i);
                    if (all.empty()) all = std::move(part);
                    else all.insert(all.end(), part.begin(), part.end());
                }
        }
        return found;
    }

    // Changes queries to DOT if that is faster to find a share of the keywords, as measured. With one plane tables are
    // faster. So is BYTE where it need not round; else the fewer planes, the more must be looked for, as keywords that
    // pass only for the rounding are scored too. A few queries do not pay for unpacking.
    void choose_dot(const std::vector<Query *> &queries, double share) const {
        if (!kernel_.filter_dot || shape_.planes == 1) return;
        const double enough = shape_.planes == 2 ? 5e-4 : shape_.planes == 3 ? 1e-4 : 0;
        std::vector<Query *> faster;
        for (Query *query : queries)
            if (query->kind() != EACH && (query->kind() != BYTE || (query->rounded() && share >= enough)))
                faster.push_back(query);
        if (faster.size() < (shape_.words == 1 ? 16u : 32u / shape_.planes)) return;
        for (Query *query : faster) query->multiply();
    }

    std::vector<std::unique_ptr<Worker>> run(ScanState &state, const Work &work) const {
        const size_t enough = work.groups * state.queries.size() / THREAD_WORK;
        std::vector<std::unique_ptr<Worker>> workers(std::clamp<size_t>(enough, 1, threads_));
        std::atomic<size_t> next{0};
        in_parallel(workers.size(), [&](size_t id) {
            workers[id] = std::make_unique<Worker>(state);
            const Span *spans = work.spans.data();
            for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) + 1 < work.tasks.size();)
                workers[id]->scan(spans + work.tasks[i], spans + work.tasks[i + 1]);
            workers[id]->flush();
        });
        return workers;
    }

    const Shape shape_;
    const Kernel &kernel_;
    const std::vector<Partition> &partitions_;
    const int threads_;
};

}  // namespace

Found::Found(std::vector<std::vector<Hit>> &&hits) {
    for (const auto &row : hits) k = std::max(k, row.size());
    keys.assign(hits.size() * k, NO_KEY);
    positions.assign(hits.size() * k, -1);
    for (size_t q = 0; q < hits.size(); ++q) {
        const std::vector<Hit> row = std::move(hits[q]);
        for (size_t i = 0; i < row.size(); ++i) {
            keys[q * k + i] = row[i].key;
            positions[q * k + i] = row[i].position;
        }
    }
}

Found search(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions,
             const int16_t *values, std::vector<Limit> limits, size_t k, int threads) {
    const size_t queries = limits.size();
    size_t groups = 0;
    for (const Partition &partition : partitions) groups += partition.groups();
    const size_t longest = std::max<size_t>(TASK_BYTES / (shape.planes * shape.plane_bytes()), BLOCK_TASK / 4);
    const size_t fair = std::clamp<size_t>(groups / (TASKS_A_THREAD * threads), BLOCK_TASK / 4, longest);
    const Work work = Work::whole(kernel, partitions, queries <= RAW_QUERIES ? fair : BLOCK_TASK);
    std::vector<std::vector<Hit>> best(queries);
    k = std::min(k, work.candidates);
    if (k == 0) return Found(std::move(best));

    std::vector<size_t> passing(partitions[0].filters.size());  // keywords, masked ones included
    for_each(passing.size(), threads, SHARE, [&](size_t filter) {
        for (const Partition &partition : partitions) {
            const uint64_t *mask = partition.filters[filter];
            passing[filter] += mask ? kernel.count(mask, partition.groups()) : partition.count;
        }
    });
    // Codes of one word and one plane are filtered so fast that scoring each pays only for fewer.
    const double lanes = shape.planes * shape.words == 1 ? std::min(kernel.few, FEW_LANES) : kernel.few;
    const double few = lanes * static_cast<double>(groups);
    for (Limit &limit : limits)
        limit.few = limit.filter >= 0 && static_cast<double>(passing[limit.filter]) <= few;

    const Searcher searcher(shape, kernel, partitions, threads);
    const size_t tile = std::clamp<size_t>(HIT_BYTES / (sizeof(Hit) * 3 * k * threads), 1, QUERY_TILE);
    for (size_t first = 0; first < queries; first += tile) {
        const size_t count = std::min(tile, queries - first);
        std::vector<std::unique_ptr<Query>> made(count);
        for_each(count, threads, SHARE, [&](size_t i) {
            const size_t q = first + i;
            made[i] = std::make_unique<Query>(shape, kernel, values + q * shape.n(), limits[q]);
        });
        std::vector<Query *> asked;
        for (const auto &query : made) asked.push_back(query.get());
        auto found = searcher.top(asked, work, k);
        for_each(count, threads, SHARE, [&](size_t i) {
            std::sort(found[i].begin(), found[i].end(), better);
            found[i].shrink_to_fit();
            best[first + i] = std::move(found[i]);
        });
    }
    return Found(std::move(best));
}

Found rescore(const Shape &shape, const Kernel &kernel, const std::vector<Partition> &partitions,
              const int16_t *values, size_t queries, const int64_t *among, size_t count, size_t k, int threads) {
    std::vector<std::vector<Hit>> best(queries);
    for_each(k ? queries : 0, threads, 1, [&](size_t q) {
        const Query query(shape, kernel, values + q * shape.n(), NO_LIMIT);
        std::vector<int64_t> sorted(among + q * count, among + (q + 1) * count);
        std::sort(sorted.begin(), sorted.end());  // memory in order
        std::vector<Hit> &hits = best[q];
        hits.reserve(count);
        auto partition = partitions.begin();
        for (const int64_t position : sorted) {
            while (position >= partition->first + static_cast<int64_t>(partition->count)) ++partition;
            const size_t at = static_cast<size_t>(position - partition->first);
            int64_t deficit;
            int32_t cls;
            kernel.exact(shape, query.bits(), partition->group(shape, at / GROUP), uint64_t{1} << at % GROUP,
                         &deficit, &cls);
            hits.push_back({query.key(deficit, cls), position});
        }
        std::partial_sort(hits.begin(), hits.begin() + k, hits.end(), better);
        hits.resize(k);
        hits.shrink_to_fit();
    });
    return Found(std::move(best));
}

}  // namespace rbegir::scan

// The words of many texts, so that the texts of the highest lexical score (spelling.hpp) are found without reading all.
//
// Every word of the texts is a number with its gram set, the texts that hold it, and nothing else. A query word is
// compared with the words that share a gram with it; those alike to it vote for their texts, the most alike first.
#include <nanobind/stl/optional.h>

#include <optional>

#include "parallel.hpp"
#include "spelling.hpp"

namespace spelling {

namespace {

using rbegir::Array;

// Lists of numbers end to end: list i is items[ends[i − 1] … ends[i]).
struct Lists {
    std::vector<uint64_t> ends;
    std::vector<uint32_t> items;

    // Turn (list, item) pairs around; items arrive in ascending order and stay so.
    template <class ForEach>
    Lists(size_t lists, const ForEach &for_each) : ends(lists + 1) {
        for_each([&](uint32_t list, uint32_t) { ++ends[list + 1]; });
        for (size_t i = 1; i <= lists; ++i) ends[i] += ends[i - 1];
        items.resize(ends[lists]);
        std::vector<uint64_t> next(ends.begin(), ends.end() - 1);
        for_each([&](uint32_t list, uint32_t item) { items[next[list]++] = item; });
    }
    const uint32_t *begin(size_t list) const { return items.data() + ends[list]; }
    const uint32_t *end(size_t list) const { return items.data() + ends[list + 1]; }
};

}  // namespace

class LexicalIndex {
public:
    LexicalIndex(const Texts &texts, const Weights &weights) : weights_(weights), factors_(texts.size()) {
        nb::gil_scoped_release released;
        if (texts.size() >= UINT32_MAX) throw nb::value_error("too many texts for one lexical index");
        words::WordMap vocabulary;
        std::vector<uint32_t> held;  // words of all texts, text by text
        std::vector<uint64_t> ends(texts.size());
        std::vector<int32_t> sets;  // gram sets of all words
        std::vector<uint64_t> set_ends;
        std::string folded, bounded;
        for (size_t i = 0; i < texts.size(); ++i) {
            size_t first = held.size(), count = 0;
            texts.split(i, folded, [&](std::string_view word) {
                auto [id, fresh] = vocabulary.insert(word);
                ++count;
                if (std::find(held.begin() + ptrdiff_t(first), held.end(), id) == held.end()) held.push_back(id);
                if (!fresh) return;
                size_t start = sets.size();
                words::grams(word, weights.buckets(), bounded, sets);
                make_set(sets, start);
                set_ends.push_back(sets.size());
            });
            ends[i] = held.size();
            factors_[i] = weights.length_factor(count);
        }
        texts_.emplace(vocabulary.size(), [&](auto add) {
            for (size_t i = 0, at = 0; i < ends.size(); ++i)
                for (; at < ends[i]; ++at) add(held[at], uint32_t(i));
        });
        set_sizes_.resize(vocabulary.size());
        for (size_t word = 0; word < set_sizes_.size(); ++word)
            set_sizes_[word] = uint32_t(set_ends[word] - (word ? set_ends[word - 1] : 0));
        words_.emplace(weights.gram_table.shape(0), [&](auto add) {
            for (size_t word = 0, at = 0; word < set_ends.size(); ++word)
                for (; at < set_ends[word]; ++at) add(uint32_t(sets[at]), uint32_t(word));
        });
    }

    size_t size() const { return factors_.size(); }

    // The best texts of each query: rows [queries, limit] in the order (score descending, row ascending), −1 where no
    // further text shares a word with the query.
    void search(const Texts &queries, std::optional<Array<const uint64_t, 1>> mask, Array<int64_t, 2> rows,
                Array<float, 2> scores, size_t threads) const {
        size_t limit = rows.shape(1), groups = (size() + 63) / 64;
        if (rows.shape(0) != queries.size() || scores.shape(0) != queries.size() || scores.shape(1) != limit ||
            (mask && mask->shape(0) < groups))
            throw nb::value_error("rows and scores must be [queries, limit], and the mask hold all texts");
        const uint64_t *allowed = mask ? mask->data() : nullptr;
        nb::gil_scoped_release released;
        std::atomic<size_t> next = 0;
        rbegir::in_parallel(std::min(std::max<size_t>(threads, 1), std::max<size_t>(queries.size(), 1)), [&](size_t) {
            Work work(*this);
            for (size_t i; (i = next++) < queries.size();) {
                work.query.parse(queries, i, weights_, QUERY_WORDS);
                best(work, allowed, limit, rows.data() + i * limit, scores.data() + i * limit);
            }
        });
    }

private:
    static constexpr uint32_t BLOCK = 1 << 16;  // texts voted for at a time: their votes stay in a core's cache

    struct Vote {
        float sum = 0;
        uint32_t word = 0;  // the last word of the query that voted, counted from 1
    };
    // A word alike to a word of the query, with its texts that are still to come.
    struct Voter {
        const uint32_t *next, *end;
        float weight;
        uint32_t word;  // of the query, counted from 1
    };
    struct Work {
        Text query;
        std::vector<Vote> votes;            // by text of a block; all zero between blocks
        std::vector<uint32_t> touched;      // texts of a block with a vote
        std::vector<Voter> voters;
        std::vector<uint16_t> common;       // grams shared with the query word, by word; all zero between words
        std::vector<uint32_t> near;         // words that share any
        std::vector<std::pair<float, uint32_t>> alike;
        std::vector<std::pair<float, uint32_t>> order;
        explicit Work(const LexicalIndex &index)
            : votes(std::min<size_t>(index.size(), BLOCK)), common(index.set_sizes_.size()) {}
    };

    void best(Work &work, const uint64_t *allowed, size_t limit, int64_t *rows, float *scores) const {
        work.voters.clear();
        for (size_t i = 0; i < work.query.words.size(); ++i)
            if (work.query.is_first(i)) add_voters(work, i);
        auto &order = work.order;
        order.clear();
        for (size_t first = 0; first < size(); first += BLOCK) vote(work, allowed, uint32_t(first));
        auto before = [](const auto &a, const auto &b) { return a.first > b.first || (a.first == b.first && a.second < b.second); };
        size_t count = std::min(limit, order.size());
        if (count < order.size()) std::nth_element(order.begin(), order.begin() + ptrdiff_t(count), order.end(), before);
        std::sort(order.begin(), order.begin() + ptrdiff_t(count), before);
        for (size_t j = 0; j < limit; ++j) {
            rows[j] = j < count ? int64_t(order[j].second) : -1;
            scores[j] = j < count ? order[j].first : 0.0f;
        }
    }

    // The words alike to word i of the query, the most alike first.
    void add_voters(Work &work, size_t i) const {
        const Word &word = work.query.words[i];
        work.near.clear();
        for (uint32_t at = word.first; at < word.last; ++at) {
            size_t gram = size_t(work.query.sets[at]);
            for (const uint32_t *p = words_->begin(gram); p < words_->end(gram); ++p)
                if (work.common[*p]++ == 0) work.near.push_back(*p);
        }
        work.alike.clear();
        for (uint32_t other : work.near) {
            float degree = dice(work.common[other], word.last - word.first, set_sizes_[other]);
            work.common[other] = 0;
            if (degree >= ALIKE) work.alike.emplace_back(degree, other);
        }
        std::sort(work.alike.begin(), work.alike.end(), [](const auto &a, const auto &b) { return a.first > b.first; });
        for (auto [degree, other] : work.alike)
            work.voters.push_back({texts_->begin(other), texts_->end(other), word.idf * degree, uint32_t(i + 1)});
    }

    // Add the scores of a block's texts to work.order. Every word of the query votes once for a text.
    void vote(Work &work, const uint64_t *allowed, uint32_t first) const {
        const size_t last = size_t(first) + BLOCK;
        work.touched.clear();
        for (Voter &voter : work.voters)
            for (; voter.next < voter.end && *voter.next < last; ++voter.next) {
                const uint32_t text = *voter.next;
                if (allowed && !(allowed[text >> 6] >> (text & 63) & 1)) continue;
                Vote &votes = work.votes[text - first];
                if (votes.word == voter.word) continue;
                if (!votes.word) work.touched.push_back(text);
                votes.word = voter.word;
                votes.sum += voter.weight;
            }
        for (uint32_t text : work.touched) {
            work.order.emplace_back(work.votes[text - first].sum * factors_[text], text);
            work.votes[text - first] = Vote();
        }
    }

    Weights weights_;
    std::vector<float> factors_;        // of the length, by text
    std::vector<uint32_t> set_sizes_;   // grams of each word
    std::optional<Lists> texts_, words_;  // that hold a word, by word; that hold a gram, by gram
};

}  // namespace spelling

void bind_lexical(nb::module_ &m) {
    using spelling::LexicalIndex;
    nb::class_<LexicalIndex>(m, "LexicalIndex", "The words of many texts, for finding those of the highest lexical score.")
        .def(nb::init<const Texts &, const spelling::Weights &>(), nb::arg("texts"), nb::arg("weights"))
        .def("__len__", &LexicalIndex::size)
        .def("search", &LexicalIndex::search, nb::arg("queries"), nb::arg("mask").none(), nb::arg("rows").noconvert(),
             nb::arg("scores").noconvert(), nb::arg("threads"));
}
